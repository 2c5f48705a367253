"""One model of each family at full size: planned as a whole process, its first and last stage audited.

    python -m benchmarks.families                # every family; some minutes each
    python -m benchmarks.families qwen3 gpt_oss  # these model_types; the others keep their row
    python -m benchmarks.families --plans        # plans alone; a row keeps its audit where that was of this plan
    python -m benchmarks.families --untimed      # on a machine that does other work: all but the CPU time of planning

Results go to results/families.json and as a table to results/families.md. Parity with transformers and of sharded runs
is the test suite's: the page says which tests hold it, the table how many layouts they try.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from autoshard.audits.expected import expectation
from autoshard.audits.run import audit
from autoshard.models.registry import load_model
from autoshard.models.stage import parameter_count
from autoshard.plans.names import layout_name
from autoshard.plans.plan import Plan
from autoshard.plans.validate import read_plan
from autoshard.units import GB
from benchmarks.audit_plans import off

RESULTS = Path(__file__).parent / "results"
MODELS: dict[str, tuple[str, str, int]] = {
    "llama": ("llama3-70b", "trn2.48xlarge", 16),
    "mistral": ("mistral-7b", "trn2.48xlarge", 2),
    "mixtral": ("mixtral-8x22b", "trn2.48xlarge", 16),
    "gpt2": ("gpt3-175b", "trn2.48xlarge", 32),
    "gpt_neox": ("gpt-neox-20b", "trn2.48xlarge", 4),
    "qwen2": ("qwen2.5-72b", "trn2.48xlarge", 16),
    "qwen3": ("qwen3-32b", "trn2.48xlarge", 8),
    "qwen2_moe": ("qwen2-57b-a14b", "trn2.48xlarge", 8),
    "qwen3_moe": ("qwen3-30b-a3b", "trn2.48xlarge", 4),
    "deepseek_v2": ("deepseek-v2", "trn2.48xlarge", 16),
    "deepseek_v3": ("deepseek-v3", "trn2.48xlarge", 64),
    "kimi_k2": ("kimi-k2", "trn2.48xlarge", 64),
    "glm4_moe": ("glm-4.5", "trn2.48xlarge", 32),
    "gpt_oss": ("gpt-oss-120b", "trn2.48xlarge", 16),
    "gemma": ("gemma-7b", "trn2.48xlarge", 2),
    "gemma2": ("gemma2-27b", "trn2.48xlarge", 4),
    "vaultgemma": ("vaultgemma-1b", "trn2.48xlarge", 1),
    "gemma3_text": ("gemma3-27b", "trn2.48xlarge", 4),
    "gemma4_text": ("gemma4-26b-a4b", "trn2.48xlarge", 4),
    "gemma4_e4b": ("gemma4-e4b", "trn2.48xlarge", 1),
    "llama4_text": ("llama4-maverick", "trn2.48xlarge", 32),
    "dbrx": ("dbrx", "trn2.48xlarge", 16),
    "smollm3": ("smollm3-3b", "trn2.48xlarge", 2),
    "phi3": ("phi4", "trn2.48xlarge", 4),
    "olmo2": ("olmo2-32b", "trn2.48xlarge", 8),
    "granite": ("granite-3.1-8b", "trn2.48xlarge", 2),
    "qwen3_next": ("qwen3-next-80b-a3b", "trn2.48xlarge", 8),
    "granitemoe": ("granite-3.1-3b-a800m", "trn2.48xlarge", 1),
    "granitemoe_swa": ("granite-swash-3b-a600m", "trn2.48xlarge", 1),
    "granitemoehybrid": ("granite-4.0-h-small", "trn2.48xlarge", 4),
    "seed_oss": ("seed-oss-36b", "trn2.48xlarge", 8),
    "glm": ("glm-4-9b", "trn2.48xlarge", 2),
    "glm4": ("glm-4-32b-0414", "trn2.48xlarge", 8),
    "ernie4_5": ("ernie-4.5-0.3b", "trn2.48xlarge", 1),
    "ernie4_5_moe": ("ernie-4.5-21b-a3b", "trn2.48xlarge", 4),
    "axk1": ("a.x-k1", "trn2.48xlarge", 64),
    "glm4_moe_lite": ("glm-4.7-flash", "trn2.48xlarge", 4),
    "flex_olmo": ("flexolmo-7x7b", "trn2.48xlarge", 4),
    "olmoe": ("olmoe-1b-7b", "trn2.48xlarge", 1),
    "nemotron": ("nemotron4-340b", "trn2.48xlarge", 64),
    "solar_open": ("solar-open-100b", "trn2.48xlarge", 16),
    "exaone_moe": ("k-exaone-236b-a23b", "trn2.48xlarge", 32),
    "hy_v3": ("hy3-295b-a21b", "trn2.48xlarge", 32),
    "mistral4": ("mistral-small-4-119b-a6.5b", "trn2.48xlarge", 16),
    "youtu": ("youtu-llm-2b", "trn2.48xlarge", 1),
    "minicpm3": ("minicpm3-4b", "trn2.48xlarge", 1),
    "cwm": ("cwm-32b", "trn2.48xlarge", 8),
    "hunyuan_v1_dense": ("hunyuan-7b", "trn2.48xlarge", 2),
    "hunyuan_v1_moe": ("hunyuan-a13b", "trn2.48xlarge", 8),
    "apertus": ("apertus-70b", "trn2.48xlarge", 16),
    "afmoe": ("trinity-large", "trn2.48xlarge", 32),
    "cohere": ("command-r-plus", "trn2.48xlarge", 16),
    "cohere2": ("command-a", "trn2.48xlarge", 16),
    "ministral3": ("ministral-3-14b", "trn2.48xlarge", 2),
    "nemotron_h": ("nemotron-3-nano-30b-a3b", "trn2.48xlarge", 4),
    "dots1": ("dots.llm1", "trn2.48xlarge", 16),
    "exaone4": ("exaone-4.0-32b", "trn2.48xlarge", 8),
    "olmo3": ("olmo3-32b", "trn2.48xlarge", 8),
    "qwen3_5_text": ("qwen3.5-27b", "trn2.48xlarge", 8),
    "qwen3_5_moe_text": ("qwen3.5-35b-a3b", "trn2.48xlarge", 4),
    "qwen4_exp_text": ("qwen3.8-flash-next", "p5.48xlarge", 8),
    "minimax": ("minimax-text-01", "trn2.48xlarge", 32),
    "minimax_m2": ("minimax-m2", "trn2.48xlarge", 16),
    "lfm2": ("lfm2-1.2b", "trn2.48xlarge", 1),
    "kimi_linear": ("kimi-linear-48b-a3b", "trn2.48xlarge", 2),
    "lfm2_moe": ("lfm2-8b-a1b", "trn2.48xlarge", 1),
    "bailing_hybrid": ("ling-3.0-flash", "trn2.48xlarge", 8),
    "laguna": ("laguna-xs.2", "trn2.48xlarge", 4),
    "helium": ("helium-1-preview-2b", "trn2.48xlarge", 1),
    "bamba": ("bamba-9b", "trn2.48xlarge", 1),
    "starcoder2": ("starcoder2-15b", "trn2.48xlarge", 2),
    "stablelm": ("stablelm-3b-4e1t", "trn2.48xlarge", 1),
    "phi": ("phi-2", "trn2.48xlarge", 1),
    "falcon_h1": ("falcon-h1-34b", "trn2.48xlarge", 8),
    "step3p5": ("step-3.7-flash", "trn2.48xlarge", 16),
    "kolibri1": ("kolibri-1", "trn2.48xlarge", 8),
    "jais2": ("jais2-8b", "trn2.48xlarge", 1),
    "mellum": ("mellum2-12b-a2.5b", "trn2.48xlarge", 1),
    "hyperclovax": ("hyperclovax-seed-think-14b", "trn2.48xlarge", 2),
    "lfm3": ("lfm3-1.7b", "trn2.48xlarge", 1),
    "mimo_v2_flash": ("mimo-v2-flash", "trn2.48xlarge", 32),
    "olmo_hybrid": ("olmo-hybrid-7b", "trn2.48xlarge", 1),
    "arcee": ("afm-4.5b", "trn2.48xlarge", 1),
    "olmo": ("olmo-7b", "trn2.48xlarge", 2),
    "nanochat": ("nanochat-d32", "trn2.48xlarge", 1),
    "deepseek_v32": ("deepseek-v3.2", "h800-80gb", 64),
    "glm_moe_dsa": ("glm-5.2", "h800-80gb", 64),
    "deepseek_v4": ("deepseek-v4-flash", "h800-80gb", 32),
    "glm5_next_text": ("glm-5.3-flash", "h800-80gb", 32),
    "hy_v4": ("hy4-preview", "h800-80gb", 128),
    "mistral_large4_text": ("mistral-large-4-1t-a52b", "h800-80gb", 256),
    "minimax_m3_vl_text": ("minimax-m3", "h800-80gb", 64),
    "longcat_flash": ("longcat-flash", "trn2.48xlarge", 64),
    "muse_glimmer_text": ("muse-glimmer-30b", "trn2.48xlarge", 4),
    "muse_spark_text": ("muse-spark-open", "trn2.48xlarge", 64),
    "sarvam_moe": ("sarvam-30b", "trn2.48xlarge", 4),
    "sarvam_mla": ("sarvam-105b", "trn2.48xlarge", 4),
    "jamba": ("jamba-1.5-mini", "trn2.48xlarge", 8),
    "falcon_mamba": ("falcon-mamba-7b", "trn2.48xlarge", 1),
}
"""model_type -> (model, instance, nodes)."""
BACKEND = "torch"
HEADER = (
    "family", "model", "parameters", "kinds of blocks", "plan", "step", "proof", "planned in, CPU", "stage",
    "planned GB", "audited GB", "off", "sharded",
)  # fmt: skip


PAGE = """\
One model of each family, planned at full size on Trainium 2, or on H800s what cannot run there, with `--backend torch`.
Its first and its last stage are audited, the runtime's own program on fake tensors; the row is that of the stage that
is furthest off in peak memory.

tests/multiprocess/test_transformers.py holds of every family that logits and gradients equal those of transformers in
FP32, that weights are read and written as transformers does, and of every built-in config that its parameters are as
many as those of transformers' class on the meta device. tests/multiprocess/test_parity.py compares the sharded layouts
counted here with one process, in FP64 and FP32 (AUTOSHARD_CASES=all; by default some of them).

"""


def sharded_layouts() -> Counter[str]:
    """Layouts of each model_type that test_parity.py compares with one process."""
    os.environ["AUTOSHARD_CASES"] = "all"
    from tests.multiprocess.models import MODELS as SMALL
    from tests.multiprocess.plans import CASES

    models = [SMALL[model] for cases in CASES.values() for model, *_ in cases.values()]
    counts = Counter("gemma4_e4b" if one.hidden_size_per_layer_input else one.model_type for one in models)
    counts["kimi_k2"] = counts["deepseek_v3"]  # the same model under another name
    return counts


def planned(model: str, instance: str, nodes: int) -> tuple[Plan, dict[str, Any]]:
    """The plan of one model, made by a process of its own, and what a row says of it as JSON values."""
    spec = load_model(model)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        command = [sys.executable, "-m", "autoshard", "plan", "--model", model, "--instance", instance]
        command += ["--nodes", str(nodes), "--backend", BACKEND, "--out", str(file)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        plan = read_plan(file)
    return plan, {
        "model": f"{model} on {nodes} {instance}",
        "parameters": parameter_count(spec),
        "kinds": len(spec.kinds),
        "layout": layout_name(plan.strategy),
        "step_time_s": plan.estimate.step_time_s,
        "proof": "" if plan.search is None else plan.search.optimality,
        "planning_s": seconds,
    }


def audited(plan: Plan) -> dict[str, Any]:
    """What a row says of the audit of a plan's first and last stage as JSON values."""
    ends = tuple(sorted({0, plan.strategy.pp - 1}))
    audits = audit(plan, ends, lambda done, total, one: None)
    worst = max(audits, key=lambda one: abs(off(one.peak)))
    row = worst.peak
    return {
        "stage": worst.role.pipeline_rank,
        "planned_bytes": row.planned,
        "audited_bytes": row.measured,
        "differs": sorted({one.what for found in audits for one in found.differences}),
        "off": off(row),
    }


def is_audited(plan: Plan, found: dict[str, Any], known: dict[str, Any]) -> bool:
    """Whether the audit of a known row is that of this plan: of the same layout, against the same bytes. found: what
    `planned` says of the plan."""
    same = all(found[name] == known[name] for name in ("model", "layout"))
    return same and sum(expectation(plan, known["stage"]).held.values()) == known["planned_bytes"]


def cells(family: str, one: dict[str, Any], layouts: Counter[str]) -> tuple[str, ...]:
    """The cells of a family's row, under HEADER. layouts: of `sharded_layouts`."""
    counts = ", ".join(one["differs"])
    return (
        family,
        one["model"],
        f"{one['parameters']:,}",
        str(one["kinds"]),
        one["layout"],
        f"{one['step_time_s']:.3g} s",
        one["proof"],
        "not timed" if one["planning_s"] is None else f"{one['planning_s']:.1f} s",
        str(one["stage"]),
        f"{one['planned_bytes'] / GB:.2f}",
        f"{one['audited_bytes'] / GB:.2f}",
        f"{one['off']:+.1%}" + (f" (differ: {counts})" if counts else ""),
        str(layouts[family]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("families", nargs="*", choices=[[], *MODELS], help="model_types; all without any")
    parser.add_argument("--plans", action="store_true", help="audit no layout that has been audited")
    parser.add_argument("--untimed", action="store_true", help="leave the CPU time of planning out; --plans adds it")
    asked = parser.parse_args()
    file = RESULTS / "families.json"
    known: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    layouts = sharded_layouts()
    print(" | ".join(HEADER))
    for family in asked.families or list(MODELS):
        plan, found = planned(*MODELS[family])
        if asked.untimed:
            found["planning_s"] = None
        keeps = asked.plans and family in known and is_audited(plan, found, known[family])
        known[family] = {**(known[family] if keeps else audited(plan)), **found}
        print(" | ".join(cells(family, known[family], layouts)), flush=True)
        write({name: known[name] for name in MODELS if name in known}, layouts)


def write(known: dict[str, dict[str, Any]], layouts: Counter[str]) -> None:
    """Write the results of all families as JSON and as a page."""
    (RESULTS / "families.json").write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    rows = [HEADER, ("---",) * len(HEADER), *(cells(*item, layouts) for item in known.items())]
    table = "".join("| " + " | ".join(row) + " |\n" for row in rows)
    (RESULTS / "families.md").write_text(PAGE + table, encoding="utf-8")


if __name__ == "__main__":
    main()
