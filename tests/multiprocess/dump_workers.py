"""Real runs on CPU whose memory is dumped in the form of torch.cuda.memory._dump_snapshot, some with a fault."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist

from autoshard.allocations.snapshot import Frame, Held, snapshot, to_bytes
from autoshard.audits.memory_log import MemoryLog
from autoshard.plans.plan import Plan
from autoshard.runtime.torch_backend import stage_module
from autoshard.runtime.torch_backend.flat_buffers import Bucket, ShardedBucket
from autoshard.runtime.torch_backend.onlooker import Onlooker
from autoshard.runtime.torch_backend.optimizer_settings import optimizer_settings
from autoshard.runtime.torch_backend.session import Session
from autoshard.runtime.worker import Reporter
from autoshard.spec.training import load_precision
from tests.multiprocess.models import LLAMA
from tests.multiprocess.plans import plan_of, strategy

RECOMPUTE, GATHERED, LOGITS, BUCKET, CLEAN = "recompute", "gathered", "logits", "bucket", "clean"
FAULTS = (RECOMPUTE, GATHERED, LOGITS, BUCKET)
SETS = ("mlp", "mlp_norm+mlp", "core_attention+mlp", "attention+core_attention+mlp", "full")
STEPS = 2


def seeded_plan(seed: int, fault: str) -> Plan:
    """A small plan for two replicas, a function of its arguments alone; ZeRO-3 where weights are to be gathered."""
    random = Random(f"{seed}")
    heads = random.choice((4, 6, 8))
    model = replace(
        LLAMA,
        hidden_size=heads * 16,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=16,
        intermediate_size=32 * random.randint(6, 16),
        num_hidden_layers=random.randint(3, 6),
        vocab_size=16 * random.randint(40, 90),
        max_position_embeddings=512,
    )
    layout = strategy(
        dp=2,
        recompute=random.choice(SETS),
        zero=3 if fault == GATHERED else random.choice((0, 1, 2)),
        mbs=random.choice((1, 2)),
        layers=(model.num_hidden_layers,),
    )
    precision = load_precision(random.choice(("fp32", "mixed_precision")))
    plan = plan_of(model, layout, random.randint(1, 3), precision)
    return replace(plan, training=replace(plan.training, sequence_length=64 * random.randint(1, 4)))


def dumps(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Writes the dump of rank 0 of every case (seed, fault) to the folder, as FAULT-SEED.pickle."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=reporter.init_method, rank=reporter.rank, world_size=reporter.world_size
    )
    for seed, fault in arguments["cases"]:
        values = _dumped(seeded_plan(seed, fault), reporter.rank, fault, seed)
        if reporter.rank == 0:
            Path(arguments["folder"], f"{fault}-{seed}.pickle").write_bytes(to_bytes(values))
    return {}


def _dumped(plan: Plan, rank: int, fault: str, seed: int) -> Frame:
    shape = (plan.training.global_batch_size, plan.training.sequence_length)
    settings = optimizer_settings(plan.training.precision, 1e-3, plan.strategy.zero, seed=0)
    numbers = np.random.default_rng(seed)
    mode = Watching()
    with ExitStack() as stack:
        stack.enter_context(seeded(fault, seed))
        stack.enter_context(mode)
        session = Session(plan, rank, torch.device("cpu"), settings, seed=0)
        for _ in range(STEPS):
            inputs, labels = (numbers.integers(0, plan.model.vocab_size, shape) for _ in range(2))
            session.step(inputs, labels, 1e-3)
        values = mode.snapshot()
    del session
    return values


class Watching(Onlooker):
    """Remembers every storage of real tensors, and the lines of Python that asked for it."""

    def __init__(self) -> None:
        super().__init__()
        self._log = MemoryLog()
        self._frames: dict[int, list[Frame]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for one in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(one, torch.Tensor):
                made = self._log.see(one, 0, "")
                if id(made) not in self._frames:
                    self._frames[id(made)] = list(_stack())
                    if self._frames[id(made)][0]["filename"].endswith("shared_memory.py"):
                        made.size = 0  # between processes of one machine; a device has none of it
        return out

    def snapshot(self) -> Frame:
        held = [Held(one.size, one.birth, one.death, self._frames[id(one)]) for one in self._log.allocations]
        return snapshot(held, range(self._log.events + 1))


def _stack() -> Iterator[Frame]:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if "/torch/" not in frame.f_code.co_filename:
            code = frame.f_code
            yield {"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name}
        frame = frame.f_back


@contextmanager
def seeded(fault: str, seed: int) -> Iterator[None]:
    """A runtime with the fault."""
    kept: list[Any] = []
    random = Random(f"{fault} {seed}")
    with ExitStack() as stack:
        if fault == RECOMPUTE:
            stack.enter_context(patch.object(stage_module, "replayed", _without_recompute))
        elif fault == GATHERED:
            stack.enter_context(patch.object(ShardedBucket, "take", _kept_by(kept, ShardedBucket.take)))
        elif fault == LOGITS:
            stack.enter_context(patch.object(stage_module, "_run", _keeping_logits(kept)))
        elif fault == BUCKET:
            what = random.choice(("gradients", "parameters"))
            for kind in (Bucket, ShardedBucket):
                stack.enter_context(patch.object(kind, "__init__", _doubled(kind.__init__, what)))
        yield


def _without_recompute(run: Callable[..., Any], *inputs: Any, weights: Any) -> Any:
    return run(*inputs)


def _kept_by(kept: list[Any], right: Callable[..., Any]) -> Callable[..., Any]:
    def take(self: Any) -> torch.Tensor:
        kept.append(right(self))
        whole: torch.Tensor = kept[-1]
        return whole

    return take


def _keeping_logits(kept: list[Any]) -> Callable[..., None]:
    right = stage_module._run

    def run(steps: Any, env: Any) -> None:
        def watched(compute: Callable[..., Any], outputs: tuple[str, ...]) -> Callable[..., Any]:
            def computed(*values: Any) -> Any:
                result = compute(*values)
                if outputs[0] == "lm_head":
                    kept[:] = [result.detach().clone()]
                return result

            return computed

        right([(watched(compute, outputs), inputs, outputs, gone) for compute, inputs, outputs, gone in steps], env)

    return run


def _doubled(right: Callable[..., None], what: str) -> Callable[..., None]:
    def made(self: Any, *arguments: Any, **options: Any) -> None:
        right(self, *arguments, **options)
        self.spare = getattr(self, what).clone()

    return made
