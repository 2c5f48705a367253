"""One point of a sweep as a task that any process can do: plan it and, where asked, execute the plan."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autoshard.errors import AutoshardError, NoLayoutFits
from autoshard.planner.options import request_from
from autoshard.planner.request import PlanRequest
from autoshard.plans.plan import Plan
from autoshard.sweeps.outcome import DOES_NOT_FIT, INVALID, Outcome, outcome_of

PlanFor = Callable[[PlanRequest], Plan]


@dataclass(frozen=True)
class Task:
    """A point to do. point: options of `autoshard plan`. folder: where its run writes. run: fields of RunOptions with
    which its plan is executed; None: it is only planned. project, group: of the run on Weights & Biases; None: nothing
    is logged there."""

    point: Mapping[str, Any]
    folder: str = ""
    run: Mapping[str, Any] | None = None
    project: str | None = None
    group: str | None = None


Spread = Callable[[Sequence[Task]], Iterator[tuple[Task, Outcome]]]
"""A function that does tasks somewhere and yields each once, with its outcome, as they end."""


def done(task: Task, plan_for: PlanFor) -> Outcome:
    """The outcome of one task. A point that does not fit or asks for something impossible is an outcome, too; it does
    not end the sweep."""
    try:
        plan = plan_for(request_from(task.point, top=0))
    except NoLayoutFits as error:
        return Outcome(DOES_NOT_FIT, str(error))
    except AutoshardError as error:
        return Outcome(INVALID, str(error))
    if task.run is None:
        return outcome_of(plan)
    from autoshard.sweeps.execute import executed

    return executed(plan, Path(task.folder), task.run, task.project, task.group)


def in_turn(plan_for: PlanFor) -> Spread:
    """Does tasks one after the other in this process."""

    def spread(tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        for task in tasks:
            yield task, done(task, plan_for)

    return spread


def task_json(task: Task) -> str:
    """The task as text for another process."""
    return json.dumps(asdict(task))


def done_json(text: str) -> str:
    """The outcome, as text, of the task in a text."""
    from autoshard.planner.planning import plan_for

    return json.dumps(asdict(done(Task(**json.loads(text)), plan_for)))


def outcome_from(text: str) -> Outcome:
    """The outcome in what `done_json` returned."""
    return Outcome(**json.loads(text))
