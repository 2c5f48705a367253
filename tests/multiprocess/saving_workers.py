"""What test_checkpoint_saving.py runs in processes of its own."""

import ctypes
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist

from autoshard.checkpoint.directory import LocalStore
from autoshard.errors import AutoshardError
from autoshard.models.stage import parameter_count
from autoshard.runtime.torch_backend.optimizer_settings import optimizer_settings
from autoshard.runtime.torch_backend.session import Session
from autoshard.runtime.trainer import checkpoint
from autoshard.runtime.trainer.checkpoint import Checkpoints
from autoshard.runtime.trainer.initial_weights import load_weights
from autoshard.runtime.worker import Reporter
from autoshard.runtime.worker_arguments import CheckpointOptions
from autoshard.spec.model import ModelSpec
from tests.multiprocess.models import LLAMA
from tests.multiprocess.plans import FP32, plan_of, strategy

M_MMAP_THRESHOLD = -3
"""Of malloc.h: from how many bytes on memory is the kernel's, not malloc's."""


def session(rank: int, dp: int = 1, zero: int = 1, seed: int = 0, model: ModelSpec = LLAMA) -> Session:
    plan = plan_of(model, strategy(dp=dp, zero=zero), 2, FP32)
    return Session(plan, rank, torch.device("cpu"), optimizer_settings(FP32, 1e-3, zero, seed), seed)


def train(one: Session) -> None:
    training = one.plan.training
    shape = (training.global_batch_size, training.sequence_length + 1)
    tokens = np.random.default_rng(0).integers(0, one.plan.model.vocab_size, shape)
    one.step(tokens[:, :-1], tokens[:, 1:], 1e-3)


def memory_bytes(field: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


class SlowDisk(LocalStore):
    """Each file takes longer than a step: saves catch up with each other."""

    def write(self, step: int, name: str, chunks: Iterable[memoryview], size: int) -> None:
        time.sleep(0.2)
        super().write(step, name, chunks, size)


def memory_of_saves(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """What a process takes beyond its training state, at most and in the end, when each of four steps is saved.

    A process of its own: what others freed before is memory that could be used again unseen, and what malloc keeps of
    them would be counted.
    """
    # What is freed goes back at once: malloc keeps tensors of up to 32 MB, and the next copy may not fit into them.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)
    model = replace(LLAMA, vocab_size=150_000)
    one = session(0, model=model)
    train(one)
    with mock.patch.object(checkpoint, "open_store", lambda location: SlowDisk(Path(location))):
        saved = Checkpoints(one, CheckpointOptions(arguments["folder"], 1, 2, None, "never", False), 0, print)
    ctypes.CDLL(None).malloc_trim(0)  # what the step freed is not there to be used again
    before = memory_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    for steps in (1, 2, 3, 4):
        saved.after_step(steps, 1e-3, {}, last=steps == 4)
    peak = memory_bytes("VmHWM") - before
    ctypes.CDLL(None).malloc_trim(0)
    left = memory_bytes("VmRSS") - before
    return {"state_bytes": 3 * 4 * parameter_count(model), "peak_bytes": peak, "left_bytes": left}


def save_and_load(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Of both, with and without ZeRO: what was said of loading, and whether each rank has again what it had."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=reporter.init_method, rank=reporter.rank, world_size=reporter.world_size
    )
    found: dict[str, Any] = {}
    for zero in (0, 1, 3):
        options = CheckpointOptions(str(Path(arguments["folder"]) / str(zero)), 1, 2, None, "auto", True)
        said: list[str] = []
        first = session(reporter.rank, 2, zero)
        train(first)
        Checkpoints(first, options, 0, said.append).after_step(1, 1e-3, {}, last=True)
        second = session(reporter.rank, 2, zero, seed=1)
        Checkpoints(second, replace(options, every=None), 0, said.append).resume()
        same = all(
            torch.equal(a, b)
            for one, other in zip(first.optimizer.state(), second.optimizer.state(), strict=True)
            for a, b in zip(one, other, strict=True)
        )
        found[f"ZeRO-{zero}" if zero else "plain"] = {"said": said, "same": same}
    return found


def start_from(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Rank k starts from the k-th of the folders -> its masters' sum, or the error."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=reporter.init_method, rank=reporter.rank, world_size=reporter.world_size
    )
    one = session(reporter.rank, dp=2, zero=0, seed=3)
    try:
        load_weights(one, Path(arguments["folders"][reporter.rank]))
    except AutoshardError as error:
        return {"error": str(error)}
    return {"sum": sum(float(value.double().sum()) for value in one.optimizer.masters().values())}
