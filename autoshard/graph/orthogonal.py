"""Says which weights Muon updates, and which dims of a weight are the rows and columns of its matrices.

Muon orthogonalises the update of a whole matrix. It takes the matrices of blocks that a product reads; embeddings, the
head, norms, biases and kernels of convolutions keep AdamW, as in its authors' recipe [Jordan et al., Muon: An optimizer
for hidden layers in neural networks, 2024; Liu et al., Muon is Scalable for LLM Training, arXiv 2502.16982].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import NamedTuple

from autoshard.graph.ir import Graph, Tensor
from autoshard.graph.linear_layers import is_linear

NEWTON_SCHULZ_STEPS = 5
"""Iterations of the polynomial that orthogonalises a matrix, as in torch.optim.Muon."""


class MatrixDims(NamedTuple):
    """Dims of a weight, each in the order that it has there. several: those along which it has one matrix beside the
    other, such as experts."""

    several: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]

    def sizes(self, of: Mapping[str, int]) -> tuple[int, int, int]:
        """(how many matrices, rows, columns) where dims have these sizes."""
        several, rows, columns = (prod(of[dim] for dim in dims) for dims in self)
        return several, rows, columns


def orthogonal(graph: Graph) -> list[Tensor]:
    """The weights that Muon updates."""
    read = {op.inputs[1] for op in graph.operators if is_linear(graph, op)}
    return [one for one in graph.learned() if one.name in read and one.name in graph.matrices]


def with_orthogonal_updates(graph: Graph) -> Graph:
    """The graph with a mark at each weight that Muon updates."""
    marked = {one.name: replace(one, orthogonal=True) for one in orthogonal(graph)}
    return replace(graph, tensors={**graph.tensors, **marked})


def matrix_dims(graph: Graph, name: str) -> MatrixDims:
    """The dims of a weight that a product reads, by what the product does along them: rows are those that its output
    has, columns those that are summed over, several those that its input and its output have."""
    op = next(op for op in graph.operators if op.kind == "einsum" and op.inputs[1] == name)
    read, made = (graph.tensors[tensor].dims for tensor in (op.inputs[0], op.output))
    dims = graph.tensors[name].dims
    several = tuple(dim for dim in dims if dim in read and dim in made)
    rows = tuple(dim for dim in dims if dim in made and dim not in read)
    return MatrixDims(several, rows, tuple(dim for dim in dims if dim not in made))


def orthogonalising_flops(rows: int, columns: int) -> float:
    """FLOPs of the products that orthogonalise one matrix: X Xᵀ, its square, and that times X, over the shorter side,
    in each of NEWTON_SCHULZ_STEPS."""
    short, long = sorted((rows, columns))
    return NEWTON_SCHULZ_STEPS * (4.0 * short * short * long + 2.0 * short**3)
