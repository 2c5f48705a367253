"""What test_parity.py runs in its processes: every plan of one world size, against one process."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from autoshard.graph.count import Collective
from autoshard.layout.plan import Plan
from autoshard.layout.step_collectives import step_collectives
from autoshard.runtime.rehearse import one_process
from autoshard.runtime.torch_backend.direct import NAMESPACE
from autoshard.runtime.torch_backend.optimizer import optimizer_settings
from autoshard.runtime.torch_backend.parameters import assemble
from autoshard.runtime.torch_backend.session import Session
from autoshard.runtime.worker import Reporter
from autoshard.spec.training import Precision
from tests.multiprocess.plans import BF16, CASES, FP32, IN_BF16, case

STEPS = 3
LEARNING_RATE = 1e-2
BF16_LEARNING_RATE = 1e-3
"""Adam turns the rounding of a small gradient into a whole step: at 1e-2 three of them move these losses by 0.2 %."""
NEGLIGIBLE = 1e-6
"""A gradient this much smaller than the largest is rounding: that of a key's bias is zero in exact arithmetic."""


class CollectiveCounter(TorchDispatchMode):
    """Every collective operator that this process issues, by phase; recompute happens inside backward."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.seen: Counter[tuple[str, str, tuple[str, ...], int]] = Counter()
        self.phase = "forward"
        self.actions: list[str] = []
        """What the rank said that it was about to do."""
        groups = session._groups
        self._axes = {} if groups is None else {group.name: axes for axes, group in groups._groups.items()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        namespace, _, name = func._schema.name.partition("::")
        if namespace in ("_c10d_functional", NAMESPACE) and name != "wait_tensor":
            kind = name.replace("_into_tensor", "").replace("_tensor", "").replace("_single", "").replace("_out", "")
            if kind == "all_to_all" and len(set(args[1])) > 1:  # one destination, one source
                kind = "send_recv"
            size = max(tensor.numel() * tensor.element_size() for tensor in (args[0], out))
            inside_backward = torch._C._current_graph_task_id() != -1
            phase = "backward" if inside_backward and self.phase == "forward" else self.phase
            self.seen[phase, kind, self._axes.get(args[-1], ("pp",)), size] += 1
        return out


def parity(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Rank 0 returns, for each case, how far the sharded run is from one process."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=reporter.init_method,
        rank=reporter.rank,
        world_size=reporter.world_size,
        timeout=timedelta(seconds=120),
    )
    found = {}
    for name in arguments.get("names", CASES[reporter.world_size]):
        reporter.last_action = name
        plan = case(reporter.world_size, name)
        single = replace(plan, training=replace(plan.training, precision=FP32))
        exact, rounded = _train(plan, reporter, STEPS), _train(single, reporter, 1)
        gathered: list[Any] = [None] * reporter.world_size
        dist.all_gather_object(
            gathered,
            (
                _local_tensors(exact[0]),
                _local_tensors(rounded[0]),
                _surplus(single, rounded[0], rounded[2]),
                rounded[2].actions,
            ),
        )
        if reporter.rank == 0:
            found[name] = {
                "fp64": _against_one_process(plan, exact[1], [one[0] for one in gathered]),
                "fp32": _against_one_process(single, rounded[1], [one[1] for one in gathered]),
                "collectives": [one[2] for one in gathered],
                "actions": [one[3] for one in gathered],
            }
        if name in IN_BF16:
            differences = [_bf16_difference(plan, precision, reporter) for precision in BF16]
            if reporter.rank == 0:
                found[name]["bf16"] = differences
    return found


def _bf16_difference(plan: Plan, precision: Precision, reporter: Reporter) -> dict[str, Any]:
    """Of three steps' losses, against one process that rounds where this one does."""
    rounded = replace(plan, training=replace(plan.training, precision=precision))
    session, _, counter = _train(rounded, reporter, 1)
    surplus = _surplus(rounded, session, counter)
    _, outcomes, _ = _train(rounded, reporter, STEPS, BF16_LEARNING_RATE)
    alone = one_process(rounded)
    expected = _train(alone, None, STEPS, BF16_LEARNING_RATE)[1] if reporter.rank == 0 else outcomes
    pairs = zip(outcomes, expected, strict=True)
    return {"loss": max(abs(a[0] - b[0]) / b[0] for a, b in pairs), "collectives": surplus}


def _train(
    plan: Plan, reporter: Reporter | None, steps: int, learning_rate: float = LEARNING_RATE
) -> tuple[Session, list[tuple[float, float]], CollectiveCounter]:
    settings = optimizer_settings(plan.training.precision, learning_rate, plan.strategy.zero, seed=0)
    rank = reporter.rank if reporter else 0

    def on_action(action: str) -> None:
        counter.phase = "sync" if action.startswith("summing") else "backward" if action[0] == "W" else "forward"
        counter.actions.append(action)

    session = Session(plan, rank, torch.device("cpu"), settings, seed=0, on_action=on_action)
    counter = CollectiveCounter(session)

    numbers = np.random.default_rng(0)
    outcomes = []
    for _ in range(steps):
        shape = (plan.training.global_batch_size, plan.training.sequence_length + 1)
        tokens = numbers.integers(0, plan.model.vocab_size, shape)
        counter.phase = "forward"
        with counter:
            outcome = session.step(tokens[:, :-1].copy(), tokens[:, 1:].copy(), learning_rate, keep_gradients=True)
        outcomes.append((outcome.loss, outcome.gradient_norm))
    return session, outcomes, counter


def _local_tensors(session: Session) -> dict[int, dict[str, tuple[torch.Tensor, torch.Tensor]]]:
    gradients, masters = session.optimizer.gradients(), session.optimizer.masters()
    return {
        stage: {t.name: (gradients[t.name], masters[t.name]) for t in module.program.graph.parameters()}
        for stage, module in session.modules.items()
    }


def _surplus(plan: Plan, session: Session, counter: CollectiveCounter) -> dict[str, str]:
    """Collectives executed beyond the plan's and planned but not executed, as text; both empty when all agree."""
    planned: Counter[tuple[str, str, tuple[str, ...], int]] = Counter()
    for one, count in step_collectives(plan, session.stages[0].pipeline_rank).items():
        planned[_phase_seen(one), one.kind, one.axes, one.bytes] += count
    return {"executed": str(dict(counter.seen - planned)), "planned": str(dict(planned - counter.seen))}


def _phase_seen(one: Collective) -> str:
    return "backward" if one.phase == "recompute" else one.phase


def _against_one_process(plan: Plan, outcomes: list[tuple[float, float]], ranks: list[Any]) -> dict[str, Any]:
    session, expected, _ = _train(one_process(plan), None, len(outcomes))
    gradients, masters = session.optimizer.gradients(), session.optimizer.masters()
    largest = max(float(gradient.norm()) for gradient in gradients.values())
    differences: dict[str, float] = {"gradient": 0.0, "parameter": 0.0}
    for stage in plan.stages:
        program = plan.program(stage.layers, stage.has_embedding, stage.has_head)
        for tensor in program.graph.parameters():
            if float(gradients[tensor.name].norm()) < NEGLIGIBLE * largest:
                continue
            for position, (what, alone) in enumerate((("gradient", gradients), ("parameter", masters))):
                held = {
                    rank: own[stage.index][tensor.name][position]
                    for rank, own in enumerate(ranks)
                    if stage.index in own
                }
                whole = assemble(held, tensor.dims, program.states[tensor.name], plan.mesh)
                reference = alone[tensor.name]
                for dim, size in enumerate(reference.shape):
                    whole = whole.narrow(dim, 0, size)
                difference = float((whole - reference).norm() / reference.norm())
                differences[what] = max(differences[what], difference)
    return {
        "loss": max(abs(a[0] - b[0]) / abs(b[0]) for a, b in zip(outcomes, expected, strict=True)),
        "norm": max(abs(a[1] - b[1]) / b[1] for a, b in zip(outcomes, expected, strict=True)),
        **differences,
        "losses": [loss for loss, _ in outcomes],
    }
