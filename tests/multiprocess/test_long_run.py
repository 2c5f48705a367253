"""The long benchmark, short: a sharded training has the loss of one process at every step."""

from benchmarks.long_run import long_run
from tests.cases import ALL


def test_many_steps_have_the_loss_of_one_process() -> None:
    found = long_run(50 if ALL else 30, ("one process", "pp=2 dp=2"))
    sharded = found["layouts"]["pp=2 dp=2"]
    assert sharded["worst_loss_difference"] < 1e-6
    assert sharded["worst_held_out_difference"] < 1e-6
    assert sharded["last_loss"] < 0.95 * sharded["first_loss"]
