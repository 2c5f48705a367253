"""Predicted against measured step time: `python -m benchmarks.predicted_vs_measured_trainium`.

The rows are 18 published results, benchmarks/data/measured_trainium.csv; each names its source.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median

from autoshard.cost.estimate import Estimate, estimate
from autoshard.layout.strategy import Strategy, even_stage_layers
from autoshard.spec.cluster import load_cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec, load_precision

DATA = Path(__file__).parent / "data" / "measured_trainium.csv"
Row = dict[str, str]

RECOMPUTE = {"selective[CoreAttention]": "core_attention", "selective": "core_attention"}
RECOMPUTE["selective[CoreAttention,LlamaMLP]"] = "core_attention+mlp"


def row_model(row: Row) -> ModelSpec:
    """The shape as the row gives it. What it leaves open (norms, positions, biases) follows from the family."""
    gpt = row["model"].startswith("GPT")
    heads, hidden = int(row["heads"]), int(row["hidden"])
    return ModelSpec(
        name=row["model"],
        model_type="gpt2" if gpt else "llama",
        hidden_size=hidden,
        intermediate_size=int(row["ffn"]),
        num_hidden_layers=int(row["layers"]),
        num_attention_heads=heads,
        num_key_value_heads=int(row["kv_heads"]),
        head_dim=hidden // heads,
        vocab_size=int(row["vocab"]),
        max_position_embeddings=int(row["seq_len"]),
        hidden_act="gelu_new" if gpt else "silu",
        norm_eps=1e-5,
        rope_theta=None if gpt else 10000.0,
        rope_scaling=None,
        tie_word_embeddings=False,
        sliding_window=None,
        attention_bias=gpt,
        mlp_bias=gpt,
    )


def row_strategy(row: Row) -> Strategy:
    layers, stages = int(row["layers"]), int(row["pp"]) * int(row["vpp"])
    return Strategy(
        tp=int(row["tp"]),
        pp=int(row["pp"]),
        dp=int(row["dp"]),
        cp=int(row["cp"]),
        ep=int(row["ep"]),
        num_virtual_stages=int(row["vpp"]),
        microbatch_size=int(row["micro_batch"]),
        schedule="1f1b" if row["vpp"] == "1" else "interleaved",
        recompute=RECOMPUTE[row["recompute"]],
        sequence_parallel=row["sp"] == "yes",
        zero1=row["zero1"].startswith("yes"),
        attention_kernel="flash" if row["flash_attn"] == "yes" else "plain",
        stage_layers=even_stage_layers(layers, stages),
    )


def predictions(path: Path = DATA) -> Iterator[tuple[Row, Estimate]]:
    """Each row with what the cost model expects of it."""
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            precision = load_precision("mixed_precision" if "FP32Optimizer" in row["precision"] else "bf16_sr")
            training = TrainingSpec(int(row["seq_len"]), int(row["global_batch"]), precision)
            cluster = load_cluster(row["instance"].split("/")[0], int(row["nodes"]))
            yield row, estimate(row_model(row), training, cluster, row_strategy(row))


def main() -> None:
    errors = []
    print(f"{'row':5} {'model':23} {'sdk':7} {'layout':17} {'measured s':>10} {'predicted s':>11} {'error':>7}")
    for row, expected in predictions():
        measured = float(row["step_time_s"])
        error = expected.step_time_s / measured - 1
        errors.append(abs(error))
        layout = f"tp{row['tp']} pp{row['pp']} dp{row['dp']} s{row['seq_len']}"
        print(
            f"{row['id']:5} {row['model']:23} {row['sdk']:7} {layout:17} "
            f"{measured:10.2f} {expected.step_time_s:11.2f} {error:+7.1%}"
        )
    print(f"absolute error: mean {mean(errors):.1%}, median {median(errors):.1%}, worst {max(errors):.1%}")


if __name__ == "__main__":
    main()
