"""Dumps of real runs on CPU: a run as planned has nothing that was not planned; a seeded fault is named first."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from autoshard.allocations.blocks import RankMemory
from autoshard.allocations.compare import MORE, NOT_FREED, RECOMPUTE_LOST, TWICE, Diagnosis, Finding, diagnose
from autoshard.allocations.dump import read_dump
from autoshard.allocations.record import rank_memory
from tests.cases import ALL
from tests.multiprocess.dump_workers import BUCKET, CLEAN, FAULTS, GATHERED, LOGITS, RECOMPUTE, seeded_plan
from tests.multiprocess.started import first_rank, start

SEEDS, ENOUGH = (20, 19) if ALL else (1, 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All dumps, made by two processes."""
    found = tmp_path_factory.mktemp("dumps")
    cases = [(seed, fault) for seed in range(SEEDS) for fault in (*FAULTS, CLEAN)]
    first_rank(start("dump_workers:dumps", 2, {"cases": cases, "folder": str(found)}, hang_timeout_s=300))
    return found


@cache
def planned(seed: int, fault: str) -> RankMemory:
    return rank_memory(seeded_plan(seed, fault), 0)


def diagnosed(folder: Path, fault: str, seed: int) -> Diagnosis:
    kind = GATHERED if fault == GATHERED else CLEAN  # the others have one plan
    return diagnose(planned(seed, kind), read_dump(folder / f"{fault}-{seed}.pickle"), 1e12)


def is_named(fault: str, first: Finding) -> bool:
    what = {RECOMPUTE: RECOMPUTE_LOST, GATHERED: NOT_FREED, LOGITS: MORE, BUCKET: TWICE}[fault]
    return first.what == what and (fault != LOGITS or "lm_head" in first.tensors)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_seeded_fault_is_named_first(fault: str, folder: Path) -> None:
    found = {seed: diagnosed(folder, fault, seed).findings for seed in range(SEEDS)}
    missed = {seed: one[:2] for seed, one in found.items() if not one or not is_named(fault, one[0])}
    assert SEEDS - len(missed) >= ENOUGH, missed


def test_a_run_as_planned_has_nothing_else(folder: Path) -> None:
    found = {seed: diagnosed(folder, CLEAN, seed) for seed in range(SEEDS)}
    assert {seed: one.findings for seed, one in found.items() if one.findings} == {}
    for seed, one in found.items():
        assert one.held_bytes == pytest.approx(one.planned_peak_bytes, rel=0.05), seed
