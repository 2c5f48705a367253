"""Collectives through shared memory give what gloo's give, bit for bit, and wait as long."""

from tests.multiprocess.direct_workers import TIMEOUT_S
from tests.multiprocess.started import results


def test_results_are_gloos() -> None:
    found = results("direct_workers:differences", 3, hang_timeout_s=60)
    assert found["differences"] == []
    assert found["compared"] > 60


def test_a_group_waits_no_longer_than_it_is_told_to() -> None:
    found = results("direct_workers:differences", 3, hang_timeout_s=60)["time_outs_s"]
    assert all(TIMEOUT_S <= waited_s < TIMEOUT_S + 10 for waited_s in found.values()), found
