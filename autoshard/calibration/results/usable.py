"""Sorts files of results into cases that can be fitted, with reasons why other rows cannot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from autoshard.calibration.calibration import digest
from autoshard.calibration.results import collective_rows, gpu_rows, instance_rows
from autoshard.calibration.results.collective_rows import CollectiveCase, collective_case
from autoshard.calibration.results.gpu_rows import Case, gpu_case
from autoshard.calibration.results.instance_rows import InstanceCase, instance_case
from autoshard.calibration.results.machine import hardware
from autoshard.calibration.results.rows import Row, Unscored, check_columns, read_lines
from autoshard.calibration.results.stack_fit import estimates
from autoshard.cost.estimate import Estimate, estimate
from autoshard.errors import AutoshardError
from autoshard.units import format_seconds

AnyCase = TypeVar("AnyCase")
MOST_MFU = 4.0
"""The largest share of the peak in half precision that a row may claim: products of four bits reach four times that
peak."""
MOST_ROWS = 3_000
"""Rows of a file: each takes some 15 ms to read and as much again to fit; the largest published file has 2,289."""
MOST_SLOWER = 100.0
"""Times the predicted step that a row may claim: published outliers are several times slower than their repeats, a time
in milliseconds a thousand times."""


@dataclass(frozen=True)
class Usable(Generic[AnyCase]):
    """The usable cases of one file. sha256: of the file. unused: (line, reason) of the other rows. assumed: what was
    assumed of usable ones, as (line, sentence)."""

    path: Path
    sha256: str
    cases: list[AnyCase]
    unused: list[tuple[int, str]]
    assumed: list[tuple[int, str]] = field(default_factory=list)

    def note(self) -> list[str]:
        """How many rows are not used, or used with something assumed, and a line for each reason with the lines that it
        holds for; empty where all rows are used as they are."""
        count = len(self.unused) + len(self.cases)
        page = []
        for found, how in ((self.unused, "not used"), (self.assumed, "read with an assumption")):
            lines: dict[str, list[str]] = defaultdict(list)
            for line, reason in found:
                lines[reason].append(str(line))
            if found:
                be = "is" if len(found) == 1 else "are"
                page.append(f"{len(found)} of {count} rows of {self.path.name} {be} {how}:")
            page += [f"  line {', '.join(where)}: {reason}" for reason, where in lines.items()]
        return page


@dataclass(frozen=True)
class Results:
    """At most one file of each kind. gpus: rows that name a GPU and its software. instances: rows that name an instance
    type. collectives: times of collectives."""

    gpus: Usable[Case] | None
    instances: Usable[InstanceCase] | None
    collectives: Usable[CollectiveCase] | None

    def notes(self) -> list[str]:
        return [line for one in (self.gpus, self.instances, self.collectives) if one for line in one.note()]


def read_results(
    paths: Sequence[Path], collectives: Path | None, instance: str | None = None, hardware_file: Path | None = None
) -> Results:
    """The cases in files of results. instance: only rows of this instance are used; hardware_file describes it where
    given.

    Raises AutoshardError for a file that cannot be read, lacks a column or has no usable row, and for two files of one
    kind.
    """
    gpus: Usable[Case] | None = None
    instances: Usable[InstanceCase] | None = None
    for path in paths:
        rows = _some_rows(path)
        first = next(iter(rows.values()))
        if "instance" in first:
            _only_one("instance types", instances, path)
            check_columns(path, first, instance_rows.COLUMNS)
            if not {"step_time_s", "seq_per_s"} & set(first):
                raise AutoshardError(f"{path} lacks the column step_time_s or seq_per_s")
            instances = _usable(path, rows, lambda row: _of_instance(row, instance, hardware_file))
        elif "gpu" in first:
            _only_one("GPUs", gpus, path)
            check_columns(path, first, gpu_rows.COLUMNS)
            gpus = _usable(path, rows, lambda row: _of_gpu(row, instance))
        else:
            raise AutoshardError(
                f"{path} lacks the column instance, of results on an instance type, or gpu, of results on GPUs"
            )
    times = None
    if collectives is not None:
        rows = _some_rows(collectives)
        check_columns(collectives, next(iter(rows.values())), collective_rows.COLUMNS)
        times = _usable(collectives, rows, lambda row: _collective(row, instance, hardware_file))
    return Results(gpus, instances, times)


def _some_rows(path: Path) -> dict[int, Row]:
    rows = read_lines(path)
    if len(rows) > MOST_ROWS:
        instead = "one row for each layout, with the median of its times, says as much as a row for each run"
        raise AutoshardError(f"{path} has {len(rows):,} rows, and {MOST_ROWS:,} is the most; {instead}")
    if rows:
        return rows
    raise AutoshardError(f"{path} has no rows below its first line, which names the columns")


def _only_one(of: str, before: Usable[AnyCase] | None, path: Path) -> None:
    if before is not None:
        raise AutoshardError(f"results: {before.path} and {path} both are results on {of}; join them into one file")


def _usable(path: Path, rows: Mapping[int, Row], case_of: Callable[[Row], AnyCase]) -> Usable[AnyCase]:
    cases, unused, assumed = [], [], []
    for number, row in rows.items():
        try:
            case = case_of({"line": f"line {number}", **row})
            cases.append(case)
            if isinstance(case, Case) and case.assumed:
                assumed.append((number, case.assumed))
        except Unscored as error:  # noqa: PERF203
            unused.append((number, str(error)))
        except Exception as error:  # a row may hold anything; what goes wrong with it is its reason
            unused.append((number, f"cannot be priced: {type(error).__name__}: {error}"))
    if not cases:
        line, reason = unused[0]
        raise AutoshardError(f"{path}: none of its {len(rows)} rows can be used; the first, line {line}: {reason}")
    return Usable(path, digest(path.read_bytes()), cases, unused, assumed)


def _of_instance(row: Row, instance: str | None, hardware_file: Path | None) -> InstanceCase:
    named = row["instance"].split("/")
    if instance is not None and instance not in named:
        raise Unscored(f"instance={row['instance']!r} is not {instance}")
    case = instance_case({**row, "instance": instance or named[0]}, hardware_file)
    _check_time(case.time_s, estimate(case.model, case.training, case.cluster, case.strategy))
    return case


def _of_gpu(row: Row, instance: str | None) -> Case:
    case = gpu_case(row)
    name, _ = hardware(case)
    if instance is not None and name != instance:
        raise Unscored(f"gpu={case.gpu!r} is {name}, not {instance}")
    _check_time(case.time_s, estimates([case], {})[0])
    return case


def _check_time(time_s: float | None, expected: Estimate) -> None:
    """Raises Unscored for a step that no device is fast enough for, or that is far slower than any was, as where a unit
    is wrong. expected: of its layout."""
    if not time_s:
        return
    least_s = expected.mfu * expected.step_time_s / MOST_MFU
    if time_s < least_s:
        raise Unscored(
            f"a step of {format_seconds(time_s)} is faster than the devices are: "
            f"the model's own products take {format_seconds(least_s)} at {MOST_MFU:g} times their half-precision peak"
        )
    if time_s > MOST_SLOWER * expected.step_time_s:
        raise Unscored(
            f"a step of {format_seconds(time_s)} is more than {MOST_SLOWER:g} times as long as the "
            f"{format_seconds(expected.step_time_s)} that such a step takes: times are in seconds"
        )


def _collective(row: Row, instance: str | None, hardware_file: Path | None) -> CollectiveCase:
    case = collective_case(row, hardware_file)
    if instance is not None and case.cluster.instance != instance:
        raise Unscored(f"instance_stated={row['instance_stated']!r} is not {instance}")
    return case
