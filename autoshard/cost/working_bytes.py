"""Bytes that the backward of each step of a program works with, beside what forward kept."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import NamedTuple

from autoshard.graph.count import loop_sizes
from autoshard.graph.operators import KINDS
from autoshard.graph.partition import GatherEinsumStep, OperatorStep, Program, RedistributeStep, Step
from autoshard.graph.redistribute import local_sizes
from autoshard.models.prediction import PREDICTION

SHARED_EXPERT = "shared_ffn"
"""The dim of a shared expert inside."""
LOSSES = ("cross_entropy", "linear_cross_entropy")
"""The kinds of operators that end a model."""


class AtSteps(NamedTuple):
    """Bytes at the backward of each step. working: what it works with, but for tiles. needed: those beyond all that was
    kept or is run again. for_weights: of what `needed` takes for given back, what is there as long as gradients of
    weights are put off. tiles: `tile_bytes`, beside all of these."""

    working: Sequence[float]
    needed: Sequence[float]
    for_weights: Sequence[float]
    tiles: Sequence[float]


def at_steps(program: Program, given_back: Sequence[float], of_module: Sequence[float]) -> AtSteps:
    """Bytes at the backward of each step. given_back: as `given_back_bytes` has them. of_module: the same by module.

    What lies behind a step has been given back by then. All of it counts for the backward of what has buffers of its
    own: a ring, which lies behind all of its block, scores in tiles, a recurrence, an exchange of pieces that are
    copied, such as those of what experts made, which is behind the sum of it. It counts at the end of the model, where
    the loss keeps as much as a softcap of logits works with, and with a prediction module, where it is as long as a
    block; and with a shared expert, whose backward is before that of the others: their gradients wait for it. Elsewhere
    what the step's own module has given back counts: what another one ran again was never there together with this
    one's.
    """
    operators = program.graph.operators
    tiles = [tile_bytes(program, step) for step in program.steps]
    working = [working_bytes(program, step) - tile for step, tile in zip(program.steps, tiles, strict=True)]
    shares = any(SHARED_EXPERT in op.loop_dims for op in operators)
    if shares:
        working = [at_work + waits for at_work, waits in zip(working, _waiting_gradients_bytes(program), strict=True)]
    is_long = shares or any(op.module == PREDICTION or op.kind in LOSSES for op in operators)
    counts_all = [
        is_long or bool(tile or _inner_bytes(program, step) or _copied_bytes(program, step))
        for step, tile in zip(program.steps, tiles, strict=True)
    ]
    gone = [every if one else own for one, every, own in zip(counts_all, given_back, of_module, strict=True)]
    return AtSteps(
        working,
        [need - less for need, less in zip(working, gone, strict=True)],
        [0.0 if one else own for one, own in zip(counts_all, of_module, strict=True)],
        tiles,
    )


def _waiting_gradients_bytes(program: Program) -> list[float]:
    """Bytes of gradients, by step, that are there while its backward runs, for steps in front of it alone: those of
    views that are written in front and read behind."""
    written: dict[str, int] = {}
    last_read: dict[str, int] = {}
    for index, step in enumerate(program.steps):
        inputs, outputs = _views(step)
        last_read |= dict.fromkeys(inputs, index)
        written |= dict.fromkeys(outputs, index)
    changes = [0.0] * (len(program.steps) + 1)
    for index, step in enumerate(program.steps):
        inputs, outputs = _views(step)
        for view in outputs:
            if last_read.get(view, 0) > index + 1:
                changes[index + 1] += program.local_bytes[view]
                changes[last_read[view]] -= program.local_bytes[view]
        for view in set(inputs):
            if view in written and index < last_read[view]:  # it counts as what the step works with
                changes[index] -= program.local_bytes[view]
                changes[index + 1] += program.local_bytes[view]
    return list(accumulate(changes[:-1]))


def _views(step: Step) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The views that a step reads, and those that it writes."""
    if isinstance(step, RedistributeStep):
        return (step.source,), (step.target,)
    if isinstance(step, GatherEinsumStep):
        return (step.gather.source,), tuple(einsum.operator.output for einsum in step.einsums)
    return tuple(step.inputs), (step.operator.output,)


def working_bytes(program: Program, step: Step) -> float:
    """Bytes that backward of a step needs beside what forward kept: gradients of what it read and wrote, what it
    gathers again, buffers inside.

    Of its own the loss makes the gradient of probabilities, and plain attention that of its scores.
    """
    if isinstance(step, RedistributeStep):
        return view_bytes(program, step.source) + view_bytes(program, step.target) + _copied_bytes(program, step)
    if isinstance(step, GatherEinsumStep):
        written = sum(view_bytes(program, einsum.operator.output) for einsum in step.einsums)
        return 2 * view_bytes(program, step.gather.target) + written
    return operator_bytes(program, step)


def _copied_bytes(program: Program, step: Step) -> float:
    """Bytes of pieces that an all-to-all sends or has received, where they are no views: they lie one after the other
    in the tensor only if nothing but its first dim is split or gathered."""
    if not isinstance(step, RedistributeStep) or not any(one.forward == "all_to_all" for one in step.transitions):
        return 0.0
    dims = program.tensor(step.source).dims
    later = max(dims.index(dim) for one in step.transitions for dim in (one.source_dim, one.target_dim) if dim in dims)
    sizes = (local_sizes(program.graph, dims, program.states[one], program.axes) for one in (step.source, step.target))
    before = min(prod(size for dim, size in zip(dims[:later], of, strict=False) if dim != "batch") for of in sizes)
    return view_bytes(program, step.source) if before > 1 else 0.0


def operator_bytes(program: Program, step: OperatorStep) -> float:
    """Bytes that backward of one operator needs beside what forward kept: gradients of what it read and wrote and of
    what it saves beside, buffers inside, such as those of a ring."""
    op = step.operator
    own = KINDS[op.kind].own_gradients_bytes(op, program.graph, loop_sizes(program, step))
    inner = _inner_bytes(program, step) + tile_bytes(program, step)
    views = (view for view in (*step.inputs, op.output) if not _is_mask(program, view))
    return sum(view_bytes(program, view) for view in views) + own + inner


def _is_mask(program: Program, view: str) -> bool:
    """Whether a view was computed and has no gradient."""
    tensor = program.tensor(view)
    return tensor.role == "activation" and not tensor.differentiable


def _inner_bytes(program: Program, step: Step) -> float:
    """Bytes of buffers inside the backward of a step with one operator; 0 for other steps."""
    if not isinstance(step, OperatorStep):
        return 0.0
    op = step.operator
    return KINDS[op.kind].inner_backward_bytes(op, program.graph, loop_sizes(program, step))


def tile_bytes(program: Program, step: Step) -> float:
    """Bytes of buffers inside the backward of a step with one operator that do not grow with the microbatch; 0 for
    other steps."""
    if not isinstance(step, OperatorStep):
        return 0.0
    op = step.operator
    return KINDS[op.kind].tile_bytes(op, program.graph, loop_sizes(program, step))


def view_bytes(program: Program, view: str) -> float:
    """Local bytes of a view; 0 for a parameter, which is charged where it lives."""
    return program.activation_bytes[view]
