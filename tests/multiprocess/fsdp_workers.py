"""What test_fsdp.py runs in its processes: the same model and steps under ZeRO-2 and -3, and under torch's FSDP2."""

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import clip_grad_norm_

from autoshard.runtime.torch_backend.optimizer_settings import optimizer_settings
from autoshard.runtime.torch_backend.parameters import each_parameter
from autoshard.runtime.torch_backend.session import Session
from autoshard.runtime.torch_backend.stage_module import StageModule
from autoshard.runtime.worker import Reporter
from tests.multiprocess.models import LLAMA
from tests.multiprocess.plans import FP32, plan_of, strategy

STEPS, MICROBATCHES, LEARNING_RATE = 4, 2, 1e-3


def losses(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """By name, the loss of each step; gathered: weights that ZeRO-3 still knows of behind them."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=reporter.init_method, rank=reporter.rank, world_size=reporter.world_size
    )
    shape = (MICROBATCHES * reporter.world_size, 17)
    numbers = np.random.default_rng(0)
    batches = [numbers.integers(0, LLAMA.vocab_size, shape) for _ in range(STEPS)]
    found: dict[str, Any] = {"fully_shard": _with_fsdp(batches, reporter)}
    found["gathered"] = 0
    for zero in (2, 3):
        plan = plan_of(LLAMA, strategy(dp=reporter.world_size, zero=zero), MICROBATCHES, FP32)
        session = Session(
            plan, reporter.rank, torch.device("cpu"), optimizer_settings(FP32, LEARNING_RATE, zero, 0), seed=0
        )
        found[f"ZeRO-{zero}"] = [
            session.step(batch[:, :-1].copy(), batch[:, 1:].copy(), LEARNING_RATE).loss for batch in batches
        ]
        sharded = session.modules[0].sharded
        assert sharded is not None
        found["gathered"] = max(found["gathered"], len(sharded._gathered))
    return found


def _with_fsdp(batches: list[Any], reporter: Reporter) -> list[float]:
    plan = plan_of(LLAMA, strategy(), 1, FP32)
    stage = plan.stages[0]
    program = plan.program(stage.layers, stage.has_embedding, stage.has_head)
    device = torch.device("cpu")
    parameters = dict(each_parameter(LLAMA, program, plan.mesh, {}, 0, torch.float32, device))
    module = StageModule(program, parameters, None, "none")
    fully_shard(module, mesh=init_device_mesh("cpu", (reporter.world_size,)))
    settings = optimizer_settings(FP32, LEARNING_RATE, 1, 0)
    groups = [
        {"params": [p for p in module.parameters() if (p.dim() > 1) is decays], "weight_decay": decay}
        for decays, decay in ((True, settings.weight_decay), (False, 0.0))
    ]
    adamw = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=settings.betas, eps=settings.eps)
    found = []
    for batch in batches:
        total = torch.zeros(())
        for rows in np.split(batch, MICROBATCHES):
            own = torch.from_numpy(rows[reporter.rank : reporter.rank + 1])
            values = {"input_ids": own[:, :-1], "labels": own[:, 1:]}
            loss = module(*(values[name] for name in module.input_names)).sum() / MICROBATCHES
            loss.backward()
            total += loss.detach() / reporter.world_size
        dist.all_reduce(total)
        clip_grad_norm_(module.parameters(), settings.max_gradient_norm)
        adamw.step()
        adamw.zero_grad()
        found.append(float(total))
    return found
