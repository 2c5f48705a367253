"""A model of the user's own as data: the operators of its embedding, of one block and of its head over named dims.

What `autoshard.tracer` found in a torch module. A plan holds it by value and reading it executes nothing.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Any

from autoshard.errors import AutoshardError
from autoshard.files.codec import Checked, Form, Limit, Text, to_json
from autoshard.files.fields import LARGEST, check_choice, check_flag, check_integer, show
from autoshard.files.strict import Reader
from autoshard.graph.pointwise import check_expression
from autoshard.graph.recompute import BLOCK_MODULES

HIDDEN = "hidden"
"""Name of the activation that a block and the head are given; the last operator of embedding and block makes it."""
SPEC_DIMS = ("batch", "seq", "embed", "kvhead", "group", "headdim", "ffn", "vocab", "position", "expert", "capacity")
"""Dims whose sizes follow from the fields of ModelSpec and from the batch."""
SECTIONS = ("embedding", "block", "head")
INITIAL = ("normal", "residual", "ones", "zeros")
"""How a parameter starts: N(0, 0.02), the same over sqrt(2 layers), 1 or 0."""
LONGEST_TRACE = 8192
"""Tokens: masks are looked at as a whole, which grows with the square. A window beyond is not seen."""
MOST_OPERATORS = 2_000
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_DIM = re.compile(r"[a-z][a-z_]*\d*")

_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "einsum": (),
    "elementwise": ("function", "expression"),
    "norm": ("function", "eps"),
    "rope": ("rotary_dim", "theta", "frequencies", "interleaved"),
    "attention": ("sliding_window",),
    "embedding": ("padding_idx",),
    "position_embedding": (),
    "cross_entropy": (),
    "top_k_gate": ("top_k", "normalized"),
    "dispatch": (),
    "combine": (),
}
"""Kinds of operators that a traced model can have -> what each of them says besides its inputs."""

Attributes = tuple[tuple[str, Any], ...]


def _read_dims(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, str) or len(value) > 200:
        raise AutoshardError(f"{where} is {show(value)}; it must be the names of dims, such as 'batch seq embed'")
    return tuple(value.split())


def _read_pairs(value: object, where: str) -> Attributes:
    reader = Reader(value, where)
    return tuple((name, _frozen(reader.any(name))) for name in reader.names)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _write_pairs(pairs: Attributes) -> dict[str, Any]:
    return {name: to_json(value) for name, value in pairs}


Dims = Annotated[tuple[str, ...], Form(" ".join, _read_dims, {"type": "string"})]
"""'batch seq embed' in JSON; '' for a number."""
_COUNT_SCHEMA = {"type": "integer", "minimum": 1}
Sizes = Annotated[
    tuple[tuple[str, int], ...],
    Form(_write_pairs, _read_pairs, {"type": "object", "additionalProperties": _COUNT_SCHEMA}),
]
Index = Annotated[int, Limit(at_least=0, at_most=LARGEST)]


@dataclass(frozen=True)
class TracedOperator:
    """One operator of a traced model.

    kind: What it computes, such as einsum.
    name: Its name in its section, and that of its output.
    module: Part of the block, for recompute; the name of the section outside of it.
    inputs: Names of operators of its section before it, of parameters, hidden, input_ids or labels.
    dims: Dims of its output, spaces between.
    attributes: What else its kind has to know.
    """

    kind: Annotated[str, Checked(partial(check_choice, choices=_ATTRIBUTES))]
    name: str
    module: str
    inputs: Annotated[tuple[str, ...], Limit(most_items=MOST_OPERATORS)]
    dims: Dims
    attributes: Annotated[Attributes, Form(_write_pairs, _read_pairs, {"type": "object"})] = ()


@dataclass(frozen=True)
class TracedParameter:
    """One parameter of one section of a traced model, and where the user's module holds it.

    name: Its name in its section.
    dims: Its dims, spaces between.
    initial: How it starts: N(0, 0.02), the same over sqrt(2 layers), 1 or 0.
    tensor: The module's name of the tensor; in a block * stands for first + step x the block's number.
    layout: Dims of the module's tensor in ours, those flattened into one in parentheses: "(kvhead headdim) embed";
        empty for a single number.
    part: Where the tensor holds more than this parameter: the dims of the dim `part` of its layout that are ours; else
        empty.
    part_size: Size of the dim `part` of the layout.
    start: First place of that dim which is this parameter.
    stop: One past the last.
    first: Number of the first block in names of the module.
    step: What that number grows by from block to block.
    """

    name: str
    dims: Dims
    initial: Annotated[str, Limit(choices=INITIAL)]
    tensor: Text
    layout: str
    part: Dims = ()
    part_size: Index = 0
    start: Index = 0
    stop: Index = 0
    first: Index = 0
    step: Index = 0

    @property
    def is_matrix(self) -> bool:
        """Whether the module's tensor has two dims or more and is no bias."""
        return len(re.findall(r"\([^)]*\)|\S+", self.layout)) > 1 and not self.tensor.endswith("bias")


Parameters = Annotated[tuple[TracedParameter, ...], Limit(most_items=MOST_OPERATORS)]
Operators = Annotated[tuple[TracedOperator, ...], Limit(most_items=MOST_OPERATORS)]


@dataclass(frozen=True)
class TracedGraph:
    """The operators of a user's own module over named dims, read as data.

    Raises AutoshardError for what no trace would give.

    prefix: Start of the names of blocks, such as model.layers.
    sizes: Sizes of inner dims that ModelSpec has no field for, such as ffn2.
    parameters: Parameters, and where the module holds them.
    embedding: Operators before the first block.
    block: Operators of each block.
    head: Operators behind the last block, the loss last.
    """

    prefix: str
    sizes: Sizes
    parameters: Parameters
    embedding: Operators
    block: Operators
    head: Operators

    def __post_init__(self) -> None:
        _check(self)

    @cached_property
    def _hash(self) -> int:
        return hash((self.prefix, self.sizes, self.parameters, self.embedding, self.block, self.head))

    def __hash__(self) -> int:
        """Computed once: models are keys of many caches."""
        return self._hash

    @cached_property
    def by_name(self) -> dict[str, TracedParameter]:
        return {parameter.name: parameter for parameter in self.parameters}

    def parameter_named(self, name: str) -> TracedParameter:
        """By its name in a stage's graph: 'model.layers.3.mlp.up.weight' is 'mlp.up.weight' of a block."""
        inside = re.fullmatch(rf"{re.escape(self.prefix)}\.\d+\.(.*)", name)
        return self.by_name[inside[1] if inside else name]

    @property
    def split_sizes(self) -> tuple[tuple[str, int], ...]:
        """(dim, size) of the dims in `sizes` that tensor parallelism splits, as it does ffn."""
        return tuple((name, size) for name, size in self.sizes if name.startswith("ffn"))

    @property
    def operators(self) -> tuple[TracedOperator, ...]:
        return (*self.embedding, *self.block, *self.head)


def _check(graph: TracedGraph) -> None:
    """Names, references and attributes, one by one."""
    if not isinstance(graph.prefix, str) or not _NAME.fullmatch(graph.prefix):
        raise AutoshardError(f"graph.prefix={show(graph.prefix)} must be names with dots, such as model.layers")
    for name, size in graph.sizes:
        if not _DIM.fullmatch(name) or name in SPEC_DIMS:
            raise AutoshardError(f"graph.sizes has {show(name)}, which is not the name of a dim of its own")
        check_integer("graph.sizes", name, size)
    known = {*SPEC_DIMS, *dict(graph.sizes)}
    own: dict[str, tuple[str, ...]] = {}
    for parameter in graph.parameters:
        _check_parameter(parameter, known)
        if parameter.name in own:
            raise AutoshardError(f"graph.parameters has {show(parameter.name)} twice")
        own[parameter.name] = parameter.dims
    hidden = ("batch", "seq", "embed")
    for section in SECTIONS:
        operators: tuple[TracedOperator, ...] = getattr(graph, section)
        values = {**own, "input_ids": ("batch", "seq")} if section == "embedding" else {**own, HIDDEN: hidden}
        if section == "head":
            values["labels"] = ("batch", "seq")
        for op in operators:
            _check_operator(op, section, values, known)
            values[op.name] = op.dims
        last = () if section == "head" else hidden
        if not operators or operators[-1].dims != last:
            raise AutoshardError(f"graph.{section} must end with an operator of dims '{' '.join(last)}'")
    if graph.head[-1].kind != "cross_entropy":
        raise AutoshardError("graph.head must end with a cross_entropy")


def _check_parameter(parameter: TracedParameter, known: set[str]) -> None:
    of = f"parameter {show(parameter.name)} of the graph"
    if not _NAME.fullmatch(parameter.name):
        raise AutoshardError(f"name={show(parameter.name)} of a parameter of the graph must be names with dots")
    check_choice(of, "initial", parameter.initial, INITIAL)
    dims = parameter.dims
    if len(set(dims)) < len(dims) or not known.issuperset((*dims, *parameter.part)):
        raise AutoshardError(f"dims={show(' '.join(dims))} of {of} must be different dims of the graph")
    for text in (parameter.tensor, parameter.layout):
        if not text.isprintable() or len(text) > 500:
            raise AutoshardError(f"{show(text)} of {of} must be printable and short")


def _check_operator(op: TracedOperator, section: str, values: dict[str, tuple[str, ...]], known: set[str]) -> None:
    of = f"operator {show(op.name)} of graph.{section}"
    if not _NAME.fullmatch(op.name) or op.name in values:
        raise AutoshardError(f"name={show(op.name)} in graph.{section} must be names with dots, each once")
    check_choice(of, "kind", op.kind, _ATTRIBUTES)
    check_choice(of, "module", op.module, BLOCK_MODULES if section == "block" else (section,))
    for name in op.inputs:
        if name not in values:
            raise AutoshardError(f"{of} reads {show(name)}, which nothing before it gives")
    if len(set(op.dims)) < len(op.dims) or not known.issuperset(op.dims):
        raise AutoshardError(f"dims={show(' '.join(op.dims))} of {of} must be different dims of the graph")
    inputs = tuple(values[name] for name in op.inputs)
    if not fits(op, inputs):
        shown = ", ".join(f"[{' '.join(dims)}]" for dims in inputs)
        raise AutoshardError(f"{of}: {op.kind} does not make [{' '.join(op.dims)}] of {shown}")
    _check_attributes(op, of)


def _subsequence(part: tuple[str, ...], whole: tuple[str, ...]) -> bool:
    return tuple(dim for dim in whole if dim in part) == part


def _einsum_fits(op: TracedOperator, inputs: tuple[tuple[str, ...], ...]) -> bool:
    return len(inputs) == 2 and {*inputs[0], *inputs[1]}.issuperset(op.dims)


def _elementwise_fits(op: TracedOperator, inputs: tuple[tuple[str, ...], ...]) -> bool:
    return bool(inputs) and inputs[0] == op.dims and all(_subsequence(one, op.dims) for one in inputs)


def _norm_fits(op: TracedOperator, inputs: tuple[tuple[str, ...], ...]) -> bool:
    return 1 <= len(inputs) <= 3 and inputs[0] == op.dims != () and all(one == op.dims[-1:] for one in inputs[1:])


_QUERY, _KEY = ("batch", "seq", "kvhead", "group", "headdim"), ("batch", "seq", "kvhead", "headdim")
_SLOTS = ("expert", "batch", "capacity", "embed")
_TOKENS, _ROUTED = ("batch", "seq", "embed"), ("batch", "seq", "expert")
_FITS: dict[str, Any] = {
    "einsum": _einsum_fits,
    "elementwise": _elementwise_fits,
    "norm": _norm_fits,
    "rope": lambda op, inputs: inputs == (op.dims,) and op.dims in (_QUERY, _KEY),
    "attention": lambda op, inputs: inputs == (_QUERY, _KEY, _KEY) and op.dims == _QUERY,
    "embedding": lambda op, inputs: inputs == (("batch", "seq"), ("vocab", "embed")) and op.dims == _TOKENS,
    "position_embedding": lambda op, inputs: inputs == (_TOKENS, ("position", "embed")) and op.dims == _TOKENS,
    "cross_entropy": lambda op, inputs: inputs == (("batch", "seq", "vocab"), ("batch", "seq")) and op.dims == (),
    "top_k_gate": lambda op, inputs: inputs == (_ROUTED,) and op.dims == _ROUTED,
    "dispatch": lambda op, inputs: inputs == (_TOKENS, _ROUTED) and op.dims == _SLOTS,
    "combine": lambda op, inputs: inputs == (_SLOTS, _ROUTED) and op.dims == _TOKENS,
}


def fits(op: TracedOperator, inputs: tuple[tuple[str, ...], ...]) -> bool:
    """Whether an operator of its kind makes its dims of inputs with these dims."""
    found: bool = _FITS[op.kind](op, inputs)
    return found


def _check_attributes(op: TracedOperator, of: str) -> None:
    """Every attribute of its kind, of a value that the kernels take."""
    found = dict(op.attributes)
    for name in found:
        check_choice(of, "an attribute", name, _ATTRIBUTES[op.kind])
    if op.kind == "elementwise":
        check_choice(
            of, "function", found.get("function"), ("add", "silu_mul", "gelu", "gelu_erf", "sigmoid_mul", "pointwise")
        )
        if found["function"] == "pointwise":
            check_expression(found.get("expression"), len(op.inputs), of)
    if op.kind == "norm":
        check_choice(of, "function", found.get("function"), ("rms", "layer"))
        _check_number(found.get("eps"), of, "eps", at_least=0.0)
    if op.kind == "rope":
        check_integer(of, "rotary_dim", found.get("rotary_dim"), at_least=2)
        if found.get("theta") is not None:
            _check_number(found["theta"], of, "theta", at_least=1e-9)
        else:
            frequencies = found.get("frequencies")
            if not isinstance(frequencies, tuple) or len(frequencies) != found["rotary_dim"] // 2:
                raise AutoshardError(f"frequencies of {of} must be rotary_dim / 2 numbers")
            for one in frequencies:
                _check_number(one, of, "a frequency", at_least=-math.inf)
    if "padding_idx" in found:
        check_integer(of, "padding_idx", found["padding_idx"], at_least=0)
    if op.kind == "attention" and found.get("sliding_window") is not None:
        check_integer(of, "sliding_window", found["sliding_window"])
    if op.kind == "top_k_gate":
        check_integer(of, "top_k", found.get("top_k"), at_most=LARGEST)
        check_flag(of, "normalized", found.get("normalized"))


def _check_number(value: object, of: str, name: str, at_least: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < at_least:
        raise AutoshardError(f"{name}={show(value)} of {of} must be a finite number")
