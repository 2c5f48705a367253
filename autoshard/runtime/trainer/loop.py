"""Training step by step: opens the session of this rank, and every step is told as it ends."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, cast

import torch
import torch.distributed as dist

from autoshard.backends.registry import BACKENDS
from autoshard.plans.plan import Plan
from autoshard.runtime.learning_rate import learning_rate
from autoshard.runtime.not_finite import naming_step
from autoshard.runtime.session import Compiles, Runtime, Session
from autoshard.runtime.torch_backend.devices import group_timeout
from autoshard.runtime.torch_backend.optimizer_settings import optimizer_settings
from autoshard.runtime.trainer.batches import Data
from autoshard.runtime.trainer.evaluation import evaluate
from autoshard.runtime.trainer.resume import Progress
from autoshard.runtime.worker import Reporter
from autoshard.runtime.worker_arguments import CheckpointOptions, TrainArguments
from autoshard.spec.training import Precision, load_precision
from autoshard.units import format_seconds

NAMES = {"float32": "FP32", "float64": "FP64"}
"""Of the dtypes of steps that are compared."""
PROFILED_STEPS = 3
"""After the first two, which warm up, where there are so many."""


def check_step(
    plan: Plan, arguments: TrainArguments, data: Data, device: torch.device, reporter: Reporter
) -> tuple[Session, dict[str, Any]]:
    """One step in which a wrong layout cannot hide behind rounding."""
    precision = _exact(plan)
    name = NAMES[precision.compute_dtype]
    reporter.last_action = f"{name} check step"
    exact = replace(plan, training=replace(plan.training, precision=precision))
    session = _session(exact, arguments, device, reporter, f"{name} check step")
    _compiler_of(session, reporter, f"a step in {name} comes first, to be compared")
    inputs, labels = data.learned.batch(0)
    with naming_step(session, arguments):
        outcome = session.step(inputs, labels, 0.0, keep_gradients=True, starts=data.learned.documents(0))
    return session, {"precision": name, "loss": outcome.loss, "gradient_norm": outcome.gradient_norm}


def _exact(plan: Plan) -> Precision:
    """The precision of a step that is compared: FP32; FP64 where the residual has several streams, since gradients of
    what weighs these nearly cancel, and rounding alone moves them by 1e-5."""
    return load_precision("fp32") if plan.model.num_streams == 1 else all_in("float64")


def all_in(dtype: str) -> Precision:
    """The precision in which everything has one dtype."""
    return Precision(f"all {dtype}", dtype, dtype, None, dtype, dtype, dtype)


def train_steps(
    plan: Plan,
    arguments: TrainArguments,
    data: Data,
    device: torch.device,
    reporter: Reporter,
    keep: bool,
    saved: CheckpointOptions | None = None,
) -> tuple[Session, dict[str, Any]]:
    """Train up to the asked number of steps. Steps are reported by their number, from 1 on."""
    session = _session(plan, arguments, device, reporter, "step 1")
    compiler = _compiler_of(session, reporter, "the first step takes longer")
    if reporter.rank == 0:
        for sentence in session.repairs:
            reporter.report("note", text=sentence)
    steps = arguments.steps
    progress = Progress(session, saved, arguments, data.learned, reporter)
    if progress.first_step == 0 and arguments.weights is not None:
        from autoshard.runtime.trainer.initial_weights import load_weights  # brings all that converts weights

        reporter.last_action = "reading weights"
        adapter = None if arguments.adapter is None else Path(arguments.adapter)
        begun = load_weights(session, Path(arguments.weights), adapter)
        saves = progress.save_beside(begun.base)
        if reporter.rank == 0:
            beside = "" if adapter is None else f" and the adapters in {adapter}"
            reporter.report("note", text=f"began with the weights in {begun.folder}{beside}")
            if saves and begun.base is not None:
                reporter.report("note", text=f"checkpoints hold the adapters alone, beside {begun.base.folder}")
    profiler = None
    if arguments.profile:
        profiler = runtime_of(arguments.backend).profiler(session, _common_zero_s(reporter))
        _meet(reporter)  # a step that is watched waits for no rank that still prepares to watch
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
        watched = profiler.step() if profiler and step in profiled else nullcontext()
        with watched, naming_step(session, arguments):
            outcome = session.step(inputs, labels, rate, keep_gradients=keep and step == steps - 1, starts=starts)
        times.append(perf_counter() - start)
        losses.append(outcome.loss)
        norms.append(outcome.gradient_norm)
        if data.held_out is not None and ((step + 1) % every == 0 or step == steps - 1):
            with naming_step(session, arguments):
                held_out_losses[step] = evaluate(session, data.held_out, arguments.eval_batches)
        if reporter.rank == 0:
            measured = {"held_out_loss": held_out_losses[step]} if step in held_out_losses else {}
            speed = {"step_time_s": times[-1], "tokens_per_s": inputs.size / times[-1]}
            told = {"loss": outcome.loss, "gradient_norm": outcome.gradient_norm, "learning_rate": rate}
            reporter.report("step", step=step + 1, **told, **speed, **measured)
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
        "profiled_steps": [step - progress.first_step for step in profiled],  # places in step_times_s
        "compiled": None if compiler is None else compiler.to_dict(),
        "profile": {"steps": profiler.steps, "spans": profiler.spans} if profiler else None,
    }


def _common_zero_s(reporter: Reporter) -> float:
    """About the same moment on every rank, on its own clock: machines start theirs at different times."""
    _meet(reporter)
    return monotonic()


def _meet(reporter: Reporter) -> None:
    """Return once every rank has come here."""
    if reporter.world_size > 1:
        dist.barrier()


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
    """The compiler of a session; None where nothing is compiled, as on NxD. Rank 0 announces it, with `why` as reason.

    why: the rest of the sentence "compiling <size>: <why>".
    """
    found = session.compiler
    if found is not None and reporter.rank == 0:
        reporter.report("note", text=f"compiling {found.size}: {why}")
    return found


def runtime_of(backend: str) -> Runtime:
    """The module that the backend of this name is run by."""
    return cast(Runtime, import_module(BACKENDS[backend].runtime))
