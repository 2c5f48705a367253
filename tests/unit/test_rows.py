"""Formulas over rows: of an array each entry is what the formula says of that row alone."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.cost.compute import OperatorNeeds, seconds_of
from autoshard.cost.stacks import COMPILED, Software
from autoshard.rows import anywhere, ceil, largest, smallest, where
from autoshard.spec.cluster import load_cluster
from autoshard.units import TFLOPS

NUMBERS = st.floats(-10, 10)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=5), NUMBERS)
def test_an_array_is_its_rows(pairs: list[tuple[float, float]], plain: float) -> None:
    a, b = np.array(pairs).T
    for of in (largest, smallest):
        assert of(a, b).tolist() == [of(one, other) for one, other in pairs]
        assert of(a, plain).tolist() == of(plain, a).tolist() == [of(one, plain) for one, _ in pairs]
    assert where(a > b, a, plain).tolist() == [where(one > other, one, plain) for one, other in pairs]
    assert ceil(a).tolist() == [ceil(one) for one, _ in pairs]
    assert anywhere(a > b) == any(anywhere(one > other) for one, other in pairs)


def test_plain_numbers_need_no_numpy() -> None:
    code = "import sys; from autoshard.rows import *; largest(1, 2.0); where(True, 1, 2); ceil(1.5); anywhere(0)"
    subprocess.run([sys.executable, "-c", f"{code}; assert 'numpy' not in sys.modules"], check=True)


STACK = Software("s", misaligned_slowdown=2.0, norm_passes=3.0, whole_logits=True, wave_elements=1e5, cast_passes=0.2)


@pytest.mark.parametrize("software", [COMPILED, STACK, Software("s", attention_efficiency=0.4)], ids=["ours", "s", "a"])
@pytest.mark.parametrize("kind", ["matmul", "flash", "plain", "norm", "loss", "vector"])
def test_many_operators_are_each_of_them(kind: str, software: Software) -> None:
    device, number = load_cluster("trn1.32xlarge", 1).device, np.random.default_rng(0)
    m, n, k = number.integers(1, 3000, (3, 40))
    moving, scores, flops = number.uniform(1e4, 1e9, (3, 40))
    many = OperatorNeeds(kind, m, n, k, moving, scores, flops, number.uniform(1, 3, 40))
    found = seconds_of(many, device, 90 * TFLOPS, software)
    for row in range(40):
        alone = seconds_of(OperatorNeeds(kind, *(float(one[row]) for one in many[1:])), device, 90 * TFLOPS, software)
        assert (found.forward[row], found.backward[row]) == pytest.approx((alone.forward, alone.backward), rel=1e-14)
