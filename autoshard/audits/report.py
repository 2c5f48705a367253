"""The findings of an audit, as a page for people and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from autoshard.audits.compare import PEAK
from autoshard.audits.values import Difference, RoleAudit, Row
from autoshard.explanation.page import Line, heading, paint, table, wrapped
from autoshard.files.codec import to_json
from autoshard.plans.plan import Plan
from autoshard.units import format_bytes, format_count

MOST_DIFFERENCES = 12
"""Shown of each role; JSON has all."""


def to_dict(plan: Plan, audits: Sequence[RoleAudit]) -> dict[str, Any]:
    return {
        "model": plan.model.name,
        "world_size": plan.mesh.world_size,
        "agrees": all(one.agrees for one in audits),
        "roles": to_json(list(audits)),
    }


def render(plan: Plan, audits: Sequence[RoleAudit], width: int, color: bool) -> str:
    """Verdict, a line for each role, memory by kind at the fullest, and for roles that differ what does."""
    failed = [one for one in audits if not one.agrees]
    covered = sum(one.role.stands_for for one in audits)
    verdict = "differs from the plan" if failed else "as planned"
    lines: list[Line] = heading("Audit", f"{verdict}: {len(audits) - len(failed)} of {len(audits)} roles agree", width)
    lines += wrapped(
        f"{plan.model.name}, {covered:,} of {plan.mesh.world_size:,} ranks; each role is the torch runtime's own "
        "program at full size on fake tensors: forward, backward and optimizer step through the schedule",
        width,
        "  ",
    )
    lines += [(("", ""),), *_roles(audits, width)]
    fullest = max(audits, key=lambda one: one.peak.measured)
    whole_bytes = plan.estimate.memory[fullest.role.pipeline_rank].total_bytes
    lines += [(("", ""),), *_memory(fullest, whole_bytes, width)]
    for audit in failed:
        lines += [(("", ""),), *_differences(audit, width)]
    return paint(lines, width, color)


def _roles(audits: Sequence[RoleAudit], width: int) -> list[Line]:
    body = []
    for audit in audits:
        peak, counts = audit.peak, Counter(row.what for row in audit.rows)
        collectives = sum(row.measured for row in audit.rows if row.what == "collectives")
        flops = sum(row.measured for row in audit.rows if row.what == "FLOPs")
        body.append(
            [
                f"{audit.role.pipeline_rank}",
                f"{audit.role.stands_for}",
                "yes" if audit.agrees else "NO",
                f"{collectives:,.0f}",
                f"{format_count(flops)}",
                f"{counts['FLOPs'] + counts['collectives']}",
                format_bytes(peak.planned),
                format_bytes(peak.measured),
                f"{_relative(peak):+.1%}",
                audit.peak_at,
            ]
        )
    header = ("stage", "ranks", "agrees", "collectives", "FLOPs", "kinds", "peak planned", "measured", "off", "at")
    lines = table(header, body, width, right=(0, 1, 3, 4, 5, 6, 7, 8))
    for reason, roles in _reasons(audits).items():
        lines += wrapped(f"stage {roles}: {reason}", width, "  ")
    return lines


def _reasons(audits: Sequence[RoleAudit]) -> dict[str, str]:
    by_reason: dict[str, list[int]] = {}
    for audit in audits:
        by_reason.setdefault(audit.role.reason, []).append(audit.role.pipeline_rank)
    return {
        reason: f"{ranks[0]}" if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]}"
        for reason, ranks in by_reason.items()
    }


def _memory(one: RoleAudit, whole_bytes: float, width: int) -> list[Line]:
    lines = heading("Memory", f"at the peak of stage {one.role.pipeline_rank}, {one.peak_at}", width)
    body = [
        [row.name, format_bytes(row.planned), format_bytes(row.measured), _off(row)]
        for row in one.rows
        if row.what == "peak memory of"
    ]
    body.append(["sum", format_bytes(one.peak.planned), format_bytes(one.peak.measured), _off(one.peak)])
    lines += table(("", "planned", "measured", "off"), body, width, right=(1, 2))
    lines += wrapped(f"the sum is held to {PEAK:.0%}; the kinds tell where it lies", width, "  ")
    if one.unmatched:
        apart = ", ".join(f"{name} ({format_bytes(count)})" for name, count in one.unmatched.items())
        lines += wrapped(
            f"the plan's {format_bytes(whole_bytes)} are with what this runtime has no counterpart of: {apart}",
            width,
            "  ",
        )
    return lines


def _differences(one: RoleAudit, width: int) -> list[Line]:
    lines = heading("Differs", f"stage {one.role.pipeline_rank}, rank {one.role.rank}, largest first", width)
    body = [
        [different.what, _number(different, different.planned), _number(different, different.measured), different.name]
        for different in one.differences[:MOST_DIFFERENCES]
    ]
    lines += table(("", "planned", "measured", ""), body, width, right=(1, 2))
    if len(one.differences) > MOST_DIFFERENCES:
        lines += wrapped(f"{len(one.differences) - MOST_DIFFERENCES} more: --format json", width, "  ")
    return lines


def _relative(row: Row) -> float:
    return row.measured / row.planned - 1 if row.planned else 0.0


def _off(row: Row) -> str:
    return f"{_relative(row):+.1%}" if row.planned else ""


def _number(one: Difference, value: float) -> str:
    if "memory" in one.what:
        return format_bytes(value)
    return format_count(value) if one.what == "FLOPs" else f"{value:,.0f}"
