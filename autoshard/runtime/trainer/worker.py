"""What each process of a run does: `train` in every rank of the plan, `compare` in the one process that checks it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, cast

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save_file

from autoshard.backends.registry import ANYWHERE, BACKENDS
from autoshard.errors import AutoshardError
from autoshard.plans.plan import Plan
from autoshard.plans.validate import read_plan
from autoshard.runtime.data import TokenStream, held_out, open_stream, read_token_file
from autoshard.runtime.learning_rate import learning_rate
from autoshard.runtime.rehearse import one_process
from autoshard.runtime.session import Compiles, Runtime, Session
from autoshard.runtime.torch_backend.devices import group_timeout, host_group, peak_memory
from autoshard.runtime.torch_backend.optimizer_settings import optimizer_settings
from autoshard.runtime.torch_backend.parameters import assemble
from autoshard.runtime.trainer.initial_weights import load_weights
from autoshard.runtime.trainer.resume import Progress
from autoshard.runtime.worker import Reporter
from autoshard.runtime.worker_arguments import CheckpointOptions, TrainArguments
from autoshard.spec.training import Precision, load_precision
from autoshard.units import format_seconds

CHECK, TRAINED, ROUNDING = "check", "trained", "rounding"
"""What is compared: one FP32 step, the training in the plan's precision, and that training in the next finer one."""
NEGLIGIBLE_GRADIENT = 1e-5
"""A gradient this much smaller than the largest is rounding, which Adam scales up: a key's bias has none."""
PROFILED_STEPS = 3
"""After the first two, which warm up, where there are so many."""
Tensors = dict[str, dict[str, torch.Tensor]]
"""'gradient' and 'parameter' -> whole tensors by name."""


@dataclass(frozen=True)
class _Data:
    """What is learned, and what only shows how much was."""

    learned: TokenStream
    held_out: TokenStream | None


def train(values: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Every rank: run the plan. values: as TrainArguments.to_dict gives them; with `tensors` set, an FP32 step comes
    first, and what `compare` needs is left in that folder."""
    arguments = TrainArguments.from_dict(values)
    plan = read_plan(Path(arguments.plan))
    runtime = runtime_of(arguments.backend)
    device = runtime.device_of(plan, arguments.device, arguments.rehearsal, reporter.local_rank)
    runtime.import_early(plan, arguments.compile)  # before the first action: until then silence is no hang
    reporter.last_action = "connecting"
    runtime.connect(device, group_timeout(arguments.collective_timeout_s), reporter)
    data = _data(arguments, plan)
    result: dict[str, Any] = {}
    folder = arguments.tensors
    kept: dict[str, torch.Tensor] = {}
    if folder:
        session, result[CHECK] = _check_step(plan, arguments, data, device, reporter)
        kept.update(_comparable(session, CHECK))
        del session
    saved = arguments.checkpoints
    session, result[TRAINED] = _training(plan, arguments, data, device, reporter, keep=bool(folder), saved=saved)
    if folder:
        kept.update(_comparable(session, TRAINED))
        save_file(kept, Path(folder) / f"rank-{reporter.rank:05d}.safetensors")
    result["peak_memory_bytes"] = peak_memory(device)
    result["stages"] = [stage.index for stage in session.stages]
    if arguments.gather:
        result["ranks"] = _gathered(result, arguments, reporter)
    return result


def _gathered(result: dict[str, Any], arguments: TrainArguments, reporter: Reporter) -> list[dict[str, Any]] | None:
    """What every rank returns, on rank 0: for where no supervisor hears them all."""
    found: list[Any] | None = [None] * reporter.world_size if reporter.rank == 0 else None
    if reporter.world_size == 1:
        return [dict(result)]
    dist.gather_object(dict(result), found, group=host_group(group_timeout(arguments.collective_timeout_s)))
    return found


def compare(values: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """One process: the same training unsharded, then every tensor that the ranks left against it.

    Trains once more in the next finer precision: the difference is what rounding alone does to this run, the yardstick
    for what sharding does to it.
    """
    arguments = TrainArguments.from_dict(values)
    assert arguments.tensors is not None, "the ranks left nothing to compare"
    plan, tensors = read_plan(Path(arguments.plan)), Path(arguments.tensors)
    arguments = replace(arguments, profile=False, backend=ANYWHERE.name, compile=False)
    alone = one_process(plan)
    device = torch.device("cpu")
    data = _data(arguments, plan)
    files = _RankFiles(tensors)
    session, check = _check_step(alone, arguments, data, device, reporter)
    differences = {CHECK: _differences(_sharded_tensors(plan, files, CHECK), session)}
    session, trained = _training(alone, arguments, data, device, reporter, keep=True)
    differences[TRAINED] = _differences(_sharded_tensors(plan, files, TRAINED), session)
    finer = replace(alone, training=replace(alone.training, precision=_finer(alone.training.precision)))
    other, finer_trained = _training(finer, arguments, data, device, reporter, keep=True, offset=arguments.steps)
    differences[ROUNDING] = _differences(_own_tensors(other), session)
    return {
        CHECK: check,
        TRAINED: trained,
        ROUNDING: finer_trained,
        "differences": differences,
        "peak_memory_bytes": peak_memory(device),
    }


def _check_step(
    plan: Plan, arguments: TrainArguments, data: _Data, device: torch.device, reporter: Reporter
) -> tuple[Session, dict[str, Any]]:
    """One step in FP32, in which a wrong layout cannot hide behind rounding."""
    reporter.last_action = "FP32 check step"
    exact = replace(plan, training=replace(plan.training, precision=load_precision("fp32")))
    session = _session(exact, arguments, device, reporter, "FP32 check step")
    _compiler_of(session, reporter, "a step in FP32 comes first, to be compared")
    inputs, labels = data.learned.batch(0)
    outcome = session.step(inputs, labels, 0.0, keep_gradients=True, starts=data.learned.documents(0))
    return session, {"loss": outcome.loss, "gradient_norm": outcome.gradient_norm}


def _training(
    plan: Plan,
    arguments: TrainArguments,
    data: _Data,
    device: torch.device,
    reporter: Reporter,
    keep: bool,
    offset: int = 0,
    saved: CheckpointOptions | None = None,
) -> tuple[Session, dict[str, Any]]:
    """Train up to the asked number of steps. Steps are reported by their number, from 1 on; offset: added
    to it."""
    session = _session(plan, arguments, device, reporter, "step 1")
    compiler = _compiler_of(session, reporter, "the first step takes longer")
    if reporter.rank == 0:
        for sentence in session.repairs:
            reporter.report("note", text=sentence)
    steps = arguments.steps
    progress = Progress(session, saved, arguments, data.learned, reporter)
    if progress.first_step == 0 and arguments.weights is not None:
        reporter.last_action = "reading weights"
        load_weights(session, Path(arguments.weights))
    profiler = None
    if arguments.profile:
        profiler = runtime_of(arguments.backend).profiler(session, _common_zero_s(reporter))
    first = min(progress.first_step + 2, max(progress.first_step, steps - PROFILED_STEPS))
    profiled = range(first, min(first + PROFILED_STEPS, steps)) if profiler else range(0)
    losses, norms, times = [], [], []
    held_out_losses: dict[int, float] = {}
    every = arguments.eval_every or steps
    for step in range(progress.first_step, steps):
        number = progress.batch_of(step)
        inputs, labels = data.learned.batch(number)
        starts = data.learned.documents(number)
        start = perf_counter()
        session.label, session.steps_done = f"step {step + 1}", step
        rate = learning_rate(arguments.lr_schedule, step, steps, arguments.learning_rate, arguments.warmup_steps)
        with profiler.step() if profiler and step in profiled else nullcontext():
            outcome = session.step(inputs, labels, rate, keep_gradients=keep and step == steps - 1, starts=starts)
        times.append(perf_counter() - start)
        losses.append(outcome.loss)
        norms.append(outcome.gradient_norm)
        if data.held_out is not None and ((step + 1) % every == 0 or step == steps - 1):
            held_out_losses[step] = _evaluate(session, data.held_out, arguments.eval_batches)
        if reporter.rank == 0:
            measured = {"held_out_loss": held_out_losses[step]} if step in held_out_losses else {}
            speed = {"step_time_s": times[-1], "tokens_per_s": inputs.size / times[-1]}
            told = {"loss": outcome.loss, "gradient_norm": outcome.gradient_norm, "learning_rate": rate}
            reporter.report("step", step=offset + step + 1, **told, **speed, **measured)
            if compiler is not None and len(times) == 1:
                both = format_seconds(times[0]), format_seconds(compiler.compile_time_s)
                reporter.report("note", text="first step: {}, of which compiling {}".format(*both))
        progress.after_step(step, rate)
    return session, {
        "losses": losses,
        "gradient_norms": norms,
        "step_times_s": times,
        "held_out_losses": list(held_out_losses.values()),
        "unsaved": progress.unsaved,
        "profiled_steps": list(profiled),
        "compiled": None if compiler is None else compiler.to_dict(),
        "profile": {"steps": profiler.steps, "spans": profiler.spans} if profiler else None,
    }


def _common_zero_s(reporter: Reporter) -> float:
    """About the same moment on every rank, on its own clock: machines start theirs at different times."""
    if reporter.world_size > 1:
        dist.barrier()
    return monotonic()


def _evaluate(session: Session, stream: TokenStream, most: int) -> float:
    """Mean loss over the learned tokens of the stream's first batches."""
    total, tokens = 0.0, 0
    for batch in range(min(most, stream.rows_per_epoch // stream.global_batch_size)):
        inputs, labels = stream.in_order(batch)
        learned = int((labels >= 0).sum())
        starts = stream.documents_in_order(batch)
        total, tokens = total + learned * session.evaluate(inputs, labels, starts), tokens + learned
    return total / tokens


def _session(plan: Plan, arguments: TrainArguments, device: torch.device, reporter: Reporter, label: str) -> Session:
    precision, zero = plan.training.precision, plan.strategy.zero
    settings = optimizer_settings(precision, arguments.learning_rate, zero, arguments.seed)
    timeout = group_timeout(arguments.collective_timeout_s)
    mine = [str(stage.index) for stage in plan.stages if stage.pipeline_rank == plan.mesh.coordinates(reporter.rank)[0]]
    where = f"pipeline stage{'s' if len(mine) > 1 else ''} {' and '.join(mine)}"

    def on_action(action: str) -> None:
        reporter.last_action = f"{session.label}, {where}, {action}"

    runtime = runtime_of(arguments.backend)
    session = runtime.open_session(plan, reporter.rank, device, settings, arguments, timeout, on_action)
    session.label = label
    return session


def _compiler_of(session: Session, reporter: Reporter, why: str) -> Compiles | None:
    """That of a session that compiles, announced; one on NxD has none."""
    found = session.compiler
    if found is not None and reporter.rank == 0:
        reporter.report("note", text=f"compiling {found.size}: {why}")
    return found


def runtime_of(backend: str) -> Runtime:
    """The module that the backend of this name is run by."""
    return cast(Runtime, import_module(BACKENDS[backend].runtime))


def _finer(precision: Precision) -> Precision:
    """FP32 for anything coarser, else FP64."""
    name = "float64" if precision.parameter_dtype in ("float32", "float64") else "float32"
    return Precision(f"all {name}", name, name, None, name, name, name)


def _data(arguments: TrainArguments, plan: Plan) -> _Data:
    """The run's prepared tokens as batches of the plan's shape."""
    learned = _stream(arguments.data, arguments, plan)
    if arguments.eval_data is not None:
        return _Data(learned, _stream(arguments.eval_data, arguments, plan))
    if arguments.eval_fraction is not None:
        return _Data(*held_out(learned, arguments.eval_fraction))
    return _Data(learned, None)


def _stream(path: str, arguments: TrainArguments, plan: Plan) -> TokenStream:
    file = read_token_file(Path(path))
    if file is None:
        raise AutoshardError(f"the tokens at {path} are gone: run again")
    training = plan.training
    return open_stream(
        file,
        global_batch_size=training.global_batch_size,
        sequence_length=training.sequence_length,
        seed=arguments.seed,
    )


def _comparable(session: Session, prefix: str) -> dict[str, torch.Tensor]:
    """Gradients and master weights of the pieces that this rank is the first to hold, by '<prefix>.<what>/<name>'."""
    found = {"gradient": session.optimizer.gradients(), "parameter": session.optimizer.masters()}
    return {
        f"{prefix}.{what}/{stage}/{name}": values[name].cpu().clone()
        for what, values in found.items()
        for stage, module in session.modules.items()
        for name in (tensor.name for tensor in module.program.graph.parameters())
        if session.is_first_holder(module.program, name)
    }


class _RankFiles:
    """What the ranks left, read a tensor at a time."""

    def __init__(self, folder: Path):
        self._files = [safe_open(path, framework="pt") for path in sorted(folder.glob("rank-*.safetensors"))]
        self._keys = [set(file.keys()) for file in self._files]

    def pieces(self, key: str) -> dict[int, torch.Tensor]:
        """By rank."""
        return {r: self._files[r].get_tensor(key) for r, keys in enumerate(self._keys) if key in keys}


def _differences(others: Tensors, session: Session) -> dict[str, Any]:
    """For gradients and parameters: the largest relative difference to the session's, and the tensor that has it."""
    mine = _own_tensors(session)
    norms = {name: float(torch.linalg.vector_norm(value)) for name, value in mine["gradient"].items()}
    rounding = NEGLIGIBLE_GRADIENT * max(norms.values())
    worst: dict[str, Any] = {}
    for what, values in mine.items():
        assert others[what].keys() == values.keys()
        pairs = [(_relative(others[what][name], values[name]), name) for name in values if norms[name] > rounding]
        difference, name = max(pairs)
        worst[what] = {"relative_difference": difference, "tensor": name}
    return worst


def _own_tensors(session: Session) -> Tensors:
    """Of a session that is one process: whole tensors."""
    return {"gradient": session.optimizer.gradients(), "parameter": session.optimizer.masters()}


def _sharded_tensors(plan: Plan, files: _RankFiles, prefix: str) -> Tensors:
    return {what: dict(_whole_tensors(plan, files, f"{prefix}.{what}")) for what in ("gradient", "parameter")}


def _whole_tensors(plan: Plan, files: _RankFiles, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    for stage in plan.stages:
        program = plan.program(stage.layers, stage.has_embedding, stage.has_head)
        for tensor in program.graph.parameters():
            pieces = files.pieces(f"{prefix}/{stage.index}/{tensor.name}")
            yield tensor.name, assemble(pieces, tensor.dims, program.states[tensor.name], plan.mesh)


def _relative(sharded: torch.Tensor, alone: torch.Tensor) -> float:
    """|sharded - alone| / |alone| in the 2-norm; padding beyond the unsharded size must be zero and is cut off."""
    padded = sharded
    for dim, size in enumerate(alone.shape):
        sharded = sharded.narrow(dim, 0, size)
    assert padded.count_nonzero() == sharded.count_nonzero(), "padding was trained"
    scale = torch.linalg.vector_norm(alone, dtype=torch.float64)
    difference = torch.linalg.vector_norm(sharded.double() - alone.double())
    return float(difference / scale) if scale else float(difference)
