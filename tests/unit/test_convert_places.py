"""Rows of a rank's tensor: what ZeRO-1 cuts a parameter into, whatever dims it has there."""

from __future__ import annotations

from itertools import product
from math import prod

from hypothesis import given
from hypothesis import strategies as st

from autoshard.checkpoint.boxes import Box
from autoshard.conversion.places import Place, rows_of


@st.composite
def places(draw: st.DrawFn) -> tuple[Place, tuple[int, ...]]:
    """A place, and the shape of its tensor: some dims make the rows, others lie within one; rows around it are free."""
    rows = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    columns = draw(st.lists(st.integers(1, 3), max_size=2))
    before, after = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    sizes, row = rows + columns, prod(columns)
    order = draw(st.permutations(range(len(sizes))))
    strides = [prod(sizes[dim + 1 :]) for dim in range(len(sizes))]
    box = Box(tuple(draw(st.integers(0, 3)) for _ in sizes), tuple(sizes[dim] for dim in order))
    place = Place("p", box, before * row, tuple(strides[dim] for dim in order))
    return place, (prod(rows) + before + after, *((row,) if columns else ()))


def elements(place: Place) -> dict[tuple[int, ...], int]:
    """Of the parameter, and where the tensor has them."""
    return {
        tuple(a + b for a, b in zip(index, place.box.offsets, strict=True)): place.start
        + sum(a * b for a, b in zip(index, place.strides, strict=True))
        for index in product(*(range(size) for size in place.box.sizes))
    }


@given(places(), st.integers(1, 4))
def test_equal_parts_have_every_element_once(placed: tuple[Place, tuple[int, ...]], parts: int) -> None:
    place, shape = placed
    rows, row = -(-shape[0] // parts), prod(shape[1:])
    found: dict[tuple[int, ...], int] = {}
    for index in range(parts):
        for part in rows_of(place, shape, index * rows, min((index + 1) * rows, shape[0])):
            own = elements(part)
            assert all(0 <= at < rows * row for at in own.values()) and not own.keys() & found.keys()
            found |= {key: at + index * rows * row for key, at in own.items()}
    assert found == elements(place)
