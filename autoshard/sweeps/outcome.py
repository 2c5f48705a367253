"""The outcome of one point of a sweep: its plan in numbers and, where the plan was executed, what that took."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from autoshard.backends.problem import Problem
from autoshard.plans.names import layout_name
from autoshard.plans.plan import Plan
from autoshard.runtime.options import PATHS

OK, DOES_NOT_FIT, INVALID, LOST = "ok", "does not fit", "invalid", "lost"
STATUSES = (OK, DOES_NOT_FIT, INVALID, LOST)
EXECUTED, REHEARSED, DIFFERS, FAILED = "executed", "rehearsed", "rehearsal differs", "failed"
NOTE_END = " | "
RUNS = ("", EXECUTED, REHEARSED, DIFFERS, FAILED)


@dataclass(frozen=True)
class Outcome:
    """The result of one point. Numbers are None unless status is 'ok'; reason says why it is not.

    status 'lost': the worker ended while it did this point; the next sweep tries again. run: '' where the plan was not
    executed, else how that ended. run_options: JSON of the options that it was executed with. run_files: digest of the
    files that these name. notes: the plan's, with NOTE_END between.
    run_predicted_step_time_s: the prediction for what ran, which a rehearsal has shrunk. measured_memory_bytes: peak of
    the fullest rank.
    """

    status: str
    reason: str = ""
    chosen_precision: str | None = None
    chosen_lnc: int | None = None
    chosen_backend: str | None = None
    chosen_stack: str | None = None
    chosen_nodes: int | None = None
    devices: int | None = None
    layout: str | None = None
    step_time_s: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    usd_per_billion_tokens: float | None = None
    memory_bytes: float | None = None
    memory_capacity_bytes: float | None = None
    fits_probability: float | None = None
    run: str = ""
    run_reason: str = ""
    run_options: str = ""
    run_folder: str = ""
    run_predicted_step_time_s: float | None = None
    measured_step_time_s: float | None = None
    measured_tokens_per_s: float | None = None
    measured_memory_bytes: float | None = None
    last_loss: float | None = None
    run_files: str = ""
    notes: str = ""


RESULTS = tuple(field.name for field in fields(Outcome))
"""Columns that follow those of the options."""
CHOSEN = {name.removeprefix("chosen_"): name for name in RESULTS if name.startswith("chosen_")}
"""Option that may be searched -> the field of what was chosen."""
TEXTS = ("status", "reason", "run", "run_reason", "run_options", "run_folder", "run_files", "notes")
"""Fields of text that is never None."""


def outcome_of(plan: Plan) -> Outcome:
    """The plan in numbers; it was not executed."""
    estimate = plan.estimate
    chosen = {**Problem(plan.model, plan.training, plan.cluster, plan.backend).chosen, "nodes": plan.cluster.nodes}
    return Outcome(
        OK,
        **{field: chosen[option] for option, field in CHOSEN.items()},
        devices=plan.cluster.world_size,
        layout=layout_name(plan.strategy),
        step_time_s=estimate.step_time_s,
        tokens_per_s=estimate.tokens_per_s,
        mfu=estimate.mfu,
        usd_per_billion_tokens=plan.cluster.usd_per_billion_tokens(estimate.tokens_per_s),
        memory_bytes=estimate.fullest.total_bytes,
        memory_capacity_bytes=estimate.memory_capacity_bytes,
        fits_probability=estimate.fits_probability,
        notes=NOTE_END.join(plan.notes),
    )


def asked_of(run: Mapping[str, Any]) -> dict[str, Any]:
    """run_options and run_files of the Outcome of such a run. run: fields of RunOptions.

    Data and weights may have terabytes, so run_files covers the path, size and time of each file; '' without any.
    """
    digest = hashlib.sha256()
    found = False
    for name in PATHS:
        if run.get(name) is not None:
            path = Path(run[name])
            for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
                if file.is_file():
                    stat = file.stat()
                    digest.update(json.dumps([name, str(file), stat.st_size, stat.st_mtime_ns]).encode())
                    found = True
    return {
        "run_options": json.dumps(dict(run), sort_keys=True),
        "run_files": digest.hexdigest()[:12] if found else "",
    }
