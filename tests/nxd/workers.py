"""What the tests run in their processes: the same weights and data through NxD and through torch."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autoshard.plans.plan import Plan
from autoshard.runtime.nxd_backend.library import set_process_variables
from autoshard.runtime.rehearse import one_process
from autoshard.runtime.torch_backend.optimizer_settings import optimizer_settings
from autoshard.runtime.torch_backend.parameters import local_piece
from autoshard.runtime.torch_backend.session import Session
from autoshard.runtime.worker import Reporter
from tests.nxd.cases import CASES, plan_of, random_plan

STEPS = 3
LEARNING_RATE = 1e-3
SEED = 3
CPU = torch.device("cpu")
NEGLIGIBLE = 1e-5
"""A gradient this much smaller than the largest is rounding, which Adam scales up: a key's bias has none."""

Tensors = dict[str, dict[str, torch.Tensor]]
"""'gradient' and 'weight' -> by name."""


def connect(reporter: Reporter) -> None:
    torch.set_num_threads(1)
    set_process_variables(reporter.rank, reporter.local_rank, reporter.world_size, reporter.world_size)
    dist.init_process_group(
        "gloo",
        init_method=reporter.init_method,
        rank=reporter.rank,
        world_size=reporter.world_size,
        timeout=timedelta(seconds=120),
    )


def batch(plan: Plan, step: int, unlearned: int = 3) -> tuple[Any, Any]:
    """Token ids and labels; the last few of each sequence are not learned."""
    training = plan.training
    generator = np.random.default_rng(step)
    shape = (training.global_batch_size, training.sequence_length + 1)
    tokens = generator.integers(0, plan.model.vocab_size, shape)
    labels = tokens[:, 1:].copy()
    labels[:, training.sequence_length - unlearned :] = -1
    return tokens[:, :-1], labels


def make_session(plan: Plan, rank: int, make: Callable[..., Any] | None = None, device: torch.device = CPU) -> Any:
    """On neuronx-distributed, or what `make` makes on a device."""
    if make is None:
        from autoshard.runtime.nxd_backend.session import NxdSession

        make = NxdSession
    settings = optimizer_settings(plan.training.precision, LEARNING_RATE, plan.strategy.zero, SEED)
    return make(plan, rank, device, settings, SEED)


def trained(
    session: Any, plan: Plan, steps: int = STEPS, unlearned: int = 3, first: int = 0
) -> list[tuple[float, float]]:
    """(loss, gradient norm) of each step."""
    found = []
    for step in range(first, steps):
        inputs, labels = batch(plan, step, unlearned)
        outcome = session.step(inputs, labels, LEARNING_RATE, keep_gradients=True)
        found.append((outcome.loss, outcome.gradient_norm))
    return found


def conformance(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Cases of one world size, one after another: what both backends found, and how far weights are apart."""
    connect(reporter)
    found = {}
    for name in arguments["names"]:
        reporter.last_action = name
        found[name] = compared(plan_of(**CASES[reporter.world_size][name]), reporter)
    return found


def random_conformance(arguments: dict[str, Any], reporter: Reporter) -> list[dict[str, Any]]:
    """The same of random layouts, in the order of their seeds."""
    connect(reporter)
    found = []
    for seed in arguments["seeds"]:
        plan = random_plan(seed, reporter.world_size)
        reporter.last_action = f"seed {seed}: {plan.strategy}"
        found.append(compared(plan, reporter))
    return found


def compared(plan: Plan, reporter: Reporter) -> dict[str, Any]:
    """Gradients of the first step, before an update makes more of their differences; weights after the last."""
    session = make_session(plan, reporter.rank)
    alone = make_session(one_process(plan), 0, Session)
    found: dict[str, Any] = {}
    mine: Tensors = {}
    whole: Tensors = {}
    for name, one, held in (("nxd", session, mine), ("torch", alone, whole)):
        steps = trained(one, one.plan, 1)
        held["gradient"] = {key: value.clone() for key, value in one.optimizer.gradients().items()}
        found[name] = steps + trained(one, one.plan, first=1)
        held["weight"] = {key: value.clone() for key, value in one.optimizer.masters().items()}
        found[f"{name}_evaluated"] = one.evaluate(*batch(plan, 9))
    dist.barrier()
    written: dict[str, int] = {}
    for piece in (piece for shard in session.shards() for piece in shard.pieces if piece.writes):
        written[piece.name] = written.get(piece.name, 0) + piece.box.elements
    differences = _differences(session, mine, whole)
    return {**found, "differences": differences, "recomputed": _recomputed(session), "written": written}


def _recomputed(session: Any) -> int:
    """Sections that NxD wrapped, so that backward runs them again."""
    from neuronx_distributed.utils.activation_checkpoint import NxDCheckpointWrapper

    locally = [one for module in session._model.local_modules() for one in module.modules()]
    return sum(isinstance(one, NxDCheckpointWrapper) for one in set(locally))


def _differences(session: Any, mine: Tensors, whole: Tensors) -> dict[str, tuple[float, str]]:
    """Largest relative difference of this rank's pieces to those of one process, and whose it is."""
    _, index = session.plan.mesh.coordinates(session.rank)
    largest = max(float(value.norm()) for value in whole["gradient"].values())
    worst = dict.fromkeys(mine, (0.0, ""))
    for stage in session.modules.values():
        program = stage.program
        for tensor in program.graph.parameters():
            gradient = whole["gradient"].get(tensor.name)
            if gradient is not None and 0 < float(gradient.norm()) < NEGLIGIBLE * largest:
                continue
            for what in mine:
                value = whole[what].get(tensor.name)
                if value is None or not value.any():  # what is not learned, or adapters in their first step
                    continue
                expected = _piece(value, tensor, program, session.plan, index)
                difference = float((mine[what][tensor.name] - expected).norm() / value.norm())
                worst[what] = max(worst[what], (difference, tensor.name))
    return worst


def _piece(value: torch.Tensor, tensor: Any, program: Any, plan: Plan, index: dict[str, int]) -> torch.Tensor:
    """Of one process's whole tensor, padded where the plan pads the vocabulary."""
    rows = program.graph.sizes[tensor.dims[0]]
    if rows > value.shape[0]:
        value = torch.cat((value, value.new_zeros(rows - value.shape[0], *value.shape[1:])))
    return local_piece(value, tensor.dims, program.states[tensor.name], plan.mesh, index)


def context_parallel_without_zero_1(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """NxD's gradient norm of a layout that the backend refuses."""
    from unittest.mock import patch

    from autoshard.errors import AutoshardError

    connect(reporter)
    plan = plan_of(cp=2, attention="ring", zero=0)
    refused = ""
    try:
        make_session(plan, reporter.rank)
    except AutoshardError as error:
        refused = str(error)
    with patch("autoshard.runtime.nxd_backend.session.nxd_repairs", return_value=()):
        found = trained(make_session(plan, reporter.rank), plan, 1)
    alone = one_process(plan)
    truth = trained(make_session(alone, 0, Session), alone, 1)
    dist.barrier()
    return {"nxd": found[0][1], "truth": truth[0][1], "refused": refused}


def resumed_context_parallel(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Two steps, the state as checkpoints hold it, two more in another session."""
    from neuronx_distributed.parallel_layers import parallel_state

    from autoshard.runtime.trainer.shard_files import host_copy

    connect(reporter)
    plan = plan_of(cp=2, attention="ring")
    session = make_session(plan, reporter.rank)
    trained(session, plan, 2)
    state = host_copy(session.optimizer.state())
    straight = [session.step(*batch(plan, step), LEARNING_RATE).loss for step in (2, 3)]
    again = make_session(plan, reporter.rank)
    again.optimizer.load_state(state, 2)
    resumed = [again.step(*batch(plan, step), LEARNING_RATE).loss for step in (2, 3)]
    ranks = (parallel_state.get_data_parallel_rank(), parallel_state.get_tensor_model_parallel_rank(), 0)
    names = ["dp_rank_{:02d}_tp_rank_{:02d}_pp_rank_{:02d}.pt".format(*ranks)]
    return {"straight": straight, "resumed": resumed, "file_names": names}


def fused_weight(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    from neuronx_distributed.modules.qkv_linear import GQAQKVColumnParallelLinear
    from neuronx_distributed.parallel_layers import parallel_state

    connect(reporter)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
    fused = GQAQKVColumnParallelLinear(16, [16, 8], bias=False, gather_output=False)
    apart = GQAQKVColumnParallelLinear(16, [16, 8], bias=False, gather_output=False, fuse_qkv=False)
    return {
        "fused": bool(getattr(fused.weight_qkv, "tensor_model_parallel", False)),
        "apart": bool(apart.weight_q.tensor_model_parallel),
    }


def key_value_rows(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Two key-value heads on four ranks of trn2: neighbours should hold the same one."""
    import os
    from dataclasses import replace

    os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "trn2"
    from neuronx_distributed.modules.qkv_linear import GQAQKVColumnParallelLinear

    connect(reporter)
    small = plan_of(model="few kv heads", tp=4, kernel="plain")
    plan = replace(small, cluster=replace(small.cluster, layout_rules="trn2", lnc=2))
    session = make_session(plan, reporter.rank)
    (loss, _), *_ = trained(session, plan, 1)
    alone = one_process(plan)
    (truth, _), *_ = trained(make_session(alone, 0, Session), alone, 1)
    torch.manual_seed(0)
    layer = GQAQKVColumnParallelLinear(
        64, [64, 16], bias=False, gather_output=False, kv_size_multiplier=2, fuse_qkv=False
    )
    ours = session.optimizer.masters()["model.layers.0.self_attn.k_proj.weight"]
    return {
        "same_as_neighbour": _as_neighbour(layer.weight_k.detach(), reporter.rank),
        "ours_as_neighbour": _as_neighbour(ours, reporter.rank),
        "loss": loss,
        "truth": truth,
    }


def _as_neighbour(value: torch.Tensor, rank: int) -> bool:
    """Whether ranks 2n and 2n + 1 hold the same."""
    everyone = [torch.empty_like(value) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, value.contiguous())
    return bool(torch.equal(everyone[rank], everyone[rank ^ 1]))


def embedding_along_batch(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    from neuronx_distributed.parallel_layers import layers, parallel_state

    connect(reporter)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
    torch.manual_seed(0)
    whole = torch.randn(8, 4)
    layer = layers.ParallelEmbedding(8, 4, sequence_parallel_enabled=True, sequence_dimension=1)
    layer.weight.data.copy_(whole.chunk(2)[reporter.rank])
    ids = torch.arange(8).view(2, 4)
    found = layer(ids)
    expected = torch.nn.functional.embedding(ids, whole)
    return {"summed": found.shape != expected.shape or bool(torch.allclose(found, expected))}


def adapter_of_half_a_sequence(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """The gradient of NxD's own adapter beside a layer that gathers its input, after NxD's sum, and the whole one."""
    from neuronx_distributed.modules.lora import LoraConfig
    from neuronx_distributed.modules.lora.tp_layer import LoraParallelLinear
    from neuronx_distributed.parallel_layers import grads, layers, parallel_state

    connect(reporter)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
    torch.manual_seed(0)
    x, down, up = torch.randn(4, 1, 8), torch.randn(2, 8, requires_grad=True), torch.randn(16, 2)
    base = layers.ColumnParallelLinear(8, 16, bias=False, gather_output=False, sequence_parallel_enabled=True)
    layer = LoraParallelLinear(base, LoraConfig(lora_rank=2, lora_alpha=2))
    layer.lora_A.weight.data.copy_(down.detach())
    layer.lora_B.weight.data.copy_(up.chunk(2)[reporter.rank])
    base.weight.data.zero_()
    layer(x.chunk(2)[reporter.rank]).square().sum().backward()
    grads.allreduce_sequence_parallel_gradients(torch.optim.SGD(layer.parameters()))
    (x @ down.T @ up.T).square().sum().backward()
    found, whole = layer.lora_A.weight.grad.clone(), down.grad
    assert whole is not None
    own = bool(torch.allclose(found, whole))
    dist.all_reduce(found)
    return {"is_whole": own, "sum_is_whole": bool(torch.allclose(found, whole, rtol=1e-5))}


def gradient_norms(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """The norm of the first step: ours, NxD's own, and one process's."""
    from unittest.mock import patch

    connect(reporter)
    plan = plan_of(model="one kv head", tp=2)
    alone = one_process(plan)
    truth = trained(make_session(alone, 0, Session), alone, 1)[0][1]
    ours = trained(make_session(plan, reporter.rank), plan, 1)[0][1]
    with patch("autoshard.runtime.nxd_backend.session.NxdOptimizer", _counting_as_nxd):
        own = trained(make_session(plan, reporter.rank), plan, 1)[0][1]
    dist.barrier()
    return {"truth": truth, "ours": ours, "nxd": own}


def _counting_as_nxd(config: Any, owned: Any, settings: Any, multiplier: int) -> Any:
    from autoshard.runtime.nxd_backend.optimizer import NxdOptimizer

    return NxdOptimizer(config, owned, settings, 1)


def llama_example(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Three steps of NxD's example with our initial weights, and ours: the last token of a sequence has no label."""
    from pathlib import Path

    from neuronx_distributed.parallel_layers import parallel_state

    from tests.nxd.example import example_model, load_example, train_example

    connect(reporter)
    plan = plan_of(tp=reporter.world_size)
    session = make_session(plan, reporter.rank)
    weights = {name: value.clone() for name, value in session.optimizer.masters().items()}
    ours = trained(session, plan, unlearned=1)
    parallel_state.destroy_model_parallel()
    parallel_state.destroy_kv_group()
    module = load_example(Path(arguments["file"]))
    settings = optimizer_settings(plan.training.precision, LEARNING_RATE, plan.strategy.zero, SEED)
    batches = [batch(plan, step) for step in range(STEPS)]
    steps = train_example(lambda: example_model(module, plan, weights), plan, batches, settings)
    return {"ours": ours, "example": [(loss, norm) for _, _, loss, norm in steps]}


def groups_of_the_library(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """NxD's own groups for each case, or the error that it raises; no process of these worlds exists."""
    import os

    from neuronx_distributed.parallel_layers import parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    found = []
    for case in arguments["cases"]:
        os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = case["platform"]
        os.environ["LOCAL_WORLD_SIZE"] = str(case["local_world_size"])
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=case["world_size"])
        try:
            made = parallel_state.initialize_model_parallel(
                case["tp"], case["pp"], case["cp"], case["ep"], lnc_size=case["lnc"], mesh_only=True
            )
            kinds = ("tp_groups", "dp_groups", "pp_groups", "ep_model_groups", "ep_data_groups", "cp_groups")
            found.append({kind: getattr(made, kind) for kind in kinds})
        except Exception as error:  # whatever it is: ours must refuse too
            found.append({"error": repr(error)})
        dist.destroy_process_group()
    return {"groups": found}


def orders_of_the_library(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """NxD's order of forwards and backwards on each pipeline rank, in our notation."""
    from neuronx_distributed.pipeline import scheduler

    letters = {"ForwardStepTask": "F", "BackwardStepTask": "B"}
    found = []
    for case in arguments["cases"]:
        pp, number, vpp = case["pp"], case["num_microbatches"], case["vpp"]
        ranks = []
        for rank in range(pp):
            if vpp == 1:
                schedule = scheduler.Train1F1BSchedule(number, pp, rank)
            else:
                odd_even = number == pp
                schedule = scheduler.TrainInterleavedSchedule(number, vpp, pp, rank, use_odd_even_scheduler=odd_even)
            tasks = [task for step in schedule.steps() for task in step if type(task).__name__ in letters]
            ranks.append([f"{letters[type(task).__name__]}{task.mb}.{task.model_chunk}" for task in tasks])
        found.append(ranks)
    return {"orders": found}
