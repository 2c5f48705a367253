"""Which steps of a block are run again in backward, and what then stays in memory.

A recompute set names modules of the block. Consecutive steps that belong to it form a segment: only the segment's
inputs are kept, and backward runs it forward again up to its last saved tensor (torch's non-reentrant checkpoint stops
there, so a collective behind it is not repeated).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from autoshard.graph.count import operator_steps, saved_activations
from autoshard.graph.partition import GatherEinsumStep, Program, RedistributeStep, Step
from autoshard.graph.redistribute import local_bytes

BLOCK_MODULES = ("attention_norm", "attention", "core_attention", "mlp_norm", "mlp", "residual")
"""Modules of a transformer block; embedding and head lie outside of every recompute set."""

RECOMPUTE_SETS: dict[str, frozenset[str]] = {
    "none": frozenset(),
    "core_attention": frozenset({"core_attention"}),
    "core_attention+mlp": frozenset({"core_attention", "mlp"}),
    "full": frozenset(BLOCK_MODULES),
}
"""Named sets, least first. NxD Training: selective [CoreAttention] and selective [CoreAttention, LlamaMLP]."""


@dataclass(frozen=True)
class Segment:
    """Steps [start, stop) of the program. recomputed: backward runs [start, replay_stop) forward again."""

    start: int
    stop: int
    recomputed: bool
    replay_stop: int


def segments(program: Program, recompute: str) -> tuple[Segment, ...]:
    """Cut the program where membership in the recompute set changes.

    A redistribution belongs to the module of the operator that reads it first; a block's end ends a segment.
    """
    chosen = RECOMPUTE_SETS[recompute]
    keys = _segment_keys(program, chosen)
    cuts = [i for i in range(len(keys)) if i == 0 or keys[i] != keys[i - 1]] + [len(keys)]
    return tuple(
        Segment(start, stop, keys[start] is not None, _replay_stop(program, start, stop))
        for start, stop in pairwise(cuts)
    )


def _segment_keys(program: Program, chosen: frozenset[str]) -> list[str | None]:
    """For each step the block it is recomputed in, or None.

    What brings the embedding's output into the first block's state stays outside: its replay would keep that output,
    unsummed, for every microbatch in flight.
    """
    outside = {op.output for op in program.graph.operators if op.module not in BLOCK_MODULES}
    keys: list[str | None] = []
    following: str | None = None
    for step in reversed(program.steps):
        if operators := operator_steps(step):
            op = operators[0].operator
            following = block_of(op.name) if op.module in chosen else None
        from_outside = isinstance(step, RedistributeStep) and step.source in outside
        keys.append(None if from_outside else following)
    return keys[::-1]


def block_of(operator: str) -> str:
    """'model.layers.3.mlp.down' -> 'model.layers.3'."""
    parts = operator.split(".")
    index = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts))
    return ".".join(parts[: index + 1])


def _replay_stop(program: Program, start: int, stop: int) -> int:
    """One past the last step that must run again: nothing behind the last saved tensor does.

    A step that keeps only its inputs need not run itself; one that keeps something it computes must.
    """
    for index in range(stop - 1, start - 1, -1):
        step = program.steps[index]
        kept = saved_activations(program, step)
        if kept:
            return index + 1 if kept.keys() - set(_inputs(step)) else index
    return start


def kept_activations(program: Program, recompute: str) -> dict[str, float]:
    """Buffers and bytes that one microbatch keeps between its forward and its backward on one rank."""
    kept: dict[str, float] = {}
    for segment in segments(program, recompute):
        steps = program.steps[segment.start : segment.stop]
        if segment.recomputed:
            produced = {view for step in steps for view in _outputs(step)}
            for view in (view for step in steps for view in _inputs(step)):
                tensor = program.tensor(view)
                if view not in produced and tensor.role != "parameter":
                    kept[view] = float(local_bytes(program.graph, tensor.name, program.states[view], program.axes))
        else:
            for step in steps:
                kept.update(saved_activations(program, step))
    return kept


def replayed_activations(program: Program, segment: Segment) -> float:
    """Bytes that exist only while backward works through the segment: what its replay saves beyond its inputs."""
    kept: dict[str, float] = {}
    for step in program.steps[segment.start : segment.stop]:
        kept.update(saved_activations(program, step))
    return sum(kept.values())


def _inputs(step: Step) -> tuple[str, ...]:
    if isinstance(step, RedistributeStep):
        return (step.source,)
    if isinstance(step, GatherEinsumStep):
        return (step.gather.source, *(view for one in step.einsums for view in one.inputs[1:]))
    return step.inputs


def _outputs(step: Step) -> tuple[str, ...]:
    if isinstance(step, RedistributeStep):
        return (step.target,)
    steps = step.einsums if isinstance(step, GatherEinsumStep) else (step,)
    return tuple(one.operator.output for one in steps)
