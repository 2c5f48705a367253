"""One rank's step, built and run by the torch runtime itself, at full size and full world size, on fake tensors."""

from __future__ import annotations

import gc
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _resolve_process_group
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from autoshard.audits.attention import Reach, attention_work
from autoshard.audits.expected import label, shortened, telling_microbatches
from autoshard.audits.graphs import GraphCounter
from autoshard.audits.memory import peak, state_allocations
from autoshard.audits.recorder import SYNC, Recorder, Running
from autoshard.audits.steady import irregular, microbatch_bytes
from autoshard.audits.values import Flops, Measurement, Role
from autoshard.graph.count import Collective, operator_steps
from autoshard.graph.partition import GatherEinsumStep, RedistributeStep, Step
from autoshard.layout.mesh import Mesh
from autoshard.plans.plan import Plan
from autoshard.runtime.session import Probe
from autoshard.runtime.torch_backend.optimizer_settings import optimizer_settings
from autoshard.runtime.torch_backend.probe import SessionProbe
from autoshard.runtime.torch_backend.session import Session
from autoshard.runtime.torch_backend.turns import choosing

LEARNING_RATE = 1e-3
_ACTION = re.compile(r"[FBIW]\d+\.\d+")


@dataclass
class Recording:
    """One step of a rank as it ran. short: the plan with the microbatches that ran. ready: the last event before the
    step. counter: of graphs; None where nothing is compiled."""

    short: Plan
    recorder: Recorder
    probe: SessionProbe
    ready: int
    counter: GraphCounter | None


def measure(plan: Plan, role: Role, num_microbatches: int | None = None) -> Measurement:
    """Run one step of the role's rank. num_microbatches: as many as tell all, unless given."""
    return measure_all(plan, role, (0,), num_microbatches)[0]


def measure_all(
    plan: Plan, role: Role, more_held: Sequence[int], num_microbatches: int | None = None
) -> tuple[Measurement, ...]:
    """Run one step of the role's rank -> what ranks would measure that run the same program and hold more microbatches.

    more_held: by how many, for each such rank; more than 0 needs a rank that holds three or more. num_microbatches: as
    many as tell all, unless given.
    """
    with recorded(plan, role, num_microbatches) as one:
        measurement = _measurement(plan, one.short, one.probe, one.recorder, one.ready)
        if one.counter is not None:
            measurement = replace(measurement, graphs=one.counter.found(one.probe.functions, role.rank, measurement))
        return tuple(_holding(measurement, one, more) for more in more_held)


def _holding(measurement: Measurement, one: Recording, more: int) -> Measurement:
    """The measurement of a rank that holds so many more microbatches."""
    if not more:
        return measurement
    each, why_not = microbatch_bytes(one.recorder)
    held, peak_at = peak(one.recorder, state_allocations(one.probe, one.recorder.memory), one.ready, more * each)
    held["token ids and labels"] = measurement.held["token ids and labels"]
    irregular = (*measurement.irregular, *[why_not] * bool(why_not))
    return replace(measurement, held=held, peak_at=peak_at, irregular=irregular)


@contextmanager
def recorded(plan: Plan, role: Role, num_microbatches: int | None = None) -> Iterator[Recording]:
    """One step of the role's rank, still held. num_microbatches: as many as tell all, unless given."""
    number = num_microbatches or telling_microbatches(plan, role.pipeline_rank)
    short = shortened(plan, number)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    recorder = Recorder(mode, attention_work(plan), lambda name: _axes_of_group(plan.mesh, name))
    counter = GraphCounter(plan) if plan.cluster.compiles else None
    with fake_world(role.rank, plan.mesh.world_size), mode:
        with recorder, choosing(recorder.turns):
            session = _session(short, role.rank, recorder.begin, counter)
            probe = session.probe()
            _watch(probe, recorder)
            recorder.state |= {id(recorder.memory.see(one, -1, "")): name for name, one in probe.named_state.items()}
            session.optimizer.step(0.0)  # the moments exist from the first step on
            ready = recorder.memory.events
            recorder.actions.clear()
            recorder.transfers.clear()
            shape = (short.training.global_batch_size, short.training.sequence_length)
            tokens = np.zeros(shape, dtype=np.int64)
            session.step(tokens, tokens, LEARNING_RATE)
            gc.collect()
            yield Recording(short, recorder, probe, ready, counter)
        del session, probe


@contextmanager
def fake_world(rank: int, world_size: int) -> Iterator[None]:
    """A process group that sends nothing; gone at the end. What is made meanwhile is collected alone: looking through
    all that was there before takes as long as a small audit."""
    hook = sys.excepthook  # torch puts the rank in front of tracebacks
    frozen = gc.get_freeze_count()  # unfreezing would set free what others froze
    if not frozen:
        gc.freeze()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook
        gc.collect()
        if not frozen:
            gc.unfreeze()


def _session(plan: Plan, rank: int, on_action: Any, counter: GraphCounter | None = None) -> Session:
    """A session whose optimizer is the run's: one that rounds at random has buffers that plain AdamW has not."""
    settings = optimizer_settings(plan.training.precision, LEARNING_RATE, plan.strategy.zero, seed=0)
    return Session(
        plan,
        rank,
        torch.device("cpu"),
        settings,
        seed=0,
        on_action=lambda action: on_action(action if _ACTION.fullmatch(action) else SYNC),
        compiler=counter,
    )


def runtime_orders(plan: Plan) -> tuple[tuple[str, ...], ...]:
    """By pipeline rank: the actions that the runtime holds for a step with all microbatches."""
    if plan.strategy.pp == 1:
        return ()
    with fake_world(0, plan.mesh.world_size), FakeTensorMode(allow_non_fake_inputs=True):
        return tuple(map(tuple, _session(plan, 0, lambda action: None).probe().orders))


def _watch(probe: SessionProbe, recorder: Recorder) -> None:
    """Let the recorder know which operator each step of the session's programs is."""
    probe.watch(lambda step, run: recorder.running(_running(step), run))
    for name, shard in probe.weight_shards.items():
        recorder.weight_shards[id(recorder.memory.see(shard, -1, ""))] = name


def _running(step: Step) -> Running:
    (operator, kind), (name, inputs, outputs) = label(step), _names(step)
    return Running(operator, kind, _reach(step), name, inputs, outputs)


def _names(step: Step) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """(operator, inputs, outputs) of a step, each with the number of its block."""
    if isinstance(step, RedistributeStep):
        return f"redistribute {step.source}", (step.source,), (step.target,)
    steps = operator_steps(step)
    if isinstance(step, GatherEinsumStep):
        inputs = (step.gather.source, *(one.inputs[1] for one in steps))
    else:
        inputs = steps[0].inputs
    name = " + ".join([steps[0].operator.name, *(one.operator.name.rpartition(".")[2] for one in steps[1:])])
    return name, inputs, tuple(one.operator.output for one in steps)


def _reach(step: Step) -> Reach:
    """The keys that an attention reaches; no limit for every other operator."""
    limits = [one.operator.attributes for one in operator_steps(step) if one.operator.kind == "attention"]
    numbers = [limits[0].get(name) for name in ("sliding_window", "chunk", "chosen_block")] if limits else []
    return Reach(*(number if isinstance(number, int) else None for number in numbers))


def _axes_of_group(mesh: Mesh, name: str) -> tuple[str, ...]:
    group = _resolve_process_group(name)  # type: ignore[arg-type]
    return group_axes(mesh, tuple(dist.get_process_group_ranks(group)))


def group_axes(mesh: Mesh, ranks: tuple[int, ...]) -> tuple[str, ...]:
    """The axes along which these ranks differ; their numbers where they are no group of the mesh.

    The first and the last pipeline rank alone, which share tied parameters, count as a group along pp.
    """
    places = [{"pp": pp, **index} for pp, index in map(mesh.coordinates, ranks)]
    varying = tuple(name for name in places[0] if len({place[name] for place in places}) > 1)
    if list(ranks) in mesh.groups(varying):
        return varying
    if varying == ("pp",) and [place["pp"] for place in places] == [0, mesh.pp - 1]:
        return varying
    return (f"ranks {', '.join(map(str, ranks))}",)


def _measurement(plan: Plan, short: Plan, probe: Probe, recorder: Recorder, ready: int) -> Measurement:
    collectives: Counter[Collective] = Counter()
    flops: Counter[Flops] = Counter()
    for action in recorder.actions:
        collectives.update(action.collectives)
        flops.update(action.flops)
    state = state_allocations(probe, recorder.memory)
    held, peak_at = peak(recorder, state, ready)
    held["token ids and labels"] = held["token ids and labels"] * plan.num_microbatches // short.num_microbatches
    sizes = {
        kind: sum(one.size for one in recorder.memory.allocations if id(one) in ids) for kind, ids in state.items()
    }
    return Measurement(
        microbatches=short.num_microbatches,
        parameter_elements=probe.parameter_elements,
        state=sizes,
        collectives=collectives,
        transfers=recorder.transfers,
        flops=flops,
        order=tuple(action.text for action in recorder.actions if action.text != SYNC),
        irregular=tuple(irregular(recorder, plan.num_microbatches)),
        graphs=None,
        held=held,
        peak_at=peak_at,
    )
