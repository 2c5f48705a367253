"""Reads and writes run.json, what a run of a plan measured. Times are seconds, sizes bytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from autoshard.errors import AutoshardError
from autoshard.files.atomic_file import write_text
from autoshard.files.codec import Checked, Count, NotNegative, Positive, Share, Whole, from_json, to_json
from autoshard.files.fields import check_format
from autoshard.files.json_file import read_json
from autoshard.plans.plan_json import compact_json

FORMAT_VERSION = 1
_MAX_BYTES = 64_000_000
"""Some 100,000 ranks with a profile of each."""


def _check_not_empty(of: str, field: str, value: Any) -> None:
    if value == []:
        raise AutoshardError(f"{field} of {of} must not be empty")


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step, over all steps but the first, which warms up, and those that were profiled."""

    median: Positive
    p10: Positive
    p90: Positive


@dataclass(frozen=True)
class Compiled:
    """Counts of what the rank that compiled longest had to compile: segments between collectives, of which `distinct`
    were compiled, other functions, operators in all of these. compile_time_s: of their first calls."""

    segments: Whole
    distinct: Whole
    functions: Whole
    operators: Whole
    compile_time_s: NotNegative


@dataclass(frozen=True)
class RankMemory:
    """The most that a rank held of its device; on a CPU its process, libraries included."""

    rank: Whole
    stages: tuple[Whole, ...]
    peak_memory_bytes: Whole


@dataclass(frozen=True)
class RankProfile:
    """A profiled step of a rank, the mean of all. actions_s: of forwards and backwards; collectives_s is inside of
    them, but not what ZeRO-2 and ZeRO-3 sum and gather there: that is part of gradient_sync_s and parameter_gather_s.
    waiting_s: of the pipeline's time, in which no action ran. update_s: of the optimizer, what it does not communicate.

    Exposed communication is collectives_s + gradient_sync_s + parameter_gather_s.
    """

    rank: Whole
    step_s: NotNegative
    actions_s: NotNegative
    waiting_s: NotNegative
    collectives_s: NotNegative
    gradient_sync_s: NotNegative
    parameter_gather_s: NotNegative
    update_s: float


@dataclass(frozen=True)
class Profile:
    """The parts of profiled steps. bubble_fraction: the share of all ranks' pipeline time in which no action ran."""

    bubble_fraction: Share
    planned_bubble_fraction: Share
    ranks: Annotated[tuple[RankProfile, ...], Checked(_check_not_empty)]


@dataclass(frozen=True)
class MeasuredRun:
    """The numbers that a run of a plan leaves.

    plan_sha256: of plan.json, as `text_digest` has it. tokens_per_s: at the median. compile: None where nothing was
    compiled. ranks: those that are known where the file was written. profile: None without --profile.
    """

    format_version: int
    plan_sha256: str
    world_size: Count
    steps: Count
    global_batch_size: Count
    sequence_length: Count
    first_loss: float
    last_loss: float
    step_time_s: StepTimes
    tokens_per_s: Positive
    compile: Compiled | None
    ranks: Annotated[tuple[RankMemory, ...], Checked(_check_not_empty)]
    profile: Profile | None


def write_measured_run(run: MeasuredRun, path: Path) -> None:
    """Write run.json, whole or not at all. Raises AutoshardError where it cannot be written."""
    write_text(path, compact_json(to_json(run)) + "\n", "measured run")


def read_measured_run(path: str | Path) -> MeasuredRun:
    """The run that a run.json tells of. Raises AutoshardError for a file that is none."""
    values = read_json(path, "measured run", _MAX_BYTES)
    if not isinstance(values, dict) or "plan_sha256" not in values or "step_time_s" not in values:
        raise AutoshardError(f"{path} is no run.json, which `autoshard run` writes into the folder of a run")
    check_format(str(path), values.get("format_version"), FORMAT_VERSION)
    return from_json(MeasuredRun, values, str(path))
