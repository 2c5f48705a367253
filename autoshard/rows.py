"""Arithmetic of formulas over rows. A row is a layout; a number is a float or int, an array with an entry for each row,
or a number that carries derivatives.

What all rows share is a plain value, and a formula branches on it with `if`. What differs by row meets only these
functions and +, -, * and /. Plain numbers never import numpy: most commands start without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

Number = Any
"""A float or int, a numpy.ndarray with an entry for each row, or a number that carries derivatives."""

PLAIN = frozenset({float, int, bool})
SPARSE = 64
"""Whole numbers that are below so many times their count are told apart by counting each."""
FEW = 12
"""Rows that are faster one by one, as plain numbers: numpy takes a microsecond a call."""


def is_rows(a: Any) -> bool:
    """Whether it is an array."""
    return type(a).__name__ == "ndarray"  # its class is unknown until numpy is imported


def largest(a: Number, b: Number) -> Number:
    """The larger of two numbers, row by row; the first one where they are equal."""
    if (type(a) in PLAIN and type(b) in PLAIN) or not (is_rows(a) or is_rows(b)):
        return b if b > a else a
    import numpy as np

    return np.maximum(a, b)


def smallest(a: Number, b: Number) -> Number:
    """The smaller of two numbers, row by row; the first one where they are equal."""
    if (type(a) in PLAIN and type(b) in PLAIN) or not (is_rows(a) or is_rows(b)):
        return b if b < a else a
    import numpy as np

    return np.minimum(a, b)


def where(chosen: Any, a: Number, b: Number) -> Number:
    """a in rows that are chosen, b in the others. Both are computed: neither may fail where it is not chosen."""
    if not is_rows(chosen):
        return a if chosen else b
    import numpy as np

    return np.where(chosen, a, b)


def either(chosen: Any, ahead: Callable[[], Number], other: Callable[[], Number]) -> Number:
    """`where` that computes only what some row needs."""
    if not is_rows(chosen):
        return ahead() if chosen else other()
    if chosen.all():
        return ahead()
    return where(chosen, ahead(), other()) if chosen.any() else other()


def anywhere(a: Any) -> bool:
    """Whether a number is not zero, or a condition true, in some row."""
    return bool(a.any()) if is_rows(a) else bool(a)


def floor(a: Number) -> Number:
    """The number rounded down, row by row."""
    if not is_rows(a):
        return math.floor(a)
    import numpy as np

    return np.floor(a)


def ceil(a: Number) -> Number:
    """The next whole number, row by row."""
    if not is_rows(a):
        return math.ceil(a)
    import numpy as np

    return np.ceil(a)


def added(*terms: Number) -> Number:
    """The sum; terms that are a plain 0.0, the same in all rows, take no time."""
    return sum(term for term in terms if type(term) is not float or term)


def added_up(values: Number, places: Any, count: int) -> Number:
    """The sums of those values that belong to one place: an array with an entry for each of `count` places.

    places: by row, the place of its value, a whole number below count; None where all is one place, then a plain value
    is its own sum.
    """
    if places is None:
        return values
    import numpy as np

    return np.bincount(places, np.broadcast_to(values, places.shape), count)


def shares(counts: Sequence[Number]) -> list[Number]:
    """The share of each kind in all things, row by row. counts: of each kind; where there are none, the first kind is
    all."""
    every = sum(counts)
    some = every > 0
    return [where(some, count / where(some, every, 1.0), 1.0 * (not place)) for place, count in enumerate(counts)]


def mean(shares_of: Sequence[Number], values: Sequence[Number]) -> Number:
    """The mean over kinds, row by row. shares_of: as `shares` gives them. values: one of each kind."""
    return sum(share * value for share, value in zip(shares_of, values, strict=True))


def most(shares_of: Sequence[Number], values: Sequence[Number]) -> Number:
    """The largest value of the kinds that are there, row by row; 0 at least. Takes the arguments of `mean`."""
    of_all: Number = 0.0
    for share, value in zip(shares_of, values, strict=True):
        of_all = largest(of_all, where(share > 0, value, 0.0))
    return of_all


def total(seconds: Any) -> Number:
    """The sum over stages. seconds: by stage along the first axis."""
    return seconds.sum(0) if is_rows(seconds) else sum(seconds)


def by_stage(function: Callable[..., Number], *seconds: Any) -> Any:
    """function(of one stage, ...) of all stages; at once where they are arrays. seconds: by stage along the first
    axis."""
    if all(map(is_rows, seconds)):
        return function(*seconds)
    return [function(*of_stage) for of_stage in zip(*seconds, strict=True)]


def running_total(seconds: Any) -> Any:
    """The sums up to each stage. seconds: by stage along the first axis."""
    return seconds.cumsum(0) if is_rows(seconds) else list(accumulate(seconds))


def running_largest(seconds: Any) -> Any:
    """The largest up to each stage. seconds: by stage along the first axis."""
    if not is_rows(seconds):
        return list(accumulate(seconds, largest))
    import numpy as np

    return np.maximum.accumulate(seconds, axis=0)


def weighted(weights: Sequence[Number], seconds: Any) -> Number:
    """The sum over stages of weights times seconds."""
    if is_rows(seconds) and not any(map(is_rows, weights)):
        import numpy as np

        return np.array(weights, dtype=float) @ seconds
    return sum(weight * of_stage for weight, of_stage in zip(weights, seconds, strict=True))


def weighted_by_rank(weights: Sequence[Sequence[Number]], seconds: Any) -> Any:
    """The sums over each rank's stages of weights times seconds, by rank. weights: by rank, then chunk. seconds: by
    virtual stage (stage = chunk * ranks + rank) along the first axis."""
    ranks = len(weights)
    if is_rows(seconds) and not any(is_rows(weight) for of_rank in weights for weight in of_rank):
        import numpy as np

        by_rank = seconds.reshape(-1, ranks, *seconds.shape[1:]).swapaxes(0, 1)
        return np.matmul(np.array(weights, dtype=float)[:, None], by_rank)[:, 0]
    return [weighted(of_rank, seconds[rank::ranks]) for rank, of_rank in enumerate(weights)]


def pieces(count: int, at_once: int) -> list[slice]:
    """All of so many rows in turn, at most at_once of them together, but one at least.

    >>> pieces(5, 2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None)]
    """
    at_once = max(1, at_once)
    return [slice(begin, begin + at_once) for begin in range(0, count, at_once)]


def different(counts: Any) -> list[int]:
    """The different whole numbers of an array, rising; none is below 0."""
    import numpy as np

    numbers: list[int]  # numpy.unique would import numpy.ma
    if not counts.size or counts.max() < SPARSE * counts.size:
        numbers = np.bincount(counts.ravel()).nonzero()[0].tolist()
        return numbers
    rising = np.sort(counts, axis=None)
    numbers = rising[np.append(True, rising[1:] != rising[:-1])].tolist()
    return numbers


def by_count(function: Callable[[int], Sequence[int]], counts: Number) -> Sequence[Number]:
    """The whole numbers that follow from a count, each of one row or of rows with few different counts.

    function: is given plain counts, so a schedule's rule may use min, divmod and if. A number that all rows agree on
    comes back plain.
    """
    if not is_rows(counts):
        return function(counts)
    import numpy as np

    present = different(counts)
    columns = list(zip(*map(function, present), strict=True))
    if all(min(column) == max(column) for column in columns):
        return [column[0] for column in columns]
    places = np.searchsorted(present, counts)
    return [column[0] if min(column) == max(column) else np.array(column)[places] for column in columns]


def by_rows(function: Callable[..., Number], counts: Number, *numbers: Any) -> Number:
    """function(count, *numbers) of the rows with each count, in the order of the rows.

    numbers: by row along the last axis, or one for all.
    """
    if not is_rows(counts):
        return function(counts, *numbers)
    import numpy as np

    values = np.empty(len(counts))
    for count in different(counts):
        rows = np.flatnonzero(counts == count)
        if len(rows) > FEW:
            values[rows] = function(count, *(number[..., rows] if is_rows(number) else number for number in numbers))
            continue
        for row in rows.tolist():
            plain = (number[..., row].tolist() if is_rows(number) else number for number in numbers)
            values[row] = function(count, *plain)
    return values
