"""A made-up third backend, thin over the torch one: its record, the functions of its module, what its processes run."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from autoshard.backends.backend import Backend
from autoshard.backends.problem import Draft, Problem, Rule
from autoshard.backends.registry import BACKENDS
from autoshard.layout.mesh import AXIS_ORDER
from autoshard.plans.plan import Plan
from autoshard.runtime.session import Profiler, StepResult, Tokens
from autoshard.runtime.torch_backend.devices import connect as connect
from autoshard.runtime.torch_backend.devices import device_of as device_of
from autoshard.runtime.torch_backend.optimizer_settings import OptimizerSettings
from autoshard.runtime.torch_backend.session import Session
from autoshard.runtime.trainer import worker
from autoshard.runtime.worker import Reporter
from autoshard.runtime.worker_arguments import TrainArguments


def shards_over_two_ranks(problem: Problem, draft: Draft) -> str | None:
    """The one rule that is its own."""
    return f"tp={draft.tp}: Thin shards over 2 ranks at most; use tp=2" if draft.tp > 2 else None


THIN = Backend(
    name="thin",
    label="Thin",
    runtime="tests.multiprocess.third_backend",
    runs_schedule=lambda name: name == "1f1b",
    axis_orders=(AXIS_ORDER,),
    zero_stages=(1, 0),
    context_parallel=("all_gather",),
    mesh_rules=(Rule("Thin shards over two ranks", shards_over_two_ranks),),
    refuses={"profile": "profile={value}: Thin has no clock"},
)


class ThinSession(Session):
    """The torch session, which says that it is thin and counts its steps."""

    steps = 0

    def step(self, *given: Any, **named: Any) -> StepResult:
        self.steps += 1
        return super().step(*given, **named)

    def evaluate(self, inputs: Tokens, labels: Tokens, starts: Tokens | None = None) -> float:
        return super().evaluate(inputs, labels, starts) + 1000 * self.steps


def import_early(compiles: bool) -> None:
    pass


def open_session(
    plan: Plan,
    rank: int,
    device: torch.device,
    settings: OptimizerSettings,
    arguments: TrainArguments,
    timeout: timedelta,
    on_action: Callable[[str], None],
) -> ThinSession:
    session = ThinSession(plan, rank, device, settings, arguments.seed, on_action, timeout=timeout)
    session.repairs = ("Thin does nothing itself",)
    return session


def profiler(session: ThinSession, zero_s: float) -> Profiler:
    raise AssertionError("refused by the record")


def train(values: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """The trainer's, in a process that knows the record."""
    BACKENDS[THIN.name] = THIN
    return worker.train(values, reporter)


def compare(values: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """The trainer's, in a process that knows the record."""
    BACKENDS[THIN.name] = THIN
    return worker.compare(values, reporter)
