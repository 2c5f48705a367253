"""Plans 42 recorded problems again and says which plans a change of the planner or the cost model moves.

    python benchmarks/replay_plans.py            compares with benchmarks/results/plans.json; exit code 1 if any moved
    python benchmarks/replay_plans.py --write    keeps what is planned now

A problem is (model, cluster, batch, sequence). Recorded are the layout, the step time with its terms and the memory.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.models.registry import load_model
from autoshard.planner.search import search
from autoshard.plans.names import layout_name
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision
from autoshard.units import format_bytes, format_seconds

KEPT = Path(__file__).parent / "results" / "plans.json"
LEAST_MOVE = 1e-4
"""The smallest relative change of a step time that is reported."""
PROBLEMS = (
    *(("llama2-7b", "trn1.32xlarge", nodes, 1024, 4096, "nxd") for nodes in (1, 4)),
    ("llama2-13b", "trn1.32xlarge", 4, 1024, 4096, "nxd"),
    ("llama2-70b", "trn1.32xlarge", 16, 1024, 4096, "nxd"),
    *(("llama3-8b", "trn1.32xlarge", nodes, 1024, 8192, "nxd") for nodes in (1, 2, 4, 8, 16, 64)),
    *(("llama3-8b", "trn2.48xlarge", nodes, 1024, 8192, "nxd") for nodes in (1, 4, 16)),
    *(("llama3-8b", "trn1.32xlarge", 4, batch, 8192, "nxd") for batch in (128, 256, 4096)),
    *(("llama3-8b", "trn1.32xlarge", 16, 64, sequence, "torch") for sequence in (4096, 8192)),
    *(("llama3-70b", "trn1.32xlarge", nodes, 1024, 8192, "nxd") for nodes in (8, 16, 32, 64, 128)),
    *(("llama3-70b", "trn2.48xlarge", nodes, 1024, 8192, "nxd") for nodes in (4, 16, 64)),
    ("llama3-70b", "trn1.32xlarge", 16, 1024, 8192, "torch"),
    ("llama3.1-8b", "trn1.32xlarge", 16, 64, 131072, "torch"),
    ("llama3.1-8b", "trn2.48xlarge", 4, 128, 32768, "nxd"),
    ("llama3.1-70b", "trn1.32xlarge", 32, 1024, 8192, "nxd"),
    ("llama3.1-70b", "trn2.48xlarge", 16, 256, 32768, "torch"),
    *(("llama3.1-405b", "trn2.48xlarge", nodes, 2048, 8192, "nxd") for nodes in (64, 256)),
    *(("llama3.1-405b", "trn2u.48xlarge", 64, 64, sequence, "torch") for sequence in (8192, 131072)),
    ("mistral-7b", "trn1.32xlarge", 4, 512, 8192, "nxd"),
    *(("mixtral-8x7b", "trn1.32xlarge", nodes, 128, 4096, "nxd") for nodes in (8, 16)),
    ("mixtral-8x22b", "trn1.32xlarge", 64, 1024, 8192, "nxd"),
    ("mixtral-8x22b", "trn2.48xlarge", 16, 1024, 8192, "torch"),
    ("gpt3-175b", "trn1.32xlarge", 64, 1536, 2048, "torch"),
    ("gpt3-175b", "trn2.48xlarge", 16, 1536, 2048, "torch"),
)
"""(model, instance, nodes, sequences a step, tokens a sequence, backend)."""


def replay(model: str, instance: str, nodes: int, batch: int, sequence: int, backend: str) -> dict[str, Any]:
    training = TrainingSpec(sequence, batch, load_precision("mixed_precision"))
    try:
        result = search(load_model(model), training, load_cluster(instance, nodes), backend=backend, top=0)
    except AutoshardError as error:
        return {"refused": str(error)}
    estimate, path = result.best.estimate, result.beaten_path
    left = None if path is None or path.instead_of is None or path.unknown else layout_name(path.instead_of)
    return {
        "layout": layout_name(result.best.strategy),
        **({} if left is None else {"on the beaten path instead of": left}),
        "step_time_s": float(f"{estimate.step_time_s:.6g}"),
        "memory_bytes": float(f"{estimate.fullest.total_bytes:.6g}"),
        "terms": {term.name: float(f"{term.value:.4g}") for term in estimate.time_terms if term.value},
    }


def moved(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    """A sentence on what changed; None where nothing did."""
    if "refused" in before or "refused" in now:
        if before == now:
            return None
        return f"{before.get('refused') or before['layout']} -> {now.get('refused') or now['layout']}"
    change = now["step_time_s"] / before["step_time_s"] - 1
    if before["layout"] == now["layout"] and abs(change) < LEAST_MOVE:
        return None
    names = [*now["terms"], *(name for name in before["terms"] if name not in now["terms"])]
    shifts = [(now["terms"].get(name, 0.0) - before["terms"].get(name, 0.0), name) for name in names]
    largest = sorted(shifts, key=lambda one: -abs(one[0]))[:3]
    why = ", ".join(
        f"{'-' if value < 0 else '+'}{format_seconds(abs(value))} {name}" for value, name in largest if value
    )
    layout = now["layout"] if before["layout"] == now["layout"] else f"{before['layout']} -> {now['layout']}"
    path = "; on the beaten path, a toss-up" if "on the beaten path instead of" in now else ""
    return f"{layout}: {change:+.2%} ({why}{path})"


def main() -> int:
    kept: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    found, changes = {}, 0
    for problem in PROBLEMS:
        name = "{}, {} x {}, {} x {} tokens, {}".format(*problem[:1], problem[2], problem[1], *problem[3:])
        found[name] = now = replay(*problem)
        text = "new" if name not in kept else moved(kept[name], now)
        changes += text is not None
        shown = now.get("refused") or (
            f"{now['layout']}: {format_seconds(now['step_time_s'])}, {format_bytes(now['memory_bytes'])}"
        )
        print(
            f"{'moved' if text else 'same '}  {name}\n         {text if text and text != 'new' else shown}", flush=True
        )
    gone = [name for name in kept if name not in found]
    print(f"{len(found)} problems, {changes} moved or new, {len(gone)} gone")
    if "--write" in sys.argv[1:]:
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_text(json.dumps(found, indent=1) + "\n")
        print(f"wrote {KEPT.name}")
        return 0
    return int(bool(changes or gone))


if __name__ == "__main__":
    sys.exit(main())
