"""Runs that save, end, are killed, and resume: the losses are those of a run that nothing happened to."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autoshard.checkpoint.manifest import read_manifest
from autoshard.checkpoint.store import MANIFEST
from autoshard.cost.estimate import estimate
from autoshard.layout.strategy import Strategy
from autoshard.plans.plan import make_plan
from autoshard.plans.plan_json import write_plan
from autoshard.runtime.rehearse import local_cluster
from autoshard.spec.dropout import Dropout
from autoshard.spec.training import Precision
from benchmarks.checkpoint_faults import EVERY, survive
from tests.cases import ALL
from tests.multiprocess.command import autoshard
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import FP32, FP64, plan_of, strategy

STEPS = 8
MODEL = replace(MODELS["few kv heads"], vocab_size=256)
ONE = ("one.json", strategy(), 4, FP32)
TWO = ("two.json", strategy(dp=2), 2, FP32)
ALONE = ("alone.json", strategy(), 4, FP64)
EIGHT = ("eight.json", strategy(tp=2, pp=2, dp=2), 2, FP64)
"""File, layout, microbatches and precision: all of one global batch."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """Losses of whole runs, without checkpoints."""
    folder = tmp_path_factory.mktemp("undisturbed")
    found = {}
    for layout in (ONE, TWO, ALONE):
        assert run(folder, layout, save=False).returncode == 0
        found[layout[0]] = losses(folder)[-1]
    return found


SAVING = ("--checkpoint-every", "2", "--checkpoint-dir", "saved")
Layout = tuple[str, Strategy, int, Precision]


def arguments(folder: Path, layout: Layout, *options: str, steps: int = STEPS, save: bool = True) -> list[str]:
    """Of a run of the layout, whose plan is in the folder then."""
    name, chosen, microbatches, precision = layout
    write_plan(plan_of(MODEL, chosen, microbatches, precision), folder / name)
    saving = SAVING if save else ()
    return ["run", name, "--steps", str(steps), "--processes", "8", *saving, *options]


def command(folder: Path, layout: Layout, *options: str, steps: int = STEPS) -> list[str]:
    """Of the run in a process of its own, which something happens to."""
    return [sys.executable, "-m", "autoshard", *arguments(folder, layout, *options, steps=steps)]


def run(
    folder: Path, layout: Layout, *options: str, steps: int = STEPS, save: bool = True
) -> subprocess.CompletedProcess[str]:
    return autoshard(folder, *arguments(folder, layout, *options, steps=steps, save=save))


def losses(folder: Path) -> list[list[float]]:
    """Of each run in the folder, in order."""
    files = sorted(folder.glob("runs/tiny*/metrics.jsonl"), key=lambda file: file.stat().st_mtime_ns)
    return [[json.loads(line)["loss"] for line in file.read_text().splitlines()] for file in files]


def complete(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "saved").glob("step-*"))


def test_a_resumed_run_repeats_the_losses_exactly(tmp_path: Path, undisturbed: dict[str, list[float]]) -> None:
    assert run(tmp_path, TWO, "--keep", "2", steps=5).returncode == 0
    assert complete(tmp_path) == ["step-00000004", "step-00000005"]
    assert (tmp_path / "saved" / "latest").read_text() == "step-00000005\n"
    resumed = run(tmp_path, TWO)
    assert resumed.returncode == 0, resumed.stderr
    assert "resumed from" in resumed.stdout
    assert "step-00000005, after step 5" in resumed.stdout
    before, after = losses(tmp_path)
    assert before + after == undisturbed[TWO[0]][:STEPS]


def test_another_curve_of_the_learning_rate_is_said(tmp_path: Path) -> None:
    """A run that goes on with other options would be another one without a word."""
    warmup = ("--warmup-steps", "0")
    curve = ("--lr-schedule", "linear", *warmup)
    assert run(tmp_path, ONE, *curve).returncode == 0
    shutil.rmtree(tmp_path / "saved" / f"step-{STEPS:08}")
    same = run(tmp_path, ONE, *curve, "--output", "same")
    assert same.returncode == 0 and "another curve" not in same.stdout
    shutil.rmtree(tmp_path / "saved" / f"step-{STEPS:08}")
    other = run(tmp_path, ONE, *warmup, "--output", "other")
    assert other.returncode == 0
    had = "step 6 had 0.0001875, these options have 0.0005 there"  # 5e-4 x (1 - 5/8)
    assert f"the learning rate follows another curve from here on: {had}; --learning-rate, --lr-sch" in other.stdout


def test_of_a_resumed_run_neither_its_first_step_nor_those_that_were_watched_are_timed(tmp_path: Path) -> None:
    assert run(tmp_path, ONE, steps=2).returncode == 0
    assert run(tmp_path, ONE, "--profile", "--output", "resumed", steps=8).returncode == 0
    (directory,) = tmp_path.glob("resumed/tiny*")
    steps = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    took = {one["step"]: one["step_time_s"] for one in steps}
    assert list(took) == [3, 4, 5, 6, 7, 8]  # of which 5 to 7 are watched
    times = json.loads((directory / "run.json").read_text())["step_time_s"]
    left = sorted([took[4], took[8]])
    assert times == {"median": left[0], "p10": left[0], "p90": left[1]}


def test_eight_processes_lose_four_and_the_loss_goes_on(tmp_path: Path, undisturbed: dict[str, list[float]]) -> None:
    """Two nodes of four processes lose one: replanned, the run goes on from the checkpoint of the old layout."""
    before = plan_of(MODEL, EIGHT[1], EIGHT[2], EIGHT[3])
    cluster = replace(local_cluster(4), nodes=2)
    expected = estimate(before.model, before.training, cluster, before.strategy)
    write_plan(
        make_plan(before.model, before.training, cluster, "torch", before.strategy, expected), tmp_path / "eight.json"
    )
    first = autoshard(tmp_path, "run", "eight.json", *SAVING, "--steps", "4")
    assert first.returncode == 0, first.stderr
    replanned = autoshard(tmp_path, "replan", "eight.json", "--nodes", "1", "-o", "four.json")
    assert replanned.returncode == 0, replanned.stderr
    assert "replanned from 2 to 1 nodes; stays: " in replanned.stdout
    resumed = autoshard(tmp_path, "run", "four.json", *SAVING, "--steps", str(STEPS))
    assert resumed.returncode == 0, resumed.stderr
    assert "Running as planned: 4 processes" in resumed.stdout
    assert "after step 4" in resumed.stdout
    found = [loss for one in losses(tmp_path) for loss in one]
    assert found == pytest.approx(undisturbed[ALONE[0]], rel=1e-9)


def test_hsdp_goes_on_as_fsdp_and_back(tmp_path: Path, undisturbed: dict[str, list[float]]) -> None:
    """Of two groups of replicas one reads and sends the other its shards."""
    in_groups = ("hsdp.json", strategy(dp=4, zero=3, dp_replicate=2), 1, FP64)
    over_all = ("fsdp.json", strategy(dp=4, zero=3), 1, FP64)
    for layout, steps in ((in_groups, 3), (over_all, 5), (in_groups, STEPS)):
        done = run(tmp_path, layout, steps=steps)
        assert done.returncode == 0, done.stderr
    assert "after step 5: " in done.stdout
    assert "read by 2 of 4 ranks" in done.stdout
    found = [loss for one in losses(tmp_path) for loss in one]
    assert found == pytest.approx(undisturbed[ALONE[0]], rel=1e-9)


def spoil_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    assert run(folder, ONE, "--checkpoint-sync", steps=4).returncode == 0
    return folder


DAMAGE: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "truncated": ("rank-00000.safetensors", truncate, r"rank-00000.safetensors has [\d,]+ bytes, not [\d,]+"),
    "bit-flipped": ("rank-00000.safetensors", spoil_bit, "rank-00000.safetensors was changed: its SHA-256 is another"),
    "missing": ("rank-00000.safetensors", Path.unlink, "rank-00000.safetensors is missing"),
    "no manifest": ("manifest.json", Path.unlink, "checkpoint manifest .*manifest.json does not exist"),
    "of another step": (
        "rank-00000.safetensors",
        lambda file: shutil.copy(file.parent.parent / "step-00000002" / file.name, file),
        "rank-00000.safetensors was changed: its SHA-256 is another",
    ),
    "renamed": (
        "manifest.json",
        lambda file: shutil.copy(file.parent.parent / "step-00000004" / file.name, file),
        "checkpoint .*step-000000.. is of step 4 by its manifest: rename it to step-00000004",
    ),
    "foreign plan": ("plan.json", truncate, "plan.json has [\\d,]+ bytes"),
}


def test_damaged_checkpoints_are_named_and_the_one_before_is_used(
    saved_once: Path, tmp_path: Path, undisturbed: dict[str, list[float]]
) -> None:
    """Every kind of damage in one folder: steps 10, 11, ... are damaged copies of step 4."""
    folder = tmp_path / "all"
    subprocess.run(["cp", "-r", str(saved_once), str(folder)], check=True)
    saved = folder / "saved"
    manifest = read_manifest(saved / "step-00000004")
    for number, (file, damage, _) in enumerate(DAMAGE.values()):
        copy = saved / f"step-{10 + number:08}"
        subprocess.run(["cp", "-r", str(saved / "step-00000004"), str(copy)], check=True)
        (copy / MANIFEST).write_text(replace(manifest, step=10 + number).to_json())
        damage(copy / file)
    (saved / "step-00000098").write_text("no folder")
    (saved / "step-00000099.tmp").mkdir()
    for path in (saved / "step-00000002", saved / "step-00000004", saved / "step-00000011"):
        os.utime(path, (4e9, 4e9) if path.name.endswith("2") else (1.0, 1.0))  # the clock had jumped: it is not asked
    resumed = run(folder, ONE, steps=20)  # beyond all of them
    assert resumed.returncode == 0, resumed.stderr
    for number, (_, _, expected) in enumerate(DAMAGE.values()):
        assert re.search(f"skipped checkpoint step-{10 + number:08}: {expected}", resumed.stdout), expected
    assert "skipped checkpoint step-00000098: checkpoint manifest " in resumed.stdout
    assert "saved/step-00000004, after step 4" in resumed.stdout
    assert losses(folder)[-1][:4] == undisturbed[ONE[0]][4:]
    assert {name.partition(".aside")[0] for name in complete(folder) if "aside" in name} == {
        "step-00000098",
        *(f"step-{10 + number:08}" for number in range(len(DAMAGE))),
    }
    assert not (saved / "step-00000099.tmp").exists()


def test_a_damaged_checkpoint_beyond_the_last_step_does_not_end_the_run(
    saved_once: Path, tmp_path: Path, undisturbed: dict[str, list[float]]
) -> None:
    folder = tmp_path / "all"
    subprocess.run(["cp", "-r", str(saved_once), str(folder)], check=True)
    later = folder / "saved" / f"step-{STEPS:08}"
    subprocess.run(["cp", "-r", str(folder / "saved" / "step-00000004"), str(later)], check=True)
    (later / MANIFEST).write_text(replace(read_manifest(later.parent / "step-00000004"), step=STEPS).to_json())
    whole = run(folder, ONE)
    assert whole.returncode == 2
    assert f"is at step {STEPS}: steps={STEPS} leaves nothing to train" in whole.stderr
    truncate(later / "rank-00000.safetensors")
    resumed = run(folder, ONE)
    assert resumed.returncode == 0, resumed.stderr
    assert f"skipped checkpoint step-{STEPS:08}: rank-00000.safetensors has " in resumed.stdout
    assert losses(folder)[-1] == undisturbed[ONE[0]][4:]


def test_what_cannot_be_resumed_is_one_line(saved_once: Path, tmp_path: Path) -> None:
    folder = tmp_path / "all"
    subprocess.run(["cp", "-r", str(saved_once), str(folder)], check=True)
    done = run(folder, ONE, steps=4)
    assert done.returncode == 2
    assert "is at step 4: steps=4 leaves nothing to train" in done.stderr
    never = run(folder, ONE, "--resume", "never")
    assert never.returncode == 2
    assert "holds checkpoints of another run up to step 4: name another folder" in never.stderr
    shutil.copytree(folder / "saved" / "step-00000002", folder / "elsewhere" / "step-00000002")
    mixed = run(folder, ONE, "--resume", "elsewhere")
    assert mixed.returncode == 2
    assert mixed.stderr == (
        f"autoshard: error: resume={folder}/elsewhere: checkpoint_dir={folder}/saved holds checkpoints of another run "
        "up to step 4: name another folder, or resume=auto to go on there\n"
    )
    spoil_bit(folder / "saved" / "step-00000004" / "rank-00000.safetensors")
    named = run(folder, ONE, "--resume", "saved/step-00000004")
    assert named.returncode == 2
    assert "has no complete checkpoint: rank-00000.safetensors was changed: its SHA-256 is another" in named.stderr
    other = run(folder, ONE, "--seed", "1", "--resume", "saved/step-00000002")
    assert other.returncode == 2
    assert "the data position was saved with seed=0, not 1" in other.stderr
    runs = sorted((folder / "runs").iterdir())
    held_out = run(folder, ONE, "--eval-fraction", "0.01", "--resume", "saved/step-00000002")
    assert held_out.returncode == 2
    assert " was saved with no rows held out, not " in held_out.stderr
    assert "(leave eval_fraction out): the order of rows would be another" in held_out.stderr
    assert sorted((folder / "runs").iterdir()) == runs  # it was seen before a rank started
    for failed in (done, never, named, other, held_out):
        assert len(failed.stderr.splitlines()) == 1, failed.stderr


def test_a_run_may_go_on_with_another_dropout(saved_once: Path, tmp_path: Path) -> None:
    subprocess.run(["cp", "-r", str(saved_once / "saved"), str(tmp_path)], check=True)
    dropping = replace(MODEL, dropout=Dropout(residual=0.5))
    write_plan(plan_of(dropping, strategy(), 4, FP32), tmp_path / "dropping.json")
    ran = autoshard(tmp_path, "run", "dropping.json", "--steps", "5", "--processes", "8", *SAVING)
    assert ran.returncode == 0, ran.stderr
    assert "dropout=residual=0.5 from here on, the checkpoint was trained with 0" in ran.stdout
    assert len(losses(tmp_path)[-1]) == 1


def test_a_second_run_in_the_folder_is_refused_and_a_dead_ones_lock_is_not(tmp_path: Path) -> None:
    first = subprocess.Popen(command(tmp_path, ONE, steps=100_000), cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: bool(complete(tmp_path)), first)
        second = run(tmp_path, ONE)
        assert second.returncode == 2
        assert re.search(rf"saved is in use by process {first.pid} on \S+: give each run its own", second.stderr)
    finally:
        first.kill()
        first.wait()
    third = run(tmp_path, ONE, steps=newest(tmp_path) + 10)
    assert third.returncode == 0, third.stderr


def test_kill_9_loses_no_checkpoint(tmp_path: Path) -> None:
    """Some random moments of the benchmark's thirty."""
    moments = 3 if ALL else 2
    seen = survive(tmp_path, moments, random.randrange(2**32))
    assert seen["moments"] == moments
    assert seen["most steps done anew"] <= 2 * EVERY  # a save that was under way, and the steps up to the next


def newest(folder: Path) -> int:
    """Step of the newest complete checkpoint, 0 if there is none."""
    return max((int(name[5:]) for name in complete(folder) if name[5:].isdecimal()), default=0)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        assert process.poll() is None, "ended early"
        time.sleep(0.02)


DISK_BYTES = 5_000_000
"""Of a disk that has room for two checkpoints of 1.9 MB and a part of a third."""


def private_mounts() -> list[str]:
    """What starts a command that may mount things which it alone sees; nothing where this machine forbids it."""
    for command in (["unshare", "-Urm"], ["unshare", "-m"]):
        if shutil.which("unshare") is None:
            break
        if subprocess.run([*command, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True).returncode == 0:
            return command
    return []


def test_a_full_disk_is_one_message_and_training_goes_on(tmp_path: Path, undisturbed: dict[str, list[float]]) -> None:
    """A small disk fills in the middle of the third save; the older ones are whole, and the run can go on from them."""
    mounts = private_mounts()
    if mounts:
        script = f'mount -t tmpfs -o size={DISK_BYTES} tmpfs saved; "$@"; code=$?; cp -r saved kept; exit $code'
    else:  # files that must not grow beyond half a megabyte are much the same
        script = 'ulimit -f 512; "$@"; code=$?; cp -r saved kept; exit $code'
    (tmp_path / "saved").mkdir()
    limited = [*mounts, "bash", "-c", script, "bash", *command(tmp_path, ONE, "--keep", "9")]
    ran = subprocess.run(limited, cwd=tmp_path, capture_output=True, text=True, timeout=150)
    assert ran.returncode == 1, ran.stderr
    assert losses(tmp_path)[-1] == undisturbed[ONE[0]]
    said = "".join(ran.stdout.split("\n"))
    if mounts:
        reason = "rank-00000.safetensors cannot be written: No space left on device"
        there = f"NOT saved, the newest complete one in {tmp_path / 'saved'} is of step 4: rank 0: "
        folder = tmp_path / "saved"
        assert f"checkpoint of step 6 {there}{folder}/step-00000006.tmp/{reason}; training goes on" in said
        assert ran.stderr == (
            f"autoshard: error: the training ended, its last checkpoint of step 8 {there}{folder}/step-00000008.tmp/"
            f"{reason}\n"
        )
        assert said.count("NOT saved") == 1
        kept = sorted(path.name for path in (tmp_path / "kept").iterdir())
        assert kept == ["latest", "lock", "step-00000002", "step-00000004"]
        resumed = run(tmp_path, ONE, "--checkpoint-dir", "kept")
        assert resumed.returncode == 0, resumed.stderr
        assert "step-00000004, after step 4" in resumed.stdout
        assert losses(tmp_path)[-1] == undisturbed[ONE[0]][4:]


def test_a_folder_that_cannot_be_written_to_is_one_line(tmp_path: Path) -> None:
    ran = run(tmp_path, ONE, "--checkpoint-dir", "one.json/saved")
    assert ran.returncode == 2
    assert "autoshard: error: checkpoint_dir=one.json/saved cannot be written to: Not a directory" in ran.stderr
    if mounts := private_mounts():  # root may write to any folder, but not to a disk that is read-only
        script = 'mount -t tmpfs -o ro tmpfs saved; exec "$@"'
        (tmp_path / "saved").mkdir()
        limited = [*mounts, "bash", "-c", script, "bash", *command(tmp_path, ONE)]
        ran = subprocess.run(limited, cwd=tmp_path, capture_output=True, text=True, timeout=150)
        assert ran.returncode == 2
        assert ran.stderr == "autoshard: error: checkpoint_dir=saved cannot be written to: Read-only file system\n"
