"""Recompute sets: which steps of a block run again in backward, and which activations then stay in memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

from autoshard.errors import AutoshardError
from autoshard.graph.count import QUANTIZED, operator_steps, saved_activations
from autoshard.graph.ir import Operator
from autoshard.graph.partition import GatherEinsumStep, Program, RedistributeStep, Step

BLOCK_MODULES = ("attention_norm", "attention", "core_attention", "mlp_norm", "mlp", "residual")
"""Modules of a transformer block; embedding and head lie outside of every recompute set."""

ATTENTION_UP = "attention_up"
PART_OF = {ATTENTION_UP: "attention"}
"""Module -> the one that it is a part of: the products behind latent attention's compressed vectors, and what turns and
joins their results. A set that names the whole names the part."""

NO_RECOMPUTE, FULL_RECOMPUTE = "none", "full"
SELECTIVE, SELECTED = "selective", "core_attention"
"""Megatron and NxD Training call core attention alone selective."""

COMMON_SETS = (NO_RECOMPUTE, "core_attention", "core_attention+mlp", FULL_RECOMPUTE)
"""Least first. NxD Training: selective [CoreAttention] and selective [CoreAttention, LlamaMLP]."""

FORM = f"none, selective, full, or modules ({', '.join(BLOCK_MODULES)}) and operators of a block joined by +"


@lru_cache(maxsize=1024)
def members(recompute: str) -> frozenset[str]:
    """Names of the modules and operators in a recompute set: none of them for "none", all modules for "full"."""
    if recompute == NO_RECOMPUTE:
        return frozenset()
    return frozenset(BLOCK_MODULES) if recompute == FULL_RECOMPUTE else frozenset(recompute.split("+"))


def canonical(recompute: str) -> str:
    """The one way to write a recompute set: modules in the order of a block, then operators in alphabetical order.

    Raises AutoshardError for a text that is no set; `check_members` says whether a block has what the set names.
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
    named -= {part for part, whole in PART_OF.items() if whole in named}
    order = [one for name in BLOCK_MODULES for one in (name, *(part for part in PART_OF if PART_OF[part] == name))]
    return "+".join([name for name in order if name in named] + sorted(named.difference(order)))


def check_members(recompute: str, block: Iterable[Operator]) -> None:
    """Raise AutoshardError where a recompute set names something that is neither an operator nor a module of
    the block.
    """
    block = tuple(block)
    known = [name_in_block(op.name) for op in block]
    parts = {op.module for op in block if op.module in PART_OF}
    for name in sorted(members(recompute).difference(BLOCK_MODULES, parts, known)):
        raise AutoshardError(
            f"recompute={recompute}: a block has no {name}; a set is {FORM}; operators here: {', '.join(known)}"
        )


def is_recomputed(op: Operator, recompute: str) -> bool:
    """Whether a recompute set names the operator or its module."""
    return in_block(op) and _is_named(op.module, op.name, recompute)


def _is_named(module: str, name: str, recompute: str) -> bool:
    """Whether a recompute set names a module of a block, or the operator in it."""
    return not members(recompute).isdisjoint((module, PART_OF.get(module), name_in_block(name)))


def in_block(op: Operator) -> bool:
    """Whether the operator belongs to a block, not to embedding or head."""
    return op.module in BLOCK_MODULES or op.module in PART_OF


@dataclass(frozen=True)
class Segment:
    """Steps [start, stop) of the program. recomputed: whether backward runs [start, replay_stop) forward again."""

    start: int
    stop: int
    recomputed: bool
    replay_stop: int


def segments(program: Program, recompute: str) -> tuple[Segment, ...]:
    """The program's steps in segments, cut where membership in the recompute set changes.

    A redistribution belongs to the module of the operator that reads it first. Each block ends its segment.
    """
    known = _known(program)
    if recompute not in known.segments:
        known.segments[recompute] = tuple(
            Segment(start, stop, again, _replay_stop(program, start, stop))
            for start, stop, again in _cuts(known.owners, recompute)
        )
    return known.segments[recompute]


Owner = tuple[str, str]
"""(module, name) of an operator of a block."""


@lru_cache(maxsize=4096)
def _cuts(owners: tuple[Owner | None, ...], recompute: str) -> tuple[tuple[int, int, bool], ...]:
    """(start, stop, whether backward runs them again) of the segments. Programs of many shards have the same owners."""
    keys = [block_of(owner[1]) if owner and _is_named(*owner, recompute) else None for owner in owners]
    cuts = [i for i in range(len(keys)) if i == 0 or keys[i] != keys[i - 1]] + [len(keys)]
    return tuple((start, stop, keys[start] is not None) for start, stop in pairwise(cuts))


@dataclass(frozen=True, eq=False)
class _Known:
    """Results kept with a program, because every recompute set asks for them again.

    owners: for each step, the operator of a block with which it runs again, if any. kept, replay_stops: by segment,
    which many sets share.
    """

    owners: tuple[Owner | None, ...]
    segments: dict[str, tuple[Segment, ...]] = field(default_factory=dict)
    kept: dict[tuple[int, int, bool], dict[str, float]] = field(default_factory=dict)
    replay_stops: dict[tuple[int, int], int] = field(default_factory=dict)


def _known(program: Program) -> _Known:
    known: _Known | None = program.__dict__.get("_known_of_recompute")
    if known is None:
        known = program.__dict__["_known_of_recompute"] = _Known(_owners(program))
    return known


def _owners(program: Program) -> tuple[Owner | None, ...]:
    """For each step, the operator with which it runs again in backward; None for steps that never do.

    A redistribution runs again with the operator behind it. The one that brings the embedding's output into the first
    block's state does not: its replay would keep that output, unsummed, for every microbatch in flight.
    """
    outside = {op.output for op in program.graph.operators if not in_block(op)}
    owners: list[Owner | None] = []
    following: Operator | None = None
    for step in reversed(program.steps):
        if operators := operator_steps(step):
            following = operators[0].operator
        from_outside = isinstance(step, RedistributeStep) and step.source in outside
        runs_again = following is not None and in_block(following) and not from_outside
        owners.append((following.module, following.name) if following is not None and runs_again else None)
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
    """One past the last step that backward must run again: no step behind the last saved tensor does.

    A step that keeps only its inputs need not run itself; one that keeps something it computes must.
    """
    known = _known(program).replay_stops
    if (start, stop) not in known:
        last = next((index for index in range(stop - 1, start - 1, -1) if _saved(program, index)), None)
        if last is None:
            known[start, stop] = start
        else:
            kept = {name.removesuffix(QUANTIZED) for name in _saved(program, last)}
            computes = kept - set(_inputs(program.steps[last]))
            known[start, stop] = last + 1 if computes else last
    return known[start, stop]


def _saved(program: Program, index: int) -> Mapping[str, float]:
    return saved_activations(program, program.steps[index])


def kept_activations(program: Program, recompute: str) -> dict[str, float]:
    """Name -> bytes of the buffers that one microbatch keeps on one rank between its forward and its backward.

    A recomputed segment keeps its inputs. One whose backward needs nothing, such as a sum, keeps nothing and never runs
    again.
    """
    kept: dict[str, float] = {}
    for segment in segments(program, recompute):
        kept.update(_kept(program, segment.start, segment.stop, segment.recomputed))
    return kept


def _kept(program: Program, start: int, stop: int, recomputed: bool) -> dict[str, float]:
    """Name -> bytes of the buffers that the segment of steps [start, stop) keeps for backward, on one rank."""
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
    """Bytes on one rank that exist only while backward works through the segment: the activations that its replay
    saves.
    """
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
