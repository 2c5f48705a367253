"""What saving and loading cost: no waiting for the disk beyond one save, one copy of the state, each byte read once."""

import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoshard.checkpoint.directory import LocalStore
from autoshard.checkpoint.manifest import read_manifest
from autoshard.checkpoint.store import MANIFEST, PLAN, Folder
from autoshard.conversion.sample import sampled
from autoshard.errors import AutoshardError
from autoshard.models.stage import parameter_count
from autoshard.runtime.launch import run_processes
from autoshard.runtime.trainer import checkpoint
from autoshard.runtime.trainer.checkpoint import Checkpoints
from autoshard.runtime.worker_arguments import CheckpointOptions
from autoshard.units import format_bytes
from tests.multiprocess.models import LLAMA, MODELS
from tests.multiprocess.saving_workers import session, train
from tests.multiprocess.started import forked

SLOW_S = 0.6


def options(folder: Path) -> CheckpointOptions:
    return CheckpointOptions(str(folder), 1, 2, None, "never", False)


class SlowStore(LocalStore):
    """What rank 0 does alone takes its time."""

    def commit(self, step: int, manifest: str, sizes: Mapping[str, int]) -> Folder:
        time.sleep(SLOW_S)
        return super().commit(step, manifest, sizes)

    def delete(self, folder: Folder) -> None:
        time.sleep(SLOW_S)
        super().delete(folder)


def test_training_waits_for_no_manifest_and_no_pruning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "open_store", lambda location: SlowStore(Path(location)))
    one = session(0)
    train(one)
    saved = Checkpoints(one, options(tmp_path), 0, print)
    begin, waited = time.perf_counter(), []
    for steps in (1, 2, 3):
        start = time.perf_counter()
        saved.after_step(steps, 1e-3, {}, last=False)
        waited.append(time.perf_counter() - start)
    assert max(waited) < SLOW_S
    saved.after_step(4, 1e-3, {}, last=True)
    assert time.perf_counter() - begin > 6 * SLOW_S  # four saves and two deletions
    assert sorted(path.name for path in tmp_path.glob("step*")) == ["step-00000003", "step-00000004"]


class FailingStore(LocalStore):
    def point_to(self, folder: Folder | None) -> None:
        raise AutoshardError("pointer cannot be written: no")

    def delete(self, folder: Folder) -> None:
        raise AutoshardError(f"{folder.name} cannot be deleted: no")


def test_what_goes_wrong_after_a_save_is_said_and_the_save_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "open_store", lambda location: FailingStore(Path(location)))
    one = session(0)
    said: list[str] = []
    train(one)
    saved = Checkpoints(one, options(tmp_path), 0, said.append)
    for steps in (1, 2, 3):
        saved.after_step(steps, 1e-3, {}, last=steps == 3)
    assert len(list(tmp_path.glob("step*"))) == 3
    assert said == [
        *(
            f"checkpoint of step {step} is saved, but `latest` does not name it: pointer cannot be written: no"
            for step in (1, 2, 3)
        ),
        "checkpoint of step 3 is saved, but older ones were not deleted: step-00000001 cannot be deleted: no",
    ]


class FullStore(LocalStore):
    """Has room for the first save of a run alone, or for none."""

    room = 1

    def write(self, step: int, name: str, chunks: Iterable[memoryview], size: int) -> None:
        if step > self.room:
            raise AutoshardError("no room")
        super().write(step, name, chunks, size)


@pytest.mark.parametrize(
    ("room", "there"), [(1, "the newest complete one in {} is of step 1"), (0, "{} holds no complete one")]
)
def test_what_is_not_saved_says_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, there: str
) -> None:
    monkeypatch.setattr(FullStore, "room", room)
    monkeypatch.setattr(checkpoint, "open_store", lambda location: FullStore(Path(location)))
    one = session(0)
    said: list[str] = []
    train(one)
    saved = Checkpoints(one, options(tmp_path), 0, said.append)
    for steps in (1, 2, 3):
        saved.after_step(steps, 1e-3, {}, last=steps == 3)
    line = "checkpoint of step {} NOT saved, " + there.format(tmp_path) + ": rank 0: no room"
    assert said == [f"{line.format(step)}; training goes on" for step in range(room + 1, 3)]
    assert saved.unsaved == line.format(3)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_state_that_is_not_finite_replaces_no_checkpoint(tmp_path: Path, value: float) -> None:
    one = session(0)
    said: list[str] = []
    train(one)
    saved = Checkpoints(one, replace(options(tmp_path), keep=1, synchronous=True), 0, said.append)
    saved.after_step(1, 1e-3, {}, last=False)
    one.optimizer.masters()["model.norm.weight"][3] = value
    saved.after_step(2, 1e-3, {}, last=False)
    assert [path.name for path in tmp_path.glob("step*")] == ["step-00000001"]
    there, why = f"the newest complete one in {tmp_path} is of step 1", "master of model.norm.weight has nan or inf"
    assert said == [f"checkpoint of step 2 NOT saved, {there}: rank 0: {why}; training goes on"]


def test_saves_that_catch_up_hold_one_copy_of_the_state(tmp_path: Path) -> None:
    outcome = run_processes(
        "tests.multiprocess.saving_workers:memory_of_saves",
        {"folder": str(tmp_path / "saves")},
        1,
        on_message=print,
        log_directory=tmp_path / "logs",
        trusted_prefix="tests.multiprocess.",
    )
    assert outcome.exit_code == 0, outcome.message
    (found,) = outcome.results
    assert found is not None
    state = found["state_bytes"]
    assert state > 200e6
    assert state * 0.9 < found["peak_bytes"] < state * 1.15 + 20e6
    assert found["left_bytes"] < 0.15 * state + 20e6  # and it is given back


def test_each_byte_is_read_by_one_data_parallel_rank(tmp_path: Path) -> None:
    """Without ZeRO-1 both hold everything: the first reads and broadcasts. With it each reads its half."""
    outcome = run_processes(
        "tests.multiprocess.saving_workers:save_and_load",
        {"folder": str(tmp_path)},
        2,
        on_message=print,
        log_directory=tmp_path / "logs",
        trusted_prefix="tests.multiprocess.",
        start=forked(),
    )
    assert outcome.exit_code == 0, outcome.message
    first, second = outcome.results
    assert first is not None and second is not None
    size = format_bytes(3 * 4 * parameter_count(LLAMA))
    for name, readers in (("plain", 1), ("ZeRO-1", 2), ("ZeRO-3", 2)):
        assert first[name]["same"] and second[name]["same"]
        assert first[name]["said"][-1].endswith(f"after step 1: {size} read by {readers} of 2 ranks")
        assert second[name]["said"] == []


def started_from(folders: list[Path], logs: Path) -> list[dict[str, Any]]:
    outcome = run_processes(
        "tests.multiprocess.saving_workers:start_from",
        {"folders": list(map(str, folders))},
        2,
        on_message=print,
        log_directory=logs,
        trusted_prefix="tests.multiprocess.",
        start=forked(),
    )
    assert outcome.exit_code == 0, outcome.message
    return [result for result in outcome.results if result is not None]


def test_ranks_start_from_the_weights_that_are_the_newest_to_rank_0(tmp_path: Path) -> None:
    """A checkpoint that is completed while ranks look is there for some of them only."""
    one = session(0)
    train(one)
    saved = Checkpoints(one, options(tmp_path / "first"), 0, print)
    saved.after_step(1, 1e-3, {}, last=True)
    expected = sum(float(value.double().sum()) for value in one.optimizer.masters().values())
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    train(one)
    Checkpoints(one, options(tmp_path / "second"), 0, print).after_step(2, 1e-3, {}, last=True)
    assert {path.name for path in (tmp_path / "second").glob("step*")} == {"step-00000001", "step-00000002"}
    found = started_from([tmp_path / "first", tmp_path / "second"], tmp_path / "logs")
    assert found == [{"sum": pytest.approx(expected, rel=1e-9)}] * 2


def test_ranks_that_see_other_weights_are_refused(tmp_path: Path) -> None:
    for number, name in enumerate(("first", "second")):
        one = session(0, seed=number)
        Checkpoints(one, options(tmp_path / name), 0, print).after_step(1, 1e-3, {}, last=True)
    folders = [tmp_path / name / "step-00000001" for name in ("first", "second")]
    found = started_from(folders, tmp_path / "logs")
    told = [sampled([folder / "rank-00000.safetensors"]) for folder in folders]
    error = f"ranks differ in weights: rank 0 has {told[0]}, rank 1 has {told[1]}: give every rank the same weights"
    assert found == [{"error": error}] * 2


def test_a_resume_that_drops_other_tokens_says_so(tmp_path: Path) -> None:
    """2 of 4 experts: the even share of 16 tokens is 8 slots, and 16 drop none."""
    saving, resuming = options(tmp_path), replace(options(tmp_path), every=None, resume="auto")
    one = session(0, model=MODELS["mixtral"])
    train(one)
    Checkpoints(one, saving, 0, print).after_step(1, 1e-3, {}, last=True)
    said: list[str] = []
    for factor in (1.0, 2.0):
        one.plan = replace(one.plan, training=replace(one.plan.training, expert_capacity_factor=factor))
        Checkpoints(one, resuming, 0, said.append).resume()
    assert [line for line in said if not line.startswith("resumed from ")] == [
        "each expert takes up to 16 of a sequence's 16 tokens from here on, 8 before: other tokens are dropped"
    ]
    folder = tmp_path / "step-00000001"  # as another program leaves it: without a plan
    manifest = read_manifest(folder)
    tensors = tuple(file for file in manifest.files if file.name != PLAN)
    (folder / MANIFEST).write_text(replace(manifest, files=tensors).to_json())
    (folder / PLAN).unlink()
    said.clear()
    Checkpoints(one, resuming, 0, said.append).resume()
    assert len(said) == 1
