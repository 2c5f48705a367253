"""A dump of a real run against the plan: which planned blocks are there, and which were never planned.

A dump names no tensor. Blocks are told apart by their size, as the allocator rounds it: of each size the plan has at
most so many at once, at any moment of a step. More than that were not planned, and what the plan has of that size says
what they are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median_high
from typing import NamedTuple, TypeVar

from autoshard.allocations.blocks import AGAIN, KINDS, STATE, TOKENS, WEIGHTS, Block, RankMemory, held_levels
from autoshard.allocations.dump import Dump, DumpedBlock
from autoshard.allocations.snapshot import rounded
from autoshard.layout.template import template_of

LEAST_SHARE = 1e-3
"""Of the dump's fullest moment: findings that are smaller are not told. Libraries keep small buffers of their own."""
RECOMPUTE_LOST, NOT_FREED, TWICE = "recompute lost", "gathered weights not freed", "training state twice"
MORE, UNKNOWN = "more than planned", "never planned"
_WIDTHS = ((1, 2, 4), (1, 2), (1,))
"""Multiples of a weight's size that a run may make before its first step: it draws numbers in FP32 or FP64."""
Kind = TypeVar("Kind", Block, DumpedBlock)


@dataclass(frozen=True)
class Finding:
    """Blocks of one cause that the plan does not have at any moment. what: RECOMPUTE_LOST, ...; tensors: what the plan
    has of their sizes, the likeliest first; count, size_bytes: of all of them; where: code that asked for the largest.
    """

    what: str
    tensors: tuple[str, ...]
    count: int
    size_bytes: int
    where: str


@dataclass(frozen=True)
class Present:
    """A kind's bytes: planned at the moment that is most like the dump's, and those of them that the dump has."""

    kind: str
    planned_bytes: int
    found_bytes: int


@dataclass(frozen=True)
class Diagnosis:
    """A dump against a plan. held_bytes: at the dump's fullest moment, or when an allocation failed, with it. moment:
    the planned action that is most like it. short_bytes: that were missing; 0 where all fitted. unused_bytes: that the
    allocator had from the device, in pieces that did not do, when an allocation failed. planned_peak_bytes: of
    the plan's program."""

    held_bytes: int
    moment: str
    present: tuple[Present, ...]
    findings: tuple[Finding, ...]
    short_bytes: int
    unused_bytes: int
    planned_peak_bytes: int


def diagnose(memory: RankMemory, dump: Dump, capacity_bytes: float) -> Diagnosis:
    """A dump of a real run at its fullest, held against the plan: what is there of it, and what was never planned.

    memory: of the same rank as planned. capacity_bytes: of the device, where the dump does not tell it.
    """
    start = _first_step(memory, dump)
    levels = held_levels(dump.blocks, dump.events)
    event = max(range(start, dump.events + 1), key=levels.__getitem__) if dump.failed is None else dump.failed
    there = [one for one in dump.blocks if one.birth <= event and (one.death is None or one.death > event)]
    asked = dump.asked_bytes or 0
    if asked:
        there.append(DumpedBlock(asked, event, None, dump.failed_where or "the call that failed"))
    like = _most_like(memory, Counter(rounded(one.size_bytes) for one in there))
    short = levels[event] - capacity_bytes if dump.free_bytes is None else asked - dump.free_bytes
    return Diagnosis(
        levels[event] + asked,
        memory.action_at(like),
        _present(memory.at(like), there),
        _findings(memory, dump, there, start),
        max(0, round(short)),
        max(0, dump.reserved_bytes - levels[event]) if asked else 0,
        memory.peak()[1],
    )


def _first_step(memory: RankMemory, dump: Dump) -> int:
    """An entry of the dump's trace in the first forward; 0 where it does not show one. Before that a run makes its
    weights and its training state. Sizes that activations have, and nothing that is made of weights, come with the
    first forward; of a few of them a run may happen to have something before, not of most of them."""
    weights = {one.size_bytes for one in memory.blocks if one.kind == STATE or one.tensor.endswith(".weight")}
    activations = {rounded(one.size_bytes) for one in memory.blocks if one.phase == "forward" and one.operator}
    wider = (activations - {rounded(size * factor) for size in weights for factor in factors} for factors in _WIDTHS)
    telling = next(filter(None, wider), set[int]())
    first: dict[int, int] = {}
    for one in dump.blocks:
        size = rounded(one.size_bytes)
        if size in telling:
            first[size] = min(one.birth, first.get(size, one.birth))
    end = dump.events if dump.failed is None else dump.failed
    return min(median_high(first.values()), end) if first else 0


def _changes(blocks: Iterable[Kind]) -> list[tuple[int, int, int]]:
    """(event, +1 or -1, rounded size), in order; what goes at an event goes before what comes."""
    found = [(one.birth, 1, rounded(one.size_bytes)) for one in blocks]
    found += [(one.death, -1, rounded(one.size_bytes)) for one in blocks if one.death is not None]
    return sorted(found)


def _most(blocks: Iterable[Kind]) -> Counter[int]:
    """The most blocks of each size that are held at once."""
    held: Counter[int] = Counter()
    most: Counter[int] = Counter()
    for _, change, size in _changes([*blocks]):
        held[size] += change
        most[size] = max(most[size], held[size])
    return most


def _most_like(memory: RankMemory, counts: Mapping[int, int]) -> int:
    """The event of the planned moment that differs from the dump's by fewest bytes."""
    held: Counter[int] = Counter()
    apart = sum(size * count for size, count in counts.items())
    best, best_apart = 0, apart
    changes = _changes(memory.blocks)
    for number, (event, change, size) in enumerate(changes):
        before = abs(counts.get(size, 0) - held[size])
        held[size] += change
        apart += size * (abs(counts.get(size, 0) - held[size]) - before)
        is_last = number + 1 == len(changes) or changes[number + 1][0] > event
        if is_last and apart < best_apart:
            best, best_apart = event, apart
    return best


def _present(planned: list[Block], there: list[DumpedBlock]) -> tuple[Present, ...]:
    left, found, wanted = Counter(rounded(one.size_bytes) for one in there), Counter[str](), Counter[str]()
    for one in sorted(planned, key=lambda block: KINDS.index(block.kind)):
        wanted[one.kind] += one.size_bytes
        size = rounded(one.size_bytes)
        if left[size] > 0:
            left[size] -= 1
            found[one.kind] += one.size_bytes
    return tuple(Present(kind, wanted[kind], found[kind]) for kind in KINDS if wanted[kind])


def _findings(memory: RankMemory, dump: Dump, there: list[DumpedBlock], start: int) -> tuple[Finding, ...]:
    end = max((one.birth for one in there), default=0)
    of_steps = [one for one in dump.blocks if one.birth >= start or one.death is None or one.death > end]
    planned, ran = _most(memory.blocks), _most(of_steps)
    planned_of: dict[int, list[Block]] = defaultdict(list)
    for one in memory.blocks:
        planned_of[rounded(one.size_bytes)].append(one)
    there_of: dict[int, list[DumpedBlock]] = defaultdict(list)
    for held in sorted(there, key=lambda block: block.birth):
        there_of[rounded(held.size_bytes)].append(held)
    groups: dict[tuple[str, str], list[_Excess]] = defaultdict(list)
    for size in there_of.keys() | ran.keys():
        count = max(len(there_of[size]), ran[size]) - planned[size]
        if count > 0:
            early = sum(held.birth < start for held in there_of[size])
            what, tensors = _cause(planned_of[size], count, early)
            where = there_of[size][-1].where if there_of[size] else ""
            joined = what in (RECOMPUTE_LOST, NOT_FREED)
            groups[what, "" if joined else f"{size}"].append(_Excess(size, count, tensors, where))
    least = LEAST_SHARE * sum(one.size_bytes for one in there)
    found = [_finding(what, sizes) for (what, _), sizes in groups.items()]
    return tuple(sorted((one for one in found if one.size_bytes >= least), key=lambda one: -one.size_bytes))


class _Excess(NamedTuple):
    """Too many blocks of a size."""

    size: int
    blocks: int
    tensors: tuple[str, ...]
    where: str


def _finding(what: str, sizes: list[_Excess]) -> Finding:
    sizes = sorted(sizes, key=lambda one: -one.size * one.blocks)
    tensors = dict.fromkeys(name for one in sizes for name in one.tensors)
    total = sum(one.size * one.blocks for one in sizes)
    return Finding(what, tuple(tensors), sum(one.blocks for one in sizes), total, sizes[0].where)


def _cause(planned: list[Block], count: int, early: int) -> tuple[str, tuple[str, ...]]:
    """(cause, tensors) of `count` blocks too many of a size. planned: all that the plan has of it. early: how many of
    those that are there were made before the first step."""
    state = _names(one for one in planned if one.kind == STATE)
    buffers = sum(one.kind == STATE for one in planned)
    if state and (buffers == len(planned) or early - buffers >= count / 2):
        return TWICE, state
    for kind, what in ((WEIGHTS, NOT_FREED), (AGAIN, RECOMPUTE_LOST)):
        names = _names(one for one in planned if one.kind == kind and one.tensor)
        if names:
            return what, names
    names = _names(one for one in planned if one.kind != TOKENS)
    return (MORE, names) if names else (UNKNOWN, ())


def _names(blocks: Iterable[Block]) -> tuple[str, ...]:
    """Tensors of blocks, with * for the number of the block of layers, the outputs of operators first."""
    ordered = sorted(blocks, key=lambda one: (not one.tensor, one.tensor.startswith("gradient of"), one.birth))
    return tuple(dict.fromkeys(template_of(one.label) for one in ordered))
