"""Real processes, real signals: whatever ends one rank ends all, soon, with one message, and leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from autoshard.errors import AutoshardError
from autoshard.runtime.environment import ClusterEnvironment
from autoshard.runtime.fork_server import fork_server
from autoshard.runtime.in_cluster import run_in_cluster
from autoshard.runtime.launch import Message, RunOutcome, run_processes
from autoshard.runtime.processes import Beginning, Start, start_interpreter
from tests.multiprocess.started import by_default

WORKERS = "tests.multiprocess.launch_workers:"
FORKED = (WORKERS[:-1],)
WITH_TORCH = (*FORKED, "tests.multiprocess.masked_workers")
"""With what `ring` and `pipelined` import: once, and not in each fork."""
ROOT = Path(__file__).parents[2]
LIMIT_S = 10.0


class Run:
    """One call of run_processes, with what it was told and how long the end took after the last message."""

    def __init__(self, log_directory: Path, start: Start = start_interpreter) -> None:
        self.log_directory, self.start = log_directory, start
        self.messages: list[Message] = []
        self.last_message_s = 0.0

    def __call__(self, function: str, arguments: dict[str, Any], num_processes: int, **options: Any) -> RunOutcome:
        return run_processes(
            WORKERS + function,
            arguments,
            num_processes,
            on_message=options.pop("on_message", self.on_message),
            log_directory=self.log_directory,
            trusted_prefix="tests.",
            start=self.start,
            **options,
        )

    def on_message(self, message: Message) -> None:
        self.messages.append(message)
        self.last_message_s = time.monotonic()

    @property
    def pids(self) -> list[int]:
        return [message.values["pid"] for message in self.messages if message.kind == "pid"]


@pytest.fixture(scope="module")
def interpreters() -> Start:
    return start_interpreter


@pytest.fixture(scope="module")
def forked() -> Iterator[Start]:
    with fork_server(FORKED) as start:
        yield start


@pytest.fixture(scope="module")
def forked_with_torch() -> Iterator[Start]:
    with fork_server(WITH_TORCH) as start:
        yield start


@pytest.fixture(params=["interpreters", "forked"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Run]:
    yield from running(request.getfixturevalue(request.param), tmp_path)


@pytest.fixture(params=["interpreters", "forked_with_torch"])
def run_torch(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Run]:
    yield from running(request.getfixturevalue(request.param), tmp_path)


def running(start: Start, tmp_path: Path) -> Iterator[Run]:
    before = set(psutil.Process().children(recursive=True))
    result = Run(tmp_path / "logs", start)
    yield result
    assert set(psutil.Process().children(recursive=True)) <= before
    assert_gone(result.pids, within_s=1)


def assert_gone(pids: list[int], within_s: float) -> float:
    """Seconds until no process has any of these ids."""
    start_s = time.monotonic()
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
        assert time.monotonic() - start_s < within_s, [pid for pid in pids if psutil.pid_exists(pid)]
        time.sleep(0.01)
    return time.monotonic() - start_s


def test_results_messages_and_logs_arrive_by_rank(run: Run) -> None:
    outcome = run("square", {"steps": 3}, 3)
    assert (outcome.exit_code, outcome.message, outcome.failure) == (0, "", None)
    assert [result and result["square"] for result in outcome.results] == [0, 1, 4]
    assert [m.values["step"] for m in run.messages if m.rank == 2] == [0, 1, 2]
    assert [file.name for file in outcome.log_files] == ["rank-00.log", "rank-01.log", "rank-02.log"]
    assert outcome.log_files[1].read_text() == "rank 1 prints\n"


def test_a_worker_imports_from_where_its_supervisor_does(run: Run, tmp_path: Path) -> None:
    # A folder with a json.py of the user's own must not replace Python's.
    (tmp_path / "json.py").write_text("raise ImportError('the wrong json')\n")
    code = f"import sys; sys.path = [{str(ROOT)!r}, *filter(None, sys.path)]; " + supervisor_code(tmp_path, "square")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr


def test_a_worker_works_where_its_supervisor_does(run: Run, in_an_empty_folder: None) -> None:
    assert run("folder", {}, 2).results == ({"folder": str(Path.cwd())},) * 2


def test_memory_of_a_worker_is_its_own(run: Run) -> None:
    # A bare interpreter needs about 15 MB; the pytest process that starts it has far more.
    ballast = bytearray(200_000_000)
    (result,) = run("square", {"steps": 0}, 1).results
    assert result is not None
    assert 5e6 < result["memory_bytes"] < 60e6 < len(ballast)


def test_gloo_finishes_and_exits_cleanly(run_torch: Run) -> None:
    # The group is still alive at the end, where gloo would abort in an ordinary exit.
    outcome = run_torch("ring", {"steps": 6}, 2)
    assert outcome.exit_code == 0, outcome.message
    # three sums over 2 ranks make 2^3, the averages between them keep it
    assert outcome.results == ({"sum": 8.0, "group_is_alive": True},) * 2


def test_one_rank_raises_while_others_are_in_a_collective(run_torch: Run) -> None:
    outcome = run_torch("ring", {"raise": True}, 3)
    assert time.monotonic() - run_torch.last_message_s < LIMIT_S
    assert outcome.exit_code == 1
    headline, *tail = outcome.message.splitlines()
    assert headline == "rank 1 failed in all-reduce 3: ValueError: loss is nan; the other 2 ranks were stopped"
    assert tail[0] == f"the end of {outcome.log_files[1]}:"
    assert tail[-1] == "    ValueError: loss is nan"
    assert "Connection closed" not in outcome.message


def test_what_a_pipelines_stage_raises_is_named_as_it_is(run_torch: Run) -> None:
    outcome = run_torch("pipelined", {}, 2)
    headline, *tail = outcome.message.splitlines()
    assert headline == "rank 1 failed in F1.0: ValueError: loss is nan; the other rank was stopped"
    assert tail[-1] == "    ValueError: loss is nan"


def test_one_rank_killed_while_others_are_in_a_collective(run_torch: Run) -> None:
    killed_s = 0.0

    def kill_rank_1(message: Message) -> None:
        nonlocal killed_s
        run_torch.on_message(message)
        if len(run_torch.pids) == 3:
            os.kill(next(m.values["pid"] for m in run_torch.messages if m.rank == 1), signal.SIGKILL)
            killed_s = time.monotonic()

    outcome = run_torch("ring", {}, 3, on_message=kill_rank_1)
    assert time.monotonic() - killed_s < LIMIT_S
    assert outcome.exit_code == 1
    assert outcome.message.startswith("rank 1 was killed by signal 9 (SIGKILL) in all-reduce ")
    assert "the other 2 ranks were stopped" in outcome.message


@pytest.mark.parametrize(
    ("does", "message"),
    [
        ("raise", "rank 1 failed in step 3, F2.0: ValueError: loss is nan; the other 2 ranks were stopped"),
        ("exit", "rank 1 failed in step 3, F2.0: SystemExit: 0; the other 2 ranks were stopped"),
        ("vanish", "rank 1 exited with code 3 in step 3, F2.0, its work not done; the other 2 ranks were stopped"),
        ("user's mistake", "data.txt holds 3 tokens; one batch needs 8"),
    ],
)
def test_the_message_names_rank_action_and_cause(run: Run, does: str, message: str) -> None:
    outcome = run("one_rank", {"does": does}, 3)
    assert outcome.exit_code == (2 if does == "user's mistake" else 1)
    assert outcome.message.splitlines()[0] == message
    assert outcome.results == (None, None, None)
    if does == "raise":
        assert "[31mred[0m words before the end" in outcome.message
    if does == "user's mistake":
        assert outcome.message == message


def test_a_rank_that_hangs_is_named_with_its_stack(run: Run) -> None:
    outcome = run("one_rank", {"does": "hang"}, 3, hang_timeout_s=1.0)
    assert outcome.exit_code == 1
    assert outcome.message.splitlines()[0] == (
        "rank 1 hung in step 3, F2.0: nothing heard from it for 1 s; the other 2 ranks were stopped"
    )
    assert "launch_workers.py" in outcome.message


def test_a_stopped_rank_goes_before_those_that_are_no_less_silent(run: Run) -> None:
    outcome = run("one_rank", {"does": "stop"}, 2, hang_timeout_s=1.0, grace_s=0.2)
    assert outcome.message.startswith("rank 1 hung in step 3, F2.0: nothing heard from it for 1 s")


def test_a_rank_that_is_stopped_when_its_work_is_done_keeps_nobody_waiting(run: Run) -> None:
    outcome = run("stopped_when_done", {}, 2, grace_s=0.2)
    assert (outcome.exit_code, outcome.message) == (0, "")
    assert outcome.results == ({"rank": 0}, {"rank": 1})


def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace(run: Run) -> None:
    def kill_rank_0(message: Message) -> None:
        run.on_message(message)
        if len(run.pids) == 2:
            os.kill(next(m.values["pid"] for m in run.messages if m.rank == 0), signal.SIGKILL)

    outcome = run("sleep", {"stubborn": True}, 2, grace_s=0.5, on_message=kill_rank_0)
    assert outcome.message.startswith("rank 0 was killed by signal 9 (SIGKILL) in sleep; the other rank was stopped")
    assert 0.5 <= time.monotonic() - run.last_message_s < 5


def test_what_a_rank_started_ends_with_it(run: Run) -> None:
    outcome = run("sleep", {"child": True, "seconds": 0}, 2)
    assert outcome.exit_code == 0
    assert len(run.pids) == 4  # the fixture checks that none of them is left


def test_an_error_in_the_supervisor_ends_all_ranks(run: Run) -> None:
    def full_disk(message: Message) -> None:
        run.on_message(message)
        raise AutoshardError("metrics.jsonl: No space left on device")

    with pytest.raises(AutoshardError, match=r"metrics\.jsonl: No space left on device"):
        run("sleep", {}, 2, on_message=full_disk)


def test_a_log_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file")
    with pytest.raises(AutoshardError) as error:
        Run(tmp_path / "logs")("sleep", {}, 2)
    assert str(error.value) == f"cannot start rank 0 of 2: {tmp_path / 'logs'}: File exists"


def supervisor_code(
    log_directory: Path,
    function: str,
    num_processes: int = 2,
    grace_s: float = 5,
    modules: Sequence[str] = (),
    **given: Any,
) -> str:
    arguments = {"steps": 1} | given
    return (
        "from tests.multiprocess.launch_workers import supervise; "
        f"supervise({str(log_directory)!r}, {function!r}, {arguments!r}, {num_processes}, {grace_s}, {list(modules)!r})"
    )


class Supervisor:
    """A supervisor in a process of its own, whose workers' ids are known."""

    def __init__(self, tmp_path: Path, num_messages: int, **options: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", supervisor_code(tmp_path / "logs", "sleep", **options)],
            cwd=ROOT,
            env=os.environ | {"TMPDIR": str(tmp_path)},  # a killed supervisor leaves its scratch folder
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert json.loads(self.process.stdout.readline()) == {}
        self.pids = [json.loads(self.process.stdout.readline())["pid"] for _ in range(num_messages)]

    def finish(self) -> tuple[int, str, float]:
        """Exit code, message, and how long it took."""
        start_s = time.monotonic()
        stdout, stderr = self.process.communicate(timeout=LIMIT_S)
        took_s = time.monotonic() - start_s
        assert stderr == ""
        assert_gone(self.pids, within_s=0.5)
        return self.process.returncode, json.loads(stdout)["message"], took_s


@pytest.mark.parametrize(
    ("number", "name", "exit_code"),
    [(signal.SIGINT, "Ctrl-C", 130), (signal.SIGTERM, "SIGTERM", 143), (signal.SIGHUP, "SIGHUP", 129)],
)
@pytest.mark.parametrize("modules", [(), FORKED])
def test_a_signal_to_the_supervisor_ends_all_ranks(
    tmp_path: Path, modules: Sequence[str], number: signal.Signals, name: str, exit_code: int
) -> None:
    with by_default(number):
        supervisor = Supervisor(tmp_path, num_messages=3, num_processes=3, modules=modules)
    os.killpg(supervisor.process.pid, number)  # to the whole foreground group, as a terminal does
    code, message, took_s = supervisor.finish()
    assert (code, message) == (exit_code, f"interrupted by {name}; all 3 ranks were stopped")
    assert took_s < 5


def test_a_second_ctrl_c_does_not_wait_for_the_grace(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path, num_messages=2, stubborn=True, grace_s=60)
    supervisor.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert supervisor.process.poll() is None
    supervisor.process.send_signal(signal.SIGINT)
    code, _, took_s = supervisor.finish()
    assert code == 130
    assert took_s < 5


@pytest.mark.parametrize("modules", [(), FORKED])
def test_workers_die_with_a_killed_supervisor(tmp_path: Path, modules: Sequence[str]) -> None:
    supervisor = Supervisor(tmp_path, num_messages=3, num_processes=3, modules=modules, stubborn=True)
    supervisor.process.kill()
    supervisor.process.communicate(timeout=LIMIT_S)
    assert_gone(supervisor.pids, within_s=LIMIT_S)


def test_ctrl_c_does_not_wait_for_the_server_that_ranks_are_forked_from(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path, num_messages=0, modules=["tests.multiprocess.launch_slowly"])
    time.sleep(0.5)
    supervisor.pids = [process.pid for process in psutil.Process(supervisor.process.pid).children()]
    assert len(supervisor.pids) == 1
    supervisor.process.send_signal(signal.SIGINT)
    assert supervisor.finish()[:2] == (130, "interrupted by Ctrl-C; all 2 ranks were stopped")


@pytest.mark.parametrize(
    ("modules", "forked"),
    [
        (FORKED, True),
        (["tests.multiprocess.no_such_module"], True),  # whose absence is for the ranks to say
        (["tests.multiprocess.launch_thread"], False),  # locks of other threads stay locked in a fork
    ],
)
def test_ranks_are_forked_from_a_process_with_one_thread_alone(
    tmp_path: Path, modules: Sequence[str], forked: bool
) -> None:
    with fork_server(modules) as start:
        outcome = Run(tmp_path / "logs", start)("parent", {}, 2)
        again = Run(tmp_path / "again", start)("parent", {}, 1)
    found = {"parent": os.getpid(), "forked": forked and sys.platform == "linux"}
    assert (outcome.results, again.results) == ((found, found), (found,))


def test_a_rank_leads_its_group_as_soon_as_it_is_known(tmp_path: Path) -> None:
    """Who ends the group before would end nothing, and wait for ever."""
    with fork_server(FORKED) as start, ExitStack() as files:
        null = files.enter_context(Path(os.devnull).open("r+b")).fileno()
        read_fd, lifeline = os.pipe()
        for _ in range(20):
            process = start(Beginning(0, tmp_path / "none.json", tmp_path, {}, read_fd, null, null), lambda: False)
            assert process is not None
            group = os.getpgid(process.pid)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            assert group == process.pid
        os.close(read_fd)
        os.close(lifeline)


def test_a_server_that_was_killed_is_replaced_by_new_interpreters(tmp_path: Path) -> None:
    others = psutil.Process().children()  # among them the servers of other tests
    with fork_server(FORKED) as start:
        (server,) = (child for child in psutil.Process().children() if child not in others)
        server.kill()
        assert_gone([server.pid], within_s=5)
        outcome = Run(tmp_path / "logs", start)("parent", {}, 2)
    assert (outcome.message, outcome.failure) == ("", None)
    assert outcome.results == ({"parent": os.getpid(), "forked": False},) * 2


def test_a_closed_lifeline_ends_a_process_and_what_it_started() -> None:
    # What notices a dead supervisor where the kernel does not tell.
    code = (
        "import subprocess, threading; from autoshard.runtime.worker import watch_lifeline; "
        "print(subprocess.Popen(['sleep', '60']).pid, flush=True); watch_lifeline(0, threading.Event())"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.communicate(timeout=LIMIT_S)  # closes its stdin
    assert process.returncode == -signal.SIGKILL
    assert_gone([child], within_s=1)


def test_signals_are_left_alone_in_another_thread(run: Run) -> None:
    outcomes: list[RunOutcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(run("square", {"steps": 1}, 1)))
    thread.start()
    thread.join(LIMIT_S)
    assert [outcome.exit_code for outcome in outcomes] == [0]


def test_the_same_function_runs_as_one_rank_of_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    messages: list[Message] = []
    rank_3 = ClusterEnvironment("torchrun", 3, 8, 1, "node01", 29500)
    outcome = run_in_cluster(WORKERS + "square", {"steps": 2}, rank_3, on_message=messages.append)
    assert (outcome.exit_code, messages) == (0, [])
    assert outcome.results[0] is not None
    assert outcome.results[0]["square"] == 9

    rank_0 = ClusterEnvironment("slurm", 0, 8, 0, "node01", 29500)
    run_in_cluster(WORKERS + "square", {"steps": 2}, rank_0, on_message=messages.append)
    assert [message.values["step"] for message in messages] == [0, 1]

    rank_1 = ClusterEnvironment("slurm", 1, 8, 1, "node01", 29500)
    outcome = run_in_cluster(WORKERS + "one_rank", {"does": "raise"}, rank_1, on_message=messages.append)
    assert (outcome.exit_code, outcome.message) == (1, "rank 1 failed in step 3, F2.0: ValueError: loss is nan")
    assert "Traceback" in capsys.readouterr().err
