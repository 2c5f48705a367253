"""A sweep on a Dask cluster of processes, one of which is killed: no point lost, none twice, and who is missing is
said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

import autoshard
from autoshard.errors import AutoshardError
from autoshard.sweeps import dask_cluster
from autoshard.sweeps.grid import sweep_of
from autoshard.sweeps.outcome import OK
from autoshard.sweeps.point import Task
from autoshard.sweeps.run import run_sweep
from tests.unit.test_sweep_workers import BATCHES, POINTS, _never, numbers

PATIENCE_S = 120.0


def started(*command: str) -> subprocess.Popen[bytes]:
    """A `dask` command of this environment."""
    return subprocess.Popen([sys.executable, "-m", "dask", *command], start_new_session=True)


@contextmanager
def scheduler(folder: Path, *workers: str) -> Iterator[str]:
    """The address of a scheduler, with workers in another folder where options of theirs are given."""
    file = folder / "scheduler.json"
    common = ("--scheduler-file", str(file), "--no-dashboard")
    processes = [started("scheduler", "--host", "127.0.0.1", "--port", "0", *common)]
    try:
        until = time.monotonic() + PATIENCE_S
        while not file.exists() or not file.read_text().endswith("}"):  # it is written while we look
            assert time.monotonic() < until and processes[0].poll() is None
            time.sleep(0.05)
        if workers:
            here = ("--host", "127.0.0.1", "--local-directory", str(folder))
            processes.append(started("worker", *common, *here, *workers))
        yield json.loads(file.read_text())["address"]
    finally:
        for process in reversed(processes):
            for one in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
                one.kill()
            process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a scheduler with two workers, each in a process that its nanny starts anew."""
    with scheduler(tmp_path_factory.mktemp("dask"), "--nworkers", "2", "--nthreads", "1") as address:
        yield address


def test_a_worker_is_killed_in_the_middle(cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    victims: list[int] = []

    def kill_one(word: str) -> None:
        if len(numbers(tmp_path / "out/results.csv")) == 3:
            from distributed import Client

            with Client(cluster, set_as_default=False) as client:
                victims.append(next(iter(client.run(os.getpid).values())))
                os.kill(victims[0], signal.SIGKILL)

    sweep = sweep_of(POINTS, "sweep")
    outcomes, done = run_sweep(sweep, tmp_path / "out", _never, kill_one, dask_cluster.on_dask(cluster))
    assert len(victims) == 1 and done == len(BATCHES)
    assert {outcome.status for _, outcome in outcomes} == {OK}
    assert numbers(tmp_path / "out/results.csv") == BATCHES
    assert autoshard.sweep(POINTS, tmp_path / "alone").outcomes == tuple(outcomes)
    assert autoshard.sweep(POINTS, tmp_path / "out", scheduler=cluster).planned == 0


def test_files_are_found_from_other_folders(cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = Path(autoshard.__file__).parent / "models/llama/configs/llama3.2-1b.json"
    Path("mine.json").write_text(config.read_text())
    found = autoshard.sweep({**POINTS, "model": "mine.json", "global_batch": [64]}, "out", scheduler=cluster)
    ((point, outcome),) = found.outcomes
    assert outcome.status == OK and point["model"] == "mine.json"


def test_a_module_in_a_file_is_found_from_other_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").touch()
    task = dask_cluster._anywhere(Task({"model": "mine.py:MyModel", "nodes": 1}))
    assert task.point == {"model": f"{tmp_path.resolve()}/mine.py:MyModel", "nodes": 1}
    missing = Task({"model": "not_there.py:MyModel"})
    assert dask_cluster._anywhere(missing) == missing


def test_a_worker_of_another_version_is_refused(cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_cluster, "version_with_plugins", lambda: "9.9.9")
    with pytest.raises(AutoshardError) as caught:
        autoshard.sweep(POINTS, tmp_path, scheduler=cluster)
    said = str(caught.value)
    assert said.startswith(f"a worker of scheduler={cluster}: it has autoshard {autoshard.__version__}+")
    assert said.endswith(", the sweep 9.9.9; install the same on all")


def test_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_cluster, "PATIENCE_S", 0.5)
    for address, word in (("tcp://127.0.0.1:9", "Timed out"), ("nonsense://x", "unknown address scheme")):
        with pytest.raises(AutoshardError) as caught:
            autoshard.sweep(POINTS, tmp_path, scheduler=address)
        said = str(caught.value)
        assert said.startswith(f"scheduler={address} does not answer: {word}") and "\n" not in said
        assert said.endswith("; `dask scheduler` prints its address when it starts")


def test_no_worker_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_cluster, "PATIENCE_S", 2.0)
    with scheduler(tmp_path) as address, pytest.raises(AutoshardError) as caught:
        autoshard.sweep(POINTS, tmp_path / "out", scheduler=address)
    assert str(caught.value) == f"scheduler={address} has no worker: start some with `dask worker {address}`"


def test_a_scheduler_that_is_killed_is_said_in_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    killed: list[str] = []
    file = str(tmp_path / "scheduler.json")

    def kill(word: str) -> None:
        if not killed:
            killed.append(word)
            commands = {process: process.cmdline() for process in psutil.Process().children()}
            (it,) = (one for one, words in commands.items() if words[3:4] == ["scheduler"] and file in words)
            it.kill()

    sweep = sweep_of(POINTS, "sweep")
    with scheduler(tmp_path, "--nworkers", "1", "--nthreads", "1") as address:
        capfd.readouterr()
        with pytest.raises(AutoshardError) as caught:
            run_sweep(sweep, tmp_path / "out", _never, kill, dask_cluster.on_dask(address))
    assert str(caught.value) == (
        f"scheduler={address} was lost before all points were done; those that were are in the table: start it again "
        "and repeat the sweep"
    )
    assert "distributed.client" not in capfd.readouterr().err
    assert 0 < len(numbers(tmp_path / "out/results.csv")) < len(BATCHES)


def test_without_dask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(AutoshardError, match=r"^--scheduler needs Dask: pip install 'autoshard\[cluster\]'$"):
        autoshard.sweep(POINTS, tmp_path, scheduler="tcp://127.0.0.1:9")
