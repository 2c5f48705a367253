"""The graphs that a rank compiles, counted by hand; tests/neuron counts those that are compiled."""

from dataclasses import replace

import pytest

from autoshard.graph.count import Collective
from autoshard.layout.buckets import Run, runs_of_shard
from autoshard.plans.stage_sections import communicators, rank_graphs
from autoshard.spec.training import load_precision
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import case, plan_of, strategy


@pytest.mark.parametrize(
    ("name", "rank", "expected"),
    [
        # each of four blocks is one run, equal to the others; behind them norm, head and loss
        ("dp", 0, (5, 2, 4)),
        # without the head, and with it
        ("pp", 0, (2, 1, 4)),
        ("pp", 1, (3, 2, 4)),
        # collectives cut a block into norm, attention, norm, MLP; the residual sums belong to the norms behind them
        ("tp", 0, (17, 4, 4)),
        # matrices of each block, the embedding and the head have buckets of their own beside that of the norms: a norm
        # and an update for the four blocks' size, the two tables' and the norms'
        ("dp, ZeRO-3", 0, (10, 3, 6)),
        # what Muon updates is a bucket of its own, whose norm alone is compiled
        ("muon, dp, no ZeRO-1", 0, (5, 2, 5)),
    ],
)
def test_runs_between_collectives(name: str, rank: int, expected: tuple[int, int, int]) -> None:
    found = rank_graphs(case(2, name), rank)
    assert (found.segments, found.distinct, found.functions) == expected
    assert found.graphs == 2 * expected[1] + expected[2]


@pytest.mark.parametrize(
    ("name", "rank", "operators"),
    [
        # norm, q, k, v, two rotations, attention, o, sum, norm, gate, up, their product, down, sum; norm, head, loss
        ("dp", 0, 15 + 3),
        ("pp", 0, 15),
        ("pp", 1, 15 + 3),
    ],
)
def test_operators_and_communicators(name: str, rank: int, operators: int) -> None:
    found = rank_graphs(case(2, name), rank)
    assert (found.operators, found.communicators) == (operators, 1)


def test_what_two_stages_share_has_a_communicator_of_its_own() -> None:
    plan = plan_of(MODELS["llama"], strategy(pp=4, layers=(1,) * 4), 4)
    tied = Collective("sync", "all_reduce", ("pp",), 64)
    assert communicators(plan, 3, [tied], sends=True) == {(0, 1, 2, 3), (0, 3)}
    assert communicators(plan, 3, [], sends=False) == frozenset()


def test_graphs_do_not_grow_with_the_number_of_blocks() -> None:
    deep = replace(MODELS["llama"], num_hidden_layers=8)
    found = rank_graphs(plan_of(deep, strategy(dp=2, layers=(8,)), 2), 0)
    assert (found.segments, found.distinct) == (9, 2)


def test_weights_that_are_rounded_at_random_have_a_graph_for_each_kind_of_parameter() -> None:
    plan = case(2, "dp, no ZeRO-1")
    rounded = replace(plan, training=replace(plan.training, precision=load_precision("bf16_sr")))
    # [96, 64]: embedding, head, gate and up; q; k and v; o; down; norms; beside the norms of two buckets' gradients
    assert rank_graphs(rounded, 0).functions == 2 + 6


def test_runs_of_a_shard() -> None:
    sizes = {"a": 5, "b": 3, "c": 4}
    first, second = (list(runs_of_shard(sizes, begin, 7)) for begin in (0, 7))
    assert first == [Run("a", 0, 0, 5), Run("b", 5, 0, 2)]
    assert second == [Run("b", 0, 2, 1), Run("c", 1, 0, 4)]  # the last two elements are padding
