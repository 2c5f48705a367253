"""The graph: operators over named dims, one description of the model for cost, search and runtime.

A `Graph` is one pipeline stage for one microbatch. Sizes are global: `batch` holds the sequences of all data-parallel
replicas, `seq` the whole sequence. How a mesh splits them is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

INDEX_BYTES = 8
"""Token ids and labels are int64, as torch's embedding and cross-entropy want them."""
FLOAT32_BYTES = 4
OPERAND_BYTES, OPERAND_MULTIPLE, CASTS_INPUT = "operand_bytes", "operand_multiple", "casts_input"
"""Attributes of a matrix product with quantised operands (graph/quantize.py): bytes of one element of these; what its
inputs and outputs must be multiples of on a rank, else it is as others; whether it casts its input, as the first of
those that read it does."""
_MATRIX_READERS = ("einsum", "linear_cross_entropy", "embedding", "position_embedding", "causal_conv")
"""Kinds of operators whose second input, where it is a parameter, is a matrix."""
_PRODUCTS = ("einsum", "linear_cross_entropy")


def summed_bytes(element_bytes: int) -> int:
    """Bytes of one element of what is summed up of elements of so many bytes: sums are in FP32, or in the elements'
    dtype where that is wider."""
    return max(FLOAT32_BYTES, element_bytes)


@dataclass(frozen=True)
class Tensor:
    """A value of the graph, with its dims outermost first.

    role: 'parameter', 'input' (token ids, labels, a previous stage's output) or 'activation'.
    element_bytes: bytes of one element. differentiable: whether it has a gradient.
    matrix: whether a parameter is a matrix, which weight decay applies to; None: the operators that read it say so.
    counted: whether an input is among what its readers keep for backward; not where another block keeps it too, and
    counts it.
    rounded: of a parameter that is not learned, whether it is held in the dtype of the weights; None: if it is a
    matrix. orthogonal: whether Muon updates a parameter (graph/orthogonal.py).
    """

    name: str
    dims: tuple[str, ...]
    role: str
    element_bytes: int
    differentiable: bool = True
    matrix: bool | None = None
    counted: bool = True
    rounded: bool | None = None
    orthogonal: bool = False


@dataclass(frozen=True)
class Operator:
    """One node of the graph: reads the tensors `inputs`, writes the tensor `output`.

    loop_dims: dims whose iterations are independent work and may be split over mesh axes.
    module: the part of the block it belongs to ('core_attention', 'mlp', ...); recompute sets are named by it.
    attributes: what else its kind needs, such as the window of an attention.
    """

    kind: str
    name: str
    inputs: tuple[str, ...]
    output: str
    loop_dims: tuple[str, ...]
    module: str
    attributes: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Graph:
    """Operators in execution order, their tensors by name, and the global size of each dim."""

    sizes: Mapping[str, int]
    tensors: Mapping[str, Tensor]
    operators: tuple[Operator, ...]

    def parameters(self) -> tuple[Tensor, ...]:
        """The parameters, in the order in which operators first read them."""
        return tuple(tensor for tensor in self.tensors.values() if tensor.role == "parameter")

    def inputs(self) -> tuple[Tensor, ...]:
        """The inputs of the stage: token ids, labels, and the output of the previous stage."""
        return tuple(tensor for tensor in self.tensors.values() if tensor.role == "input")

    @cached_property
    def matrices(self) -> frozenset[str]:
        """Names of the parameters that are matrices: weight decay applies to these and to no others.

        A matrix has two dims or more where it is published, in the checkpoints of a family or in a traced module, and
        is no bias, nor the weights of a norm of each head. A product, a look-up or a convolution reads it. Dims of ours
        do not count: what is published as a vector over all heads has several here, and a matrix of one row has one.
        """
        read = {name for op in self.operators if op.kind in _MATRIX_READERS for name in op.inputs[1:2]}
        return frozenset(
            one.name for one in self.parameters() if (one.name in read if one.matrix is None else one.matrix)
        )

    def num_elements(self, tensor: str) -> int:
        """Number of elements of the whole tensor: the product of the global sizes of its dims."""
        return prod(self.sizes[dim] for dim in self.tensors[tensor].dims)

    def summed_bytes(self, tensor: str) -> int:
        """Bytes of one element of what is summed up of a tensor, such as a row's exponentials."""
        return summed_bytes(self.tensors[tensor].element_bytes)

    def learned(self) -> tuple[Tensor, ...]:
        """The parameters that are learned; one that two operators share is there once."""
        return tuple(tensor for tensor in self.parameters() if tensor.differentiable)

    def is_frozen(self, op: Operator) -> bool:
        """Whether the operator multiplies by a weight that is not learned."""
        return (
            op.kind in _PRODUCTS
            and self.tensors[op.inputs[1]].role == "parameter"
            and not self.tensors[op.inputs[1]].differentiable
        )

    def rounded(self, tensor: Tensor) -> bool:
        """Whether a parameter is held in the dtype of the weights: all that are learned are, or would be without
        adapters, and all matrices. What is neither, such as the bias of a router's choice, is FP32 at least, as
        published checkpoints have it."""
        return tensor.differentiable or (tensor.name in self.matrices if tensor.rounded is None else tensor.rounded)


class GraphBuilder:
    """Writes a graph operator by operator. It is the only mutable class of this folder; `build` gives the frozen graph.

    sizes: global size of each dim. element_bytes: bytes of a parameter or activation element.
    """

    def __init__(self, sizes: Mapping[str, int], element_bytes: int):
        self._sizes = dict(sizes)
        self._element_bytes = element_bytes
        self._tensors: dict[str, Tensor] = {}
        self._operators: list[Operator] = []
        self.module = ""
        """Part of the block that the next operators belong to."""
        self._whole: str | None = None

    def build(self) -> Graph:
        """The graph of all operators appended so far."""
        return Graph(self._sizes, dict(self._tensors), tuple(self._operators))

    @contextmanager
    def inside(self, module: str) -> Iterator[None]:
        """All operators appended meanwhile belong to this module, whatever part of a block they are."""
        self._whole = module
        yield
        self._whole = None

    def dims(self, tensor: str) -> tuple[str, ...]:
        """Names of the dims of a tensor, outermost first."""
        return self._tensors[tensor].dims

    def size(self, dim: str) -> int:
        """Global size of a dim."""
        return self._sizes[dim]

    @property
    def summed_bytes(self) -> int:
        """Bytes of one element of what is summed up of activations, such as a loss."""
        return summed_bytes(self._element_bytes)

    def parameter(self, name: str, dims: str, learned: bool = True, matrix: bool | None = None) -> str:
        """Add a parameter with these dims (names with spaces between), and return its name.

        Asking twice for one name gives the same parameter: that is how embeddings are tied. learned: whether it has a
        gradient; without one it stays as it was loaded (in which dtype: `Graph.rounded`). matrix: see `Tensor`.
        """
        return self._add(Tensor(name, tuple(dims.split()), "parameter", self._element_bytes, learned, matrix))

    def index_input(self, name: str, dims: str) -> str:
        """Add an input of integers, such as token ids, and return its name. It has no gradient.

        dims: names with spaces between.
        """
        return self._add(Tensor(name, tuple(dims.split()), "input", INDEX_BYTES, differentiable=False))

    def hidden_input(self, name: str, dims: str) -> str:
        """Add an input that another stage computes, and return its name. dims: names with spaces between."""
        return self._add(Tensor(name, tuple(dims.split()), "input", self._element_bytes))

    def mask_input(self, name: str, dims: str, counted: bool) -> str:
        """The mask that an operator of this name gives, or where none does here an input of true and false; returns its
        name. It has no gradient. dims: names with spaces between. counted: see `Tensor`."""
        if name in self._tensors:
            return name
        return self._add(Tensor(name, tuple(dims.split()), "input", 1, differentiable=False, counted=counted))

    def earlier(self, name: str, dims: str) -> str:
        """The output of an operator of this name, or where none is here an input that another block keeps; returns
        its name. dims: names with spaces between."""
        if name in self._tensors:
            return name
        return self._add(Tensor(name, tuple(dims.split()), "input", self._element_bytes, counted=False))

    def operator(
        self,
        kind: str,
        name: str,
        inputs: tuple[str, ...],
        output_dims: tuple[str, ...],
        loop_dims: tuple[str, ...],
        element_bytes: int | None = None,
        differentiable: bool = True,
        **attributes: object,
    ) -> str:
        """Append an operator, and return the name of its output tensor, which is the operator's.

        element_bytes: of the output; None is the builder's. differentiable: whether the output has a gradient.
        attributes: what else the kind needs.
        """
        self._add(Tensor(name, output_dims, "activation", element_bytes or self._element_bytes, differentiable))
        self._operators.append(Operator(kind, name, inputs, name, loop_dims, self._whole or self.module, attributes))
        return name

    def einsum(self, name: str, expression: str, *inputs: str) -> str:
        """Append a matrix product, and return the name of its output.

        The expression names all dims of inputs and output.
        `einsum("q", "batch seq embed, head headdim embed -> batch seq head headdim", x, w)`.
        """
        left, right = expression.split("->")
        operands = [tuple(part.split()) for part in left.split(",")]
        for operand, tensor in zip(operands, inputs, strict=True):
            assert operand == self.dims(tensor), (name, operand, self.dims(tensor))
        loops = tuple(dict.fromkeys(dim for operand in operands for dim in operand))
        output = tuple(right.split())
        assert set(output) <= set(loops), (name, output, loops)
        return self.operator("einsum", name, inputs, output, loops)

    def elementwise(self, function: str, name: str, *inputs: str, **attributes: object) -> str:
        """Append a function of single elements, and return the name of its output.

        The first input has all dims. The others may lack some: a bias lacks the leading ones, a gate the last.
        attributes: what else the function needs.
        """
        return self._elementwise(name, inputs, function=function, **attributes)

    def pointwise(self, name: str, expression: str, *inputs: str) -> str:
        """Append an expression of single elements (graph/pointwise.py), and return the name of its output. inputs: x0,
        x1, ... of the expression, as in `elementwise`."""
        return self._elementwise(name, inputs, function="pointwise", expression=expression)

    def _elementwise(self, name: str, inputs: tuple[str, ...], **attributes: Any) -> str:
        dims = self.dims(inputs[0])
        for tensor in inputs[1:]:
            have = self.dims(tensor)
            assert tuple(dim for dim in dims if dim in have) == have, (name, dims, have)
        return self.operator("elementwise", name, inputs, dims, dims, None, **attributes)

    def scaled(self, name: str, x: str, factor: float) -> str:
        """Append x times a constant, and return the name of its output."""
        return self.elementwise("scale", name, x, factor=factor)

    def _add(self, tensor: Tensor) -> str:
        known = self._tensors.setdefault(tensor.name, tensor)
        assert known == tensor and (known is tensor or tensor.role != "activation"), (known, tensor)
        unknown = [dim for dim in tensor.dims if dim not in self._sizes]
        assert not unknown, (tensor.name, unknown)
        return tensor.name
