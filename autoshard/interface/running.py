"""Calls from Python that execute something: audits, runs, sweeps, calibration."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoshard.audits.values import RoleAudit
from autoshard.errors import AutoshardError
from autoshard.files.fields import check_flag, own_number, show
from autoshard.interface.inputs import check_plan, path_of
from autoshard.interface.shown import Shown
from autoshard.interface.watch import counted, is_interactive
from autoshard.plans import plan as plans
from autoshard.runtime.options import options_from

if TYPE_CHECKING:
    from autoshard.sweeps.grid import Point, Sweep
    from autoshard.sweeps.outcome import Outcome
    from autoshard.sweeps.point import Spread

MANY_POINTS = 8
"""Points that are worth several processes, each of which takes a third of a second to start."""


@dataclass(frozen=True, repr=False)
class Audit(Shown):
    """The runtime's program at full size beside the plan, for each role that was looked at."""

    plan: plans.Plan
    roles: tuple[RoleAudit, ...]

    @property
    def agrees(self) -> bool:
        """Whether every role does what the plan says."""
        return all(one.agrees for one in self.roles)

    def to_dict(self) -> dict[str, Any]:
        """The audit as JSON values."""
        from autoshard.audits.report import to_dict

        return to_dict(self.plan, self.roles)

    def _page(self, width: int, color: bool) -> str:
        from autoshard.audits.report import render

        return render(self.plan, self.roles, width, color)


@dataclass(frozen=True)
class Run:
    """A run that ended. exit_code: 0; 1 where it failed or differs from one process; 128 + a signal where it was
    stopped. folder: what it wrote (metrics.jsonl, run.json, ...); None where it did not come so far."""

    exit_code: int
    folder: Path | None

    @property
    def ok(self) -> bool:
        """Whether it ended as it should."""
        return self.exit_code == 0


@dataclass(frozen=True, repr=False)
class SweepResult(Shown):
    """Every point of a sweep with its outcome, in grid order. folder: has results.csv. planned: points that were
    done now; the others were in the table already. places: where results went, for people."""

    sweep: Sweep
    outcomes: tuple[tuple[Point, Outcome], ...]
    folder: Path
    planned: int
    places: tuple[str, ...] = ()

    def table(self) -> dict[str, list[Any]]:
        """Columns: the options of the grid, then status, step_time_s, tokens_per_s, mfu, memory_bytes,
        fits_probability, layout, ...; None where a point has no plan."""
        from dataclasses import asdict

        rows = [
            {**{name: point[name] for name in self.sweep.grid}, **asdict(outcome)} for point, outcome in self.outcomes
        ]
        return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}

    def _page(self, width: int, color: bool) -> str:
        from autoshard.sweeps.page import sweep_page

        return sweep_page(self.sweep, self.outcomes, width, color)

    def __repr__(self) -> str:
        axes = ", ".join(f"{name} ({len(values)})" for name, values in self.sweep.grid.items())
        return f"<SweepResult, {axes}: {len(self.outcomes)} points, {self.folder}>"


def audit(plan: plans.Plan, *, stages: Sequence[int] | None = None, use_cache: bool = True) -> Audit:
    """Builds the program that the torch runtime would execute at full size, on fake tensors, and compares it with the
    plan: parameters and state, FLOPs by operator, every collective, the order of actions, peak memory. Needs torch.

    stages: pipeline ranks, each run in its own place with all microbatches that it holds; None: all, where one is run
    for those with the same program that hold more microbatches of it, and six of many tell of all. use_cache: take
    what was audited before. Raises AutoshardError for a pipeline rank that the plan does not have.
    """
    from autoshard.audits.cache import cache_file, load, save
    from autoshard.audits.progress import RoleProgress
    from autoshard.audits.roles import roles
    from autoshard.audits.run import audit as audited
    from autoshard.backends.products import check_runs
    from autoshard.backends.registry import ANYWHERE

    check_plan("audit", plan)
    check_flag("audit", "use_cache", use_cache)
    chosen = None
    if stages is not None:
        chosen = tuple(map(own_number, stages)) if isinstance(stages, (list, tuple, range)) else None
        if chosen is None or not all(type(one) is int for one in chosen):
            raise AutoshardError(f"stages={show(stages)} of audit must be pipeline ranks, such as [0, 7]")
    check_runs(ANYWHERE, plan.training.precision)
    in_place = chosen is not None
    wanted, file = roles(plan, chosen), cache_file(plan, in_place)
    by_rank = load(file) if use_cache else {}
    missing = sorted({role.pipeline_rank for role in wanted if role.rank not in by_rank})
    if missing:
        with RoleProgress(sys.stderr) as progress:
            by_rank |= {one.role.rank: one for one in audited(plan, tuple(missing), progress.update, in_place)}
        save(file, by_rank)
    return Audit(plan, tuple(by_rank[role.rank] for role in wanted))


def sweep(
    grid: Mapping[str, Any] | str | Path,
    out: str | Path | None = None,
    *,
    run: bool | Mapping[str, Any] = False,
    workers: int | None = 1,
    scheduler: str | None = None,
    shard: str | None = None,
    wandb: bool = False,
    wandb_project: str = "autoshard",
) -> SweepResult:
    """Plans every combination of a grid and writes results.csv and plot.png; what is in that table already is not
    planned again, also after this process was killed.

    grid: options of `plan`, lists of values among them: {"model": "llama3-8b", "nodes": [4, 8, 16]}; or a sweep file
    (YAML), or what it holds. out: folder of the results; None: sweeps/NAME. run: execute each plan too, or rehearse it
    where this machine is smaller; the options of `run` as a dict, or under `run` of the grid. workers: processes of
    this machine; None: one a core where many points are planned alone. scheduler: address of a Dask cluster that does
    the points instead (extra `cluster`). shard: "2/8" does the second of eight parts, into a folder of its own in out;
    without it their tables are gathered. wandb: one group of runs in wandb_project on Weights & Biases, offline without
    an account.
    Raises AutoshardError for an option that is none, where no point can be planned, and where another sweep writes to
    the folder.

    >>> import autoshard
    >>> found = autoshard.sweep({"model": "llama3-8b", "nodes": [2, 4], "seq_len": 4096})
    >>> found.table()["nodes"], found.folder.name
    ([2, 4], 'sweep')
    """
    from autoshard.doctor.machine import num_cores
    from autoshard.planner.planning import plan_for
    from autoshard.sweeps.grid import part, read_sweep, sweep_of, with_run
    from autoshard.sweeps.logs import write_logs
    from autoshard.sweeps.run import SHARDS, progress, run_sweep

    if not isinstance(grid, (Mapping, str, Path)):
        raise AutoshardError(f"grid={show(grid)} of sweep must be options of plan, or the path of a sweep file")
    asked = sweep_of(grid, "sweep") if isinstance(grid, Mapping) else read_sweep(Path(grid))
    if isinstance(run, Mapping):
        asked = with_run(asked, run)
    else:
        check_flag("sweep", "run", run)
    check_flag("sweep", "wandb", wandb)
    folder = path_of("sweep", "out", out) if out is not None else Path("sweeps") / asked.name
    if shard is not None:
        asked, folder = part(asked, shard), folder / SHARDS / shard.replace("/", "-of-")
    options = asked.run if run or isinstance(run, Mapping) else None
    if workers is None:
        many = len(asked.points) >= MANY_POINTS and options is None and scheduler is None
        workers = num_cores() if many else 1
    spread = _spread(workers, scheduler)
    project = wandb_project if wandb else None
    total, on_terminal = len(asked.points), sys.stderr.isatty()
    in_notebook = is_interactive() and not on_terminal
    with counted("points", total, sys.stderr) if in_notebook else progress(total, on_terminal) as advance:
        outcomes, planned = run_sweep(asked, folder, plan_for, advance, spread, options, project)
    places = write_logs(asked, outcomes, folder, project)
    return SweepResult(asked, tuple(outcomes), folder, planned, places)


def _spread(workers: int, scheduler: str | None) -> Spread | None:
    """The function that does the points elsewhere, None for this process. Raises AutoshardError where workers and a
    scheduler are both asked for."""
    workers = own_number(workers)
    if type(workers) is not int or workers < 1:
        raise AutoshardError(f"workers={workers!r} must be a whole number of at least 1")
    if scheduler is not None:
        from autoshard.sweeps.dask_cluster import on_dask

        if workers > 1:
            raise AutoshardError(f"workers={workers} beside scheduler={scheduler}, which has its own: leave it out")
        return on_dask(scheduler)
    if workers == 1:
        return None
    from autoshard.sweeps.workers import on_processes

    return on_processes(workers)


def run(plan: plans.Plan, **options: Any) -> Run:
    """Executes a plan, or rehearses it where this machine is smaller, in processes of its own, as `autoshard run`.

    options: those of `autoshard run`, with underscores: steps, learning_rate, data, weights, checkpoint_every, device,
    processes, ... (fields of RunOptions). Needs torch. What happens is printed. Raises AutoshardError where plan,
    machine and options do not go together.
    """
    from autoshard.runtime.run import run_plan

    check_plan("run", plan)
    folders: list[Path] = []
    code = run_plan(plan, options_from(options), folders.append)
    return Run(code, folders[0] if folders else None)
