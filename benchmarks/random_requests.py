"""Tries random requests: each must end in a plan that can be read, explained and priced again, or in one error.

    python -m benchmarks.random_requests                 # five minutes
    python -m benchmarks.random_requests --seconds 600 --seed 7

A request is a model, a cluster and some of the options of `autoshard plan`, drawn without asking whether they go
together. Looked for: an exception, an error of several lines, a file that an error left behind, a plan that
`autoshard validate`, `explain`, `score`, `compare` or `replan` refuses, a score with other seconds than the plan,
degrees that are slower when they are pinned than when they are found, and a plan that is called optimal though another
pin makes it faster. The exit code is 1 where there was any; each is printed with the request that leads to it.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import traceback
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from autoshard.cli import main as autoshard
from autoshard.models.registry import builtin_models
from autoshard.plans.search_result import OPTIMAL
from autoshard.spec.cluster import instances

DONE, REFUSED = 0, 2
"""Exit codes."""
A_PRICE = "the plan is a price"
"""Said by `validate` where no backend can execute a plan's precision."""
SAME = 0.011
"""Share of a step time by which a simpler layout may be slower and be taken all the same, and rounding."""
ROUNDED = 2e-5
"""Share of a step time by which two may differ that are written with six digits."""
NODES = (1, 1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64)
FLAG = ""
"""The value of an option that has none."""
OPTIONS: dict[str, tuple[float, Sequence[Any]]] = {
    "seq-len": (0.5, (128, 512, 1000, 2048, 4096, 8192, 16384, 32768)),
    "global-batch": (0.6, (1, 7, 16, 48, 64, 100, 256, 1000, 1024, 4096)),
    "precision": (0.4, ("bf16_sr", "fp32", "fp8", "fp8_block", "mxfp8", "nvfp4", "cfp8", "fp8,bf16_sr", "auto")),
    "backend": (0.6, ("torch", "torch", "nxd")),
    "lnc": (0.15, (1, 2, "auto")),
    "sdk": (0.1, ("2.20", "2.24")),
    "stack": (0.05, ("neuron-stages", "neuron-eager")),
    "tp": (0.2, (1, 2, 3, 4, 8, 16, 32)),
    "pp": (0.2, (1, 2, 3, 4, 8)),
    "cp": (0.15, (1, 2, 4)),
    "ep": (0.1, (1, 2, 4, 8)),
    "etp": (0.07, (1, 2, "auto")),
    "dp-replicate": (0.06, (1, 2, "auto")),
    "vpp": (0.15, (1, 2, 3, 4)),
    "micro-batch": (0.2, (1, 2, 3, 4)),
    "schedule": (0.15, ("1f1b", "interleaved", "gpipe", "zero_bubble")),
    "recompute": (0.2, ("none", "full", "selective", "mlp", "core_attention+mlp", "self_attn.q_proj")),
    "attention-kernel": (0.1, ("flash", "plain")),
    "context-parallel": (0.08, ("ring", "zigzag_ring", "ulysses", "all_gather")),
    "zero": (0.15, (0, 1, 2, 3)),
    "axis-order": (0.05, ("dp-pp-cp-tp", "pp-dp-cp-tp", "tp-cp-dp-pp")),
    "expert-imbalance": (0.05, (1.2, 2)),
    "mtp-num-layers": (0.05, (1,)),
    "optimizer": (0.15, ("muon",)),
    "state-dtypes": (0.1, ("gradient_reduce=bfloat16", "gradient_accumulation=bfloat16,moments=bfloat16")),
    "dropout": (0.05, ("0.1", "residual=0.1")),
    "fit-probability": (0.05, (0.5, 0.99)),
    "keep-bf16": (0.05, ("attention", "first=1")),
    "loss-chunks": (0.06, (1, 4, 64)),
    "operators": (0.06, ("solver",)),
    "time-limit": (0.04, (0.1, 1)),
    "objective": (0.04, ("cost", "nodes")),
    "price-per-node-hour": (0.04, (20,)),
    "tokens": (0.04, ("1e12",)),
    "days": (0.04, (1000,)),
    "beaten-path": (0.04, (FLAG,)),
}
"""Option -> (how often it is given, values that it may have)."""
PINS = {"tp": "tp", "pp": "pp", "dp": "dp", "cp": "cp", "ep": "ep", "micro-batch": "microbatch_size", "zero": "zero"}
"""Option that pins a field -> the field of a strategy."""


def request(seed: int) -> dict[str, str]:
    """The request of a seed: options of `autoshard plan` and their values."""
    draw = random.Random(seed)
    given: dict[str, Any] = {
        "model": draw.choice(builtin_models()),
        "instance": draw.choice(instances()),
        "nodes": draw.choice(NODES),
    }
    given |= {name: draw.choice(values) for name, (often, values) in OPTIONS.items() if draw.random() < often}
    return {name: str(value) for name, value in given.items()}


def words(given: dict[str, str]) -> list[str]:
    """A request as arguments of a command."""
    return [word for name, value in given.items() for word in (f"--{name}", value) if word != FLAG]


def called(*arguments: str) -> tuple[int | None, str]:
    """(exit code, None where it ended with an exception; what it said on stderr) of a command in this process."""
    return _answered(*arguments)[:2]


def _answered(*arguments: str) -> tuple[int | None, str, str]:
    """What `called` returns, and what the command printed."""
    printed, said = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(printed), redirect_stderr(said):
            return autoshard(list(arguments)), said.getvalue(), printed.getvalue()
    except Exception:  # whatever it is, it is what is looked for
        return None, traceback.format_exc(), printed.getvalue()


def faults(given: dict[str, str], folder: Path) -> Iterator[str]:
    """What goes wrong with a request, in words. folder: for files; should be empty."""
    out = folder / "plan.json"
    code, said = called("plan", *words(given), "--out", str(out))
    if code == REFUSED:
        if len(said.strip().splitlines()) != 1:
            yield f"an error of several lines: {said}"
        if any(folder.iterdir()):
            yield "an error that leaves a file behind"
        return
    if code != DONE:
        yield f"exit code {code}: {said}"
        return
    for command in (("validate",), ("explain", "--quick")):
        code, said = called(*command, str(out))
        if code != DONE and A_PRICE not in said:
            yield f"{' '.join(command)} ends with {code}: {said}"
    plan = _plan(out)
    yield from scored_otherwise(plan, out)
    yield from _unlike_itself(out, int(given["nodes"]), folder / "again.json")
    if given.get("precision") != "auto" and not {"time-limit", "objective"} & {*given}:
        yield from _slower_when_pinned(given, plan, folder / "pinned.json")
        if "operators" not in given:  # other operators are taken only where they bring something
            yield from faster_with_a_pin(given, plan, folder / "another.json")


def scored_otherwise(plan: dict[str, Any], found: Path) -> Iterator[str]:
    """Faults of the score of a plan: it breaks no rule, and takes what the plan says."""
    code, said, printed = _answered("score", str(found), "--format", "json")
    if code != DONE:
        if A_PRICE not in said:
            yield f"score ends with {code}: {said}"
        return
    score, step_time_s = json.loads(printed), _step_time_s(plan)
    if score["broken"]:
        yield f"its score says that it breaks {score['broken']}"
    scored_s = _step_time_s(score)
    if abs(scored_s / step_time_s - 1) > ROUNDED:
        yield f"its score says {scored_s:g} s, the plan {step_time_s:g} s"


def _unlike_itself(found: Path, nodes: int, again: Path) -> Iterator[str]:
    """Faults of a plan beside itself, and of the same training on the same nodes."""
    code, said, printed = _answered("compare", str(found), str(found), "--format", "json")
    if code is None:
        yield f"compare ends with {said}"
    elif code == DONE and (different := json.loads(printed)["different"]):
        yield f"it differs from itself: {different}"
    code, said = called("replan", str(found), "--nodes", str(nodes), "-o", str(again))
    if code == DONE:
        code, said = called("validate", str(again))
        if code != DONE and A_PRICE not in said:
            yield f"replanned, validate ends with {code}: {said}"
    elif code != REFUSED or len(said.strip().splitlines()) != 1:
        yield f"replan ends with {code}: {said}"


def _slower_when_pinned(given: dict[str, str], plan: dict[str, Any], out: Path) -> Iterator[str]:
    step_time_s = _step_time_s(plan)
    pinned = given | {name: str(plan["strategy"][field]) for name, field in PINS.items() if name not in given}
    code, said = called("plan", *words(pinned), "--out", str(out))
    if code != DONE:
        yield f"its own degrees, pinned, end with {code}: {said}"
    elif (again_s := _step_time_s(_plan(out))) > step_time_s * (1 + SAME):
        yield f"its own degrees, pinned, take {again_s / step_time_s:.3f} times as long"


def faster_with_a_pin(given: dict[str, str], plan: dict[str, Any], out: Path) -> Iterator[str]:
    """Faults of a plan that is called optimal: another pin makes it faster, of the same inputs, by layouts that the
    search looked at, and fits as surely."""
    draw = random.Random(" ".join(words(given)))
    name = draw.choice([name for name in (*PINS, "schedule", "context-parallel", "axis-order") if name not in given])
    pin = {name: str(draw.choice(OPTIONS[name][1] if name in OPTIONS else (1, 2, 4, 8)))}
    code, said = called("plan", *words(given | pin), "--out", str(out))
    if code == REFUSED:
        return
    if code != DONE:
        yield f"with {pin} it ends with {code}: {said}"
        return
    other = _plan(out)
    alike = all(plan["inputs"][part] == other["inputs"][part] for part in ("model", "training", "cluster"))
    sure = min(plan["search"]["fit_probability"], plan["estimate"]["fits_probability"])
    if not alike or plan["backend"] != other["backend"] or other["estimate"]["fits_probability"] < sure:
        return
    step_time_s, other_s = _step_time_s(plan), _step_time_s(other)
    if plan["search"]["optimality"].startswith(OPTIMAL) and other_s < step_time_s * (1 - ROUNDED):
        yield f"with {pin} it takes {other_s / step_time_s:.5f} of what is called optimal"


def _plan(file: Path) -> dict[str, Any]:
    """The values of a plan, also of one that is a price alone, which no reader takes."""
    plan: dict[str, Any] = json.loads(file.read_text())
    return plan


def _step_time_s(priced: dict[str, Any]) -> float:
    """Seconds of a step of a plan or a score."""
    return float(priced["estimate"]["step_time_s"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=0, help="of the first request; each one after it has the next")
    arguments = parser.parse_args()
    start, seed, wrong = perf_counter(), arguments.seed, 0
    while perf_counter() - start < arguments.seconds:
        given = request(seed)
        with TemporaryDirectory(prefix="autoshard-request-") as folder:
            for fault in faults(given, Path(folder)):
                wrong += 1
                print(f"seed {seed}: autoshard plan {' '.join(words(given))}\n{fault}", flush=True)
        seed += 1
    print(f"{seed - arguments.seed:,} requests, {wrong} faults")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
