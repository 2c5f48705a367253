"""Scores each recipe beside what the planner picks: `python -m benchmarks.published_recipes`.

The recipes are layouts that AWS ships (recipes/*.yaml), layouts of published results on Trainium (recipes/measured) and
problems for which no layout is published (recipes/open). The table goes to results/published_recipes.md. All step times
but the measured ones are predictions.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

import autoshard
from autoshard.plans.names import short_name
from autoshard.units import format_seconds

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "recipes"
DATA = ROOT / "benchmarks" / "data" / "measured_trainium.csv"
RESULTS = ROOT / "benchmarks" / "results" / "published_recipes.md"
HEADER = ("recipe", "problem", "published layout", "measured", "predicted", "our pick", "predicted", "faster by")


@dataclass(frozen=True)
class Line:
    """One recipe. published: its layout, or "-" where it is open. measured_s, published_s: seconds of a step of that
    layout, as published and as predicted; None where unknown. pick, pick_s: the planner's layout and its prediction."""

    recipe: str
    problem: str
    published: str
    measured_s: float | None
    published_s: float | None
    pick: str
    pick_s: float

    @property
    def cells(self) -> tuple[str, ...]:
        faster = "-" if self.published_s is None else f"{self.published_s / self.pick_s - 1:+.0%}"
        return (
            f"`{self.recipe}`",
            self.problem,
            self.published,
            _seconds(self.measured_s),
            _seconds(self.published_s, "~"),
            self.pick,
            _seconds(self.pick_s, "~"),
            faster,
        )


def _seconds(value: float | None, sign: str = "") -> str:
    return "-" if value is None else f"{sign}{format_seconds(value)}"


def measured_id(recipe: Path) -> str | None:
    """The row of measured_trainium.csv that a recipe was written from; None where it names none."""
    found = re.match(r"# ([A-Z]\d{3}) of benchmarks/data/measured_trainium.csv: ", recipe.read_text(encoding="utf-8"))
    return found and found[1]


def line(recipe: Path, measured: dict[str, float]) -> Line:
    """The recipe's layout beside the planner's. Raises AutoshardError where nothing can be priced."""
    values = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    name = recipe.relative_to(RECIPES).with_suffix("").as_posix()
    pins = [option for option in ("tp", "pp", "dp", "cp", "ep", "vpp", "zero") if option in values]
    kept = {"seq_len": 8192, "lnc": None, **values}
    size = f"{kept['seq_len']:,} tokens x {kept['global_batch']:,}"
    model = kept["model"].removesuffix(".json").rpartition("/")[2]
    problem = f"{model}, {kept['nodes']} x {kept['instance']}, {size}, {kept['precision']}"
    if not pins:
        plan = autoshard.plan(values.pop("model"), values.pop("instance"), top=0, **values)
        return Line(name, problem, "-", None, None, short_name(plan.strategy), plan.step_time_s)
    score = autoshard.score(recipe)
    assert score.best is not None and score.score.strategy is not None
    row = measured_id(recipe)
    return Line(
        name,
        problem,
        short_name(score.score.strategy),
        None if row is None else measured[row],
        score.step_time_s,
        short_name(score.best.strategy),
        score.best.estimate.step_time_s,
    )


def main() -> None:
    with DATA.open(encoding="utf-8", newline="") as file:
        measured = {row["id"]: float(row["step_time_s"]) for row in csv.DictReader(file) if row["step_time_s"]}
    files = [
        *sorted(RECIPES.glob("*.yaml")),
        *sorted(RECIPES.glob("measured/*.yaml")),
        *sorted(RECIPES.glob("open/*.yaml")),
    ]
    rows = [HEADER, tuple("---" for _ in HEADER)]
    for recipe in files:
        rows.append(line(recipe, measured).cells)
        print(" | ".join(rows[-1]), flush=True)
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
    RESULTS.write_text(f"{INTRODUCTION}\n{text}\n", encoding="utf-8")


INTRODUCTION = """\
# Published layouts beside our picks

Written by `python -m benchmarks.published_recipes`. `faster by` compares two predictions of the same cost model, so it
shares that model's errors; differences below some 10 % are toss-ups. Our pick was never measured. "Measured" is the
published step time. The fine-tunes were measured on a stack that a recipe does not name (optimum-neuron, which
launches each operator by itself), so their predictions are not for what was measured. Recipes in `open` are problems
for which no layout is published. A pick is the best of the search, whether or not its features have run somewhere; it
may use what a release of that time lacked, such as the flash kernel beside `attention=plain`.
"""


if __name__ == "__main__":
    main()
