"""Compares plans that the planner finds for random small models, and one of 32,768 tokens, with one process.

Losses, gradient norms, gradients and parameters of two steps in FP64, and the collectives executed. The long sequence
goes round a ring of two in zigzag pieces, one step in FP32.

    python -m benchmarks.planned_parity --plans 20      # of each of 2, 4 and 8 processes; the last line is JSON
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from autoshard.cost.estimate import estimate
from autoshard.plans.plan import Plan, make_plan
from autoshard.runtime.rehearse import local_cluster
from autoshard.spec.training import TrainingSpec
from tests.multiprocess.models import LLAMA
from tests.multiprocess.planned import planned, run
from tests.multiprocess.plans import FP32, strategy

SEQUENCE = 32_768


def long_sequence() -> Plan:
    model = replace(
        LLAMA, num_attention_heads=2, num_key_value_heads=1, hidden_size=16, max_position_embeddings=SEQUENCE
    )
    model, chosen = replace(model, num_hidden_layers=1), strategy(cp=2, attention="zigzag_ring", layers=(1,))
    training, cluster = TrainingSpec(SEQUENCE, 1, FP32), local_cluster(2)
    return make_plan(model, training, cluster, "torch", chosen, estimate(model, training, cluster, chosen))


def right(found: dict[str, Any], loss: float, others: float) -> bool:
    close = found["loss"] < loss and max(found["norm"], found["gradient"], found["parameter"]) < others
    return close and all(one == {"executed": "{}", "planned": "{}"} for one in found["collectives"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=20)
    parser.add_argument("--processes", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--results", type=Path, help="a JSON file to write them to")
    arguments = parser.parse_args()
    wrong: list[str] = []
    worst = {"loss": 0.0, "norm": 0.0, "gradient": 0.0, "parameter": 0.0}
    for processes in arguments.processes:
        plans = [planned(seed, processes) for seed in range(arguments.plans)]
        for plan, found in zip(plans, run(plans, exact=True), strict=True):
            worst = {name: max(value, found[name]) for name, value in worst.items()}
            if not right(found, 1e-12, 1e-9):
                wrong.append(f"{plan.model.name}, {plan.strategy}")
        print(f"{processes} processes: {len(plans)} plans, {len(wrong)} wrong so far", flush=True)
    (long,) = run([long_sequence()], exact=False)
    if not right({**long, "parameter": 0.0}, 1e-6, 1e-5):  # Adam amplifies gradients near zero
        wrong.append("long sequence")
    print(f"{SEQUENCE:,} tokens: loss {long['loss']:.1e} off, gradients {long['gradient']:.1e}")
    result = {
        "plans": arguments.plans * len(arguments.processes),
        "worst": worst,
        "long_sequence": {name: long[name] for name in ("loss", "norm", "gradient")},
        "wrong": wrong,
    }
    text = json.dumps(result)
    if arguments.results is not None:
        arguments.results.write_text(text + "\n", encoding="utf-8")
    print(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
