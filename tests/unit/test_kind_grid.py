"""Models whose blocks are of several kinds, priced by the thousand: the estimate says the same of each layout."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, combinations, combinations_with_replacement
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.backends.rules import check_strategy
from autoshard.cost.estimate import estimate
from autoshard.errors import AutoshardError
from autoshard.layout.strategy import Strategy
from autoshard.models.registry import load_model
from autoshard.planner.grid.kind_choices import KindChoices, kinds_at_least_s
from autoshard.planner.grid.kind_cuts import balanced_cut
from autoshard.planner.planning import plan_for
from autoshard.planner.request import PlanRequest
from autoshard.spec.model import ModelSpec
from tests.cases import some
from tests.unit.kind_models import (
    SETS,
    WINDOWS,
    FindLayout,
    one_layout,
    random_layout,
    random_wide_layout,
    table_of,
)

EVERY_SCHEDULE = ("1f1b", "gpipe", "zero_bubble", "interleaved")


@pytest.mark.parametrize("find", [random_layout, random_wide_layout])
@pytest.mark.parametrize("seed", some(range(40), 16))
def test_layouts_are_priced_as_estimated(seed: int, find: FindLayout) -> None:
    problem, draft = find(seed, EVERY_SCHEDULE)
    (priced,) = table_of(problem, draft).price()
    exact_s = priced.exact_s(range(len(priced.draft)))
    for row in range(len(priced.draft)):
        cost = estimate(*problem[:3], priced.strategy(row))
        assert cost.step_time_s == pytest.approx(exact_s[row], rel=1e-12)
        assert cost.fullest.total_bytes == pytest.approx(priced.memory_bytes[row], rel=1e-12)
        assert priced.step_time_s[row] <= cost.step_time_s * (1 + 1e-12)


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_whatever_the_order_of_kinds_layouts_are_priced_as_estimated(data: st.DataObject) -> None:
    """On any number of ranks, one included, with any cut."""
    types = data.draw(st.lists(st.sampled_from(["dense", "sparse"]), min_size=4, max_size=9), "types")
    attention = data.draw(st.lists(st.sampled_from(WINDOWS), min_size=len(types), max_size=len(types)), "attention")
    pp, zero, m = (data.draw(st.sampled_from(some)) for some in ((1, 2, 3), (0, 1, 2, 3), (1, 2, 8)))
    schedule = data.draw(st.sampled_from(["1f1b", "gpipe", "zero_bubble"] if pp > 1 and zero < 2 else ["1f1b"]))
    cuts = data.draw(st.lists(st.integers(1, len(types) - 1), min_size=pp - 1, max_size=pp - 1, unique=True), "cuts")
    sets = data.draw(st.lists(st.sampled_from(range(len(SETS))), min_size=pp, max_size=pp), "sets")
    model = replace(
        load_model("qwen3-30b-a3b"),
        num_hidden_layers=len(types),
        hidden_size=512,
        vocab_size=4096,
        mlp_layer_types=tuple(types),
        dense_intermediate_size=data.draw(st.sampled_from([512, 8192])) if "dense" in types else 0,
        layer_types=tuple(attention),
        sliding_window=64 if "sliding_attention" in attention else None,
    )
    if len(model.kinds) == 1:
        return
    problem, draft = one_layout(model, pp=pp, m=m, zero=zero, schedule=schedule, ep=data.draw(st.sampled_from([1, 2])))
    (whole,) = table_of(problem, draft).wholes()
    layers = np.diff([0, *sorted(cuts), len(types)])
    row = np.array([[*layers, *sets]])
    layouts = KindChoices(whole, 0, range(len(SETS)), np.inf)
    cost = estimate(*problem[:3], layouts.strategy(row[0]))
    for more in (-1e-9, 1e-9):
        of_limit = KindChoices(whole, 0, range(len(SETS)), cost.fullest.total_bytes * (1 + more))
        assert np.isfinite(of_limit.bounds_s(row)[0]) == (more > 0)


@pytest.mark.parametrize(
    ("find", "schedules"), [(random_layout, EVERY_SCHEDULE), (random_wide_layout, EVERY_SCHEDULE[:-1])]
)
@pytest.mark.parametrize("seed", some(range(40), 12))
def test_stages_may_differ_in_blocks_and_sets(seed: int, find: FindLayout, schedules: tuple[str, ...]) -> None:
    """Any cut with any set in each virtual stage; none takes less than the bound."""
    problem, draft = find(seed, schedules)
    (priced,) = table_of(problem, draft).price()
    choose, stages = random.Random(seed), draft.pp * draft.num_virtual_stages
    rows = []
    for _ in range(5):
        cuts = sorted(choose.sample(range(1, problem.model.num_hidden_layers), stages - 1))
        layers = np.diff([0, *cuts, problem.model.num_hidden_layers])
        rows.append([*layers, *choose.choices(range(len(SETS)), k=stages)])
    choices = KindChoices(priced.whole, 0, range(len(SETS)), np.inf)
    bounds_s, exact_s = choices.bounds_s(np.array(rows)), choices.simulated_s(np.array(rows))
    least_s = kinds_at_least_s(priced.whole, np.array([0]))[0]
    for row, bound_s, seconds in zip(rows, bounds_s, exact_s, strict=True):
        layout = choices.strategy(np.array(row))
        assert layout.stage_layers == tuple(row[:stages])
        cost = estimate(*problem[:3], layout)
        assert cost.step_time_s == pytest.approx(seconds, rel=1e-12)
        assert least_s <= bound_s * (1 + 1e-9) <= seconds * (1 + 2e-9)
        for most in (cost.fullest.total_bytes * (1 - 1e-9), cost.fullest.total_bytes * (1 + 1e-9)):
            of_limit = KindChoices(priced.whole, 0, range(len(SETS)), most)
            assert np.isfinite(of_limit.bounds_s(np.array([row]))[0]) == (most >= cost.fullest.total_bytes)
            told_s, below_s = of_limit.bounds_s(np.array(rows)), np.median(bounds_s)
            found_s = of_limit.bounds_s(np.array(rows), below_s)
            assert (found_s <= told_s).all() and (found_s[found_s < below_s] == told_s[found_s < below_s]).all()


@pytest.mark.parametrize("seed", range(40))
def test_chunks_that_must_be_alike_are_bounded_by_their_one_cut(seed: int) -> None:
    problem, draft = random_layout(seed, ("interleaved",))
    stages, choose = draft.pp * draft.num_virtual_stages, random.Random(seed)
    if problem.model.num_hidden_layers % stages:
        return
    problem = problem._replace(backend="nxd")
    (priced,) = table_of(problem, draft).price()
    layers = (problem.model.num_hidden_layers // stages,) * stages
    for _ in range(5):
        sets = tuple(choose.choices(SETS, k=stages))
        cost = estimate(*problem[:3], Strategy(**{**draft._asdict(), "recompute": sets, "stage_layers": layers}))
        least_s = kinds_at_least_s(priced.whole, np.array([0]), cost.fullest.total_bytes)[0]
        assert least_s <= cost.step_time_s * (1 + 1e-9)
    assert kinds_at_least_s(priced.whole, np.array([0]), 0.5 * priced.memory_bytes.min())[0] == np.inf


def of_types(*types: str) -> ModelSpec:
    """A model with blocks of these kinds: dense or sparse."""
    model = load_model("qwen3-30b-a3b")
    return replace(model, num_hidden_layers=len(types), mlp_layer_types=types, dense_intermediate_size=512)


def rank_works(model: ModelSpec, pp: int, work: Sequence[int], cut: Sequence[int]) -> list[int]:
    """Work of each rank under a cut. work: of a block of each kind, of the first end, of the last."""
    blocks = [dict(zip(model.kinds, work[:2], strict=True))[kind] for kind in model.blocks.kind_of]
    of_stages = [sum(blocks[end - count : end]) for count, end in zip(cut, accumulate(cut), strict=True)]
    of_stages[0] += work[2]
    of_stages[-1] += work[3]
    return [sum(of_stages[rank::pp]) for rank in range(pp)]


def test_a_balanced_cut_gives_the_slowest_rank_least() -> None:
    """4 dense blocks of 1, then 4 mixtures of 3."""
    blocks = of_types(*["dense"] * 4, *["sparse"] * 4).blocks
    # a head of 2: 1, 6, 6, 5: the last ones are filled first
    assert balanced_cut(blocks, 4, 1, False, (1, 3, 0, 2)) == (1, 4, 2, 1)
    assert balanced_cut(blocks, 2, 1, False, (1, 3, 0, 0)) == (5, 3)  # 7, 9
    assert balanced_cut(blocks, 2, 1, False, (1, 3, 0, 16)) == (7, 1)  # 13, 19: the last stage must have one
    assert balanced_cut(blocks, 2, 1, True, (1, 3, 0, 16)) == (8, 0)  # 16, 16


def test_chunks_of_a_rank_are_balanced_together() -> None:
    """12 blocks of 2, but the first one of 1, on 2 ranks with 3 chunks each."""
    model = of_types("dense", *["sparse"] * 11)

    def of_ends(first: int, last: int) -> tuple[tuple[int, ...], list[int]]:
        work = (1, 2, first, last)
        cut = balanced_cut(model.blocks, 2, 3, True, work)
        return cut, rank_works(model, 2, work, cut)

    assert of_ends(0, 0) == ((2, 2, 2, 2, 2, 2), [11, 12])
    assert of_ends(0, 6) == ((3, 2, 2, 2, 3, 0), [15, 14])  # a head as long as three blocks has a stage for itself
    assert of_ends(4, 8) == ((1, 2, 3, 3, 3, 0), [17, 18])  # what is over is in later chunks, which hold less


@given(
    st.permutations(["dense", "sparse", "sparse", "dense", "sparse", "sparse", "dense", "sparse"]),
    st.sampled_from([(2, 1), (3, 1), (5, 1), (2, 2), (2, 3), (3, 2)]),
    st.tuples(*[st.integers(1, 9)] * 2, *[st.integers(0, 30)] * 2),
    st.booleans(),
)
def test_no_cut_has_a_faster_slowest_stage_than_the_balanced_one(
    types: list[str], ranks: tuple[int, int], work: tuple[int, int, int, int], bare: bool
) -> None:
    """With several chunks a rank only a good cut is promised, with all blocks where they may be."""
    (pp, vpp), model = ranks, of_types(*types)
    stages, at_ends = pp * vpp, 0 if bare else 1
    cut = balanced_cut(model.blocks, pp, vpp, bare, work)
    assert len(cut) == stages and sum(cut) == 8
    assert min(cut[0], cut[-1]) >= at_ends and min(cut[1:-1], default=1) >= 1
    if vpp > 1:
        return
    ends = combinations_with_replacement(range(9), stages - 1) if bare else combinations(range(1, 8), stages - 1)
    every = [np.diff([0, *places, 8]).tolist() for places in ends]
    slowest = [max(rank_works(model, pp, work, one)) for one in every if min(one[1:-1], default=1) >= 1]
    assert max(rank_works(model, pp, work, cut)) == min(slowest)


def write_config(folder: Path, layers: int = 8) -> Path:
    """A small mixture whose first two blocks are dense."""
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "moe_intermediate_size": 256, "vocab_size": 4096}
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": [0, 1], "num_hidden_layers": layers}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": False}
    others = {"model_type": "qwen3_moe", "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1e4}
    path = folder / "two_kinds.json"
    path.write_text(json.dumps({**sizes, **experts, **heads, **others}))
    return path


@pytest.mark.parametrize("backend", ["nxd", "torch"])
def test_a_model_of_two_kinds_is_planned(backend: str, tmp_path: Path) -> None:
    request = PlanRequest(str(write_config(tmp_path)), nodes=1, backend=backend, global_batch=64, seq_len=2048)
    plan = plan_for(request)
    check_strategy(plan.model, plan.training, plan.cluster, backend, plan.strategy)
    cost = estimate(plan.model, plan.training, plan.cluster, plan.strategy)
    assert cost.step_time_s == pytest.approx(plan.estimate.step_time_s, rel=1e-5)  # as plans are written
    others = [one.estimate.step_time_s for one in plan.runners_up]
    assert others and cost.step_time_s <= min(others) * 1.01


def test_the_solver_is_refused_in_words(tmp_path: Path) -> None:
    request = PlanRequest(
        str(write_config(tmp_path)), backend="torch", operators="solver", global_batch=64, seq_len=2048
    )
    with pytest.raises(AutoshardError) as raised:
        plan_for(request)
    assert str(raised.value) == (
        "operators=solver: the integer program shards blocks that are alike; two_kinds has 2 kinds of blocks; "
        "use operators=megatron"
    )
