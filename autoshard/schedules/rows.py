"""Arithmetic of formulas over rows: a number of one layout, an array of many layouts, or a number with derivatives.

Plain numbers never import numpy: commands that price one layout start without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

Number = Any
"""A float or int, a numpy.ndarray with an entry a row, or a number that carries derivatives."""
FEW = 12
"""Rows that are faster one by one, as plain numbers: numpy takes a microsecond a call."""


def is_rows(a: Number) -> bool:
    """Whether a number is an array with an entry a row."""
    return type(a).__name__ == "ndarray"  # its class is not known before numpy is imported


def largest(a: Number, b: Number) -> Number:
    """The larger of two numbers, row by row."""
    if type(a) is float and type(b) is float:  # nearly always
        return b if b > a else a
    if not (is_rows(a) or is_rows(b)):
        return b if b > a else a
    import numpy as np

    return np.maximum(a, b)


def smallest(a: Number, b: Number) -> Number:
    """The smaller of two numbers, row by row."""
    if not (is_rows(a) or is_rows(b)):
        return b if b < a else a
    import numpy as np

    return np.minimum(a, b)


def largest_of(like: Number) -> Callable[[Any, Any], Any]:
    """The function that takes the larger of two numbers such as this one; looked up once, it saves time in
    many calls.
    """
    if not is_rows(like):
        return max
    import numpy as np

    return np.maximum


def smallest_of(like: Number) -> Callable[[Any, Any], Any]:
    """The function that takes the smaller of two numbers such as this one; looked up once, it saves time in
    many calls.
    """
    if not is_rows(like):
        return min
    import numpy as np

    return np.minimum


def where(chosen: Any, a: Number, b: Number) -> Number:
    """`a` in the rows that are chosen, `b` in the others. Both are computed for all rows."""
    if not is_rows(chosen):
        return a if chosen else b
    import numpy as np

    return np.where(chosen, a, b)


def either(chosen: Any, ahead: Callable[[], Number], other: Callable[[], Number]) -> Number:
    """`ahead()` in the rows that are chosen, `other()` in the others. A function that no row needs is not called."""
    if not is_rows(chosen):
        return ahead() if chosen else other()
    if chosen.all():
        return ahead()
    return where(chosen, ahead(), other()) if chosen.any() else other()


def anywhere(a: Number) -> bool:
    """Whether a number is not zero in some row."""
    return bool(a.any()) if is_rows(a) else bool(a)


def floor(a: Number) -> Number:
    """The number rounded down, row by row."""
    if not is_rows(a):
        return math.floor(a)
    import numpy as np

    return np.floor(a)


def total(seconds: Any) -> Number:
    """The sum of seconds over stages, row by row. seconds: by stage along the first axis."""
    return seconds.sum(0) if is_rows(seconds) else sum(seconds)


def weighted(weights: Sequence[Number], seconds: Any) -> Number:
    """The sum over stages of weights times seconds, row by row. weights, seconds: by stage along the first axis."""
    if is_rows(seconds) and not any(map(is_rows, weights)):
        import numpy as np

        return np.array(weights, dtype=float) @ seconds
    return sum(weight * one for weight, one in zip(weights, seconds, strict=True))


def by_count(function: Callable[[int], Sequence[int]], counts: Number) -> Sequence[Number]:
    """The whole numbers that `function` computes from a count, each for one row or for rows with few different counts.

    function: is given plain counts, so a schedule's rule may use min, divmod and if. A number that all rows agree on
    comes back plain.
    """
    if not is_rows(counts):
        return function(counts)
    import numpy as np

    present = np.bincount(counts).nonzero()[0].tolist()
    columns = list(zip(*map(function, present), strict=True))
    if all(min(column) == max(column) for column in columns):
        return [column[0] for column in columns]
    table = np.empty((len(columns), present[-1] + 1), dtype=int)
    table[:, present] = columns
    return [
        column[0] if min(column) == max(column) else of_counts[counts]
        for column, of_counts in zip(columns, table, strict=True)
    ]


def by_rows(function: Callable[..., Number], counts: Number, *numbers: Any) -> Number:
    """The value of `function(count, *numbers)` in each row; `function` is called once for all rows with the same count.

    numbers: by row along the last axis, or one for all rows.
    """
    if not is_rows(counts):
        return function(counts, *numbers)
    import numpy as np

    found = np.empty(len(counts))
    for count in np.unique(counts).tolist():
        rows = np.flatnonzero(counts == count)
        if len(rows) > FEW:
            found[rows] = function(count, *(one[..., rows] if is_rows(one) else one for one in numbers))
            continue
        for row in rows.tolist():
            found[row] = function(count, *(one[..., row].tolist() if is_rows(one) else one for one in numbers))
    return found
