"""Arithmetic of formulas over rows. A row is a layout; a number is a float or int, an array with an entry for each row,
or a number that carries derivatives.

What all rows share is a plain value, and a formula branches on it with `if`. What differs by row meets only these
functions and +, -, * and /. Plain numbers never import numpy: most commands start without it.
"""

from __future__ import annotations

import math
from typing import Any

Number = Any
"""A float or int, a numpy.ndarray with an entry for each row, or a number that carries derivatives."""

PLAIN = frozenset({float, int, bool})


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


def anywhere(a: Any) -> bool:
    """Whether a number is not zero, or a condition true, in some row."""
    return bool(a.any()) if is_rows(a) else bool(a)


def ceil(a: Number) -> Number:
    """The next whole number, row by row."""
    if not is_rows(a):
        return math.ceil(a)
    import numpy as np

    return np.ceil(a)


def added(*terms: Number) -> Number:
    """The sum; terms that are a plain 0.0, the same in all rows, take no time."""
    return sum(term for term in terms if type(term) is not float or term)
