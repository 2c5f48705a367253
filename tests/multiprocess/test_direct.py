"""Collectives through shared memory give what gloo's give, bit for bit."""

from tests.multiprocess.started import results


def test_results_are_gloos() -> None:
    found = results("direct_workers:differences", 3, hang_timeout_s=60)
    assert found["differences"] == []
    assert found["compared"] > 60
