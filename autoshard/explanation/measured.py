"""Compares what a run measured with what its plan predicted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from autoshard.errors import AutoshardError
from autoshard.explanation.page import Line, heading, table, wrapped
from autoshard.plans.measured_run import MeasuredRun, Profile, read_measured_run
from autoshard.plans.plan import Plan
from autoshard.plans.plan_json import text_digest
from autoshard.units import format_bytes, format_number, format_seconds

COMPUTING = "computing"
SHARES = {
    "collectives": (
        "collectives_s",
        ("tensor-parallel collectives", "context-parallel collectives", "expert-parallel collectives"),
    ),
    "waiting in the pipeline": ("waiting_s", ("pipeline bubble", "pipeline transfers")),
    "gradient sums": ("gradient_sync_s", ("gradient reduce-scatter", "other gradient sums")),
    "parameter all-gather": ("parameter_gather_s", ("parameter all-gather",)),
    "optimizer update": ("update_s", ("optimizer update",)),
}
"""Part of a profiled step -> (its field in a RankProfile, the plan's terms that predict it). The rest is computing."""


@dataclass(frozen=True)
class Measured:
    """One measured number of a run. unit: 's', 'bytes', 'tokens/s' or 'share'. predicted: the plan's value of it."""

    name: str
    unit: str
    predicted: float
    actual: float

    @property
    def ratio(self) -> float | None:
        """The measured value over the predicted one; None where nothing was predicted."""
        return self.actual / self.predicted if self.predicted else None


@dataclass(frozen=True)
class Run:
    """The numbers of a run.json beside its plan. low_s, high_s: the plan's 90 % interval of the step time. steps: how
    many were run."""

    steps: int
    step_p10_s: float
    step_p90_s: float
    within: bool
    rows: tuple[Measured, ...]


def measured_run(plan: Plan, path: str) -> Run:
    """The run.json at `path` beside its plan. Raises AutoshardError where the run was of another plan or the file is
    none."""
    return beside_plan(plan, of_this_plan(plan, path))


def of_this_plan(plan: Plan, path: str) -> MeasuredRun:
    """The run.json at `path`. Raises AutoshardError where the run was of another plan, where a number of it that the
    plan decides is another than the plan's, and where the file is none."""
    measured = read_measured_run(path)
    if measured.plan_sha256 != text_digest(plan):
        raise AutoshardError(
            f"{path} was measured with another plan, on {measured.world_size} ranks; this one has "
            f"{plan.mesh.world_size}. A rehearsal runs a plan of its own: rehearsal_plan.json in its folder"
        )
    for name, planned in (
        ("world_size", plan.mesh.world_size),
        ("global_batch_size", plan.training.global_batch_size),
        ("sequence_length", plan.training.sequence_length),
    ):
        if getattr(measured, name) != planned:
            raise AutoshardError(f"{name}={getattr(measured, name)} of {path} must be this plan's, {planned}")
    last = max(one.rank for one in measured.ranks)
    if last >= plan.mesh.world_size:
        raise AutoshardError(f"{path} has a rank {last}; this plan has {plan.mesh.world_size}, counted from 0")
    return measured


def beside_plan(plan: Plan, measured: MeasuredRun) -> Run:
    """The numbers of a run of a plan beside those that were predicted."""
    times, estimate = measured.step_time_s, plan.estimate
    within = estimate.step_time_low_s <= times.median <= estimate.step_time_high_s
    return Run(measured.steps, times.p10, times.p90, within, tuple(_rows(plan, measured)))


def _rows(plan: Plan, measured: MeasuredRun) -> Iterator[Measured]:
    estimate = plan.estimate
    yield Measured("step time, median", "s", estimate.step_time_s, measured.step_time_s.median)
    yield Measured("tokens/s", "tokens/s", estimate.tokens_per_s, measured.tokens_per_s)
    if measured.profile is not None:
        yield from _profile(plan, measured.profile)
    by_rank: dict[int, float] = {}
    for one in measured.ranks:
        pipeline_rank = plan.mesh.coordinates(one.rank)[0]
        by_rank[pipeline_rank] = max(by_rank.get(pipeline_rank, 0.0), one.peak_memory_bytes)
    for pipeline_rank, peak in sorted(by_rank.items()):
        planned = estimate.memory[pipeline_rank].total_bytes
        yield Measured(f"peak memory, pipeline rank {pipeline_rank}", "bytes", planned, peak)


def _profile(plan: Plan, profile: Profile) -> Iterator[Measured]:
    """Measured parts of a step of the rank that computes longest; the plan's terms are those of the busiest rank
    too."""
    terms = {term.name: term.value for term in plan.estimate.time_terms}
    busiest = max(profile.ranks, key=attrgetter("actions_s"))
    claimed = {name for _, names in SHARES.values() for name in names}
    computing = sum(seconds for name, seconds in terms.items() if name not in claimed)
    yield Measured("step time, profiled", "s", plan.estimate.step_time_s, busiest.step_s)
    yield Measured(COMPUTING, "s", computing, busiest.actions_s - busiest.collectives_s)
    for name, (field, predicted) in SHARES.items():
        yield Measured(name, "s", sum(terms.get(one, 0.0) for one in predicted), getattr(busiest, field))
    yield Measured("bubble, all ranks", "share", profile.planned_bubble_fraction, profile.bubble_fraction)


def measured_lines(run: Run, width: int) -> list[Line]:
    """A table of predicted and measured values and their ratio. width: columns."""
    where = "within" if run.within else "outside"
    text = (
        f"{run.steps:,} steps; 80 % of them took {format_seconds(run.step_p10_s)} to {format_seconds(run.step_p90_s)}; "
        f"the median is {where} the predicted 90 % interval"
    )
    rows = [
        (
            one.name,
            f"~{quantity_text(one, one.predicted)}",
            quantity_text(one, one.actual),
            "-" if one.ratio is None else f"{one.ratio:.2f}",
        )
        for one in run.rows
    ]
    lines = [*heading("Measured", text, width), *table(("", "predicted", "actual", "ratio"), rows, width, (1, 2, 3))]
    note = "Peak memory on a CPU is that of the whole process, libraries included."
    if any(one.name == COMPUTING for one in run.rows):
        note += (
            f" Rows from {COMPUTING} to optimizer update are averages over the profiled steps, on the rank that "
            "computes longest; collectives include the time that it waits in them."
        )
    return [*lines, *wrapped(note, width, "  ")]


def quantity_text(one: Measured, value: float) -> str:
    """One of its two values, in its unit, as text."""
    if one.unit == "s":
        return format_seconds(value)
    if one.unit == "bytes":
        return format_bytes(value)
    return f"{value:.1%}" if one.unit == "share" else format_number(value)
