"""Lists one block operator by operator: how each is sharded, and its collectives with their bytes and seconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from autoshard.cost.collectives import collective_time_s, group_shape
from autoshard.cost.compute import operator_seconds, quantized_products
from autoshard.cost.local_shape import mesh_order
from autoshard.cost.stacks import COMPILED
from autoshard.explanation.page import Line, heading, table, wrapped
from autoshard.graph.count import backward_collectives, forward_collectives, operator_steps
from autoshard.graph.partition import GatherEinsumStep, OperatorStep, Program, RedistributeStep, Step
from autoshard.graph.redistribute import local_sizes
from autoshard.graph.states import INVARIANT, PARTIAL, REPLICATED, State
from autoshard.layout.template import template_of
from autoshard.plans.plan import Plan
from autoshard.units import format_bytes, format_seconds

BLOCK = "model.layers.*."
WHOLE = {INVARIANT: "", REPLICATED: "", PARTIAL: "partial"}


@dataclass(frozen=True)
class Move:
    """One collective for one microbatch. direction: 'forward' or 'backward'. bytes: of the larger buffer on one
    rank."""

    direction: str
    kind: str
    axes: tuple[str, ...]
    bytes: int
    seconds: float


@dataclass(frozen=True)
class OperatorRow:
    """One operator, or a redistribution between two (kind 'redistribute').

    block: whose it is, counted from 0: the first one of its kind. sharding: which axes split which dim of its work,
    such as 'kvhead/tp0'. local: size of each dim of the result on one rank. forward_s, backward_s: its own work in
    seconds, without moves and without recompute.
    """

    block: int
    name: str
    kind: str
    sharding: str
    local: tuple[tuple[str, int], ...]
    forward_s: float
    backward_s: float
    moves: tuple[Move, ...]


def operator_rows(plan: Plan) -> tuple[OperatorRow, ...]:
    """The operators of the first block of each kind, for one microbatch on one rank."""
    found = list[OperatorRow]()
    for block in plan.training.blocks_of(plan.model.blocks).kinds:
        program = plan.program((block,), False, False)
        found += (row for step in program.steps for row in _rows(plan, program, step, block))
    return tuple(found)


def by_block(plan: Plan) -> tuple[tuple[str, tuple[OperatorRow, ...]], ...]:
    """(which block it is in words, its operators) for each kind of blocks."""
    blocks, rows = plan.training.blocks_of(plan.model.blocks), operator_rows(plan)
    if len(blocks.kinds) == 1:
        return (("one block", rows),)
    return tuple(
        (
            f"block {kind}, one of {count} alike" if count > 1 else f"block {kind}",
            tuple(r for r in rows if r.block == kind),
        )
        for kind, count in zip(blocks.kinds, blocks.counts, strict=True)
    )


def _rows(plan: Plan, program: Program, step: Step, block: int) -> Iterator[OperatorRow]:
    moves = _moves(plan, program, step)
    if isinstance(step, RedistributeStep):
        yield _redistribution(program, step, moves, block)
        return
    if isinstance(step, GatherEinsumStep):
        yield _redistribution(program, step.gather, moves, block)
        moves = ()
    for operator_step in operator_steps(step):
        yield _operator(plan, program, operator_step, moves, block)


def _operator(plan: Plan, program: Program, step: OperatorStep, moves: tuple[Move, ...], block: int) -> OperatorRow:
    device, dtype = plan.cluster.device, plan.training.precision.compute_dtype
    products = quantized_products(device, plan.training.precision)
    seconds, op = operator_seconds(program, step, device, dtype, COMPILED, products), step.operator
    split: dict[str, list[str]] = {}
    for axis in program.axes:
        value = step.choice.get(axis, INVARIANT)
        if program.axes[axis] > 1 and WHOLE.get(value, value):
            split.setdefault(WHOLE.get(value, value), []).append(axis)
    return OperatorRow(
        block,
        _short(op.name),
        op.kind,
        _shown(split),
        _local(program, op.output, program.states[op.output]),
        seconds.forward,
        seconds.backward,
        moves,
    )


def _redistribution(program: Program, step: RedistributeStep, moves: tuple[Move, ...], block: int) -> OperatorRow:
    source, target = (_state(program, program.states[view]) for view in (step.source, step.target))
    local = _local(program, program.tensor(step.target).name, program.states[step.target])
    name = _short(program.tensor(step.source).name)
    sharding = f"{source or 'whole'} -> {target or 'whole'}"
    return OperatorRow(block, name, "redistribute", sharding, local, 0.0, 0.0, moves)


def _state(program: Program, state: State) -> str:
    split: dict[str, list[str]] = {}
    for (axis, size), value in zip(program.axes.items(), state, strict=True):
        if size > 1 and WHOLE.get(value, value):
            split.setdefault(WHOLE.get(value, value), []).append(axis)
    return _shown(split)


def _shown(split: dict[str, list[str]]) -> str:
    return " ".join(f"{dim}/{'*'.join(axes)}" for dim, axes in split.items())


def _local(program: Program, tensor: str, state: State) -> tuple[tuple[str, int], ...]:
    dims = program.graph.tensors[tensor].dims
    return tuple(zip(dims, local_sizes(program.graph, dims, state, program.axes), strict=True))


def _short(name: str) -> str:
    return template_of(name).removeprefix(BLOCK)


def _moves(plan: Plan, program: Program, step: Step) -> tuple[Move, ...]:
    issued = (("forward", forward_collectives(program, step)), ("backward", backward_collectives(program, step)))
    return tuple(move for direction, found in issued for move in _priced(plan, direction, found))


def _priced(plan: Plan, direction: str, found: Iterable[tuple[str, tuple[str, ...], int]]) -> Iterator[Move]:
    order, cluster = mesh_order(plan.mesh), plan.cluster
    for kind, axes, size in found:
        shape = group_shape(order, axes, cluster)
        yield Move(direction, kind, axes, size, collective_time_s(kind, size, shape, cluster))


def operator_lines(plan: Plan, width: int) -> list[Line]:
    """A table of a block of each kind; each collective stands below the operator that issues it. width: columns."""
    lines = [line for which, rows in by_block(plan) for line in _block_lines(which, rows, width)]
    legend = (
        "seq/tp0*tp1: the dim seq is split over the axes tp0 and tp1; partial/tp0: still to be summed over tp0. -> is "
        "a redistribution; lines with `over` are its collectives, and their bytes are the larger buffer of a rank."
    )
    return [*lines, *wrapped(legend, width, "  ")]


def _block_lines(which: str, rows: tuple[OperatorRow, ...], width: int) -> list[Line]:
    work = sum(row.forward_s + row.backward_s for row in rows)
    moved = sum(move.seconds for row in rows for move in row.moves)
    text = (
        f"{which}, one microbatch, one rank: ~{format_seconds(work)} of operators, ~{format_seconds(moved)} of "
        "collectives, without recompute"
    )
    cells = [cells for row in rows for cells in _cells(row)]
    header = ("operator", "forward", "backward", "bytes", "sharding and what a rank holds")
    return [*heading("Block", text, width), *table(header, cells, width, (1, 2, 3))]


def _cells(row: OperatorRow) -> Iterator[tuple[str, ...]]:
    held = " ".join(f"{dim} {size:,}" for dim, size in row.local)
    if row.kind == "redistribute":
        yield (f"-> {row.name}", "", "", "", f"{row.sharding}: {held}")
    else:
        seconds = (f"~{format_seconds(row.forward_s)}", f"~{format_seconds(row.backward_s)}")
        yield (row.name, *seconds, "", f"{row.sharding or 'whole'}: {held}")
    for move in row.moves:
        spent = f"~{format_seconds(move.seconds)}"
        there, back = (spent, "") if move.direction == "forward" else ("", spent)
        yield (f"   {move.kind}", there, back, format_bytes(move.bytes), f"over {' x '.join(move.axes)}")
