"""Plans of the planner's own, of random small models: sharded equals unsharded (many more in benchmarks)."""

from tests.multiprocess.planned import planned, run


def test_two_steps_in_fp64_equal_one_process_with_the_planned_collectives() -> None:
    plans = [planned(seed, processes=4) for seed in range(1)]
    for plan, found in zip(plans, run(plans, exact=True), strict=True):
        told = (plan.model.name, plan.strategy)
        assert found["loss"] < 1e-12, told
        assert max(found["norm"], found["gradient"], found["parameter"]) < 1e-9, told
        assert found["collectives"] == [{"executed": "{}", "planned": "{}"}] * 4, told
