"""Where an operator of the interpreter is, and what its kernel gives back.

Arrays are [*mesh, *local dims in the graph's order]: all simulated ranks at once. Gradient None: the input has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoshard.graph.ir import Graph
from autoshard.graph.partition import OperatorStep
from tests.spmd.collectives import Array, Axes

Gradients = tuple[Array | None, ...]
Backward = Callable[[Array], Gradients]
Result = tuple[Array, Backward]
Report = Callable[[str, tuple[str, ...], int], None]
"""(kind, axes, bytes on one rank) of a collective inside an operator."""


@dataclass(frozen=True)
class Place:
    """The operator's step, its graph and its mesh."""

    step: OperatorStep
    graph: Graph
    axes: Axes
    report: Report
    report_backward: Report

    @property
    def attributes(self) -> Mapping[str, Any]:
        return self.step.operator.attributes

    def dims(self, index: int) -> tuple[str, ...]:
        return self.graph.tensors[self.step.operator.inputs[index]].dims

    @property
    def output_dims(self) -> tuple[str, ...]:
        return self.graph.tensors[self.step.operator.output].dims

    @property
    def summed_bytes(self) -> int:
        """Bytes of one of the numbers that ranks sum up: of FP32, or of the first input's where that is wider."""
        return max(4, self.graph.tensors[self.step.operator.inputs[0]].element_bytes)

    def over(self, dim: str) -> tuple[str, ...]:
        """Axes that split the work along a loop dim."""
        return tuple(axis for axis in self.axes if self.step.choice.get(axis) == dim)

    def indices(self, dim: str, length: int) -> Array:
        """[*mesh, length]: the global indices along a dim that each rank works on."""
        position = np.zeros(tuple(self.axes.values()), np.int64)
        for at, (axis, size) in enumerate(self.axes.items()):
            if axis in self.over(dim):
                shape = [1] * len(self.axes)
                shape[at] = size
                position = position * size + np.arange(size).reshape(shape)
        return position[..., None] * length + np.arange(length)

    def positions(self, length: int) -> Array:
        """[*mesh, length]: places in the original sequence of each rank's part of the dim `seq`."""
        return self.order[self.indices("seq", length)]

    @property
    def order(self) -> Array:
        """The place in the original sequence at each index of the dim `seq`."""
        places = np.arange(self.graph.sizes["seq"])
        pieces = self.attributes.get("sequence_pieces")
        return places if pieces is None else places.reshape(len(pieces), -1)[list(pieces)].ravel()

    def spread(self, x: Array, have: tuple[str, ...], want: tuple[str, ...]) -> Array:
        """x [*mesh, *have] with the dims that it lacks of `want` as size 1."""
        mesh = x.shape[: len(self.axes)]
        sizes = dict(zip(have, x.shape[len(mesh) :], strict=True))
        return x.reshape(*mesh, *(sizes.get(dim, 1) for dim in want))


def contract(*operands: tuple[Array, tuple[str, ...]], out: tuple[str, ...]) -> Array:
    """einsum over named dims, the mesh in front of each operand; a dim of out that no operand has must not occur."""
    letters = {dim: chr(ord("a") + i) for i, dim in enumerate(dict.fromkeys(d for _, dims in operands for d in dims))}
    left = ",".join("..." + "".join(letters[dim] for dim in dims) for _, dims in operands)
    result: Array = np.einsum(f"{left}->...{''.join(letters[d] for d in out)}", *(x for x, _ in operands))
    return result
