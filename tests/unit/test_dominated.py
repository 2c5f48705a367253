"""Layouts that another one dominates: by their estimates the other one is nowhere worse, and no plan is lost."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from autoshard.backends.rules import Draft, Problem
from autoshard.cost.estimate import Estimate, estimate
from autoshard.layout.strategy import Strategy, even_stage_layers
from autoshard.models.registry import load_model
from autoshard.planner.dominated import BALANCED, DOMINATED, SHARED, undominated
from autoshard.planner.layouts import MeshDrafts, legal_layouts
from autoshard.planner.ranking import draft_simplicity
from autoshard.planner.rejections import Tally
from autoshard.planner.search import search
from autoshard.planner.sets import recompute_sets
from autoshard.plans.search_result import Pins
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision

CASES = [
    ("llama3-8b", "h100-80gb", 2, 8192, "mixed_precision"),
    ("llama3-8b", "trn1.32xlarge", 1, 8192, "bf16_sr"),
    ("mixtral-8x7b", "a100-80gb", 2, 8192, "mixed_precision"),
    ("gpt-oss-20b", "b200-180gb", 2, 4096, "fp8"),
    ("gemma3-4b", "h200-141gb", 1, 12288, "mixed_precision"),
    ("llama4-scout", "gb200-186gb", 8, 8192, "mixed_precision"),
    ("deepseek-v2-lite", "h100-80gb", 4, 4096, "fp32"),
    ("smollm2-135m", "cpu", 8, 2048, "mixed_precision"),
]


def problem_of(model: str, instance: str, nodes: int, sequence: int, precision: str, backend: str = "torch") -> Problem:
    training = TrainingSpec(sequence, 256, load_precision(precision))
    return Problem(load_model(model), training, load_cluster(instance, nodes), backend)


def priced(problem: Problem, draft: Draft, recompute: str) -> Estimate:
    stages = draft.pp * draft.num_virtual_stages
    cut = even_stage_layers(problem.model.num_hidden_layers, stages)
    strategy = Strategy(**{**draft._asdict(), "stage_layers": cut}, recompute=(recompute,) * stages)
    return estimate(*problem[:3], strategy)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_the_other_layout_is_nowhere_worse(case: tuple[str, str, int, int, str]) -> None:
    problem = problem_of(*case)
    choose, sets = random.Random(case[0]), recompute_sets(problem, Pins())
    legal = legal_layouts(problem, Pins(), Tally())
    _, dominated = undominated(problem, legal)
    assert dominated
    for words, several in dominated.items():
        other = {"context_parallel": "zigzag_ring"} if words == BALANCED else {"zero": 1}
        for way, schedules in ((one.way, one.schedules) for one in choose.sample(several, min(8, len(several)))):
            assert way._replace(**other) in {one.way for one in legal}
            schedule, recompute = choose.choice(schedules), choose.choice(sets)
            own, better = (priced(problem, one.scheduled(*schedule), recompute) for one in (way, way._replace(**other)))
            assert better.step_time_s <= own.step_time_s
            assert better.fullest.total_bytes <= own.fullest.total_bytes


def ways(problem: Problem, pins: Pins = Pins()) -> tuple[list[MeshDrafts], dict[str, list[MeshDrafts]]]:  # noqa: B008
    return undominated(problem, legal_layouts(problem, pins, Tally()))


def test_which_ones_are() -> None:
    kept, dominated = ways(problem_of("llama3-8b", "h100-80gb", 2, 8192, "mixed_precision"))
    assert {one.way.context_parallel for one in kept} == {"zigzag_ring", "ulysses", "all_gather"}
    assert {one.way.zero for one in kept if one.way.dp * one.way.cp > 1 and one.way.tp <= 8} == {1, 2, 3}
    assert dominated.keys() == {BALANCED, SHARED}


def test_of_equals_the_one_that_a_search_prices_is_the_simpler() -> None:
    """A search without bounds prices both rings, which are as fast where windows are short."""
    _, dominated = ways(problem_of("llama3-8b", "h100-80gb", 2, 8192, "mixed_precision"))
    for one in dominated[BALANCED]:
        zigzag = one.way._replace(context_parallel="zigzag_ring")
        assert draft_simplicity(zigzag) < draft_simplicity(one.way)


def test_a_plain_ring_stays_where_no_zigzag_is_legal() -> None:
    kept, _ = ways(problem_of("llama3-8b", "h100-80gb", 1, 4100, "mixed_precision"), Pins(cp=4, tp=1, pp=1))
    assert "ring" in {one.way.context_parallel for one in kept}


def test_a_plain_ring_stays_where_attention_has_several_chunks() -> None:
    """Of 3 ranks with pieces of 2,176 tokens, in chunks of 4,096, one of a zigzag has more to do than any other."""
    problem = problem_of("llama4-scout", "h100-80gb", 8, 16384, "mixed_precision")
    kept, _ = ways(problem, Pins(cp=4))
    assert {"ring", "zigzag_ring"} <= {one.way.context_parallel for one in kept}


def test_zero_0_stays_where_a_rank_has_hardly_anything_to_update() -> None:
    """A block of smollm2-135m updates in less time than the launch of one collective takes."""
    kept, _ = ways(problem_of("smollm2-135m", "trn1.32xlarge", 1, 2048, "mixed_precision"))
    assert 0 in {one.way.zero for one in kept if one.way.dp > 1}


def test_zero_0_stays_where_what_is_gathered_is_wider_than_what_is_reduced() -> None:
    problem = problem_of("llama3-8b", "h100-80gb", 2, 8192, "mixed_precision")
    wide = replace(problem.training.precision, name="own", parameter_dtype="float32", gradient_reduce_dtype="bfloat16")
    kept, _ = ways(problem._replace(training=replace(problem.training, precision=wide)))
    assert 0 in {one.way.zero for one in kept if one.way.dp > 1}


def test_what_is_pinned_is_not_dominated() -> None:
    problem = problem_of("llama3-8b", "h100-80gb", 2, 8192, "mixed_precision")
    kept, dominated = ways(problem, Pins(zero=0))
    assert {one.way.zero for one in kept} == {0}
    assert dominated.keys() == {BALANCED}
    kept, dominated = ways(problem, Pins(context_parallel="ring"))
    assert {one.way.context_parallel for one in kept} == {"ring"}
    assert dominated.keys() == {SHARED}


def test_a_search_counts_them_and_loses_no_plan() -> None:
    problem, pins = problem_of("llama3-8b", "trn1.32xlarge", 1, 4096, "mixed_precision"), Pins(pp=1)
    found, every = (search(*problem[:3], pins, problem.backend, exhaustive=every) for every in (False, True))
    assert found.best == every.best
    drafts = sum(len(one.schedules) for several in ways(problem, pins)[1].values() for one in several)
    counts = {one.reason: one.count for one in found.rejections}
    assert counts[DOMINATED] == drafts * len(recompute_sets(problem, pins))
    assert DOMINATED not in {one.reason for one in every.rejections}
