"""Formulas over rows: of an array each entry is what the formula says of that row alone."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.cost.compute import OperatorNeeds, QuantizedProducts, seconds_of
from autoshard.cost.stacks import COMPILED, Software
from autoshard.rows import (
    FEW,
    added_up,
    anywhere,
    by_count,
    by_rows,
    ceil,
    different,
    floor,
    largest,
    smallest,
    total,
    weighted,
    where,
)
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
    assert floor(a).tolist() == [floor(one) for one, _ in pairs]
    assert anywhere(a > b) == any(anywhere(one > other) for one, other in pairs)


@given(st.lists(st.one_of(st.integers(0, 6), st.integers(0, 1 << 20)), max_size=3 * FEW))
def test_different_numbers_are_told_apart_whatever_their_size(counts: list[int]) -> None:
    assert different(np.array(counts, dtype=int)) == sorted(set(counts))


def test_counts_of_many_microbatches_take_no_more_room_than_their_rows() -> None:
    """A table with a place for each number below the largest one took a gigabyte."""
    counts = np.array([1 << 40, 3, 1 << 40])
    assert [column.tolist() for column in by_count(lambda count: [count, count % 2], counts)] == [
        counts.tolist(),
        [0, 1, 0],
    ]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=3 * FEW))
def test_rules_on_counts_meet_plain_counts_alone(counts: list[int]) -> None:
    def rule(count: int) -> list[int]:
        assert type(count) is int
        return [min(count, 3), 7]

    found, same = by_count(rule, np.array(counts))
    assert np.broadcast_to(found, len(counts)).tolist() == [rule(count)[0] for count in counts] and same == 7
    seconds = np.arange(len(counts), dtype=float)
    times = by_rows(lambda count, one: count * one, np.array(counts), seconds)
    assert times.tolist() == [count * one for count, one in zip(counts, seconds, strict=True)]


def test_values_are_added_up_by_their_places() -> None:
    places = np.array([2, 0, 2])
    assert added_up(np.array([1.0, 2.0, 4.0]), places, 4).tolist() == [2.0, 0.0, 5.0, 0.0]
    assert added_up(1, places, 3).tolist() == [1, 0, 2]
    assert added_up(1.5, None, 1) == 1.5


def test_stages_are_added_row_by_row() -> None:
    assert total(np.array([[1.0, 2.0], [3.0, 4.0]])).tolist() == [total([1.0, 3.0]), total([2.0, 4.0])] == [4.0, 6.0]
    assert weighted([2, 1], np.array([[1.0, 2.0], [3.0, 4.0]])).tolist() == [weighted([2, 1], [1.0, 3.0]), 8.0]


def test_plain_numbers_need_no_numpy() -> None:
    code = "import sys; from autoshard.rows import *; largest(1, 2.0); where(True, 1, 2); ceil(1.5); anywhere(0)"
    subprocess.run([sys.executable, "-c", f"{code}; assert 'numpy' not in sys.modules"], check=True)


STACK = Software("s", misaligned_slowdown=2.0, norm_passes=3.0, whole_logits=True, wave_elements=1e5)


@pytest.mark.parametrize("software", [COMPILED, STACK, Software("s", attention_efficiency=0.4)], ids=["ours", "s", "a"])
@pytest.mark.parametrize("kind", ["matmul", "flash", "plain", "norm", "loss", "vector"])
def test_many_operators_are_each_of_them(kind: str, software: Software) -> None:
    device, number = load_cluster("trn1.32xlarge", 1).device, np.random.default_rng(0)
    m, n, k = number.integers(1, 3000, (3, 40))
    moving, scores, flops = number.uniform(1e4, 1e9, (3, 40))
    marks = number.integers(0, 2, (2, 40))
    groups = number.integers(1, 9, 40)
    ratios, widths = number.uniform(1, 3, 40), number.integers(1, 300, 40)
    many = OperatorNeeds(kind, m, n, k, moving, scores, flops, ratios, groups, *marks)
    many = many._replace(value_dim=widths, frozen=number.integers(0, 2, 40))
    products = QuantizedProducts(180 * TFLOPS, 4.0)
    found = seconds_of(many, device, 90 * TFLOPS, software, products)
    for row in range(40):
        single = OperatorNeeds(kind, *(float(one[row]) for one in many[1:]))
        alone = seconds_of(single, device, 90 * TFLOPS, software, products)
        assert (found.forward[row], found.backward[row]) == pytest.approx((alone.forward, alone.backward), rel=1e-14)
