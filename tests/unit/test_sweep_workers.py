"""Points of a sweep on several workers: each point once, none lost, whatever is killed."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from pathlib import Path

import psutil
import pytest

import autoshard
from autoshard.cli import main
from autoshard.errors import AutoshardError
from autoshard.sweeps.grid import Sweep, sweep_of
from autoshard.sweeps.outcome import LOST, OK, Outcome
from autoshard.sweeps.point import Spread, Task
from autoshard.sweeps.run import run_sweep
from autoshard.sweeps.workers import main as work
from autoshard.sweeps.workers import on_processes
from tests.multiprocess.started import by_default

BATCHES = list(range(64, 64 * 13, 64))
POINTS = {"model": "llama3.2-1b", "seq_len": 2048, "tp": 8, "global_batch": BATCHES}
MANY = list(range(64, 64 * 41, 64))
"""So many that a sweep is still under way when it is ended from outside."""
PATIENCE_S = 120.0


def numbers(table: Path) -> list[int]:
    """The batches of the rows of a table; none where there is no table yet."""
    if not table.exists():
        return []
    with table.open(newline="") as file:
        return [int(row["global_batch"]) for row in csv.DictReader(file)]


def wait_for(table: Path, rows: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while len(numbers(table)) < rows:
        assert time.monotonic() < until
        time.sleep(0.01)


def counted(spread: Spread, given: list[int]) -> Spread:
    """The spread, which notes the batch of every task that it is given."""

    def noted(tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        given.extend(int(task.point["global_batch"]) for task in tasks)
        yield from spread(tasks)

    return noted


def test_workers_say_what_one_process_says(tmp_path: Path) -> None:
    alone = autoshard.sweep(POINTS, tmp_path / "alone")
    spread = autoshard.sweep(POINTS, tmp_path / "spread", workers=3)
    assert spread.outcomes == alone.outcomes
    assert (tmp_path / "spread/results.csv").read_bytes() == (tmp_path / "alone/results.csv").read_bytes()
    assert autoshard.sweep(POINTS, tmp_path / "spread", workers=3).planned == 0


@pytest.mark.parametrize("when", ["with an answer unread", "before the answer"])
def test_a_worker_whose_pipe_is_closed_ends_in_silence(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = Pipe()

    def answer(task: str) -> str:
        if when == "before the answer":
            ours.close()
        return task

    monkeypatch.setattr("autoshard.runtime.worker.end_with_supervisor", lambda *arguments: None)
    monkeypatch.setattr("autoshard.sweeps.workers.leave_by_exception", lambda: None)
    monkeypatch.setattr("autoshard.sweeps.workers.done_json", answer)
    ours.send_bytes(b"a task")
    with ThreadPoolExecutor(1) as threads:
        worker = threads.submit(work, os.dup(theirs.fileno()), os.getpid())
        if when != "before the answer":
            assert ours.poll(PATIENCE_S)
            ours.close()
        assert worker.result(PATIENCE_S) is None


def test_a_sweep_goes_on_after_kill_9(tmp_path: Path) -> None:
    """The parent is killed in the middle: its workers end with it, its rows stay, the rest is done once."""
    table = tmp_path / "out/results.csv"
    points = {**POINTS, "global_batch": MANY}
    code = f"import autoshard; autoshard.sweep({points!r}, {str(tmp_path / 'out')!r}, workers=2)"
    parent = subprocess.Popen([sys.executable, "-c", code])
    wait_for(table, 2)
    workers = psutil.Process(parent.pid).children(recursive=True)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    before = numbers(table)
    assert len(workers) == 2 and 2 <= len(before) < len(MANY)
    _, alive = psutil.wait_procs(workers, timeout=PATIENCE_S)
    assert not alive
    given: list[int] = []
    sweep = sweep_of(points, "sweep")
    outcomes, done = run_sweep(sweep, tmp_path / "out", _never, lambda word: None, counted(on_processes(2), given))
    assert sorted([*before, *given]) == MANY and done == len(given)
    assert numbers(table) == MANY
    assert {outcome.status for _, outcome in outcomes} == {OK}


def test_ctrl_c_ends_the_workers_too(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(
        f"model: llama3.2-1b\nseq_len: 2048\ntp: 8\ngrid: {{global_batch: {[*range(64, 64 * 400, 64)]}}}\n"
    )
    command = [sys.executable, "-m", "autoshard", "sweep", str(sweep), "-o", str(tmp_path / "out"), "--workers", "2"]
    with by_default(signal.SIGINT):
        parent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    wait_for(tmp_path / "out/results.csv", 2)
    workers = psutil.Process(parent.pid).children(recursive=True)
    parent.send_signal(signal.SIGINT)
    assert parent.communicate(timeout=PATIENCE_S)[1] == b"" and parent.returncode == 130
    assert len(workers) == 2 and not any(worker.is_running() for worker in workers)


def test_a_worker_that_is_killed_loses_no_point(tmp_path: Path) -> None:
    killed: list[int] = []
    others = set(psutil.Process().children())  # of other tests

    def kill_one(word: str) -> None:
        if not killed:
            (victim, *_) = set(psutil.Process().children()) - others
            killed.append(victim.pid)
            victim.kill()

    sweep = sweep_of(POINTS, "sweep")
    outcomes, _ = run_sweep(sweep, tmp_path, _never, kill_one, on_processes(2))
    assert killed and {outcome.status for _, outcome in outcomes} == {OK}
    assert numbers(tmp_path / "results.csv") == BATCHES
    assert not set(psutil.Process().children()) - others


def test_a_point_that_kills_its_workers_is_left_and_tried_by_the_next_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadly = (
        "import os, signal; import autoshard.sweeps.point as point; whole = point.done_json\n"
        "import autoshard.sweeps.workers as workers\n"
        "workers.done_json = lambda text: os.kill(os.getpid(), signal.SIGKILL) if '\"global_batch\": 128' in text "
        "else whole(text)\n"
    )
    command = "autoshard.sweeps.workers._WORKER"
    usual = "from autoshard.sweeps.workers import main; main(int(sys.argv[2]), int(sys.argv[3]))"
    monkeypatch.setattr(command, f"{deadly}{usual}")
    grid = {**POINTS, "global_batch": BATCHES[:4]}
    found = autoshard.sweep(grid, tmp_path, workers=2)
    assert [outcome.status for _, outcome in found.outcomes] == [OK, LOST, OK, OK]
    assert found.outcomes[1][1].reason == "2 workers were killed while they did this point"
    monkeypatch.setattr(command, usual)
    again = autoshard.sweep(grid, tmp_path, workers=2)
    assert again.planned == 1 and {outcome.status for _, outcome in again.outcomes} == {OK}


def test_two_sweeps_do_not_write_to_one_folder(tmp_path: Path) -> None:
    def meanwhile(tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        with pytest.raises(AutoshardError, match=rf"^out={tmp_path} is in use by process {os.getpid()} on "):
            autoshard.sweep(POINTS, tmp_path)
        return iter(())

    with pytest.raises(KeyError):  # nothing was done
        run_sweep(sweep_of(POINTS, "sweep"), tmp_path, _never, lambda word: None, meanwhile)


def test_shards_are_parts_and_are_gathered(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        part = autoshard.sweep(POINTS, tmp_path, shard=f"{number}/3")
        assert [point["global_batch"] for point, _ in part.outcomes] == BATCHES[number - 1 :: 3]
        assert part.folder == tmp_path / f"shards/{number}-of-3"
    whole = autoshard.sweep(POINTS, tmp_path)
    assert whole.planned == 0 and len(whole.outcomes) == len(BATCHES)
    assert numbers(tmp_path / "results.csv") == BATCHES


@pytest.mark.parametrize("shard", ["0/3", "4/3", "1/13", "x", "1/2/3", "1"])
def test_a_shard_that_is_none(shard: str, tmp_path: Path) -> None:
    with pytest.raises(AutoshardError) as caught:
        autoshard.sweep(POINTS, tmp_path, shard=shard)
    assert str(caught.value) == (
        f"shard={shard!r} must be N/M, the N-th of M parts; sweep sweep has 12 points, so M is at most that"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": 0}, "workers=0 must be a whole number of at least 1"),
        ({"workers": 2, "scheduler": "x"}, "workers=2 beside scheduler=x, which has its own: leave it out"),
        ({"run": {"stepz": 3}}, "run of sweep sweep: 'stepz' is not an option of run; did you mean steps?"),
        ({"run": {"steps": 0}}, "run of sweep sweep: steps=0 must be a whole number of at least 1"),
        ({"run": {"output": "x"}}, "run of sweep sweep has output, which the sweep decides; leave it out"),
    ],
)
def test_mistakes(options: dict[str, object], words: str, tmp_path: Path) -> None:
    with pytest.raises(AutoshardError) as caught:
        autoshard.sweep(POINTS, tmp_path / "none", **options)  # type: ignore[arg-type]
    assert str(caught.value) == words and not (tmp_path / "none").exists()


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("toy.yaml").write_text(f"model: llama3.2-1b\nseq_len: 2048\ngrid: {{global_batch: {BATCHES[:3]}}}\n")
    assert main(["sweep", "toy.yaml", "--workers", "2", "--shard", "1/3"]) == 0
    assert "sweeps/toy/shards/1-of-3/results.csv" in capsys.readouterr().out
    assert main(["sweep", "toy.yaml", "--workers", "2"]) == 0
    assert "1 of 3 points were in the table already" in capsys.readouterr().out


def _never(request: object) -> autoshard.Plan:
    raise AssertionError(f"{request} is planned by a worker")


def test_an_empty_rest_starts_no_worker() -> None:
    assert list(on_processes(4)([])) == []
    assert Sweep("x", {}, {"nodes": (1,)}).points == ({"nodes": 1},)
