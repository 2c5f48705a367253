"""A broken row of a file of results is listed with its reason, and no fit sees it."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from autoshard.calibration.results.usable import read_results
from autoshard.errors import AutoshardError
from tests.unit.test_calibrate_results import ROW as TRN1_ROW
from tests.unit.test_scoreboard import ROW

TOO_FAST = (
    "a step of 10.0 us is faster than the devices are: the model's own products take 1.14 ms at 4 times their "
    "half-precision peak"
)
BROKEN = (
    ({"heads": "0"}, "heads=0 must be a whole number from 1 to 1,000,000,000"),
    ({"gpus_per_node": "0"}, "gpus_per_node=0 must be a whole number from 1 to 1,000,000,000"),
    ({"layers": "1e9"}, "layers=1000000000 must be a whole number from 1 to 10,000"),
    ({"pp": "40000", "layers": "32"}, "pp=40000 x vpp=1 is more stages than layers=32"),
    ({"iter_time_s": "1e-5"}, TOO_FAST),
    ({"tp": "-3"}, "tp=-3 must be a whole number from 1 to 1,000,000,000"),
    ({"layers": ""}, "layers='' is not a number"),
)


def _written(path: Path, rows: Sequence[Mapping[str, str]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_broken_rows_are_listed_and_used_by_nothing(tmp_path: Path) -> None:
    row = {**ROW, "framework": "Megatron-LM"}  # whose gradients are known
    good = [row, {**row, "row_id": "x-2", "iter_time_s": "2.0"}]
    broken = [{**row, **change} for change, _ in BROKEN]
    clean = read_results([_written(tmp_path / "clean.csv", good)], None)
    found = read_results([_written(tmp_path / "both.csv", [good[0], *broken, good[1]])], None)
    assert found.gpus is not None and clean.gpus is not None
    assert found.gpus.cases == clean.gpus.cases
    assert found.gpus.unused == [(line, reason) for line, (_, reason) in enumerate(BROKEN, start=3)]
    assert clean.notes() == []


def test_rows_with_one_reason_share_a_line(tmp_path: Path) -> None:
    good = {**ROW, "framework": "Megatron-LM"}
    broken = {**good, "layers": ""}
    found = read_results([_written(tmp_path / "rows.csv", [broken, good, broken])], None)
    assert found.notes() == ["2 of 3 rows of rows.csv are not used:", "  line 2, 4: layers='' is not a number"]
    found = read_results([_written(tmp_path / "one.csv", [broken, good])], None)
    assert found.notes()[0] == "1 of 2 rows of one.csv is not used:"


def test_an_instance_s_row_in_milliseconds_is_listed(tmp_path: Path) -> None:
    path = _written(tmp_path / "trn1.csv", [TRN1_ROW | {"step_time_s": "10"}, TRN1_ROW | {"step_time_s": "0.01"}])
    found = read_results([path], None).instances
    assert found is not None and len(found.cases) == 1
    assert [(line, reason.split(":")[0]) for line, reason in found.unused] == [
        (3, "a step of 10.0 ms is faster than the devices are")
    ]


def test_a_file_of_broken_rows_alone_is_an_error(tmp_path: Path) -> None:
    path = _written(tmp_path / "rows.csv", [{**ROW, "heads": "0"}])
    with pytest.raises(AutoshardError, match="none of its 1 rows can be used; the first, line 2: heads=0 must be"):
        read_results([path], None)
