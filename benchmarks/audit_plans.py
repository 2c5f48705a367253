"""Plan against audit: `python -m benchmarks.audit_plans [RECIPE ...]`.

For the recipes in recipes/, each with its published layout and with the planner's own pick, every pipeline rank is
audited. The table shows the rank whose peak memory is furthest from the plan's; the last line is JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from autoshard.audit.run import audit
from autoshard.audit.values import RoleAudit, Row
from autoshard.commands.plan_options import PINS, request_from
from autoshard.commands.planning import plan_for
from autoshard.layout.plan import Plan
from autoshard.units import GB

RECIPES = Path(__file__).parent.parent / "recipes"


def plans(chosen: list[str]) -> Iterator[tuple[str, Plan]]:
    """(name, plan) of the published layout and of the planner's pick for each recipe."""
    pins = {option.name for option in PINS}
    for file in sorted(RECIPES.glob("*.yaml")):
        if chosen and file.stem not in chosen:
            continue
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
        yield f"{file.stem} published", plan_for(request_from(values))
        free = {name: value for name, value in values.items() if name not in pins}
        yield f"{file.stem} planned", plan_for(request_from(free))


def peak(one: RoleAudit) -> Row:
    return next(row for row in one.rows if row.what == "peak memory")


def off(row: Row) -> float:
    return row.measured / row.planned - 1


def main() -> None:
    results: list[dict[str, Any]] = []
    print(f"{'plan':44} {'roles':>5} {'counts':>7} {'stage':>5} {'planned GB':>10} {'audit GB':>9} {'off':>7} {'s':>5}")
    for name, plan in plans(sys.argv[1:]):
        start = time.perf_counter()
        audits = audit(plan, None, lambda done, total, one: None)
        worst = max(audits, key=lambda one: abs(off(peak(one))))
        others = sorted({different.what for one in audits for different in one.differences} - {"peak memory"})
        row = peak(worst)
        seconds = time.perf_counter() - start
        results.append(
            {
                "plan": name,
                "roles": len(audits),
                "agree": sum(one.agrees for one in audits),
                "differs": others,
                "stage": worst.role.pipeline_rank,
                "planned_bytes": row.planned,
                "audited_bytes": row.measured,
                "off": off(row),
                "seconds": seconds,
            }
        )
        print(
            f"{name:44} {len(audits):5} {'differ' if others else 'agree':>7} {worst.role.pipeline_rank:5} "
            f"{row.planned / GB:10.2f} {row.measured / GB:9.2f} {off(row):+7.1%} {seconds:5.0f}",
            flush=True,
        )
    print(json.dumps(results))


if __name__ == "__main__":
    main()
