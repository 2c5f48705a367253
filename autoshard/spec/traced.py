"""A model of the user's own as data: the operators of its embedding, of one block and of its head over named dims.

What `autoshard.tracer` found in a torch module. A plan holds it by value and reading it executes nothing.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from autoshard.errors import AutoshardError
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
    "embedding": (),
    "position_embedding": (),
    "cross_entropy": (),
    "top_k_gate": ("top_k", "normalized"),
    "dispatch": (),
    "combine": (),
}
"""Kinds of operators that a traced model can have -> what each of them says besides its inputs."""

Attributes = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class TracedOperator:
    """One operator. inputs: names of operators of its section before it, of parameters, `hidden`, `input_ids` or
    `labels`. dims: of its output. module: part of the block, or the name of the section outside of it."""

    kind: str
    name: str
    module: str
    inputs: tuple[str, ...]
    dims: tuple[str, ...]
    attributes: Attributes = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "name": self.name,
            "module": self.module,
            "inputs": list(self.inputs),
            "dims": " ".join(self.dims),
            "attributes": {name: list(v) if isinstance(v, tuple) else v for name, v in self.attributes},
        }

    @classmethod
    def from_dict(cls, value: object, path: str) -> TracedOperator:
        reader = Reader(value, path)
        kind, name, module = (reader.text(field) for field in ("kind", "name", "module"))
        inputs = _texts(reader.any("inputs"), f"{path}.inputs")
        dims = _dims(reader.any("dims"), f"{path}.dims")
        given = Reader(reader.any("attributes"), f"{path}.attributes")
        check_choice(path, "kind", kind, _ATTRIBUTES)
        attributes = tuple((key, _frozen(given.any(key))) for key in given.names if key in _ATTRIBUTES[kind])
        given.finish()
        reader.finish()
        return cls(kind, name, module, inputs, dims, attributes)


@dataclass(frozen=True)
class TracedParameter:
    """A parameter of one section, and where the user's module holds it.

    tensor: its name there; in a block `*` stands for first + step * the block's number.
    layout: the tensor's dims in ours, several flattened into one in parentheses: "(kvhead group headdim) embed". Where
    the tensor holds more than this parameter, `part` is among them: a dim of size part_size, whose places [start, stop)
    are ours, and are the dims `part`.
    """

    name: str
    dims: tuple[str, ...]
    initial: str
    tensor: str
    layout: str
    part: tuple[str, ...] = ()
    part_size: int = 0
    start: int = 0
    stop: int = 0
    first: int = 0
    step: int = 0

    def tensor_of(self, layer: int) -> str:
        """Its name in the user's module."""
        return self.tensor.replace("*", str(self.first + self.step * layer))

    def to_dict(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**values, "dims": " ".join(self.dims), "part": " ".join(self.part)}

    @classmethod
    def from_dict(cls, value: object, path: str) -> TracedParameter:
        reader = Reader(value, path)
        values: dict[str, Any] = {name: reader.text(name) for name in ("name", "initial", "tensor", "layout")}
        for name in ("dims", "part"):
            values[name] = _dims(reader.any(name), f"{path}.{name}")
        for name in ("part_size", "start", "stop", "first", "step"):
            values[name] = reader.any(name)
            check_integer(path, name, values[name], at_least=0)
        reader.finish()
        return cls(**values)


@dataclass(frozen=True)
class TracedGraph:
    """The three sections of the model, their parameters, and sizes of dims that ModelSpec has no field for.

    prefix: of the names of blocks, such as "model.layers". Raises AutoshardError for what no trace would give.
    """

    prefix: str
    sizes: tuple[tuple[str, int], ...]
    parameters: tuple[TracedParameter, ...]
    embedding: tuple[TracedOperator, ...]
    block: tuple[TracedOperator, ...]
    head: tuple[TracedOperator, ...]

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

    def to_dict(self) -> dict[str, Any]:
        return {
            "prefix": self.prefix,
            "sizes": dict(self.sizes),
            "parameters": [one.to_dict() for one in self.parameters],
            **{section: [op.to_dict() for op in getattr(self, section)] for section in SECTIONS},
        }

    @classmethod
    def from_dict(cls, value: object, path: str = "model.graph") -> TracedGraph:
        reader = Reader(value, path)
        prefix = reader.text("prefix")
        sizes = Reader(reader.any("sizes"), f"{path}.sizes")
        found = tuple((name, sizes.any(name)) for name in sizes.names)
        parameters = tuple(
            TracedParameter.from_dict(one, f"{path}.parameters[{i}]")
            for i, one in enumerate(_list(reader.any("parameters"), f"{path}.parameters"))
        )
        sections = {
            section: tuple(
                TracedOperator.from_dict(one, f"{path}.{section}[{i}]")
                for i, one in enumerate(_list(reader.any(section), f"{path}.{section}"))
            )
            for section in SECTIONS
        }
        reader.finish()
        return cls(prefix, found, parameters, **sections)


def _list(value: object, path: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > MOST_OPERATORS:
        raise AutoshardError(f"{path} is {show(value)}; it must be a list of at most {MOST_OPERATORS:,} entries")
    return value


def _texts(value: object, path: str) -> tuple[str, ...]:
    found = _list(value, path)
    if not all(isinstance(one, str) for one in found):
        raise AutoshardError(f"{path} must be a list of names")
    return tuple(found)


def _dims(value: object, path: str) -> tuple[str, ...]:
    """'batch seq embed'; '' for a number."""
    if not isinstance(value, str) or len(value) > 200:
        raise AutoshardError(f"{path} is {show(value)}; it must be the names of dims, such as 'batch seq embed'")
    return tuple(value.split())


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _check(graph: TracedGraph) -> None:
    """Names, references and attributes, one by one."""
    if not _NAME.fullmatch(graph.prefix):
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
    if not _FITS[op.kind](op, inputs):
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
    if op.kind == "attention" and found.get("sliding_window") is not None:
        check_integer(of, "sliding_window", found["sliding_window"])
    if op.kind == "top_k_gate":
        check_integer(of, "top_k", found.get("top_k"), at_most=LARGEST)
        check_flag(of, "normalized", found.get("normalized"))


def _check_number(value: object, of: str, name: str, at_least: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < at_least:
        raise AutoshardError(f"{name}={show(value)} of {of} must be a finite number")
