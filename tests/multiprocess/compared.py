"""What processes of the parity tests share: how they meet, train, count collectives and compare with one process."""

import gc
from collections import Counter
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from autoshard.graph.count import Collective
from autoshard.plans.plan import Plan
from autoshard.plans.step_collectives import step_collectives
from autoshard.runtime.rehearse import one_process
from autoshard.runtime.torch_backend import devices
from autoshard.runtime.torch_backend.compiled import Compiler
from autoshard.runtime.torch_backend.onlooker import Onlooker
from autoshard.runtime.torch_backend.optimizer_settings import optimizer_settings
from autoshard.runtime.torch_backend.parameters import assemble
from autoshard.runtime.torch_backend.session import Session
from autoshard.runtime.torch_backend.shm_collectives import NAMESPACE
from autoshard.runtime.worker import Reporter

LEARNING_RATE = 1e-2
NEGLIGIBLE = 1e-6
"""A gradient this much smaller than the largest is rounding: that of a key's bias is zero in exact arithmetic."""
TIMEOUT_S = 300.0
CPU = torch.device("cpu")

Outcomes = list[tuple[float, float]]
"""Loss and gradient norm of each step."""
Array = npt.NDArray[np.floating[Any]]
Arrays = dict[int, dict[str, tuple[Array, Array]]]
"""Stage -> name -> gradient and master parameter. Tensors would take the whole buffer that they are views of along."""


def connect(reporter: Reporter, device: torch.device = CPU) -> None:
    devices.connect(device, timedelta(seconds=TIMEOUT_S), reporter)
    gc.freeze()  # what was imported: to look through it after each case takes longer than all that cases leave


class CollectiveCounter(Onlooker):
    """Every collective operator that this process issues, by phase; recompute happens inside backward. There are none
    in what torch compiles."""

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
            size = max(tensor.numel() * tensor.element_size() for tensor in (args[0], out))
            if kind == "all_to_all" and self.phase == "sync":  # of matrices: all send as much, and get more or less
                size = args[0].numel() * args[0].element_size()
            elif kind == "all_to_all" and len(set(args[1])) > 1:  # one destination, one source
                kind = "send_recv"
            inside_backward = torch._C._current_graph_task_id() != -1
            phase = "backward" if inside_backward and self.phase == "forward" else self.phase
            self.seen[phase, kind, self._axes.get(args[-1], ("pp",)), size] += 1
        return out

    def on_action(self, action: str) -> None:
        self.phase = "sync" if action.startswith("summing") else "backward" if action[0] == "W" else "forward"
        self.actions.append(action)


def train(
    plan: Plan,
    rank: int,
    steps: int,
    counted: bool = False,
    learning_rate: float = LEARNING_RATE,
    documents: bool = False,
    compiler: Compiler | None = None,
    device: torch.device = CPU,
) -> tuple[Session, Outcomes, CollectiveCounter]:
    """Steps on random tokens. counted: the first step's collectives are, which takes longer than the step itself.

    documents: rows hold several, each of which attends to itself alone.
    """
    settings = optimizer_settings(plan.training.precision, learning_rate, plan.strategy.zero, seed=0)
    session = Session(
        plan,
        rank,
        device,
        settings,
        seed=0,
        on_action=lambda action: counter.on_action(action),
        documents=documents,
        compiler=compiler,
    )
    counter = CollectiveCounter(session)
    numbers = np.random.default_rng(0)
    outcomes = []
    for step in range(steps):
        shape = (plan.training.global_batch_size, plan.training.sequence_length + 1)
        tokens = numbers.integers(0, plan.model.vocab_size, shape)
        counter.phase = "forward"
        with counter if counted and step == 0 else nullcontext():
            inputs, labels = tokens[:, :-1].copy(), tokens[:, 1:].copy()
            starts = random_starts(inputs.shape, step) if documents else None
            outcome = session.step(inputs, labels, learning_rate, keep_gradients=True, starts=starts)
        outcomes.append((outcome.loss, outcome.gradient_norm))
    return session, outcomes, counter


def random_starts(shape: tuple[int, int], seed: int) -> npt.NDArray[np.int64]:
    """Where the document of each place begins, at every fifth place or so another one."""
    begins = np.random.default_rng(seed).random(shape) < 0.2
    return np.maximum.accumulate(np.where(begins, np.arange(shape[1]), 0), axis=1)


def leave_groups() -> None:
    """Ends every process group but that of all ranks, when no session needs them any more. Each has threads that wake
    up a hundred times a second: those of hundreds of cases take half of a machine's time."""
    for group in [one for one in distributed_c10d._world.pg_map if one is not dist.group.WORLD]:
        dist.destroy_process_group(group)
    gc.collect()


def local_arrays(session: Session) -> Arrays:
    values = session.optimizer.gradients(), session.optimizer.masters()
    gradients, masters = ({name: _array(one) for name, one in found.items()} for found in values)
    return {
        stage: {t.name: (gradients[t.name], masters[t.name]) for t in module.program.graph.learned()}
        for stage, module in session.modules.items()
    }


def _array(x: torch.Tensor) -> Array:
    return (x.float() if x.dtype == torch.bfloat16 else x).cpu().numpy()


def at_rank_0(value: Any, reporter: Reporter) -> list[Any]:
    """The value of every rank; on other ranks than the first nothing."""
    gathered = [None] * reporter.world_size if reporter.rank == 0 else None
    dist.gather_object(value, gathered)
    return gathered or []


def surplus(plan: Plan, session: Session, counter: CollectiveCounter) -> dict[str, str]:
    """Collectives executed beyond the plan's and planned but not executed, as text; both empty when all agree."""
    planned: Counter[tuple[str, str, tuple[str, ...], int]] = Counter()
    for one, count in step_collectives(plan, session.stages[0].pipeline_rank).items():
        planned[_phase_seen(one), one.kind, one.axes, one.bytes] += count
    return {"executed": str(dict(counter.seen - planned)), "planned": str(dict(planned - counter.seen))}


def _phase_seen(one: Collective) -> str:
    return "backward" if one.phase == "recompute" else one.phase


def against_one_process(plan: Plan, outcomes: Outcomes, ranks: list[Arrays], documents: bool = False) -> dict[str, Any]:
    """Largest relative differences of loss, gradient norm, gradients of the last step, and parameters after it."""
    gradients, masters, expected = _alone(plan, len(outcomes), documents)
    largest = max(float(gradient.norm()) for gradient in gradients.values())
    differences: dict[str, float] = {"gradient": 0.0, "parameter": 0.0}
    for stage in plan.stages:
        program = plan.program(stage.layers, stage.has_embedding, stage.has_head)
        for tensor in program.graph.learned():
            if float(gradients[tensor.name].norm()) < NEGLIGIBLE * largest:
                continue
            for position, (what, alone) in enumerate((("gradient", gradients), ("parameter", masters))):
                held = {
                    rank: torch.from_numpy(own[stage.index][tensor.name][position])
                    for rank, own in enumerate(ranks)
                    if stage.index in own
                }
                whole = assemble(held, tensor.dims, program.states[tensor.name], plan.mesh)
                reference = alone[tensor.name]
                padded = whole
                for dim, size in enumerate(reference.shape):
                    whole = whole.narrow(dim, 0, size)
                assert padded.count_nonzero() == whole.count_nonzero(), f"padding of {tensor.name} was trained"
                difference = float((whole - reference).norm() / reference.norm())
                differences[what] = max(differences[what], difference)
    return {
        "loss": max(abs(a[0] - b[0]) / abs(b[0]) for a, b in zip(outcomes, expected, strict=True)),
        "norm": max(abs(a[1] - b[1]) / b[1] for a, b in zip(outcomes, expected, strict=True)),
        **differences,
        "losses": [loss for loss, _ in outcomes],
    }


Alone = tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], Outcomes]
_TRAINED_ALONE: dict[Any, Alone] = {}


def _alone(plan: Plan, steps: int, documents: bool) -> Alone:
    """Gradients, masters and outcomes of one process; layouts that are the same training there share them."""
    alone = one_process(plan)
    key = alone.model, alone.training, alone.strategy, steps, documents
    if key not in _TRAINED_ALONE:
        session, outcomes, _ = train(alone, 0, steps, documents=documents)
        _TRAINED_ALONE[key] = session.optimizer.gradients(), session.optimizer.masters(), outcomes
    return _TRAINED_ALONE[key]
