"""Measures step times of `autoshard run` on this machine, which should be idle: `python -m benchmarks.cpu_runs`.

First `autoshard calibrate --device cpu`, whose hardware file goes to data/cpu_calibrated.json; then sixteen models and
layouts in one process or two, each on one core: data/measured_cpu.csv, with the columns of measured_gpu.csv. A step's
time is the shortest of all after the second, in sweeps over all rows minutes apart, since other work on the machine
only ever makes it longer. About seven minutes.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from autoshard.calibration.results.gpu_rows import gpu_case
from autoshard.cost.estimate import estimate
from autoshard.plans.plan import make_plan
from autoshard.plans.plan_json import write_plan
from benchmarks.calibrated_cpu import CALIBRATED, calibrated_cluster
from benchmarks.fitted import DATA

STEPS, WARM_UP = 8, 2
COMMON = {
    "source_id": "cpu",
    "source": "measured by benchmarks/cpu_runs.py",
    "act": "swiglu",
    "vocab": "512",
    "tied_emb": "no",
    "gpu": "cpu",
    "precision": "fp32",
    "framework": "autoshard",
    "attn_kernel": "flash2",
    "recompute": "none",
    "zero": "1",
    "status": "ok",
}
Fields = dict[str, Any]
GPT: Fields = {"act": "gelu", "kv_heads": 8}
PLAIN: Fields = {"attn_kernel": "naive"}
EXPERTS: Fields = {"moe_experts": 4, "moe_topk": 2}
FULL: Fields = {"recompute": "full"}
SELECTIVE: Fields = {"recompute": "selective"}


def row(name: str, layers: int, hidden: int, seq_len: int, gbs: int, mbs: int = 1, **other: Any) -> dict[str, str]:
    """The row of a model with 8 heads, 4 of them key-value heads, and a gated MLP of 8/3 the width."""
    ffn = 4 * hidden if other.get("act") == "gelu" else 128 * round(8 * hidden / 3 / 128)
    fields = {
        "layers": layers,
        "hidden": hidden,
        "heads": 8,
        "kv_heads": 4,
        "ffn": ffn,
        "seq_len": seq_len,
        "gbs": gbs,
        "mbs": mbs,
        **other,
    }
    degrees = {axis: int(other.get(axis, 1)) for axis in ("tp", "pp", "dp", "cp")}
    world = degrees["tp"] * degrees["pp"] * degrees["dp"] * degrees["cp"]
    named = {"row_id": f"cpu-{name}", "group_id": f"cpu-{name}", "model": name, "n_gpus": world, "gpus_per_node": world}
    return {key: str(value) for key, value in {**COMMON, **named, **degrees, **fields}.items()}


ROWS = (
    row("llama-256", 4, 256, 256, 4),
    row("llama-512", 4, 512, 512, 2),
    row("llama-768-full", 3, 768, 256, 4, 2, **FULL),
    row("llama-256-long", 4, 256, 1024, 2, **SELECTIVE, **PLAIN),
    row("llama-256-vocabulary", 2, 256, 256, 4, vocab="8192"),
    row("gpt-384", 6, 384, 256, 4, **GPT),
    row("gpt-512-plain", 4, 512, 512, 2, **GPT, **PLAIN),
    row("experts-256", 3, 256, 256, 4, **EXPERTS),
    row("llama-512-tp2", 4, 512, 512, 4, tp=2, sp=1),
    row("gpt-384-tp2", 4, 384, 256, 4, tp=2, **GPT),
    row("llama-512-dp2", 4, 512, 256, 4, dp=2),
    row("llama-512-pp2", 4, 512, 256, 8, pp=2),
    row("llama-256-pp2-interleaved", 8, 256, 256, 8, pp=2, vpp=2),
    row("gpt-512-pp2-full", 4, 512, 256, 4, pp=2, **GPT, **FULL),
    row("llama-256-cp2", 4, 256, 1024, 4, cp=2),
    row("experts-256-ep2", 3, 256, 256, 8, 2, dp=2, ep=2, **EXPERTS),
)


def step_time_s(fields: dict[str, str], hardware: Path, folder: Path) -> float:
    """The measured step time of the row's layout, seconds."""
    case = gpu_case({**fields, "iter_time_s": "1"})
    cluster = calibrated_cluster(hardware, case.strategy.world_size)
    expected = estimate(case.model, case.training, cluster, case.strategy)
    plan = make_plan(case.model, case.training, cluster, "torch", case.strategy, expected)
    file, output = folder / f"{case.key}.json", folder / case.key
    write_plan(plan, file)
    command = [sys.executable, "-m", "autoshard", "run", str(file), "--steps", str(STEPS), "--output", str(output)]
    subprocess.run(command, check=True, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"})
    (metrics,) = output.glob("*/metrics.jsonl")
    return min(list(_times(metrics))[WARM_UP:])


def _times(metrics: Path) -> Iterator[float]:
    for line in metrics.read_text(encoding="utf-8").splitlines():
        yield float(json.loads(line)["step_time_s"])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=DATA, help="where both files go")
    parser.add_argument("--sweeps", type=int, default=2)
    options = parser.parse_args(arguments)
    hardware, out = options.folder / CALIBRATED.name, options.folder / "measured_cpu.csv"
    calibrate = [sys.executable, "-m", "autoshard", "calibrate", "--device", "cpu", "-o", str(hardware)]
    subprocess.run(calibrate, check=True)
    shortest: dict[str, float] = {}
    for sweep in range(options.sweeps):
        with TemporaryDirectory() as folder:
            for fields in ROWS:
                name = fields["row_id"]
                seconds = step_time_s(fields, hardware, Path(folder))
                shortest[name] = min(seconds, shortest.get(name, seconds))
                print(f"sweep {sweep + 1}/{options.sweeps} {name:32} {seconds:.4f} s", flush=True)
        _write(out, [{**fields, "iter_time_s": f"{shortest[fields['row_id']]:.6g}"} for fields in ROWS])
    print(f"{out} and {hardware}: python -m benchmarks.predicted_vs_measured --results benchmarks/RESULTS.md")


def _write(out: Path, rows: Sequence[dict[str, str]]) -> None:
    with out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for fields in rows for name in fields)))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
