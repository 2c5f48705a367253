"""The sharding of every operator under a strategy.

This is Megatron's (column/row, sequence parallel, vocabulary parallel, KV replication) as a rule over loop dims, so it
serves every family: along a tensor-parallel axis an operator splits the heads, the FFN or the vocabulary if it loops
over one, and else the sequence. It is one point of the space that the propagation rule spans; a solver may emit others.
"""

from __future__ import annotations

from autoshard.graph.ir import Graph, Operator
from autoshard.graph.partition import Choice, Program, partition
from autoshard.graph.redistribute import Axes
from autoshard.graph.states import INVARIANT, PARTIAL, REPLICATED, State
from autoshard.layout.mesh import DATA_AXES, TENSOR_PARALLEL_AXES

HIDDEN_DIMS = ("batch", "seq", "embed")


def operator_choice(op: Operator, axes: Axes, sequence_parallel: bool) -> dict[str, str]:
    """What the operator does along each axis of the stage's mesh."""
    return {axis: _along(op, axis, sequence_parallel) for axis in axes}


def _along(op: Operator, axis: str, sequence_parallel: bool) -> str:
    if axis in DATA_AXES:
        return "expert" if axis == "ep" and _is_expert_work(op) else "batch"
    if axis == "cp":
        return "seq"
    assert axis in TENSOR_PARALLEL_AXES, axis
    if op.kind == "dispatch":
        return REPLICATED
    if op.kind == "combine":
        return PARTIAL
    if "kvhead" in op.loop_dims:
        if axis == "tp1":
            return "group" if "group" in op.loop_dims else REPLICATED
        return "kvhead"
    for dim in ("ffn", "vocab"):
        if dim in op.loop_dims:
            return dim
    return "seq" if sequence_parallel else INVARIANT


def _is_expert_work(op: Operator) -> bool:
    return "capacity" in op.loop_dims


def hidden_state(axes: Axes, sequence_parallel: bool) -> State:
    """State of the hidden activation between blocks and between stages."""
    states = {"dp": "batch", "ep": "batch", "cp": "seq"}
    inside = "seq" if sequence_parallel else INVARIANT
    return tuple(states.get(axis, inside) for axis in axes)


def choices(graph: Graph, axes: Axes, sequence_parallel: bool) -> dict[str, Choice]:
    return {op.name: operator_choice(op, axes, sequence_parallel) for op in graph.operators}


def stage_program(graph: Graph, axes: Axes, sequence_parallel: bool) -> Program:
    """Partition a stage's graph; hidden activations cross its boundary in the state that all stages share.

    Raises NoTransition where a dim does not divide over its axes.
    """
    hidden = hidden_state(axes, sequence_parallel)
    return partition_stage(graph, axes, choices(graph, axes, sequence_parallel), hidden)


def partition_stage(graph: Graph, axes: Axes, chosen: dict[str, Choice], hidden: State) -> Program:
    """Partition with given choices: the stage's hidden input and output are in the state `hidden`."""
    given = {tensor.name: hidden for tensor in graph.inputs() if tensor.dims == HIDDEN_DIMS}
    last = graph.operators[-1].output
    leaves = hidden if graph.tensors[last].dims == HIDDEN_DIMS else None
    return partition(graph, axes, chosen, given, {last: leaves})
