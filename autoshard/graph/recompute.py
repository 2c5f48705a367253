"""Which steps of a block are run again in backward, and what then stays in memory.

A recompute set names modules of a block, or single operators of it, joined by "+". Consecutive steps that belong to it
form a segment: only the segment's inputs are kept, and backward runs it forward again up to its last saved tensor
(torch's non-reentrant checkpoint stops there, so a collective behind it is not repeated).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

from autoshard.errors import AutoshardError
from autoshard.graph.count import operator_steps, saved_activations
from autoshard.graph.ir import Operator
from autoshard.graph.partition import GatherEinsumStep, Program, RedistributeStep, Step

BLOCK_MODULES = ("attention_norm", "attention", "core_attention", "mlp_norm", "mlp", "residual")
"""Modules of a transformer block; embedding and head lie outside of every recompute set."""

NO_RECOMPUTE, FULL_RECOMPUTE = "none", "full"
SELECTIVE, SELECTED = "selective", "core_attention"
"""What Megatron and NxD Training call selective is core attention alone."""

COMMON_SETS = (NO_RECOMPUTE, "core_attention", "core_attention+mlp", FULL_RECOMPUTE)
"""Least first. NxD Training: selective [CoreAttention] and selective [CoreAttention, LlamaMLP]."""

FORM = f"none, selective, full, or modules ({', '.join(BLOCK_MODULES)}) and operators of a block joined by +"


@lru_cache(maxsize=1024)
def members(recompute: str) -> frozenset[str]:
    """The modules and operators that a set names: none of them for "none", all modules for "full"."""
    if recompute == NO_RECOMPUTE:
        return frozenset()
    return frozenset(BLOCK_MODULES) if recompute == FULL_RECOMPUTE else frozenset(recompute.split("+"))


def canonical(recompute: str) -> str:
    """The one way to write a set: modules in the order of a block, then operators in that of the alphabet.

    Raises AutoshardError for a text that is no set; whether a block has what it names says `check_members`.
    """
    if recompute in (NO_RECOMPUTE, FULL_RECOMPUTE):
        return recompute
    if recompute == SELECTIVE:
        return SELECTED
    named, alone = members(recompute), {NO_RECOMPUTE, SELECTIVE, FULL_RECOMPUTE}
    if not all(re.fullmatch(r"[A-Za-z_][\w.]*", name) for name in named) or named & alone:
        raise AutoshardError(f"recompute={recompute!r} must be {FORM}")
    if named >= set(BLOCK_MODULES):
        return FULL_RECOMPUTE
    return "+".join([name for name in BLOCK_MODULES if name in named] + sorted(named.difference(BLOCK_MODULES)))


def check_members(recompute: str, block: Iterable[Operator]) -> None:
    """Raises AutoshardError where a set names what the operators of a block are not and do not belong to."""
    known = [name_in_block(op.name) for op in block]
    for name in sorted(members(recompute).difference(BLOCK_MODULES, known)):
        raise AutoshardError(
            f"recompute={recompute}: a block has no {name}; a set is {FORM}; operators here: {', '.join(known)}"
        )


def is_recomputed(op: Operator, recompute: str) -> bool:
    """Whether a set names the operator or its module."""
    chosen = members(recompute)
    return op.module in BLOCK_MODULES and (op.module in chosen or name_in_block(op.name) in chosen)


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
    known = _known(program)
    if recompute not in known.segments:
        keys = [block_of(op.name) if op and is_recomputed(op, recompute) else None for op in known.owners]
        cuts = [i for i in range(len(keys)) if i == 0 or keys[i] != keys[i - 1]] + [len(keys)]
        known.segments[recompute] = tuple(
            Segment(start, stop, keys[start] is not None, _replay_stop(program, start, stop))
            for start, stop in pairwise(cuts)
        )
    return known.segments[recompute]


@dataclass(frozen=True, eq=False)
class _Known:
    """Kept with a program: every recompute set asks for it again. owners: of each step the operator with which it runs
    again, if any. saved: `saved_activations` by step. kept, replay_stops: by segment, which many sets share."""

    owners: tuple[Operator | None, ...]
    segments: dict[str, tuple[Segment, ...]] = field(default_factory=dict)
    saved: dict[int, dict[str, float]] = field(default_factory=dict)
    kept: dict[tuple[int, int, bool], dict[str, float]] = field(default_factory=dict)
    replay_stops: dict[tuple[int, int], int] = field(default_factory=dict)


def _known(program: Program) -> _Known:
    known: _Known | None = program.__dict__.get("_known_of_recompute")
    if known is None:
        known = program.__dict__["_known_of_recompute"] = _Known(_owners(program))
    return known


def _owners(program: Program) -> tuple[Operator | None, ...]:
    """What brings the embedding's output into the first block's state has none: its replay would keep that output,
    unsummed, for every microbatch in flight."""
    outside = {op.output for op in program.graph.operators if op.module not in BLOCK_MODULES}
    owners: list[Operator | None] = []
    following: Operator | None = None
    for step in reversed(program.steps):
        if operators := operator_steps(step):
            following = operators[0].operator
        from_outside = isinstance(step, RedistributeStep) and step.source in outside
        owners.append(None if from_outside else following)
    return tuple(reversed(owners))


@lru_cache(maxsize=8192)
def block_of(operator: str) -> str:
    """'model.layers.3.mlp.down' -> 'model.layers.3'."""
    parts = operator.split(".")
    index = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts))
    return ".".join(parts[: index + 1])


def name_in_block(operator: str) -> str:
    """'model.layers.3.mlp.down' -> 'mlp.down'."""
    return operator[len(block_of(operator)) + 1 :]


def _replay_stop(program: Program, start: int, stop: int) -> int:
    """One past the last step that must run again: nothing behind the last saved tensor does.

    A step that keeps only its inputs need not run itself; one that keeps something it computes must.
    """
    known = _known(program).replay_stops
    if (start, stop) not in known:
        last = next((index for index in range(stop - 1, start - 1, -1) if _saved(program, index)), None)
        if last is None:
            known[start, stop] = start
        else:
            computes = _saved(program, last).keys() - set(_inputs(program.steps[last]))
            known[start, stop] = last + 1 if computes else last
    return known[start, stop]


def _saved(program: Program, index: int) -> dict[str, float]:
    """`saved_activations` of one step."""
    known = _known(program).saved
    if index not in known:
        known[index] = saved_activations(program, program.steps[index])
    return known[index]


def kept_activations(program: Program, recompute: str) -> dict[str, float]:
    """Buffers and bytes that one microbatch keeps between its forward and its backward on one rank.

    Of a segment whose backward needs nothing, such as a sum's, nothing is run again and no input is kept for that.
    """
    kept: dict[str, float] = {}
    for segment in segments(program, recompute):
        kept.update(_kept(program, segment.start, segment.stop, segment.recomputed))
    return kept


def _kept(program: Program, start: int, stop: int, recomputed: bool) -> dict[str, float]:
    """Of the steps of one segment."""
    known, segment = _known(program).kept, (start, stop, recomputed)
    if segment not in known:
        steps = program.steps[start:stop]
        if recomputed and not _kept(program, start, stop, False):
            known[segment] = {}
        elif recomputed:
            produced = {view for step in steps for view in _outputs(step)}
            read = [view for step in steps for view in _inputs(step) if view not in produced]
            activations = [view for view in read if program.tensor(view).role != "parameter"]
            known[segment] = {view: float(program.local_bytes[view]) for view in activations}
        else:
            saved = (_saved(program, index) for index in range(start, stop))
            known[segment] = {view: size for views in saved for view, size in views.items()}
    return known[segment]


def replayed_activations(program: Program, segment: Segment) -> float:
    """Bytes that exist only while backward works through the segment: what its replay saves beyond its inputs."""
    return sum(_kept(program, segment.start, segment.stop, False).values())


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
