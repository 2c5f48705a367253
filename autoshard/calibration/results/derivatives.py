"""Numbers that carry their derivatives by the fitted constants: one run of the cost model gives its Jacobian."""

from __future__ import annotations

from typing import Any

import numpy as np


class Dual:
    """A number that carries a gradient [n]. It compares by value, so max() picks the branch that counts."""

    __slots__ = ("g", "v")

    def __init__(self, v: float, g: Any) -> None:
        self.v, self.g = v, g

    def __add__(self, o: Any) -> Dual:
        return Dual(self.v + o.v, self.g + o.g) if isinstance(o, Dual) else Dual(self.v + o, self.g)

    __radd__ = __add__

    def __sub__(self, o: Any) -> Dual:
        return Dual(self.v - o.v, self.g - o.g) if isinstance(o, Dual) else Dual(self.v - o, self.g)

    def __rsub__(self, o: Any) -> Dual:
        return Dual(o - self.v, -self.g)

    def __mul__(self, o: Any) -> Dual:
        return Dual(self.v * o.v, self.g * o.v + o.g * self.v) if isinstance(o, Dual) else Dual(self.v * o, self.g * o)

    __rmul__ = __mul__

    def __truediv__(self, o: Any) -> Dual:
        if isinstance(o, Dual):
            return Dual(self.v / o.v, (self.g - o.g * (self.v / o.v)) / o.v)
        return Dual(self.v / o, self.g / o)

    def __rtruediv__(self, o: Any) -> Dual:
        return Dual(o / self.v, self.g * (-o / self.v**2))

    def __neg__(self) -> Dual:
        return Dual(-self.v, -self.g)

    def __lt__(self, o: Any) -> bool:
        return bool(self.v < value(o))

    def __gt__(self, o: Any) -> bool:
        return bool(self.v > value(o))

    def __le__(self, o: Any) -> bool:
        return bool(self.v <= value(o))

    def __ge__(self, o: Any) -> bool:
        return bool(self.v >= value(o))

    def __eq__(self, o: object) -> bool:
        return bool(self.v == value(o))

    def __hash__(self) -> int:
        return hash(self.v)

    def __bool__(self) -> bool:
        return self.v != 0

    def __float__(self) -> float:
        return float(self.v)


def value(x: Any) -> float:
    return x.v if isinstance(x, Dual) else x


def variables(values: np.ndarray) -> list[Dual]:
    """One Dual for each number, with its unit vector as gradient."""
    eye = np.eye(len(values))
    return [Dual(float(v), eye[i]) for i, v in enumerate(values)]
