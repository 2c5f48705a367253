"""A dump of a real run against the plan: which planned blocks are there, and which were never planned.

A dump names no tensor. Blocks are told apart by their size, as the allocator rounds it: of each size the plan has at
most so many at once, at any moment of a step. More than that were not planned, and what the plan has of that size says
what they are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from autoshard.allocations.blocks import AGAIN, KINDS, STATE, TOKENS, WEIGHTS, Block, RankMemory, held_levels
from autoshard.allocations.dump import Dump, DumpedBlock
from autoshard.allocations.snapshot import rounded
from autoshard.layout.template import template_of

LEAST_SHARE = 1e-3
"""Of the dump's fullest moment: findings that are smaller are not told. Libraries keep small buffers of their own."""
RECOMPUTE_LOST, NOT_FREED, TWICE = "recompute lost", "gathered weights not freed", "training state twice"
MORE, UNKNOWN = "more than planned", "never planned"
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
    the planned action that is most like it. short_bytes: that were missing; 0 where all fitted. planned_peak_bytes: of
    the plan's program."""

    held_bytes: int
    moment: str
    present: tuple[Present, ...]
    findings: tuple[Finding, ...]
    short_bytes: int
    planned_peak_bytes: int


def diagnose(memory: RankMemory, dump: Dump, capacity_bytes: float) -> Diagnosis:
    """memory: of the same rank as planned. capacity_bytes: of the device, where the dump does not tell it."""
    event, held_bytes = _moment(dump)
    there = [one for one in dump.blocks if one.birth <= event and (one.death is None or one.death > event)]
    asked = dump.asked_bytes if dump.failed == event and dump.asked_bytes else 0
    if asked:
        there.append(DumpedBlock(asked, event, None, ""))
    counts = Counter(rounded(one.size_bytes) for one in there)
    like = _most_like(memory, counts)
    if dump.failed == event and dump.free_bytes is not None:
        room = dump.reserved_bytes + dump.free_bytes
    else:
        room = round(capacity_bytes)
    return Diagnosis(
        held_bytes + asked,
        memory.action_at(like),
        _present(memory.at(like), counts),
        _findings(memory, dump, there, event),
        max(0, held_bytes + asked - room),
        memory.peak()[1],
    )


def _moment(dump: Dump) -> tuple[int, int]:
    """(entry of the trace, bytes held after it): the allocation that failed, else the fullest moment."""
    levels = held_levels(dump.blocks, dump.events)
    event = dump.failed if dump.failed is not None else max(range(len(levels)), key=levels.__getitem__)
    return event, levels[event]


def _changes(blocks: Iterable[Kind]) -> list[tuple[int, int, int]]:
    """(event, +1 or -1, rounded size), in order; what goes at an event goes before what comes."""
    found = [(one.birth, 1, rounded(one.size_bytes)) for one in blocks]
    found += [(one.death, -1, rounded(one.size_bytes)) for one in blocks if one.death is not None]
    return sorted(found)


def _most(blocks: Iterable[Kind], start: int = 0) -> Counter[int]:
    """Of each size, how many are held at once at most, from the event `start` on."""
    held: Counter[int] = Counter()
    most: Counter[int] = Counter()
    begun = start == 0
    for event, change, size in _changes([*blocks]):
        if not begun and event >= start:
            begun, most = True, Counter(held)
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


def _present(planned: list[Block], counts: Mapping[int, int]) -> tuple[Present, ...]:
    left, found, wanted = Counter(counts), Counter[str](), Counter[str]()
    for one in sorted(planned, key=lambda block: KINDS.index(block.kind)):
        wanted[one.kind] += one.size_bytes
        size = rounded(one.size_bytes)
        if left[size] > 0:
            left[size] -= 1
            found[one.kind] += one.size_bytes
    return tuple(Present(kind, wanted[kind], found[kind]) for kind in KINDS if wanted[kind])


def _findings(memory: RankMemory, dump: Dump, there: list[DumpedBlock], event: int) -> tuple[Finding, ...]:
    planned = _most(memory.blocks)
    now = Counter(rounded(one.size_bytes) for one in there)
    ran = _most(dump.blocks, _first_step(memory, there))
    over = {size: max(now[size], ran[size]) - planned[size] for size in now | ran}
    by_size: dict[int, list[Block]] = defaultdict(list)
    for one in memory.blocks:
        by_size[rounded(one.size_bytes)].append(one)
    lines = {rounded(one.size_bytes): one.where for one in dump.blocks if one.where}
    groups: dict[tuple[str, str], list[tuple[int, int, tuple[str, ...]]]] = defaultdict(list)
    for size, count in over.items():
        if count > 0:
            what, tensors = _cause(by_size.get(size, []))
            joined = what in (RECOMPUTE_LOST, NOT_FREED)
            groups[what, "" if joined else f"{size}"].append((size, count, tensors))
    least = LEAST_SHARE * sum(one.size_bytes for one in there)
    found = [_finding(what, sizes, lines) for (what, _), sizes in groups.items()]
    return tuple(sorted((one for one in found if one.size_bytes >= least), key=lambda one: -one.size_bytes))


def _finding(what: str, sizes: list[tuple[int, int, tuple[str, ...]]], lines: Mapping[int, str]) -> Finding:
    sizes = sorted(sizes, key=lambda one: -one[0] * one[1])
    tensors = dict.fromkeys(name for _, _, names in sizes for name in names)
    count, total = sum(count for _, count, _ in sizes), sum(size * count for size, count, _ in sizes)
    return Finding(what, tuple(tensors), count, total, lines.get(sizes[0][0], ""))


def _first_step(memory: RankMemory, there: list[DumpedBlock]) -> int:
    """The entry of the dump's trace with which steps begin: training state that is still there is made before. While a
    run starts it copies weights; that is no step."""
    state = {rounded(one.size_bytes) for one in memory.blocks if one.kind == STATE}
    large = max(state, default=0)
    return max(
        (one.birth for one in there if rounded(one.size_bytes) in state and one.size_bytes > large / 100), default=0
    )


def _cause(alike: list[Block]) -> tuple[str, tuple[str, ...]]:
    """(cause, tensors) of too many blocks of a size, from those that the plan has of it."""
    for kind, what in ((STATE, TWICE), (WEIGHTS, NOT_FREED), (AGAIN, RECOMPUTE_LOST)):
        names = _names(one for one in alike if one.kind == kind and one.tensor)
        if names:
            return what, names
    names = _names(one for one in alike if one.kind != TOKENS)
    return (MORE, names) if names else (UNKNOWN, ())


def _names(blocks: Iterable[Block]) -> tuple[str, ...]:
    """Tensors of blocks, with * for the number of the block of layers, the outputs of operators first."""
    ordered = sorted(blocks, key=lambda one: (not one.tensor, one.tensor.startswith("gradient of"), one.birth))
    return tuple(dict.fromkeys(template_of(one.label) for one in ordered))
