"""Measures the torch runtime: speed against a plain nn.Module, DTensor, one process, its schedule; and peak memory.

Each number is a ratio within one run. Peers take turns, and the fastest of several rounds of each counts, so a busy
machine moves both sides. It also compares the runtime with itself compiled. The last line is JSON. CPU, gloo, one
thread a process; about six minutes on 2 cores.

  python -m benchmarks.runtime_speed
  python -m benchmarks.runtime_speed --parts overhead bubble --results benchmarks/results/runtime_speed.json
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

sys.path.insert(0, str(Path(__file__).parents[1]))  # this folder is no package

from autoshard.audits.run import audit
from autoshard.cost.estimate import estimate
from autoshard.layout.strategy import Strategy, even_stage_layers
from autoshard.models.registry import load_model
from autoshard.plans.plan import Plan, make_plan
from autoshard.runtime.rehearse import local_cluster
from autoshard.runtime.torch_backend.compiled import Compiler
from autoshard.runtime.torch_backend.optimizer_settings import optimizer_settings
from autoshard.runtime.torch_backend.session import Session
from autoshard.schedules import Action, actions, simulate
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec, load_precision
from benchmarks.plain_llama import PlainLlama, with_dtensors

TOY = replace(
    load_model("llama3-8b"),
    name="toy",
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    vocab_size=256,
)
HEAVY = replace(
    TOY,
    name="heavy",
    hidden_size=512,
    intermediate_size=1408,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=64,
    vocab_size=2048,
)
SIZES: dict[str, tuple[ModelSpec, int, int, int]] = {"toy": (TOY, 64, 2, 200), "heavy": (HEAVY, 512, 1, 8)}
"""Name -> (model, tokens of a sequence, sequences of a microbatch, rounds)."""
Work = Callable[[], Any]


def plan_of(model: ModelSpec, seq: int, microbatches: int, precision: str = "fp32", **degrees: Any) -> Plan:
    fields: dict[str, Any] = dict.fromkeys(("tp", "pp", "dp", "cp", "ep", "num_virtual_stages", "microbatch_size"), 1)
    fields |= {"schedule": "1f1b", "zero": 1, "attention_kernel": "flash", **degrees}
    fields["recompute"] = (degrees.get("recompute", "none"),) * fields["pp"]
    fields["sequence_parallel"] = fields["tp"] > 1
    strategy = Strategy(stage_layers=even_stage_layers(model.num_hidden_layers, fields["pp"]), **fields)
    batch = microbatches * strategy.dp * strategy.microbatch_size
    training, cluster = TrainingSpec(seq, batch, load_precision(precision)), local_cluster(strategy.world_size)
    return make_plan(model, training, cluster, "torch", strategy, estimate(model, training, cluster, strategy))


def session_of(plan: Plan, rank: int, compiler: Compiler | None = None) -> Session:
    settings = optimizer_settings(plan.training.precision, 1e-4, plan.strategy.zero, seed=0)
    return Session(plan, rank, torch.device("cpu"), settings, seed=0, compiler=compiler)


def batch_of(plan: Plan) -> tuple[Any, Any]:
    shape = (plan.training.global_batch_size, plan.training.sequence_length + 1)
    tokens = np.random.default_rng(0).integers(0, plan.model.vocab_size, shape)
    return tokens[:, :-1].copy(), tokens[:, 1:].copy()


def fastest(works: dict[str, Work], rounds: int, clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Seconds of each work in its fastest round; works take turns, after one round that does not count."""
    best = dict.fromkeys(works, float("inf"))
    for turn in range(rounds + 1):
        for name, work in works.items():
            begin = clock()
            work()
            if turn:
                best[name] = min(best[name], clock() - begin)
    return best


def our_pass(session: Session, plan: Plan) -> Work:
    """Forward and backward of one microbatch in our runtime, with gradients summed up."""
    inputs = session.local_inputs(*batch_of(plan))
    return lambda: session._pipeline.run(inputs, 1.0)


def plain_pass(module: PlainLlama, plan: Plan) -> Work:
    ids, labels = (torch.from_numpy(one) for one in batch_of(plan))
    return lambda: module(ids, labels).backward()


def overhead() -> dict[str, float]:
    """Our processor time over the plain module's: one process on one thread, forward and backward."""
    torch.set_num_threads(1)
    found = {}
    for name, (model, seq, size, rounds) in SIZES.items():
        plan = plan_of(model, seq, 1, microbatch_size=size)
        works = {"ours": our_pass(session_of(plan, 0), plan), "plain": plain_pass(PlainLlama(model, seq), plan)}
        seconds = fastest(works, rounds, time.process_time)
        found[name] = seconds["ours"] / seconds["plain"]
        print(f"one process, {name}: {seconds['ours'] * 1e3:.2f} ms, plain module {seconds['plain'] * 1e3:.2f} ms")
    return found


def against_dtensor(rank: int) -> dict[str, list[float]]:
    """Seconds (ours, DTensor's) with tp=2 and sequence parallelism, forward and backward."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import loss_parallel

    found = {}
    for name, (model, seq, size, rounds) in SIZES.items():
        plan = plan_of(model, seq, 1, tp=2, microbatch_size=size)
        theirs = with_dtensors(PlainLlama(model, seq), init_device_mesh("cpu", (2,)))
        run = plain_pass(theirs, plan)

        def dtensors(run: Work = run) -> None:
            with loss_parallel():
                run()

        seconds = fastest({"ours": our_pass(session_of(plan, rank), plan), "dtensor": dtensors}, rounds)
        found[name] = [seconds["ours"], seconds["dtensor"]]
    return found


SHARDED: dict[int, dict[str, dict[str, Any]]] = {
    2: {
        "tp=2": {"tp": 2},
        "dp=2": {"dp": 2},
        "pp=2": {"pp": 2},
        "cp=2": {"cp": 2, "context_parallel": "zigzag_ring"},
    },
    4: {"tp=4": {"tp": 4}, "tp=2 dp=2": {"tp": 2, "dp": 2}, "tp=2 pp=2": {"tp": 2, "pp": 2}},
    8: {"tp=2 pp=2 dp=2": {"tp": 2, "pp": 2, "dp": 2}},
}
"""Number of processes -> layouts by name."""
WIDE = replace(
    HEAVY,
    name="wide",
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=2,
    num_attention_heads=16,
    num_key_value_heads=8,
    vocab_size=4096,
)
STEPS: dict[str, tuple[ModelSpec, int, int]] = {"": (WIDE, 1024, 2), ", heavy": (HEAVY, 512, 4)}
"""Suffix of a row's name -> (model, tokens of a sequence, sequences of a step).

The first is compute-heavy on 4 and 8 processes too: matrix products grow with tokens x hidden^2, while communication
and every elementwise operator grow with tokens x hidden, and the cost of calling an operator does not grow. In `heavy`,
tp=4 leaves pieces of 128 columns, where those costs count; it is the second row of each layout.
"""


def a_step(rank: int, step: str, degrees: dict[str, Any]) -> tuple[Session, Work]:
    """A session and one optimizer step of it. The sequences of a step are split over dp where there is any, and are
    microbatches of one."""
    model, seq, sequences = STEPS[step]
    plan = plan_of(model, seq, sequences // degrees.get("dp", 1), **degrees)
    session, batch = session_of(plan, rank), batch_of(plan)
    return session, lambda: session.step(*batch, 1e-4)


def spent(work: Work) -> tuple[float, float]:
    """(user, system) seconds of this process."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    work()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime


def cpu_time(rank: int) -> dict[str, list[tuple[float, float]]]:
    """(user, system) seconds of this process in each round: for each layout, and for one process alone, which is rank
    0. They take turns, after one step of each that does not count.

    A layout's process groups end with it, as in a run of its own: threads of gloo wake up a hundred times a second.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    layouts = SHARDED[dist.get_world_size()]
    for step in STEPS:
        alone = a_step(0, step, {})[1] if rank == 0 else (lambda: None)
        alone()
        for name, degrees in layouts.items():
            session, sharded = a_step(rank, step, degrees)
            sharded()
            turns = [(name + step, sharded), (step, alone)] * 2
            for key, work in turns if len(layouts) == 1 else turns[:3]:
                dist.barrier()
                found.setdefault(key, []).append(spent(work))
            dist.barrier()
            assert session._groups is not None
            for group in session._groups._groups.values():
                dist.destroy_process_group(group.handle)
    return found


RECOMPUTE = ("none", "core_attention", "full")


def memory() -> dict[str, float]:
    """Peak memory that a rank's program allocates over the plan's, of the rank that is furthest off: Llama-3-8B, tp=4 x
    pp=2.

    On tensors without data, as `autoshard audit` runs every rank.
    """
    found = {}
    for recompute in RECOMPUTE:
        plan = plan_of(load_model("llama3-8b"), 4096, 8, "mixed_precision", tp=4, pp=2, recompute=recompute)
        audits = audit(plan, None, lambda done, number, one: None)
        ratios = [one.peak.measured / one.peak.planned for one in audits]
        found[recompute] = max(ratios, key=lambda ratio: abs(ratio - 1))
        print(f"peak memory of a rank, recompute {recompute}: {found[recompute]:.4f} of the plan's")
    return found


class _Timed:
    """Seconds that this process spends in each kind of action."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = {"F": [], "B": []}

    def wrap(self, compute: Any) -> Any:
        def timed(action: Action, arrived: torch.Tensor | None) -> Any:
            begin = time.perf_counter()
            result = compute(action, arrived)
            self.spent[action.kind].append(time.perf_counter() - begin)
            return result

        return timed


def bubble(rank: int) -> list[float]:
    """(forward, backward, whole) seconds of this rank for 8 microbatches on 2 stages: the fastest of three steps."""
    plan = plan_of(HEAVY, 512, 8, pp=2)
    session, timed = session_of(plan, rank), _Timed()
    inputs = session.local_inputs(*batch_of(plan))
    session._pipeline.compute = timed.wrap(session._pipeline.compute)  # type: ignore[method-assign]
    best = [0.0, 0.0, float("inf")]
    for turn in range(4):
        for spent in timed.spent.values():
            spent.clear()
        dist.barrier()
        begin = time.perf_counter()
        session._pipeline.run(inputs, 1.0)
        whole = time.perf_counter() - begin
        if turn and whole < best[2]:
            best = [sum(timed.spent["F"]) / 8, sum(timed.spent["B"]) / 8, whole]
    return best


def compiling(rank: int, tp: int = 2) -> dict[str, list[float]]:
    """Seconds of forward and backward (compiled, not compiled), and seconds that compiling took."""
    torch.set_num_threads(1)
    found = {}
    for name, (model, seq, size, rounds) in SIZES.items():
        plan, compiler = plan_of(model, seq, 1, tp=tp, microbatch_size=size), Compiler()
        works = {
            "compiled": our_pass(session_of(plan, rank, compiler), plan),
            "eager": our_pass(session_of(plan, rank), plan),
        }
        seconds = fastest(works, rounds)
        found[name] = [seconds["compiled"], seconds["eager"], compiler.compile_time_s]
    return found


SHARED: dict[str, Callable[[int], Any]] = {
    "against_dtensor": against_dtensor,
    "cpu_time": cpu_time,
    "bubble": bubble,
    "compiling": compiling,
}
"""Name -> the measurement that several processes make together, each its part."""


def worker(rank: int, world_size: int, folder: str, what: str) -> None:
    torch.set_num_threads(1)
    gc.freeze()  # as ranks do: garbage is not looked for among modules
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
    (Path(folder) / f"{rank}.json").write_text(json.dumps(SHARED[what](rank)))
    dist.barrier()
    dist.destroy_process_group()


def of_processes(what: str, count: int = 2) -> list[Any]:
    """The results of one measurement by `count` processes, by rank."""
    with TemporaryDirectory() as folder:
        spawn(worker, (count, folder, what), nprocs=count)  # type: ignore[no-untyped-call]
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(count)]


def step_ratios() -> dict[str, float]:
    ranks, found = of_processes("against_dtensor"), {}
    for name in SIZES:
        ours, theirs = (max(rank[name][i] for rank in ranks) for i in range(2))
        print(f"tp=2 with sequence parallelism, {name}: {ours * 1e3:.1f} ms, DTensor {theirs * 1e3:.1f} ms")
        found[name] = ours / theirs
    return found


def cpu_ratios() -> dict[str, float]:
    """CPU time of all processes over that of one, by layout, in the round that took the least."""
    found = {}
    for count, layouts in SHARDED.items():
        ranks = of_processes("cpu_time", count)
        for step in STEPS:
            alone = min(map(sum, ranks[0][step]))
            for name in (layout + step for layout in layouts):
                rounds = zip(*(rank[name] for rank in ranks), strict=True)
                user, system = min(([sum(one) for one in zip(*times, strict=True)] for times in rounds), key=sum)
                found[name] = (user + system) / alone
                print(
                    f"processor time of a step, {count} processes, {name}: {found[name]:.3f} of one process "
                    f"({user:.2f} s user + {system:.2f} s system, one process {alone:.2f} s)"
                )
    return found


def bubbles() -> dict[str, float]:
    times = of_processes("bubble")
    planned = simulate(actions("1f1b", 2, 8), [one[0] for one in times], [one[1] for one in times]).bubble_fraction
    whole = max(one[2] for one in times)
    measured = 1 - sum(8 * (one[0] + one[1]) for one in times) / (2 * whole)
    print(f"pipeline bubble, 2 stages, 8 microbatches: measured {measured:.1%}, simulated {planned:.1%}")
    return {"measured": measured, "simulated": planned}


def compiled() -> dict[str, float]:
    """Step time with --compile over that without."""
    found = {}
    for what, ranks in (("one process", [compiling(0, tp=1)]), ("tp=2", of_processes("compiling"))):
        for name in SIZES:
            ours, eager, once = (max(rank[name][i] for rank in ranks) for i in range(3))
            print(f"{what}, {name}: {ours * 1e3:.2f} ms compiled in {once:.1f} s, {eager * 1e3:.2f} ms without")
            found[f"{what}, {name}"] = ours / eager
    return found


PARTS: dict[str, Callable[[], dict[str, float]]] = {
    "overhead": overhead,
    "memory": memory,
    "against_dtensor": step_ratios,
    "cpu_time": cpu_ratios,
    "bubble": bubbles,
    "compiled": compiled,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--results", type=Path, help="a JSON file: the parts measured now replace those in it")
    arguments = parser.parse_args()
    found = {name: {key: round(value, 4) for key, value in PARTS[name]().items()} for name in arguments.parts}
    if arguments.results is not None:
        kept = json.loads(arguments.results.read_text()) if arguments.results.exists() else {}
        arguments.results.write_text(json.dumps({**kept, **found}, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
