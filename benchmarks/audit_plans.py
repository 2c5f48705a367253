"""Audits plans and compares each with its audit: `python -m benchmarks.audit_plans [NAME ...]`, every pipeline rank.

The plans are the layouts that AWS publishes (recipes/), and the planner's own picks for the same problems and four
more. A NAME chooses the plans whose names begin with it. Results go to results/audit_plans.json, beside those of other
runs, and as a table to results/audit_plans.md; the row is that of the pipeline rank whose peak memory is furthest from
the plan's. The last line is JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

import autoshard
from autoshard.audits.run import audit
from autoshard.audits.values import PEAK_MEMORY, Row
from autoshard.planner.options import PINS, request_from
from autoshard.planner.planning import plan_for
from autoshard.planner.request import PlanRequest
from autoshard.plans.names import layout_name
from autoshard.plans.plan import Plan
from autoshard.units import GB, KIB

RECIPES = Path(__file__).parent.parent / "recipes"
RESULTS = Path(__file__).parent / "results"
MORE = (
    ("llama3-70b", "trn2.48xlarge", 4),
    ("llama3.1-405b", "trn2.48xlarge", 32),
    ("mixtral-8x22b", "trn1.32xlarge", 16),
    ("mistral-7b", "trn1.32xlarge", 2),
)
"""(model, instance, nodes) of further plans that the planner makes."""
HEADER = ("plan", "layout", "ranks", "roles", "counts", "stage", "planned GB", "audited GB", "off", "seconds")


def plans(chosen: list[str]) -> Iterator[tuple[str, Plan]]:
    """(name, plan) of each published layout and of the planner's picks."""
    for name, request in requests():
        if not chosen or any(name.startswith(one) for one in chosen):
            yield name, plan_for(request)


def requests() -> Iterator[tuple[str, PlanRequest]]:
    pins = {option.name for option in PINS}
    for file in sorted(RECIPES.glob("*.yaml")):
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
        yield f"{file.stem} published", request_from(values)
        yield f"{file.stem} planned", request_from({name: value for name, value in values.items() if name not in pins})
    for model, instance, nodes in MORE:
        name = f"{model}_{instance.partition('.')[0]}_{nodes}nodes planned"
        yield name, PlanRequest(model, instance, nodes)


def off(row: Row) -> float:
    return row.measured / row.planned - 1


def result(plan: Plan) -> dict[str, Any]:
    """The audit of one plan as JSON values. memory_mib: of the largest process that audited so far."""
    start = time.perf_counter()
    audits = audit(plan, None, lambda done, total, one: None)
    worst = max(audits, key=lambda one: abs(off(one.peak)))
    row = worst.peak
    return {
        "version": autoshard.__version__,
        "layout": layout_name(plan.strategy),
        "ranks": plan.mesh.world_size,
        "roles": len(audits),
        "agree": sum(one.agrees for one in audits),
        "differs": sorted({one.what for found in audits for one in found.differences}),
        "stage": worst.role.pipeline_rank,
        "planned_bytes": row.planned,
        "audited_bytes": row.measured,
        "off": off(row),
        "seconds": time.perf_counter() - start,
        "memory_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / KIB,
    }


def cells(name: str, one: dict[str, Any]) -> tuple[str, ...]:
    """The cells of a plan's row, under HEADER."""
    counts = sorted(set(one["differs"]) - {PEAK_MEMORY})
    return (
        name,
        one["layout"],
        f"{one['ranks']:,}",
        f"{one['agree']} of {one['roles']} agree",
        "differ: " + ", ".join(counts) if counts else "agree",
        str(one["stage"]),
        f"{one['planned_bytes'] / GB:.2f}",
        f"{one['audited_bytes'] / GB:.2f}",
        f"{one['off']:+.1%}",
        f"{one['seconds']:.0f}",
    )


def main() -> None:
    file = RESULTS / "audit_plans.json"
    known: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    print(" | ".join(HEADER))
    for name, plan in plans(sys.argv[1:]):
        known[name] = result(plan)
        print(" | ".join(cells(name, known[name])), flush=True)
        kept = {name: known[name] for name, _ in requests() if name in known}
        file.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        rows = [HEADER, ("---",) * len(HEADER), *(cells(*item) for item in kept.items())]
        text = "".join("| " + " | ".join(row) + " |\n" for row in rows)
        (RESULTS / "audit_plans.md").write_text(text, encoding="utf-8")
    print(json.dumps(known))


if __name__ == "__main__":
    main()
