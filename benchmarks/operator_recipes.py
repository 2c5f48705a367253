"""What the solver brings over Megatron's rule in recipes/operators: `python -m benchmarks.operator_recipes [NAME ...]`.

Each recipe is planned with either. "Same layout" is the solver's, with Megatron's choices: bytes are those that all
ranks of its rehearsal exchange in the collectives of microbatches. `--write` keeps results/operator_recipes.md.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from autoshard.planner.options import OPTIONS, request_from
from autoshard.planner.planning import plan_for
from autoshard.plans.names import layout_name
from autoshard.plans.plan import Plan, operator_choices
from autoshard.plans.step_collectives import step_collectives
from autoshard.runtime.rehearse import rehearse

RECIPES = Path(__file__).parent.parent / "recipes" / "operators"
RESULTS = Path(__file__).parent / "results" / "operator_recipes.md"
PROCESSES, VOCAB_SIZE = 8, 256
"""Of a rehearsal."""
HEADER = (
    "recipe",
    "layout",
    "step, s",
    "with Megatron's rule",
    "faster by",
    "exchanged in a rehearsal",
    "operators changed",
)


@dataclass(frozen=True)
class Row:
    """One recipe. megatron_s: step time of the best layout with Megatron's rule. sent, by_rule: bytes of a rehearsal's
    collectives in a step with the solver's choices and with Megatron's, same layout. changed: operators that differ."""

    name: str
    layout: str
    solved_s: float
    megatron_s: float
    sent: int
    by_rule: int
    changed: tuple[str, ...]

    @property
    def faster(self) -> float:
        """Share of Megatron's step time that is saved."""
        return 1 - self.solved_s / self.megatron_s


def row(path: Path) -> Row:
    """The recipe's row. path: of its file."""
    values = {name: OPTIONS[name].parse(value) for name, value in yaml.safe_load(path.read_text()).items()}
    solved, megatron = (plan_for(request_from(values | {"operators": one})) for one in ("solver", "megatron"))
    rule = operator_choices(solved.model, solved.training, solved.cluster, solved.strategy)
    return Row(
        path.stem,
        layout_name(solved.strategy),
        solved.estimate.step_time_s,
        megatron.estimate.step_time_s,
        rehearsed_bytes(solved),
        rehearsed_bytes(replace(solved, operators=rule)),
        tuple(name for name, choice in solved.operators.items() if choice != rule[name]),
    )


def rehearsed_bytes(plan: Plan) -> int:
    """Bytes of the collectives of all microbatches in a step of the plan's rehearsal; gradients are summed once."""
    small = rehearse(plan, PROCESSES, VOCAB_SIZE).plan
    by_rank = (step_collectives(small, rank) for rank in range(small.strategy.pp))
    counts = (item for found in by_rank for item in found.items())
    return small.mesh.stage_size * sum(one.bytes * count for one, count in counts if one.phase != "sync")


def page(rows: list[Row]) -> str:
    """The rows as a table in Markdown."""
    lines = [" | ".join(HEADER), " | ".join("---" for _ in HEADER)]
    for one in rows:
        changed = ", ".join(name.removeprefix("model.layers.*.") for name in one.changed)
        sent = f"{one.sent / one.by_rule - 1:+.1%}"
        seconds = (f"{one.solved_s:.3g}", f"{one.megatron_s:.3g}")
        lines.append(" | ".join((f"`{one.name}`", one.layout, *seconds, f"{one.faster:.1%}", sent, changed)))
    return "".join(f"| {line} |\n" for line in lines)


def main() -> int:
    names = [name for name in sys.argv[1:] if name != "--write"]
    rows = [row(path) for path in sorted(RECIPES.glob("*.yaml")) if not names or path.stem in names]
    if "--write" in sys.argv:
        RESULTS.write_text(page(rows), encoding="utf-8")
    print(page(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
