"""Bounds of blocks of several kinds on ranks: what fits, and takes a time, is never ruled out for that time."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from math import inf

import numpy as np
import pytest

from autoshard.backends.rules import Problem
from autoshard.models.registry import load_model
from autoshard.planner.grid.kind_choices import kinds_at_least_s
from autoshard.planner.grid.kind_room import may_hold_all, replayed_at_least_s
from autoshard.planner.grid.promises import may_fit
from autoshard.planner.priced import Clock, price_layouts
from autoshard.planner.rejections import Tally
from autoshard.planner.search import search
from autoshard.plans.search_result import Pins
from autoshard.spec.cluster import load_cluster
from autoshard.spec.model import KIND_FIELDS, ModelSpec
from autoshard.spec.training import TrainingSpec, load_precision
from tests.cases import some

MODELS = ("gemma3-1b", "gpt-oss-20b", "deepseek-v2-lite", "llama4-scout")
FASTER = 0.5
TRAINING = TrainingSpec(4096, 1024, load_precision("mixed_precision"))


def some_blocks(name: str, layers: int) -> ModelSpec:
    """The first blocks of a published model, of more than one kind."""
    model = load_model(name)
    lists = {key: getattr(model, key)[:layers] for key in KIND_FIELDS if getattr(model, key)}
    return replace(model, num_hidden_layers=layers, **lists)


def random_problem(seed: int) -> Problem:
    """A few blocks on 8 devices, with less memory or more."""
    choose = random.Random(seed)
    cluster = load_cluster("h100-80gb", 1)
    model = some_blocks(choose.choice(MODELS), choose.choice([6, 8]))
    room = choose.choice([0.1, 0.3, 1.0]) * cluster.device.memory_bytes
    device = replace(cluster.device, memory_bytes=room + cluster.device.reserved_memory_bytes)
    training = TrainingSpec(2048, choose.choice([8, 16]), load_precision("mixed_precision"))
    return Problem(model, training, replace(cluster, device=device), "torch")


@pytest.mark.parametrize("seed", some(range(6), 2))
def test_no_layout_that_fits_is_ruled_out_for_its_own_time(seed: int) -> None:
    problem = random_problem(seed)
    assert len(problem.model.kinds) > 1
    limit_bytes = problem.cluster.device.memory_bytes
    chunks = price_layouts(problem, Pins(pp=2 + 2 * (seed % 2)), Tally(), Clock(inf), exhaustive=True).chunks
    checked = ruled_out = 0
    for chunk in chunks:
        fits = np.flatnonzero(chunk.memory_bytes <= limit_bytes)
        if not len(fits) or not chunk.whole.moves_blocks:
            continue
        exact_s = chunk.exact_s(fits.tolist())
        drafts = np.unique(chunk.draft[fits])
        assert may_fit(chunk.whole, limit_bytes)[drafts].all()
        least_s = np.array([exact_s[chunk.draft[fits] == draft].min() for draft in drafts])
        checked += len(drafts)
        for draft, seconds in zip(drafts, least_s.tolist(), strict=True):
            some = chunk.whole, np.array([draft]), limit_bytes
            assert may_hold_all(*some, seconds * (1 + 1e-9)).all()
            replayed_s = replayed_at_least_s(*some, seconds * (1 + 1e-9))
            assert kinds_at_least_s(*some, replayed_s)[0] <= seconds * (1 + 1e-9)
            ruled_out += not may_hold_all(chunk.whole, np.array([draft]), limit_bytes, FASTER * seconds).all()
    assert checked == 0 or ruled_out > 0


@pytest.mark.parametrize(("model", "nodes"), some([("deepseek-v2", 16), ("deepseek-v3", 64)], 1))
def test_large_mixtures_are_proven_within_three_percent(model: str, nodes: int) -> None:
    result = search(load_model(model), TRAINING, load_cluster("trn2.48xlarge", nodes), backend="torch")
    found = re.match(r"within ([\d.]+) % of the optimum", result.optimality)
    assert result.optimality.startswith("optimal") or (found and float(found[1]) <= 3.0), result.optimality


def test_a_bound_holds_in_every_order_of_axes() -> None:
    problem = Problem(load_model("gemma3-27b"), TRAINING, load_cluster("trn2.48xlarge", 4), "torch")
    priced = price_layouts(problem, Pins(), Tally(), Clock(inf))
    next(priced.fastest_first(problem.cluster.device.memory_bytes))
    drafts = [draft for whole in priced.wholes for draft in whole.drafts.drafts if draft.pp > 1 and draft.etp is None]
    known = [draft for draft in drafts if priced.at_least_s(draft)]
    assert known
    for draft in known[:20]:
        turned = draft._replace(axis_order=draft.axis_order[::-1])
        assert 0.0 < priced.at_least_s(turned) == priced.at_least_s(draft, in_any_order=True)
