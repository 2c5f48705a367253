"""Hybrid sharding (HSDP): ZeRO shards inside groups of replicas, which repeat the shards."""

from dataclasses import replace
from typing import Any

import pytest

from autoshard.errors import AutoshardError
from autoshard.files.codec import to_json
from autoshard.graph.count import Collective, backward_collectives, forward_collectives
from autoshard.layout.strategy import Strategy, read_strategy
from autoshard.plans.step_collectives import step_collectives
from tests.multiprocess.plans import FP32, LLAMA, plan_of, strategy


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dp_replicate": 0}, "dp_replicate=0 must be a whole number of at least 1"),
        ({"dp_replicate": 3}, "dp_replicate=3 must divide dp=8: ZeRO shards inside each of so many groups of replicas"),
        ({"dp_replicate": 8}, "dp_replicate=8 leaves no ranks of dp=8 to shard over; use zero=0 or fewer replicas"),
        ({"dp_replicate": 4, "ep": 4}, "ep=4 must lie inside the 2 ranks that shard, which dp_replicate=4 leaves"),
    ],
)
def test_replicas_that_cannot_hold_all_shards_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(AutoshardError) as error:
        replace(strategy(dp=8, zero=3), **changes)
    assert str(error.value) == message


def test_a_strategy_without_replicas_of_shards_is_written_as_before() -> None:
    assert "dp_replicate" not in to_json(strategy(dp=8))
    hybrid = strategy(dp=8, zero=3, dp_replicate=2)
    assert hybrid.dp_shard == 4
    written = to_json(hybrid)
    assert written["dp_replicate"] == 2
    assert read_strategy(written, "strategy") == hybrid
    assert read_strategy(to_json(strategy(dp=8)), "strategy").dp_replicate == 1


@pytest.mark.parametrize("documents", [False, True])
def test_a_microbatch_moves_nothing_between_replicas_of_the_shards(documents: bool) -> None:
    hybrid = plan_of(LLAMA, strategy(tp=2, pp=2, dp=4, zero=3, dp_replicate=2), 3, FP32)
    for stage in hybrid.stages:
        program = hybrid.program(stage.layers, stage.has_embedding, stage.has_head, documents)
        issued = {axes for step in program.steps for _, axes, _ in forward_collectives(program, step)}
        issued |= {axes for step in program.steps for _, axes, _ in backward_collectives(program, step)}
        assert issued == {("tp",)}


def _over_data(chosen: Strategy) -> dict[Collective, int]:
    """Collectives of a step over axes of the data, by how often they are issued."""
    collectives = step_collectives(plan_of(LLAMA, chosen, 3, FP32), 0)
    return {one: count for one, count in collectives.items() if set(one.axes) & {"dp", "dp_replicate"}}


def test_shards_are_summed_over_their_replicas_once_a_step() -> None:
    """Of 4 blocks by hand: q 64 x 64, k and v 64 x 32, o 64 x 64, three of 64 x 96, two norms of 64; embedding and head
    96 x 64 each, a last norm."""
    block, table, norms = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96, 96 * 64, 9 * 64
    of_hybrid = _over_data(strategy(dp=8, zero=3, dp_replicate=2))
    sums = {one.bytes: count for one, count in of_hybrid.items() if one.axes == ("dp_replicate",)}
    assert sums == {block // 4 * 4: 4, table // 4 * 4: 2, norms // 4 * 4: 1}
    assert {(one.phase, one.kind) for one in of_hybrid if one.axes == ("dp_replicate",)} == {("sync", "all_reduce")}
    inside = {one: count for one, count in of_hybrid.items() if one.axes == ("dp",)}
    assert inside == _over_data(strategy(dp=4, zero=3))  # as if the other group of replicas were not there


@pytest.mark.parametrize("zero", [1, 2])
def test_the_earlier_stages_of_zero_sum_shards_alike(zero: int) -> None:
    hybrid = _over_data(strategy(dp=8, zero=zero, dp_replicate=2))
    summed = sum(one.bytes * count for one, count in hybrid.items() if one.axes == ("dp_replicate",))
    assert summed == 4 * (4 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96) + 2 * 96 * 64 + 9 * 64) // 4
    inside = {one: count for one, count in hybrid.items() if one.axes == ("dp",)}
    assert inside == _over_data(strategy(dp=4, zero=zero))
