"""The parts of `benchmarks.on_gpu`, each run in a process of its own: `python -m benchmarks.on_gpu_parts '{...}'`.

The last line that a part prints is JSON: {"result": ...} or {"error": one line}. The CPU stands in for the GPU with the
same code.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from autoshard import __version__
from autoshard.audits.expected import expectation
from autoshard.backends.rules import check_strategy
from autoshard.calibration.devices import DeviceUnderTest, count, open_device
from autoshard.calibration.fit import Fit
from autoshard.calibration.hardware_file import hardware_file
from autoshard.calibration.measure import default_instance, measure
from autoshard.cost.estimate import estimate
from autoshard.errors import AutoshardError
from autoshard.files.json_file import parse_json
from autoshard.layout.strategy import Strategy, even_stage_layers
from autoshard.models.registry import load_model
from autoshard.plans.plan import Plan, make_plan
from autoshard.runtime.launch import run_processes
from autoshard.runtime.rehearse import telling_blocks
from autoshard.runtime.torch_backend.compiled import Compiler
from autoshard.runtime.torch_backend.devices import connect, group_timeout
from autoshard.runtime.torch_backend.optimizer_settings import optimizer_settings
from autoshard.runtime.torch_backend.session import Session
from autoshard.runtime.worker import Reporter
from autoshard.spec.cluster import Cluster, load_cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec, load_precision
from benchmarks.on_gpu_attention import KINDS, times_s
from benchmarks.plain_llama import PlainLlama

LEARNING_RATE, MICROSECONDS = 1e-4, 1e6


@dataclass(frozen=True)
class Options:
    """What a part is told. device: cuda or cpu. hardware: the file that calibrating writes. instance: the packaged
    hardware file; None: the one that the GPU's name says."""

    device: str
    quick: bool
    hardware: str
    instance: str | None = None


@dataclass(frozen=True)
class Size:
    """A training step to time. layers to vocab: of a Llama. sequences: of a microbatch. microbatches: of a step."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    seq: int
    sequences: int
    microbatches: int

    def model(self, name: str) -> ModelSpec:
        return replace(
            load_model("llama3-8b"),
            name=name,
            num_hidden_layers=self.layers,
            hidden_size=self.hidden,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.hidden // self.heads,
            intermediate_size=self.ffn,
            vocab_size=self.vocab,
            max_position_embeddings=max(self.seq, 128),
            rope_scaling=None,
        )


SIZES: dict[str, dict[str, Size]] = {
    "cuda": {
        "200m": Size(8, 1024, 8, 4, 4096, 32000, 2048, 4, 2),
        "1b": Size(16, 2048, 16, 8, 8192, 32000, 4096, 2, 2),
        "3b": Size(28, 3072, 24, 8, 8192, 32000, 4096, 1, 2),
        "8b, 8 layers": Size(8, 4096, 32, 8, 14336, 128256, 4096, 1, 2),
    },
    "cpu": {"tiny": Size(2, 64, 4, 2, 128, 256, 64, 2, 2)},
}
QUICK = {"cuda": ("1b", "200m"), "cpu": ("tiny",)}


@dataclass(frozen=True)
class Cut:
    """A training step of a few blocks of a built-in model, at full width. layers: how many; of every kind of block
    that finds room. experts: of a block, where all of them would not fit. seq, sequences, microbatches: as in Size."""

    layers: int
    sequences: int = 1
    seq: int = 4096
    microbatches: int = 2
    experts: int | None = None

    def model(self, name: str) -> ModelSpec:
        whole = load_model(name)
        few = whole if self.experts is None else replace(whole, num_local_experts=self.experts)
        return few.some_blocks(telling_blocks(few, self.layers))


CUTS: dict[str, dict[str, Cut]] = {
    "cuda": {
        "qwen3-0.6b": Cut(28, 2),
        "gemma2-2b": Cut(8),
        "gemma4-31b": Cut(2),
        "qwen3.5-27b": Cut(2),
        "granite-4.0-h-micro": Cut(8),
        "mixtral-8x7b": Cut(1, 2),
        "olmoe-1b-7b": Cut(4, 2),
        "qwen3-30b-a3b": Cut(2, 2),
        "gpt-oss-20b": Cut(2),
        "deepseek-v2-lite": Cut(3),
        "nemotron-3-nano-30b-a3b": Cut(4),
        "deepseek-v3": Cut(2, experts=16),
        "deepseek-v3.2": Cut(2, experts=16),
    },
    "cpu": {"smollm2-135m": Cut(1, seq=16, microbatches=1)},
}
"""Built-in models whose blocks are timed, by the plan's program alone. A parameter takes 18 bytes in mixed precision:
what is here fits into 80 GB."""
MODES = {
    "cuda": ("planned", "plain", "planned compiled", "plain compiled", "planner's pick"),
    "cpu": ("planned", "plain", "planner's pick"),
}
"""Who runs the step: the plan's program in autoshard's torch backend, a plain nn.Module, both compiled, and the layout
that the planner finds best. The CPU compiles nothing here: inductor takes half a minute a program there."""
TINY = Size(2, 64, 4, 2, 128, 256, 64, 2, 2)
PARITY: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "plain attention": ({}, {"attention_kernel": "plain"}),
    "recompute all": ({}, {"recompute": ("full",)}),
    "recompute attention": ({}, {"recompute": ("core_attention",)}),
    "experts": (
        {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
        {},
    ),
    "tied, biases": ({"tie_word_embeddings": True, "attention_bias": True}, {}),
    "compiled": ({}, {"compile": True}),
}
"""Name -> (fields of the model, of the strategy) that differ from a tiny Llama's."""
LONG = ("llama", "mistral", "gemma2", "gemma3", "gpt oss", "gpt oss of 3 kv heads", "llama4")
"""Models that are compared with longer rows and wider heads, too, for which a GPU has kernels of its own."""
PARITY_STEPS, CLOSE = 3, 1e-4
"""Losses of FP32 steps on both devices agree so far: they sum in another order."""
SHARDED: dict[int, dict[str, dict[str, Any]]] = {
    2: {
        "tp=2": {"tp": 2},
        "dp=2": {"dp": 2},
        "dp=2 zero=3": {"dp": 2, "zero": 3},
        "pp=2": {"pp": 2},
        "cp=2 ring": {"cp": 2, "context_parallel": "zigzag_ring"},
    },
    4: {"tp=2 dp=2": {"tp": 2, "dp": 2}, "tp=2 pp=2": {"tp": 2, "pp": 2}},
    8: {"tp=8": {"tp": 8}, "dp=8 zero=3": {"dp": 8, "zero": 3}, "tp=2 pp=2 dp=2": {"tp": 2, "pp": 2, "dp": 2}},
}
"""Number of devices -> layouts. On the CPU only those of two processes run."""


def packaged(options: Options, name: str) -> str:
    """The packaged hardware file. name: of the device."""
    return options.instance or default_instance(options.device, name)


def cluster_of(machine: Cluster, devices: int) -> Cluster:
    """One node of the machine with so many of its devices."""
    _, link = machine.intra_node[-1]
    per_chip = devices if machine.devices_per_chip > 1 or machine.instance == "cpu" else 1
    return replace(machine, devices_per_node=devices, devices_per_chip=per_chip, intra_node=((devices, link),))


def plan_of(size: Size | Cut, model: ModelSpec, cluster: Cluster, precision: str, **changed: Any) -> Plan:
    """The plan of a layout of these sizes, with one microbatch's sequences as they are and nothing recomputed, but for
    what is changed in its strategy."""
    fields: dict[str, Any] = dict.fromkeys(("tp", "pp", "dp", "cp", "ep", "num_virtual_stages"), 1)
    fields |= {"microbatch_size": size.sequences, "schedule": "1f1b", "zero": 1, "attention_kernel": "flash", **changed}
    fields.setdefault("recompute", ("none",) * fields["pp"])
    fields["sequence_parallel"] = fields["tp"] > 1
    strategy = Strategy(stage_layers=even_stage_layers(model.num_hidden_layers, fields["pp"]), **fields)
    batch = size.sequences * size.microbatches * strategy.dp
    training = TrainingSpec(size.seq, batch, load_precision(precision))
    return make_plan(model, training, cluster, "torch", strategy, estimate(model, training, cluster, strategy))


def picked(size: Size | Cut, model: ModelSpec, cluster: Cluster, precision: str) -> Plan:
    """The plan that the planner finds best for the same training."""
    from autoshard.planner.search import search

    training = TrainingSpec(size.seq, size.sequences * size.microbatches, load_precision(precision))
    best = search(model, training, cluster, backend="torch").best
    return make_plan(model, training, cluster, "torch", best.strategy, best.estimate)


def shape_of(device: str, size: str) -> Size | Cut:
    """The step of this name, among those that a device is timed with."""
    return CUTS[device].get(size) or SIZES[device][size]


def precision_of(device: str) -> str:
    return "fp32" if device == "cpu" else "mixed_precision"


def tokens_of(plan: Plan, seed: int = 0) -> tuple[Any, Any]:
    """(inputs, labels), [global batch, seq]."""
    shape = (plan.training.global_batch_size, plan.training.sequence_length + 1)
    tokens = np.random.default_rng(seed).integers(0, plan.model.vocab_size, shape)
    return tokens[:, :-1].copy(), tokens[:, 1:].copy()


def session_of(plan: Plan, device: torch.device, rank: int = 0, compiler: Compiler | None = None) -> Session:
    settings = optimizer_settings(plan.training.precision, LEARNING_RATE, plan.strategy.zero, seed=0)
    return Session(plan, rank, device, settings, seed=0, compiler=compiler)


def environment(options: Options) -> dict[str, Any]:
    """What is here: versions, devices, their memory and clock."""
    number, why = count(options.device)
    if not number:
        raise AutoshardError(f"device={options.device} is not on this machine: {why}")
    under_test = open_device(options.device)
    state = under_test.state()
    found: dict[str, Any] = {
        "name": under_test.name,
        "devices": number,
        "memory_bytes": under_test.memory_bytes,
        "free_bytes": under_test.free_bytes(),
        "fp8": under_test.has_fp8(),
        "autoshard": __version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": sys.version.split()[0],
        "state": None if state is None else asdict(state),
    }
    if options.device == "cuda":
        found["capability"] = list(torch.cuda.get_device_capability(under_test.device))
        nccl: Any = torch.cuda.nccl
        found["nccl"] = list(nccl.version()) if torch.distributed.is_nccl_available() else None
    return found


def calibration(options: Options) -> dict[str, Any]:
    """`autoshard calibrate --device`, whose file goes to options.hardware; its constants, its errors and its curves."""
    shapes, processes = {"cuda": (4, None), "cpu": (1, 1)}[options.device] if options.quick else (8, None)
    found, more = measure(options.device, processes, shapes, _progress, options.instance)
    content, device, together = hardware_file(found, more["rates"], more["dtype"], packaged(options, found.name))
    file = Path(options.hardware)
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return {
        "constants": {**device.values, **(together.values if together is not None else {})},
        "errors": {**_errors(device), **(_errors(together) if together is not None else {})},
        "rates_flops_per_s": more["rates"],
        **content["calibration"]["measured"],
    }


def _errors(fit: Fit) -> dict[str, list[float]]:
    """Family -> [points, median error]."""
    return {family: list(fit.error(family)) for family in dict.fromkeys(point.family for point in fit.points)}


def _progress(line: str) -> None:
    print(line, flush=True)


def parity(options: Options, which: str) -> dict[str, Any]:
    """FP32 losses and gradient norms of three steps on the device against the CPU's, by variant of a tiny model.

    which: the eager variants, or the compiled one.
    """
    under_test, found = open_device(options.device), {}
    for name, (fields, changed) in PARITY.items():
        if bool(changed.get("compile")) == (which == "compiled"):
            found[name] = _parity_or_error(under_test.device, fields, dict(changed))
    return {"variants": found, "close": CLOSE, "right": all(one.get("off", 1.0) < CLOSE for one in found.values())}


def families(options: Options, which: str) -> dict[str, Any]:
    """FP32 losses and gradient norms of three steps on the device against the CPU's, by small model of the tests.

    which: eager, with flash and with plain attention, and of LONG with longer rows, too; or compiled, with flash
    attention.
    """
    from tests.multiprocess.models import MODELS
    from tests.multiprocess.plans import FP32, plan_of, strategy

    under_test, found, compiles = open_device(options.device), {}, which == "compiled"
    tried = list(MODELS)[: 2 if options.device == "cpu" else None]  # which is compared with itself
    kernels = ("flash",) if compiles else ("flash", "plain")
    cases = [(name, attention, False) for name in tried for attention in kernels]
    cases += [(name, "flash", True) for name in LONG if name in tried and not compiles]
    for name, attention, long in cases:
        case = f"{name}{', plain attention' if attention == 'plain' else ''}{', long' if long else ''}"
        model = replace(MODELS[name], head_dim=16, max_position_embeddings=256) if long else MODELS[name]
        layout = strategy(layers=(model.num_hidden_layers,), kernel=attention)
        plan = plan_of(model, layout, 2, FP32)
        if long:
            plan = replace(plan, training=replace(plan.training, sequence_length=256))
        try:
            check_strategy(model, plan.training, plan.cluster, "torch", layout)
        except AutoshardError:  # there is no such attention with this model's dropout, say
            continue
        try:
            found[case] = _compared(under_test.device, plan, Compiler() if compiles else None)
        except Exception as error:  # one model says nothing of the others
            found[case] = {"error": _one_line(error)}
    return {"variants": found, "close": CLOSE, "right": all(one.get("off", 1.0) < CLOSE for one in found.values())}


def _parity_or_error(device: torch.device, fields: dict[str, Any], changed: dict[str, Any]) -> dict[str, Any]:
    try:
        return _parity_of(device, fields, changed)
    except Exception as error:  # one variant says nothing of the others
        return {"error": _one_line(error)}


def _parity_of(device: torch.device, fields: dict[str, Any], changed: dict[str, Any]) -> dict[str, Any]:
    compiles = changed.pop("compile", False)
    plan = plan_of(
        TINY, replace(TINY.model("parity"), **fields), cluster_of(load_cluster("cpu", 1), 1), "fp32", **changed
    )
    return _compared(device, plan, Compiler() if compiles else None)


def _compared(device: torch.device, plan: Plan, compiler: Compiler | None) -> dict[str, Any]:
    here = _losses(session_of(plan, device, compiler=compiler), plan)
    host = _losses(session_of(plan, torch.device("cpu")), plan)
    return {"losses": here, "cpu": host, "off": _off(here, host)}


def _losses(session: Session, plan: Plan) -> list[list[float]]:
    """[loss, gradient norm] of each step."""
    steps = [session.step(*tokens_of(plan, seed), LEARNING_RATE) for seed in range(PARITY_STEPS)]
    return [[one.loss, one.gradient_norm] for one in steps]


def _off(ones: list[list[float]], others: list[list[float]]) -> float:
    """The largest relative difference of any two numbers."""
    pairs = [(a, b) for one, other in zip(ones, others, strict=True) for a, b in zip(one, other, strict=True)]
    return max(abs(a - b) / max(abs(b), 1e-12) for a, b in pairs)


def attention(options: Options) -> dict[str, Any]:
    """Seconds of kinds of attention, by flex_attention and as they are computed elsewhere."""
    under_test = open_device(options.device)
    return {"kinds": {name: times_s(kind, sizes, under_test) for name, (kind, sizes) in KINDS.items()}}


def step(options: Options, size: str, mode: str) -> dict[str, Any]:
    """One step's time and the device's peak memory, beside both predictions: with the packaged hardware file, and with
    the one that calibrating wrote; and beside the memory that an audit of the plan expects of this runtime."""
    under_test = open_device(options.device)
    shape, precision = shape_of(options.device, size), precision_of(options.device)
    model = shape.model(size)
    machines = _machines(options, under_test.name)
    cluster = next(reversed(machines.values()), cluster_of(load_cluster("cpu", 1), 1))
    make = picked if mode == "planner's pick" else plan_of
    plan = make(shape, model, cluster, precision)
    needed = plan.estimate.fullest.total_bytes
    if needed > under_test.free_bytes():
        raise AutoshardError(f"{size} needs {needed / 2**30:.0f} GiB, {under_test.free_bytes() / 2**30:.0f} are free")
    under_test.forget_peak()
    before = under_test.peak_bytes() if options.device == "cpu" else 0.0
    run, compiler = _running(plan, mode, under_test.device)
    times, first_s = _step_times(run, under_test, options)
    seconds, state = median(times), under_test.state()
    peak_bytes = under_test.peak_bytes() - before
    tokens = plan.training.global_batch_size * plan.training.sequence_length
    return {
        "layout": _layout(plan),
        "step_time_s": seconds,
        "fastest_s": min(times),
        "slowest_s": max(times),
        "steps": len(times),
        "first_step_s": first_s,
        "compile_time_s": None if compiler is None else compiler.compile_time_s,
        "tokens_per_s": tokens / seconds,
        "model_flops_per_s": plan.estimate.model_flops_per_step / seconds,
        "peak_memory_bytes": peak_bytes,
        **_kernels(run, under_test),
        "audited_memory_bytes": sum(expectation(plan, 0).held.values()),
        "reserved_memory_bytes": under_test.reserved_bytes() - before,
        "used_memory_bytes": under_test.memory_bytes - under_test.free_bytes(),
        "state": None if state is None else asdict(state),
        "slowed_by": [] if state is None else list(state.slowed_by),
        "predicted": {name: _predicted(plan, one) for name, one in machines.items()},
    }


def _machines(options: Options, name: str, devices: int = 1) -> dict[str, Cluster]:
    """So many devices of each known hardware file: the packaged one, then the calibrated one."""
    found = {}
    try:
        found["packaged"] = cluster_of(load_cluster(packaged(options, name), 1), devices)
    except AutoshardError as error:
        _progress(str(error))
    if Path(options.hardware).exists():
        found["calibrated"] = cluster_of(load_cluster(None, 1, hardware_file=Path(options.hardware)), devices)
    return found


def _predicted(plan: Plan, cluster: Cluster) -> dict[str, float]:
    found = estimate(plan.model, plan.training, cluster, plan.strategy)
    fullest = found.fullest
    return {
        "step_time_s": found.step_time_s,
        "memory_bytes": fullest.total_bytes - fullest.reserved_bytes,  # torch's allocator does not see them
        "reserve_bytes": fullest.reserved_bytes,
    }


def _layout(plan: Plan) -> str:
    chosen = plan.strategy
    recompute = ",".join(dict.fromkeys(chosen.recompute))
    axes = " ".join(f"{axis}={getattr(chosen, axis)}" for axis in ("tp", "pp", "dp", "cp") if getattr(chosen, axis) > 1)
    return f"{axes} mbs={chosen.microbatch_size} recompute={recompute} attention={chosen.attention_kernel}".strip()


def _running(plan: Plan, mode: str, device: torch.device) -> tuple[Callable[[], Any], Compiler | None]:
    """(one optimizer step, the compiler of the planned program)."""
    inputs, labels = tokens_of(plan)
    if mode in ("plain", "plain compiled"):
        return _plain_step(plan, device, mode == "plain compiled", (inputs, labels)), None
    compiler = Compiler() if mode == "planned compiled" else None
    session = session_of(plan, device, compiler=compiler)
    return lambda: session.step(inputs, labels, LEARNING_RATE), compiler


def _plain_step(plan: Plan, device: torch.device, compiled: bool, batch: tuple[Any, Any]) -> Callable[[], float]:
    """A step as a plain script would do it: FP32 weights, products in bf16 by autocast (not where the plan is in FP32),
    fused AdamW, the norm clipped; compiled block by block."""
    torch.manual_seed(0)
    with device:
        module = PlainLlama(plan.model, plan.training.sequence_length)
    if compiled:
        for block in module.blocks:
            block.compile(dynamic=False)
    optimizer = torch.optim.AdamW(module.parameters(), lr=LEARNING_RATE, weight_decay=0.1, fused=True)
    count, mixed = plan.num_microbatches, plan.training.precision.parameter_dtype == "bfloat16"
    ids, labels = (torch.from_numpy(one).chunk(count) for one in batch)

    def run() -> float:
        total = torch.zeros((), device=device)
        for one, wanted in zip(ids, labels, strict=True):
            with torch.autocast(device.type, torch.bfloat16, enabled=mixed):
                loss = module(one.to(device), wanted.to(device)) / count
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(total)

    return run


def _kernels(run: Callable[[], Any], under_test: DeviceUnderTest) -> dict[str, float]:
    """How many kernels a step launches on a GPU, and the seconds that they take themselves; nothing on a CPU."""
    if under_test.device.type != "cuda":
        return {}
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        run()
        under_test.wait()
    times = [one.device_time for one in profiled.events() if one.device_type.name == "CUDA"]
    return {"kernels": len(times), "kernels_s": sum(times) / MICROSECONDS}


def _step_times(run: Callable[[], Any], under_test: DeviceUnderTest, options: Options) -> tuple[list[float], float]:
    """(seconds of each step that counts, of the first one). Three steps warm up; at most 20, or 10 seconds (quick: 3),
    count."""

    def once() -> float:
        under_test.wait()
        start = perf_counter()
        run()
        under_test.wait()
        return perf_counter() - start

    first_s = once()
    for _ in range(2):
        once()
    times: list[float] = []
    least = 3 if options.device == "cpu" else 5
    while len(times) < least or (len(times) < 20 and sum(times) < (3 if options.quick else 10)):
        times.append(once())
        if options.device == "cpu" and len(times) >= least:
            break
    return times, first_s


def sharded(options: Options, layout: str) -> dict[str, Any]:
    """A layout over several devices: FP32 losses against one device's, and the time of a step beside the prediction."""
    world, changed = next((n, layouts[layout]) for n, layouts in SHARDED.items() if layout in layouts)
    with TemporaryDirectory(prefix="autoshard-on-gpu-") as logs:
        outcome = run_processes(
            "benchmarks.on_gpu_parts:rank",
            {"options": asdict(options), "changed": changed, "world": world},
            world,
            on_message=lambda message: None,
            log_directory=Path(logs),
            hang_timeout_s=240,
            trusted_prefix="benchmarks.",
        )
    if outcome.exit_code or outcome.results[0] is None:
        raise AutoshardError(outcome.message.splitlines()[0] if outcome.message else "the ranks ended")
    found = outcome.results[0]
    single = _sharded_plan(1, {}, world)
    off = _off(found["losses"], _losses(session_of(single, open_device(options.device).device), single))
    return {**found, "off": off, "right": off < CLOSE}


def _sharded_plan(devices: int, changed: dict[str, Any], world: int) -> Plan:
    """A tiny plan in FP32 whose global batch is the same for one device and for a layout over `world` of them."""
    dp = changed.get("dp", 1)
    size = replace(TINY, heads=8, kv_heads=8, sequences=1, microbatches=2 * world // dp, layers=4)
    return plan_of(size, size.model("sharded"), cluster_of(load_cluster("cpu", 1), devices), "fp32", **changed)


def rank(values: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """One rank of `sharded`."""
    options, changed, world = Options(**values["options"]), values["changed"], values["world"]
    under_test = open_device(options.device, reporter.local_rank)
    reporter.last_action = "connecting"
    connect(under_test.device, group_timeout(120), reporter)
    plan = _sharded_plan(world, changed, world)
    reporter.last_action = "steps in FP32"
    losses = _losses(session_of(plan, under_test.device, reporter.rank), plan)
    size = QUICK[options.device][0]
    shape, machines = SIZES[options.device][size], _machines(options, under_test.name, world)
    cluster = next(reversed(machines.values()), cluster_of(load_cluster("cpu", 1), world))
    shape = replace(shape, microbatches=max(shape.microbatches, 2 * changed.get("pp", 1)))
    timed = plan_of(shape, shape.model(size), cluster, precision_of(options.device), **changed)
    reporter.last_action = "timing steps"
    under_test.forget_peak()
    session, batch = session_of(timed, under_test.device, reporter.rank), tokens_of(timed)
    steps = []
    for _ in range(8):
        under_test.wait()
        start = perf_counter()
        session.step(*batch, LEARNING_RATE)
        under_test.wait()
        steps.append(perf_counter() - start)
    return {
        "losses": losses,
        "model": size,
        "layout": _layout(timed),
        "step_time_s": median(steps[3:]),
        "peak_memory_bytes": under_test.peak_bytes(),
        "predicted": {name: _predicted(timed, one) for name, one in machines.items()},
    }


def _one_line(error: BaseException) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    name = "" if isinstance(error, AutoshardError) else f"{type(error).__name__}: "
    return f"{name}{text}"[:400]


PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "environment": environment,
    "calibration": calibration,
    "parity": parity,
    "families": families,
    "attention": attention,
    "step": step,
    "sharded": sharded,
}


def asked_part(words: Sequence[str]) -> dict[str, Any]:
    """The part that the words of a command line ask for: an object with options, part and arguments. Raises
    AutoshardError for anything else."""
    asked = parse_json(words[0].encode(errors="replace"), "the part") if len(words) == 1 else None
    if not isinstance(asked, dict) or asked.keys() != {"options", "part", "arguments"} or asked["part"] not in PARTS:
        raise AutoshardError(
            "one part is run, given as JSON with options, part and arguments; python -m benchmarks.on_gpu runs all. "
            f"Parts: {', '.join(PARTS)}"
        )
    return asked


def main() -> int:
    try:
        asked = asked_part(sys.argv[1:])
    except AutoshardError as error:
        print(f"on_gpu_parts: error: {error}", file=sys.stderr)
        return 2
    if asked["options"]["device"] == "cpu":
        torch.set_num_threads(1)  # one process is one device
    try:
        found: dict[str, Any] = {"result": PARTS[asked["part"]](Options(**asked["options"]), *asked["arguments"])}
    except Exception as error:  # whatever it is becomes a line of the page
        if not isinstance(error, AutoshardError):
            import traceback

            traceback.print_exc()
        found = {"error": _one_line(error)}
    print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
