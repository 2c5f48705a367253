"""The work of each process of a run: `train` in every rank of the plan, `compare` in the two that check it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import Any

import torch
import torch.distributed as dist

from autoshard.backends.native_neuron import COMPILE_ONLY
from autoshard.backends.registry import ANYWHERE
from autoshard.errors import AutoshardError
from autoshard.files.codec import from_json
from autoshard.plans.validate import read_plan
from autoshard.runtime.rehearse import one_process
from autoshard.runtime.torch_backend.devices import computes, group_timeout, host_group, peak_memory
from autoshard.runtime.trainer.alike import check_alike
from autoshard.runtime.trainer.batches import open_data
from autoshard.runtime.trainer.difference import (
    RankFiles,
    comparable,
    differences_to,
    leave,
    left,
    own_tensors,
    save,
    sharded_tensors,
)
from autoshard.runtime.trainer.loop import all_in, check_step, runtime_of, train_steps
from autoshard.runtime.worker import Reporter
from autoshard.runtime.worker_arguments import TrainArguments
from autoshard.spec.training import Precision

CHECK, TRAINED, ROUNDING = "check", "trained", "rounding"
"""Names of the trainings that are compared: one FP32 step, the training in the plan's precision, and that training in
the next finer one."""
_FINER = "finer.safetensors"
_LOOK_S = 0.05


def train(values: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Every rank: run the plan. values: TrainArguments as JSON values; with `tensors` set, an FP32 step comes first,
    and what `compare` needs is left in that folder."""
    arguments = from_json(TrainArguments, values, "arguments")
    plan = read_plan(Path(arguments.plan))
    runtime = runtime_of(arguments.backend)
    device = runtime.device_of(plan, arguments.device, arguments.rehearsal, reporter.local_rank)
    if not computes(device):
        _check_computes_nothing(arguments, reporter)
    compiles = arguments.compile
    if compiles is None:
        compiles = device.type == "neuron" and not arguments.debug_nan
    arguments = replace(arguments, compile=compiles)
    runtime.import_early(compiles)  # before the first action: until then silence is no hang
    reporter.last_action = "connecting"
    runtime.connect(device, group_timeout(arguments.collective_timeout_s), reporter)
    data = open_data(arguments, plan)
    alone = not arguments.gather or reporter.world_size == 1
    hosts = None if alone else host_group(group_timeout(arguments.collective_timeout_s))
    if not alone:
        check_alike(arguments, data, hosts)
    result: dict[str, Any] = {}
    folder = arguments.tensors
    kept: dict[str, torch.Tensor] = {}
    if folder:
        session, result[CHECK] = check_step(plan, arguments, data, device, reporter)
        kept.update(comparable(session, CHECK))
        del session
    saved = arguments.checkpoints
    session, result[TRAINED] = train_steps(plan, arguments, data, device, reporter, keep=bool(folder), saved=saved)
    if folder:
        kept.update(comparable(session, TRAINED))
        save(kept, Path(folder) / f"rank-{reporter.rank:05d}.safetensors")
    result["peak_memory_bytes"] = peak_memory(device)
    result["stages"] = [stage.index for stage in session.stages]
    if arguments.gather:
        result["ranks"] = _gathered(result, hosts, reporter)
    return result


def _check_computes_nothing(arguments: TrainArguments, reporter: Reporter) -> None:
    """Raises AutoshardError where a run that only compiles is asked for something that it would have to compute."""
    saved = arguments.checkpoints
    asked = {
        "--checkpoint-every": saved is not None and saved.every is not None,
        "--debug-nan": arguments.debug_nan,
        "--no-compile": arguments.compile is False,
        "--profile": arguments.profile,
    }
    for flag, is_given in asked.items():
        if is_given:
            raise AutoshardError(
                f"{flag}: with {COMPILE_ONLY}=1 graphs are compiled and nothing is computed; unset one"
            )
    if reporter.rank == 0:
        text = f"{COMPILE_ONLY}=1: graphs are compiled and nothing is computed; losses and times below mean nothing"
        reporter.report("note", text=text)


def _gathered(
    result: dict[str, Any], hosts: dist.ProcessGroup | None, reporter: Reporter
) -> list[dict[str, Any]] | None:
    """The results of all ranks, in their order, on rank 0; None on the others. Collective.

    This serves runs in which no supervisor hears every rank. hosts: of `host_group`.
    """
    found: list[Any] | None = [None] * reporter.world_size if reporter.rank == 0 else None
    if reporter.world_size == 1:
        return [dict(result)]
    dist.gather_object(dict(result), found, group=hosts)
    return found


def compare(values: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """One or two processes, each with the same training unsharded: rank 0 compares with it every tensor that the ranks
    left.

    The last rank trains in the next finer precision: the difference is what rounding alone does to this run, the
    yardstick for what sharding does to it.
    """
    arguments = from_json(TrainArguments, values, "arguments")
    assert arguments.tensors is not None, "the ranks left nothing to compare"
    plan, tensors = read_plan(Path(arguments.plan)), Path(arguments.tensors)
    arguments = replace(arguments, profile=False, backend=ANYWHERE.name, compile=False)
    alone, found = one_process(plan), dict[str, Any]()
    device = torch.device("cpu")
    data = open_data(arguments, plan)
    if reporter.rank == reporter.world_size - 1:
        finer = replace(alone, training=replace(alone.training, precision=_finer(alone.training.precision)))
        session, found[ROUNDING] = train_steps(finer, arguments, data, device, reporter.as_one(sends=False), keep=True)
        leave(own_tensors(session), tensors / _FINER)
    if reporter.rank:
        return found
    files, one = RankFiles(tensors), reporter.as_one(sends=True)
    session, found[CHECK] = check_step(alone, arguments, data, device, one)
    differences = {CHECK: differences_to(sharded_tensors(plan, files, CHECK), session)}
    session, found[TRAINED] = train_steps(alone, arguments, data, device, one, keep=True)
    differences[TRAINED] = differences_to(sharded_tensors(plan, files, TRAINED), session)
    while not (tensors / _FINER).exists():
        one.last_action = "waiting for the training in finer precision"
        sleep(_LOOK_S)
    differences[ROUNDING] = differences_to(left(tensors / _FINER), session)
    return found | {"differences": differences, "peak_memory_bytes": peak_memory(device)}


def _finer(precision: Precision) -> Precision:
    """FP32 for anything coarser, else FP64."""
    return all_in("float64" if precision.parameter_dtype in ("float32", "float64") else "float32")
