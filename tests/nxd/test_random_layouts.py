"""Layouts that nobody chose train on neuronx-distributed as the torch backend's one process does."""

from __future__ import annotations

from collections import Counter
from math import prod

import pytest

from autoshard.checkpoint.layout import parameter_shapes
from tests.nxd.cases import random_plan
from tests.nxd.test_conformance import run

TOGETHER = 10
"""Layouts that the same processes train."""
ROUNDING = 3e-5
"""Relative, after three steps in FP32: twice the largest of 130 layouts."""


@pytest.mark.parametrize(("processes", "first"), [(2, 0), (4, 100)])
def test_random_layouts_equal_the_torch_backend(processes: int, first: int) -> None:
    seeds = range(first, first + TOGETHER)
    found = run("random_conformance", {"seeds": [*seeds]}, processes)
    for seed, *of_ranks in zip(seeds, *found, strict=True):
        plan = random_plan(seed, processes)
        which = f"seed {seed}: {plan.model.model_type}, {plan.strategy}"
        for ours, expected in zip(of_ranks[0]["nxd"], of_ranks[0]["torch"], strict=True):
            assert ours == pytest.approx(expected, rel=ROUNDING), which
        for what, allowed in (("gradient", 2e-6), ("weight", 1e-3)):
            difference, tensor = max(one["differences"][what] for one in of_ranks)
            assert difference < allowed, (which, what, tensor)
        written: Counter[str] = Counter()
        for one in of_ranks:
            assert one["nxd"] == of_ranks[0]["nxd"], which
            written.update(one["written"])
        assert written == {name: prod(shape) for name, shape in parameter_shapes(plan.model).items()}, which
