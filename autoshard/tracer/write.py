"""Write a traced model as a ModelSpec: names, sections, where parameters come from and how they start."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from autoshard.errors import AutoshardError
from autoshard.spec.model import ModelSpec
from autoshard.spec.traced import HIDDEN, TracedGraph, TracedOperator, TracedParameter, fits
from autoshard.tracer.arrange import Blocks
from autoshard.tracer.dims import Dims, resolve
from autoshard.tracer.modules import block_modules
from autoshard.tracer.names import Names
from autoshard.tracer.values import Operation, Parameter, Tensor

_PART = "part"
_WANTED = {
    "einsum": "a projection multiplies an activation by one parameter",
    "elementwise": "what is combined number by number must have its dims in one order",
    "norm": "a norm is over one dim, such as the hidden width or a head, and so are its weight and bias",
    "rope": "rotary positions turn heads of queries and keys, so split the width into heads first",
    "attention": "the queries of one key-value head are neighbours, as repeat_interleave gives them",
    "embedding": "the table of tokens must give what the first block reads: x + f(x) between them works, f(x) does not",
    "position_embedding": "learned positions are added to what the first block reads",
    "top_k_gate": "a router chooses for each token of the batch",
    "dispatch": "experts read what blocks hand on",
    "combine": "experts give what blocks hand on",
}
"""What the user's code must do for an operator of each kind, in the words of an error."""


@dataclass(frozen=True)
class Traced:
    """A traced model: all operators in order, its blocks, the dims of the logits' last axis, names that
    operators gave.
    """

    operations: list[Operation]
    blocks: Blocks
    vocab: Dims
    roles: list[tuple[str, Dims]]


def write_model(traced: Traced, name: str, positions: int) -> ModelSpec:
    """The ModelSpec of a traced model.

    positions: tokens that the model is known to take, if it has no table of positions.
    """
    operations, blocks = traced.operations, traced.blocks
    first = operations[blocks.start : blocks.start + blocks.length]
    sections = {
        "embedding": operations[: blocks.start],
        "block": first,
        "head": operations[blocks.stop :],
    }
    own = [op for part in sections.values() for op in part]
    names = Names(own, operations[blocks.start - 1].dims, traced.vocab, traced.roles)
    tensors = _tensor_patterns(operations, blocks)
    writer = _Writer(names, tensors, block_modules(first), operations[blocks.start - 1].dims)
    written = {section: writer.section(section, part) for section, part in sections.items()}
    logits = written["head"][-1].name
    loss = TracedOperator("cross_entropy", "loss", "head", (logits, "labels"), ())
    used = {dim for part in written.values() for op in part for dim in op.dims}
    used |= {dim for one in writer.parameters for dim in one.dims}
    graph = TracedGraph(
        prefix=writer.prefix,
        sizes=tuple((dim, names.sizes[dim]) for dim in sorted(used) if re.fullmatch(r"(ffn|inner)\d+", dim)),
        parameters=tuple(writer.parameters),
        embedding=written["embedding"],
        block=written["block"],
        head=(*written["head"], loss),
    )
    return _spec(graph, names.sizes, name, positions, blocks.count, own)


def _spec(
    graph: TracedGraph, sizes: dict[str, int], name: str, positions: int, layers: int, own: Sequence[Operation]
) -> ModelSpec:
    windows = {op.attributes["sliding_window"] for op in own if op.kind == "attention"}
    gates = [op for op in own if op.kind == "top_k_gate"]
    norms = [op for op in own if op.kind == "norm"]
    kv_heads = sizes.get("kvhead", 1)
    ends = ({one for op in part for one in op.inputs} for part in (graph.embedding, graph.head))
    parameters = {parameter.name for parameter in graph.parameters}
    return ModelSpec(
        name=name,
        model_type="traced",
        hidden_size=sizes["embed"],
        intermediate_size=sizes.get("ffn", sizes["embed"]),
        num_hidden_layers=layers,
        num_attention_heads=kv_heads * sizes.get("group", 1),
        num_key_value_heads=kv_heads,
        head_dim=sizes.get("headdim", sizes["embed"]),
        vocab_size=sizes["vocab"],
        max_position_embeddings=sizes.get("position", positions),
        hidden_act="traced",
        norm_eps=max([float(op.attributes["eps"]) for op in norms if op.attributes["eps"] > 0], default=1e-5),
        rope_theta=None if "position" in sizes else 1e4,
        rope_scaling=None,
        tie_word_embeddings=bool(set.intersection(*ends) & parameters),
        sliding_window=None if None in windows else max(windows, default=None),
        attention_bias=False,
        mlp_bias=False,
        num_local_experts=sizes.get("expert", 0),
        num_experts_per_tok=max((int(op.attributes["top_k"]) for op in gates), default=0),
        graph=graph,
    )


@dataclass(frozen=True)
class _Pattern:
    """The user's name of a parameter in all blocks, with * for the number: first + step * block."""

    text: str
    first: int = 0
    step: int = 0


def _tensor_patterns(operations: Sequence[Operation], blocks: Blocks) -> dict[str, _Pattern]:
    """Name in the first block -> pattern of the names in all blocks; names outside of blocks stand for themselves."""
    found: dict[str, _Pattern] = {}
    for op in operations:
        for one in op.inputs:
            if isinstance(one, Parameter):
                found.setdefault(one.tensor, _Pattern(one.tensor))
    for offset in range(blocks.length):
        same = [operations[blocks.start + number * blocks.length + offset] for number in range(blocks.count)]
        for one, *others in zip(*(op.inputs for op in same), strict=True):
            if isinstance(one, Parameter):
                found[one.tensor] = _pattern([one.tensor, *(str(getattr(other, "tensor", "")) for other in others)])
    return found


def _pattern(tensors: Sequence[str]) -> _Pattern:
    """The pattern of the names that one parameter has in all blocks. tensors: these names, in the order of the blocks.

    Raises AutoshardError where neighbouring names differ in more than one number.
    """
    numbers = [list(re.finditer(r"\d+", tensor)) for tensor in tensors]
    for index in range(min(map(len, numbers))):
        values = [int(found[index][0]) for found in numbers]
        step = values[1] - values[0]
        place = numbers[0][index]
        text = f"{tensors[0][: place.start()]}*{tensors[0][place.end() :]}"
        expected = [text.replace("*", str(values[0] + step * number)) for number in range(len(tensors))]
        if step > 0 and expected == list(tensors):
            return _Pattern(text, values[0], step)
    raise AutoshardError(
        f"parameters {tensors[0]} and {tensors[1]} of neighbouring blocks do not differ in a number alone; "
        "blocks in a torch.nn.ModuleList do"
    )


class _Writer:
    def __init__(self, names: Names, patterns: dict[str, _Pattern], modules: dict[Operation, str], hidden: Dims):
        self._names, self._patterns, self._modules, self._hidden = names, patterns, modules, hidden
        self.parameters: list[TracedParameter] = []
        self._written: dict[tuple[object, ...], str] = {}
        self._taken: set[str] = {HIDDEN, "input_ids", "labels", "loss"}
        self._cuts: dict[str, int] = {}
        inside = [one for one in patterns.values() if one.step]
        stems = [one.text.split("*")[0].rstrip(".") or "block" for one in inside]
        self.prefix = max(set(stems), key=stems.count) if stems else "block"

    def section(self, section: str, operations: Sequence[Operation]) -> tuple[TracedOperator, ...]:
        names: dict[Tensor, str] = {}
        found = []
        biased = {op.inputs[0] for op in operations if _is_bias(op)}
        for op in operations:
            inputs = tuple(self._input(section, names, one, op) for one in op.inputs)
            name = self._operator_name(section, op, biased, inputs)
            names[op] = name
            dims = self._names.of(op.dims)
            written = TracedOperator(
                op.kind, name, self._modules.get(op, section), inputs, dims, tuple(op.attributes.items())
            )
            self._check_fits(op, written)
            found.append(written)
        return tuple(found)

    def _check_fits(self, op: Operation, written: TracedOperator) -> None:
        """Raise AutoshardError with the user's line for an operator whose named dims the graph has no meaning for."""
        given = tuple(self._names.of(one.dims) for one in op.inputs)
        over = self._names.of([dim for dim in resolve(op.over) if dim.size != 1])
        if fits(written, given) and over in ((), written.dims[-1:]):
            return
        shown = ", ".join(f"[{' '.join(dims)}]" for dims in given)
        what = f"this one is over [{' '.join(over)}]" if over else f"this makes [{' '.join(written.dims)}] of {shown}"
        raise AutoshardError(f"{op.kind} at {op.line}: {_WANTED[op.kind]}; {what}")

    def _input(self, section: str, names: dict[Tensor, str], one: Tensor, op: Operation) -> str:
        if isinstance(one, Parameter):
            return self._parameter(one, op, section)
        if isinstance(one, Operation):
            return names.get(one, HIDDEN)
        return one.name

    def _parameter(self, one: Parameter, op: Operation, section: str) -> str:
        cut = (one.cut.start, one.cut.stop) if one.cut is not None else None
        key = (one.tensor, cut)
        if key in self._written:
            return self._written[key]
        pattern = self._patterns[one.tensor]
        stem = pattern.text.split("*", 1)[1].lstrip(".") if pattern.step else pattern.text
        if cut is not None:
            self._cuts[one.tensor] = self._cuts.get(one.tensor, 0) + 1
            before, _, last = stem.rpartition(".")
            stem = f"{before}.part{self._cuts[one.tensor]}.{last}".lstrip(".")
        name = self._written[key] = self._free(_identifier(stem) or "parameter")
        layout = " ".join(self._axis(one, axis) for axis in one.axes)
        part = () if one.cut is None else self._names.of(one.cut.dims)
        size = one.cut.whole.size if one.cut is not None else 0
        start, stop = cut or (0, 0)
        initial = _initial(op, one)
        if op.kind == "einsum" and section == "block" and op.dims == resolve(self._hidden):
            initial = "residual"
        dims = self._matrix_dims(one, op)
        where = (pattern.first, pattern.step)
        self.parameters.append(
            TracedParameter(name, dims, initial, pattern.text, layout, part, size, start, stop, *where)
        )
        return name

    def _matrix_dims(self, one: Parameter, op: Operation) -> tuple[str, ...]:
        """The dims of a parameter in our order: those that a projection contracts last, in the order of its input.

        The user's matrix may have them in another order.
        """
        dims = self._names.of(one.dims)
        if op.kind != "einsum":
            return dims
        given, kept = self._names.of(op.inputs[0].dims), self._names.of(op.dims)
        contracted = tuple(dim for dim in given if dim in dims and dim not in kept)
        return (*(dim for dim in dims if dim not in contracted), *contracted)

    def _axis(self, one: Parameter, axis: Dims) -> str:
        words: list[str] = []
        plain: list[object] = []
        for dim in resolve(axis):
            if one.cut is not None and dim is one.cut.whole.resolved()[0]:
                words += [*self._names.of(plain), _PART]  # type: ignore[arg-type]
                plain = []
            else:
                plain.append(dim)
        words += self._names.of(plain)  # type: ignore[arg-type]
        return words[0] if len(words) == 1 else f"({' '.join(words)})" if words else "1"

    def _operator_name(self, section: str, op: Operation, biased: set[Tensor], inputs: tuple[str, ...]) -> str:
        weights = [name for name, one in zip(inputs, op.inputs, strict=True) if isinstance(one, Parameter)]
        path = _relative(op.path, self.prefix) if section == "block" else op.path
        if weights and op.kind in ("einsum", "norm", "embedding", "position_embedding"):
            stem = weights[0].removesuffix(".weight")
            stem = f"{stem}.product" if stem == weights[0] else stem
            if _identifier(stem) in self._taken and path:  # a head that reads the embedding's table
                stem = path
            if op in biased:
                stem = f"{stem}.matmul"
        elif _is_bias(op):
            stem = weights[0].removesuffix(".bias")
        else:
            label = "core_attention" if op.kind == "attention" else str(op.attributes.get("function", op.kind))
            stem = f"{path}.{label}".strip(".")
        return self._free(_identifier(stem))

    def _free(self, name: str) -> str:
        found, number = name, 1
        while found in self._taken:
            number += 1
            found = f"{name}_{number}"
        self._taken.add(found)
        return found


def _is_bias(op: Operation) -> bool:
    return (
        op.attributes.get("function") == "add"
        and len(op.inputs) == 2
        and isinstance(op.inputs[1], Parameter)
        and isinstance(op.inputs[0], Operation)
        and op.inputs[0].kind == "einsum"
    )


def _identifier(name: str) -> str:
    """The name with _ before each number alone, which would stand for a block: 'mlp.0.weight' -> 'mlp._0.weight'."""
    parts = [re.sub(r"\W", "_", part) for part in name.split(".") if part]
    return ".".join(part if re.match(r"[A-Za-z_]", part) else f"_{part}" for part in parts)


def _relative(path: str, prefix: str) -> str:
    """The part of a path behind the block's number."""
    found = re.match(re.escape(prefix) + r"\.?\d+\.?", path)
    return path[found.end() :] if found else path.split(".")[-1]


def _initial(op: Operation, one: Parameter) -> str:
    """How a parameter starts, as in GPT-2 and Llama: 'ones' for weights of norms, 'zeros' for biases, else 'normal'."""
    if op.kind == "norm":
        return "ones" if op.inputs[1] is one else "zeros"
    if op.kind == "elementwise":
        shifted = f"(add x{op.inputs.index(one)} 1.0)" in str(op.attributes.get("expression", ""))
        return "zeros" if op.attributes["function"] == "add" or shifted else "ones"
    return "normal"
