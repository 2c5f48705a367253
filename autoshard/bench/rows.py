"""Measured results as predictors see them, and the fixed splits into what they may learn from and what they predict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from autoshard.calibration.results.gpu_rows import Case, gpu_case
from autoshard.calibration.results.instance_rows import InstanceCase, instance_case
from autoshard.calibration.results.machine import hardware
from autoshard.calibration.results.rows import Row, Unscored, read_rows
from autoshard.calibration.results.stack_fit import capacity
from autoshard.errors import AutoshardError
from autoshard.files.json_file import read_json
from autoshard.layout.strategy import Strategy
from autoshard.spec.cluster import Cluster, load_cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec

GPU_ROWS, TRAINIUM_ROWS, YEARS = "measured_gpu.csv", "measured_trainium.csv", "planbench_years.json"
MOST_BYTES = 1_000_000
FOLDS = 5
FEWEST = 8
"""Results that a source must have to be left out by itself."""
LAST_KNOWN_YEAR = 2024
"""The split by time learns from results up to this year."""
SPLITS = ("group", "source", "time")
_NO_ANSWER = (Unscored, AutoshardError, KeyError, ValueError, ArithmeticError)
"""What a row raises that cannot be priced, or has other columns or values; predicted_vs_measured says what each
lacks."""


@dataclass(frozen=True)
class Measured:
    """A published result. source: who published it. group: results of one model on one cluster. year: of publication.

    time_s: of a step; None where it ran out of memory. fits: whether it ran. memory_bytes: peak of a device, None where
    not reported. capacity_bytes: what a device has. case: all that is known of the row.
    """

    key: str
    source: str
    group: str
    year: int
    model: ModelSpec
    training: TrainingSpec
    cluster: Cluster
    strategy: Strategy
    time_s: float | None
    fits: bool
    memory_bytes: float | None
    capacity_bytes: float
    case: Case | InstanceCase


@dataclass(frozen=True)
class Fold:
    """A part of a split. split: 'group', 'source' or 'time'. left_out: what the test rows are, 'hagemann'. train: rows
    to learn from. test: rows to predict, whose measured values must not be looked at. data: the folder of the rows."""

    split: str
    left_out: str
    train: tuple[Measured, ...]
    test: tuple[Measured, ...]
    data: Path


def read_measured(folder: Path) -> tuple[Measured, ...]:
    """The results of a folder that say all that a prediction needs. Raises AutoshardError for a file that is missing or
    none."""
    years = read_json(folder / YEARS, "years of sources", MOST_BYTES)
    known: Any = years.get("years") if isinstance(years, dict) else None
    if not isinstance(known, dict):
        raise AutoshardError(f"{folder / YEARS} must have years by source")
    gpu = _read(folder / GPU_ROWS, lambda row: _of_gpu(gpu_case(row), known))
    trainium = _read(folder / TRAINIUM_ROWS, _of_instance)
    return (*gpu, *trainium)


def _read(path: Path, read: Callable[[Row], Measured | None]) -> Iterator[Measured]:
    for row in read_rows(path):
        try:
            found = read(row)
        except _NO_ANSWER:
            continue
        if found is not None:
            yield found


def _of_gpu(case: Case, years: dict[str, int]) -> Measured | None:
    """None where part of the row was guessed, or its source has no year."""
    if not case.trusted or case.source not in years:
        return None
    return Measured(
        case.key,
        case.source,
        case.group,
        years[case.source],
        case.model,
        case.training,
        _cluster(hardware(case)[0], case.nodes),
        case.strategy,
        case.time_s,
        case.fits,
        case.memory_bytes,
        capacity(case),
        case,
    )


def _of_instance(row: Row) -> Measured | None:
    """None where the row does not say all of its layout, or when it was published."""
    case = instance_case(row)
    if not case.is_whole or not row["date"]:
        return None
    return Measured(
        case.key,
        "trainium",
        case.group,
        int(row["date"][:4]),
        case.model,
        case.training,
        case.cluster,
        case.strategy,
        case.time_s,
        True,
        None,
        case.cluster.device.memory_bytes,
        case,
    )


@lru_cache(maxsize=256)
def _cluster(instance: str, nodes: int) -> Cluster:
    return load_cluster(instance, nodes)


def folds(rows: Sequence[Measured], split: str, data: Path) -> tuple[Fold, ...]:
    """The parts of a split: group, whole groups in five parts by a hash of their name; source, each source with at
    least FEWEST results; time, results after LAST_KNOWN_YEAR."""
    tests: dict[str, Callable[[Measured], bool]]
    if split == "group":
        tests = {f"part {part + 1}": partial(_is_in_part, part) for part in range(FOLDS)}
    elif split == "source":
        counts = Counter(row.source for row in rows)
        sources = [source for source, count in sorted(counts.items()) if count >= FEWEST]
        tests = {source: partial(_is_of, source) for source in sources}
    else:
        assert split == "time", split
        tests = {f"after {LAST_KNOWN_YEAR}": lambda row: row.year > LAST_KNOWN_YEAR}
    return tuple(_fold(rows, split, name, is_test, data) for name, is_test in tests.items())


def _fold(rows: Sequence[Measured], split: str, name: str, is_test: Callable[[Measured], bool], data: Path) -> Fold:
    train, test = [row for row in rows if not is_test(row)], [row for row in rows if is_test(row)]
    return Fold(split, name, tuple(train), tuple(test), data)


def _is_in_part(part: int, row: Measured) -> bool:
    return int(sha256(row.group.encode()).hexdigest(), 16) % FOLDS == part


def _is_of(source: str, row: Measured) -> bool:
    return row.source == source
