"""A watched step is split as its plan splits it, and holds nothing of what it takes to watch."""

from typing import Any

import pytest

from tests.multiprocess.profile_workers import LATE_S, LAYOUTS
from tests.multiprocess.started import results


@pytest.fixture(scope="module")
def profiles() -> dict[str, Any]:
    return results("profile_workers:profiles", 2, 120.0)


@pytest.mark.parametrize("name", LAYOUTS)
def test_sums_of_gradients_and_gathered_weights_are_no_collectives_of_layers(
    profiles: dict[str, Any], name: str
) -> None:
    for rank in profiles[name]["ranks"]:
        assert rank["collectives_s"] == 0
        assert rank["gradient_sync_s"] > 0
        assert rank["parameter_gather_s"] > 0
        assert 0 < rank["actions_s"] < rank["step_s"]
        parts = ("actions_s", "waiting_s", "gradient_sync_s", "parameter_gather_s", "update_s")
        assert sum(rank[part] for part in parts) == pytest.approx(rank["step_s"], rel=0.1)


def test_a_table_of_two_stages_is_summed_with_the_gradients(profiles: dict[str, Any]) -> None:
    spans = profiles["tied"]["spans"]
    sums = [(start_s, stop_s) for _, name, start_s, stop_s in spans if name == "gradient sync"]
    within = [
        sum(start_s <= spent[2] and spent[3] <= stop_s for start_s, stop_s in sums)
        for spent in spans
        if spent[:2] == ["collective", "all_reduce"]
    ]
    assert within == [1, 1]  # one a step


def test_no_watched_step_waits_for_a_rank_that_prepares_to_watch(profiles: dict[str, Any]) -> None:
    assert profiles["imported"] == [0, 0]
    assert max(rank["step_s"] for rank in profiles["tied"]["ranks"]) < LATE_S / 4
