"""A rank's memory, and a dump against it, as pages for people."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from autoshard.allocations.blocks import KINDS, Block, RankMemory
from autoshard.allocations.changes import Change
from autoshard.allocations.compare import MORE, NOT_FREED, RECOMPUTE_LOST, TWICE, UNKNOWN, Diagnosis, Finding
from autoshard.errors import AutoshardError
from autoshard.explanation.page import NARROWEST, WIDEST, Line, heading, paint, table, wrapped
from autoshard.layout.template import template_of
from autoshard.schedules.action import Action
from autoshard.units import format_bytes, format_seconds

MOST_BLOCKS, MOST_FINDINGS, MOST_NAMES = 25, 8, 3
SENTENCES = {
    RECOMPUTE_LOST: "recompute was lost: backward should make {names} again, but they were kept",
    NOT_FREED: "gathered weights were not freed: {names}",
    TWICE: "a buffer of the training state is there more than once: {names}",
    MORE: "more at once than the plan ever has: {names}",
    UNKNOWN: "never planned: the plan has no block of this size",
}

PASSES = {"F": "the forward", "B": "the backward", "I": "the backward", "W": "the weights' gradients"}
"""What an action is, by its kind."""


def moment(action: str) -> str:
    """When an action runs, in words: 'in the backward of microbatch 3, chunk 1' for B3.1; other texts stay."""
    try:
        kind, microbatch, chunk = Action.parse(action)
    except AutoshardError:
        return action if action.startswith("before") else f"in {action}"
    return f"in {PASSES[kind]} of microbatch {microbatch}, chunk {chunk}"


def memory_page(memory: RankMemory, capacity_bytes: float, width: int, color: bool) -> str:
    """The page of a planned step: its blocks at the peak. capacity_bytes: of the device."""
    width = max(NARROWEST, min(width, WIDEST))
    event, size = memory.peak()
    alive = memory.at(event)
    numbers = (
        f"rank {memory.rank} holds at most {format_bytes(size)} of {format_bytes(capacity_bytes)} "
        f"({size / capacity_bytes:.0%}), {moment(memory.action_at(event))}"
    )
    ran = f"{memory.microbatches} of {memory.all_microbatches} microbatches"
    lines = heading("Memory", numbers, width)
    lines += wrapped(
        f"{memory.model}, pipeline rank {memory.pipeline_rank}: the torch runtime's own program on fake tensors, {ran}"
        f"{'' if memory.microbatches == memory.all_microbatches else '; the others repeat them'}. The reserve of a "
        "device's runtime and compiler is not in it",
        width,
        "  ",
    )
    by_kind = _by_kind(alive)
    rows = [
        [format_bytes(by_kind[kind]), f"{by_kind[kind] / size:.1%}", str(sum(one.kind == kind for one in alive)), kind]
        for kind in KINDS
        if by_kind[kind]
    ]
    lines += [(), *table(("bytes", "share", "blocks", "kind"), rows, width, right=(0, 1, 2))]
    lines += [(), *heading("Alive at the peak", "blocks that are alike on one line, largest first", width)]
    lines += _alike(alive, width)
    return paint(lines, width, color)


def _by_kind(blocks: Sequence[Block]) -> Counter[str]:
    found: Counter[str] = Counter()
    for one in blocks:
        found[one.kind] += one.size_bytes
    return found


def _alike(alive: Sequence[Block], width: int) -> list[Line]:
    groups: dict[tuple[object, ...], list[Block]] = defaultdict(list)
    for one in alive:
        groups[template_of(one.label), one.kind, one.size_bytes, one.stage, one.phase].append(one)
    ordered = sorted(groups.values(), key=lambda same: -sum(one.size_bytes for one in same))
    rows = [
        [format_bytes(sum(one.size_bytes for one in same)), str(len(same)), *_made(same), _name(same[0])]
        for same in ordered[:MOST_BLOCKS]
    ]
    lines = table(("bytes", "blocks", "stage", "microbatch", "tensor"), rows, width, right=(0, 1, 2))
    rest = [one for same in ordered[MOST_BLOCKS:] for one in same]
    if rest:
        total = sum(one.size_bytes for one in rest)
        lines += wrapped(f"{len(rest):,} smaller blocks, {format_bytes(total)} together: --format json", width, "  ")
    return lines


def _made(same: Sequence[Block]) -> tuple[str, str]:
    """(stage, microbatches) of blocks that are alike; '-' for what no action made."""
    stage, batches = same[0].stage, sorted({one.microbatch for one in same if one.microbatch is not None})
    if stage is None:
        return "-", "-"
    whole = len(batches) > 2 and batches[-1] - batches[0] == len(batches) - 1
    return str(stage), f"{batches[0]}-{batches[-1]}" if whole else ",".join(map(str, batches))


def _name(one: Block) -> str:
    by = "" if not one.operator or one.operator in one.label else f", by {template_of(one.operator)}"
    return f"{template_of(one.label)}{by} ({one.phase or one.kind})"


def diagnosis_page(found: Diagnosis, fitting: Sequence[Change], smaller: int, width: int, color: bool) -> str:
    """The page of a diagnosis, in colour where `color` says so. width: columns of the terminal.

    fitting: changes of the plan with which the run would have fitted; smaller: how many save memory, but less.
    """
    width = max(NARROWEST, min(width, WIDEST))
    short = f", {format_bytes(found.short_bytes)} too much" if found.short_bytes else ""
    lines = heading(
        "Dump",
        f"{format_bytes(found.held_bytes)} at its fullest{short}; the plan's program holds at most "
        f"{format_bytes(found.planned_peak_bytes)}",
        width,
    )
    lines += wrapped(f"it is most like the plan {moment(found.moment)}, of which it has:", width, "  ")
    rows = [[format_bytes(one.planned_bytes), format_bytes(one.found_bytes), one.kind] for one in found.present]
    lines += table(("planned", "there", "kind"), rows, width, right=(0, 1))
    lines += [(), *_not_planned(found.findings, width)]
    if found.short_bytes:
        lines += [(), *_would_fit(found, fitting, smaller, width)]
    return paint(lines, width, color)


def _not_planned(findings: Sequence[Finding], width: int) -> list[Line]:
    if not findings:
        return heading("Never planned", "nothing: every block is one of the plan's", width)
    total = format_bytes(sum(one.size_bytes for one in findings))
    lines = heading("Never planned", f"{total}, largest first", width)
    rows = [[format_bytes(one.size_bytes), str(one.count), finding_text(one)] for one in findings[:MOST_FINDINGS]]
    return lines + table(("bytes", "blocks", "what"), rows, width, right=(0, 1))


def finding_text(one: Finding) -> str:
    """A finding as a sentence."""
    more = len(one.tensors) - MOST_NAMES
    names = " or ".join(one.tensors[:MOST_NAMES]) if one.what in (TWICE, MORE) else ", ".join(one.tensors[:MOST_NAMES])
    sentence = SENTENCES[one.what].format(names=names + (f" and {more} more" if more > 0 else ""))
    return sentence + (f"; asked for in {one.where}" if one.where else "")


def _would_fit(found: Diagnosis, fitting: Sequence[Change], smaller: int, width: int) -> list[Line]:
    lines = heading("Would fit", "single changes of the plan, the fastest first", width)
    unplanned = sum(one.size_bytes for one in found.findings)
    if unplanned >= found.short_bytes:
        text = f"no change is needed without what was never planned: that is {format_bytes(unplanned)}"
        lines += wrapped(text, width, "  ")
    if found.unused_bytes >= found.short_bytes:
        text = (
            f"no change may be needed either: the allocator has {format_bytes(found.unused_bytes)} in pieces that did "
            "not do; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True joins them"
        )
        lines += wrapped(text, width, "  ")
    if not fitting:
        tried = f"; {smaller} save less" if smaller else ""
        return lines + wrapped(f"no single change saves {format_bytes(found.short_bytes)}{tried}", width, "  ")
    rows = [[format_bytes(one.saved_bytes), f"~{format_seconds(one.step_time_s)}", one.words] for one in fitting[:5]]
    return lines + table(("saves", "step", "change"), rows, width, right=(0, 1))
