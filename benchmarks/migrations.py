"""NxD Training's published examples: what their migration to native PyTorch changes, and the proof that it goes on.

    python -m benchmarks.migrations             # predictions, and 20 steps there and back of each; half an hour
    python -m benchmarks.migrations megatron_gpt
    python -m benchmarks.migrations --predict   # predictions alone; the proofs that are there stay

Proofs run the real neuronx-distributed: tests/nxd/README.md says what it needs. Results go to results/migrations.json
and as a table to results/migrations.md.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from autoshard.migration.migrate import migrate
from autoshard.migration.target import Target
from autoshard.plans.differences import loses
from autoshard.plans.names import layout_name
from autoshard.plans.plan import Plan
from autoshard.units import GB, format_seconds
from tests.unit.written_files import PUBLIC, UNNAMED

RESULTS = Path(__file__).parent / "results"
FILES: dict[str, dict[str, Any]] = {**UNNAMED, **PUBLIC}
"""Name in examples/conf of NxD Training -> its configuration; hf_llama_7B with the 32 blocks of its model."""
MODELS = {"hf_llama_7B": "llama2-7b"}
"""Models of configurations that several built-in ones could be."""
HEADER = (
    "example", "model", "layer here", "before", "after", "what changes the step", "step", "fullest device, GB",
    "made small", "losses", "losses, back", "weights", "first moment", "second moment",
)  # fmt: skip
PROOF = ("losses", "losses_back", "master", "first_moment", "second_moment")


PAGE = """\
The published examples of NxD Training (examples/conf at 9169aa0) with `autoshard migrate`: from NxD on trn1 to native
PyTorch on trn2. Model, batch, sequences and precision stay, the layout is searched anew; of the instances it takes the
power of two that comes nearest to the peak FLOP/s before. hf_llama_7B has the 32 blocks of its model: its file has 4.

Layouts, steps and memory are those of the examples' own size, by the cost model: nothing here ran on a chip.

The columns from `made small` on are from runs of four processes in FP32, on small models with the example's layers: 20
steps under neuronx-distributed 0.18, the real library, on the CPU; from its checkpoint 20 more under it, and under the
torch backend on the twin of a Neuron device (tests/neuron/README.md); from torch's checkpoint 20 more under both. They
are the largest relative differences of a loss there, of a loss back, and of weights and moments after the steps there
(norms, any rank). tests/nxd/test_migrate.py makes the same runs and allows 1e-5. `python -m benchmarks.migrations`
writes this page.

"""


def predicted(name: str) -> dict[str, Any]:
    """The migration of an example at its own size, as JSON values."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / f"{name}.yaml"
        file.write_text(yaml.safe_dump(FILES[name]), encoding="utf-8")
        found = migrate(str(file), {"model": MODELS[name]} if name in MODELS else {}, Target())
    return {
        "model": found.before.model.name,
        "before": _side(found.before),
        "after": _side(found.after),
        "changes": loses(found.before.estimate, found.after.estimate),
        "warnings": list(found.warnings),
    }


def _side(plan: Plan) -> dict[str, Any]:
    return {
        "cluster": f"{plan.cluster.nodes} {plan.cluster.instance}",
        "layout": layout_name(plan.strategy),
        "step_time_s": plan.estimate.step_time_s,
        "memory_bytes": plan.estimate.fullest.total_bytes,
    }


def proven(name: str) -> dict[str, Any] | None:
    """The runs of an example there and back, as JSON values; None where no layer here does what it asks for."""
    from tests.nxd.conftest import VARIABLES

    os.environ.update(VARIABLES)  # before the library is imported
    from tests.nxd.cases import plan_of
    from tests.nxd.migrated import EXAMPLES
    from tests.nxd.migrations import proof

    if name not in EXAMPLES:
        return None
    small = [layout_name(plan_of(**layout).strategy) for layout in EXAMPLES[name]]
    return {"layouts": small, **asdict(proof(name))}


def cells(name: str, one: dict[str, Any]) -> tuple[str, ...]:
    """The cells of an example's row, under HEADER."""
    before, after, proof = one["before"], one["after"], one["proof"]
    steps = [side["step_time_s"] for side in (before, after)]
    times = " -> ".join(f"~{format_seconds(seconds)}" for seconds in steps)
    if proof is None:
        ran = ("not run", *("" for _ in PROOF))
    else:
        ran = (" -> ".join(proof["layouts"]), *(f"{proof[what]:.1e}" for what in PROOF))
    return (
        name,
        one["model"],
        "yes" if proof is not None else f"no: {'; '.join(one['warnings'])}",
        *(f"{side['cluster']}: {side['layout']}" for side in (before, after)),
        one["changes"],
        f"{times}, {steps[1] / steps[0]:.2f} times",
        " -> ".join(f"~{side['memory_bytes'] / GB:.1f}" for side in (before, after)),
        *ran,
    )


def page(known: dict[str, dict[str, Any]]) -> str:
    """The page of all results, as Markdown."""
    rows = [HEADER, ("---",) * len(HEADER), *(cells(*item) for item in known.items())]
    return PAGE + "".join("| " + " | ".join(row) + " |\n" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("examples", nargs="*", choices=[[], *FILES], help="names; all without any")
    parser.add_argument("--predict", action="store_true", help="leave the proofs as they are")
    asked = parser.parse_args()
    file = RESULTS / "migrations.json"
    known: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    for name in asked.examples or list(known if asked.predict else FILES):
        proof = known[name]["proof"] if asked.predict else proven(name)
        known[name] = {**predicted(name), "proof": proof}
        print(" | ".join(cells(name, known[name])), flush=True)
        known = {one: known[one] for one in FILES if one in known}
        file.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        (RESULTS / "migrations.md").write_text(page(known), encoding="utf-8")


if __name__ == "__main__":
    main()
