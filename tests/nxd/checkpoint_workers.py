"""What the tests of checkpoints run in their processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autoshard.checkpoint.directory import LocalStore
from autoshard.checkpoint.layout import rank_shards
from autoshard.checkpoint.manifest import Manifest, quantities_of, read_manifest
from autoshard.files.codec import to_json
from autoshard.plans.plan import Plan
from autoshard.runtime.torch_backend.optimizer_settings import optimizer_settings
from autoshard.runtime.torch_backend.session import Session
from autoshard.runtime.trainer.shard_files import host_copy, read_rank, write_rank
from autoshard.runtime.worker import Reporter
from tests.nxd.cases import FP32, MASTERS, RESHARDED, plan_of
from tests.nxd.workers import LEARNING_RATE, SEED, batch, connect, make_session


def saved_example(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """NxD's example, saved by NxD after two steps; the loss of each of four steps, a mean of all ranks.

    masters, xser: what is saved, and how.
    """
    from neuronx_distributed.parallel_layers import parallel_state
    from neuronx_distributed.trainer.checkpoint import finalize_checkpoint, save_checkpoint

    from tests.nxd.example import example_model, load_example, train_example

    connect(reporter)
    plan = plan_of(**arguments["layout"])
    session = make_session(plan, reporter.rank)
    weights = {name: value.clone() for name, value in session.optimizer.masters().items()}
    parallel_state.destroy_model_parallel()
    parallel_state.destroy_kv_group()
    module = load_example(Path(arguments["file"]))
    settings = optimizer_settings(plan.training.precision, LEARNING_RATE, plan.strategy.zero, SEED)
    batches = [batch(plan, step) for step in range(4)]
    losses = []
    steps = train_example(
        lambda: example_model(module, plan, weights), plan, batches, settings, masters=arguments["masters"]
    )
    for step, (model, optimizer, loss, _) in enumerate(steps):
        mean = torch.tensor(loss)
        dist.all_reduce(mean, group=parallel_state.get_data_parallel_group())
        losses.append(float(mean) / parallel_state.get_data_parallel_size())
        if step == 1:
            kept = {"model": model, "optimizer": optimizer, "use_xser": arguments["xser"]}
            save_checkpoint(arguments["folder"], "step_2", **kept)
            finalize_checkpoint()
    return {"losses": losses}


def resumed_on_torch(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Two more steps of what was saved, on the torch backend. masters: FP64 ones."""
    connect(reporter)
    plan = plan_of(**arguments["layout"], precision=MASTERS if arguments["masters"] else FP32)
    session = make_session(plan, reporter.rank, Session)
    manifest = read_manifest(Path(arguments["folder"]))
    session.optimizer.load_state(read_rank(Path(arguments["folder"]), manifest, session.shards()).state, manifest.step)
    rest = [session.step(*batch(plan, step, 1), LEARNING_RATE).loss for step in range(manifest.step, 4)]
    return {"step": manifest.step, "losses": rest}


def reshard(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Every layout loads one random state and saves it: which pairs of them read something else from each other."""
    connect(reporter)
    store = LocalStore(Path(arguments["folder"]))
    model, layouts = arguments["model"], RESHARDED[arguments["model"]]
    alone = plan_of(model)
    if reporter.rank == 0:
        generator = torch.Generator().manual_seed(SEED)
        shards = rank_shards(alone, 0)
        state = [
            tuple(torch.rand(one.elements, generator=generator) for _ in quantities_of(one.moments)) for one in shards
        ]
        saved(store, 0, alone, [(shards, state)])
    dist.barrier()
    held = {}
    for step, (backend, layout) in enumerate(layouts, start=1):
        reporter.last_action = f"{backend} {layout}"
        plan = plan_of(model, **layout)
        session = make_session(plan, reporter.rank, Session if backend == "torch" else None)
        first = store.folders()[-1]
        session.optimizer.load_state(read_rank(first, read_manifest(first), session.shards()).state, 1)
        held[step] = (session.shards(), host_copy(session.optimizer.state()))
        everyone: list[Any] = [None] * reporter.world_size
        dist.all_gather_object(everyone, held[step])
        if reporter.rank == 0:
            saved(store, step, plan, everyone)
        dist.barrier()
    wrong = []
    for folder in store.folders():
        manifest = read_manifest(folder)
        for step, (shards, state) in held.items():
            found = read_rank(folder, manifest, shards).state
            pairs = [(a, b) for one, other in zip(found, state, strict=True) for a, b in zip(one, other, strict=True)]
            if not all(torch.equal(a, b) for a, b in pairs):
                wrong.append((manifest.step, step))
    return {"read": len(store.folders()) * len(held), "wrong": wrong}


def saved(store: Any, step: int, plan: Plan, ranks: list[Any]) -> None:
    """What all ranks hold, as a checkpoint."""
    files = tuple(write_rank(store, step, rank, shards, state) for rank, (shards, state) in enumerate(ranks))
    model = json.loads(json.dumps(to_json(plan.model)))
    manifest = Manifest(step, model, {}, "F32", 0.0, 0, {}, len(ranks), files)
    store.commit(step, manifest.to_json(), {one.name: one.bytes for one in files})
