"""The sharding of every operator under a strategy.

This is Megatron's (column/row, sequence parallel, vocabulary parallel, KV replication) as a rule over loop dims, so it
serves every family: along a tensor-parallel axis an operator splits the heads, the FFN or the vocabulary if it loops
over one, and else the sequence. It is one point of the space that the propagation rule spans; a solver may emit others.
"""

from __future__ import annotations

from collections.abc import Mapping

from autoshard.graph.attention_kind import KEY
from autoshard.graph.ir import Graph, Operator
from autoshard.graph.operator_kind import DOCUMENT_STARTS, SEQUENCE_KEYS
from autoshard.graph.operators import KINDS
from autoshard.graph.partition import Choice, Program, partition
from autoshard.graph.redistribute import Axes
from autoshard.graph.routing_kinds import AROUND_EXPERTS
from autoshard.graph.states import INVARIANT, PARTIAL, REPLICATED, State
from autoshard.graph.stream_kinds import ONE_STREAM, SEVERAL_STREAMS
from autoshard.layout.mesh import COPY_AXES, DATA_AXES, EXPERT_PART_AXES, TENSOR_PARALLEL_AXES
from autoshard.layout.template import template_of

HIDDEN_DIMS = (ONE_STREAM, SEVERAL_STREAMS)
"""Dims that the residual may have."""

OperatorChoices = tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
"""(template of an operator's name, its choice as pairs of axis and value): what differs from the rule, hashable."""


def operator_choice(op: Operator, axes: Axes, sequence_parallel: bool, experts_apart: bool = False) -> dict[str, str]:
    """The loop dim or state that the rule chooses for the operator along each axis of the stage's mesh.

    axes: size of each axis. sequence_parallel: whether work outside of matrix products splits the sequence over tp.
    experts_apart: whether the ranks along axes of tensor parallelism, but for those of etp, hold experts of their own,
    not a part of each.
    """
    return {axis: _along(op, axis, sequence_parallel, experts_apart) for axis in axes}


def _along(op: Operator, axis: str, sequence_parallel: bool, experts_apart: bool) -> str:
    if axis in DATA_AXES:
        return "expert" if axis == "ep" and _is_expert_work(op) else "batch"
    if axis == "cp":
        if _is_expert_work(op) or op.kind in AROUND_EXPERTS:
            return "expert"
        return "seq" if "seq" in op.loop_dims else REPLICATED  # each rank goes through the whole sequence
    assert axis in TENSOR_PARALLEL_AXES, axis
    if experts_apart and axis not in EXPERT_PART_AXES and (_is_expert_work(op) or op.kind in AROUND_EXPERTS):
        return "expert"
    if op.kind == "dispatch":
        return REPLICATED
    if op.kind == "combine":
        return INVARIANT if op.attributes.get("whole") else PARTIAL
    for kind, copies in COPY_AXES.items():
        key_value, group = f"{kind}kvhead", f"{kind}group"
        if key_value in op.loop_dims:
            if axis in copies:
                return group if group in op.loop_dims else REPLICATED
            return key_value
    if op.kind == "causal_conv" and op.loop_dims[-1] == "embed":  # of a residual, whose channels nothing else splits
        return "embed"
    for dim in op.loop_dims:
        if dim in _TENSOR_PARALLEL_DIMS or dim.startswith("ffn"):  # ffn2, ...: a traced model's
            return dim
    if _is_expert_work(op):  # behind a product that each rank has a part of
        return INVARIANT
    if "mamba_state" in op.loop_dims or "seq" not in op.loop_dims:  # what all heads share
        return REPLICATED
    return "seq" if sequence_parallel else INVARIANT


_TENSOR_PARALLEL_DIMS = (
    *("shared_ffn", "dense_ffn", "vocab"),
    *("linear_key_head", "lightning_head", "mamba_group", "mamba_head", "mamba_channel", "conv_channel", "ngram_part"),
)


def _is_expert_work(op: Operator) -> bool:
    return "capacity" in op.loop_dims


def hidden_state(axes: Axes, sequence_parallel: bool) -> State:
    """State of the hidden activation between blocks and between stages, with an entry for each mesh axis."""
    states = {**dict.fromkeys(DATA_AXES, "batch"), "cp": "seq"}
    inside = "seq" if sequence_parallel else INVARIANT
    return tuple(states.get(axis, inside) for axis in axes)


def choice_state(axes: Axes) -> State:
    """State of an indexer's choice between blocks and between stages, with an entry for each mesh axis."""
    return hidden_state(axes, sequence_parallel=False)


def input_states(graph: Graph, axes: Axes, hidden: State) -> dict[str, State]:
    """States in which the stage inputs that several operators may read arrive, by name. hidden: of a hidden
    activation.
    """
    keys = tuple("batch" if axis in DATA_AXES else INVARIANT for axis in axes)
    states = {tensor.name: hidden for tensor in graph.inputs() if tensor.dims in HIDDEN_DIMS}
    states |= {tensor.name: choice_state(axes) for tensor in graph.inputs() if KEY in tensor.dims}
    whole = (SEQUENCE_KEYS, DOCUMENT_STARTS)
    return states | {tensor.name: keys for tensor in graph.inputs() if tensor.name in whole}


def choices(
    graph: Graph, axes: Axes, sequence_parallel: bool, others: OperatorChoices = (), experts_apart: bool = False
) -> dict[str, Choice]:
    """The choice of every operator, by its name: the rule's, except for the templates and axes that `others` names."""
    given = {template: dict(choice) for template, choice in others}
    chosen: dict[str, Choice] = {}
    for op in graph.operators:
        rule = operator_choice(op, axes, sequence_parallel, experts_apart)
        named = given.get(template_of(op.name)) if given else None
        chosen[op.name] = {axis: named.get(axis, value) for axis, value in rule.items()} if named else rule
    return chosen


def differing(chosen: Mapping[str, Choice], rule: Mapping[str, Choice]) -> OperatorChoices:
    """The choices that differ from the rule's, in the form that `choices` takes. chosen, rule: by template."""
    return tuple((name, tuple(choice.items())) for name, choice in chosen.items() if dict(choice) != dict(rule[name]))


def legal_values(op: Operator, axis: str, rule: Choice, solved: bool) -> tuple[str, ...]:
    """All that an operator may do along an axis, the rule's choice first. rule: its choice along each axis. solved:
    whether a solver may choose; else a library has layers, for what the rule gives with and without sequence
    parallelism.

    Only along tensor-parallel axes is there a choice besides the rule's. Attention that passes pieces of a sequence
    around cannot split its sequence otherwise.
    """
    if axis not in TENSOR_PARALLEL_AXES:
        return (rule[axis],)
    if not solved:
        without = "seq" if rule[axis] == INVARIANT else rule[axis]
        other = INVARIANT if without == "seq" else without
        return tuple(dict.fromkeys((rule[axis], without, other)))
    dims = op.loop_dims
    if op.kind == "attention" and "context_parallel" in op.attributes:
        dims = tuple(dim for dim in dims if dim != "seq")
    linear = () if KINDS[op.kind].linear_input is None else (PARTIAL,)
    return tuple(dict.fromkeys((rule[axis], *dims, INVARIANT, REPLICATED, *linear)))


def divides(graph: Graph, op: Operator, choice: Choice, axes: Axes) -> bool:
    """Whether the size of every dim that the choice splits is a multiple of its number of pieces. axes: size
    of each.
    """
    pieces: dict[str, int] = {}
    for axis, size in axes.items():
        if choice[axis] in op.loop_dims:
            pieces[choice[axis]] = pieces.get(choice[axis], 1) * size
    return all(graph.sizes[dim] % count == 0 for dim, count in pieces.items())


def stage_program(
    graph: Graph, axes: Axes, sequence_parallel: bool, others: OperatorChoices = (), experts_apart: bool = False
) -> Program:
    """The program of a stage's graph; hidden activations cross its boundary in the state that all stages share.

    axes: size of each mesh axis. others: choices that differ from the rule's. experts_apart: as in `operator_choice`.
    Raises NoTransition where a dim does not divide over its axes.
    """
    hidden = hidden_state(axes, sequence_parallel)
    return partition_stage(graph, axes, choices(graph, axes, sequence_parallel, others, experts_apart), hidden)


def partition_stage(
    graph: Graph, axes: Axes, chosen: dict[str, Choice], hidden: State, leaving_choice: str | None = None
) -> Program:
    """The program of a stage's graph with given choices by operator. hidden: state of its hidden input and output.
    leaving_choice: the name of an indexer's choice that the next stage needs besides.

    Raises NoTransition as `stage_program`.
    """
    given = input_states(graph, axes, hidden)
    last = graph.operators[-1].output
    leaves = hidden if graph.tensors[last].dims in HIDDEN_DIMS else None
    others = {} if leaving_choice is None else {leaving_choice: choice_state(axes)}
    return partition(graph, axes, chosen, given, {last: leaves, **others})
