"""The six layouts that AWS publishes (benchmarks/data/published_layouts.csv) as plans, with estimates by hand."""

from __future__ import annotations

import csv
from functools import lru_cache
from pathlib import Path

from autoshard.layout.strategy import even_stage_layers
from autoshard.models.registry import load_model
from autoshard.plans.plan import Plan
from tests.unit import plan_examples

DATA = Path(__file__).parents[2] / "benchmarks" / "data" / "published_layouts.csv"
RECOMPUTE = {
    "selective[CoreAttention]": "core_attention",
    "selective[CoreAttention;LlamaMLP]": "core_attention+mlp",
    "full": "full",
}


@lru_cache
def published_plans() -> dict[str, Plan]:
    """By the name of the layout, such as 'hf_llama3_70B'."""
    with DATA.open(encoding="utf-8", newline="") as file:
        return {row["name"]: _plan(row) for row in csv.DictReader(file)}


def _plan(row: dict[str, str]) -> Plan:
    model, nodes = load_model(row["model"]), int(row["nodes"])
    tp, pp, cp = (int(row[name]) for name in ("tp", "pp", "cp"))
    chosen = plan_examples.strategy(
        tp=tp,
        pp=pp,
        cp=cp,
        dp=32 * nodes // (tp * pp * cp),
        recompute=RECOMPUTE[row["recompute"]],
        attention_kernel="plain" if "no flash attention" in row["source"] else "flash",
        stage_layers=even_stage_layers(model.num_hidden_layers, pp),
        context_parallel="ring" if cp > 1 else "all_gather",
    )
    batch, length = int(row["global_batch"]), int(row["seq_len"])
    return plan_examples.plan(row["model"], row["instance"], nodes, length, batch, "nxd", chosen)
