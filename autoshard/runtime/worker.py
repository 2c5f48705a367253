"""The inside of one process of a run: how it reports, how it ends, and that it never outlives its supervisor."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from autoshard.errors import AutoshardError
from autoshard.runtime.last_action import LastActions

Work = Callable[[dict[str, Any], "Reporter"], "dict[str, Any] | None"]
"""Type of a worker function: arguments and reporter in, a result of plain values out."""


_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
"""Of prctl."""


class Reporter:
    """How the work in one process speaks to the supervisor.

    rank, local_rank, world_size: this process among all.
    init_method: for torch.distributed.init_process_group(init_method=..., rank=..., world_size=...).
    """

    def __init__(
        self,
        *,
        rank: int,
        local_rank: int,
        world_size: int,
        init_method: str,
        send: Callable[[dict[str, Any]], None],
        write_action: Callable[[str], None],
    ) -> None:
        self.rank = rank
        self.local_rank = local_rank
        self.world_size = world_size
        self.init_method = init_method
        self._send = send
        self._write_action = write_action
        self._last_action = ""

    @property
    def last_action(self) -> str:
        """The rank's present work, in words that complete "failed in ...", such as "step 3, F2.0"; cheap to set."""
        return self._last_action

    @last_action.setter
    def last_action(self, action: str) -> None:
        self._last_action = action
        self._write_action(action)

    def report(self, kind: str, **values: Any) -> None:
        """Send one message: plain values, or scalars and arrays with tolist() such as torch's and numpy's."""
        self._send({"type": "message", "kind": kind, "values": values})

    def as_one(self, sends: bool) -> Reporter:
        """The same for a plan of one device, which this process executes by itself. sends: whether its messages are
        sent on."""
        return Reporter(
            rank=0,
            local_rank=0,
            world_size=1,
            init_method=self.init_method,
            send=self._send if sends else lambda message: None,
            write_action=self._write_action,
        )


def peak_memory_bytes() -> int:
    """Most host memory this process ever had resident.

    /proc rather than getrusage on Linux: ru_maxrss starts at the size of the process that started this one.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def resolve(worker: str) -> Work:
    """'package.module:function' -> the function."""
    module, _, name = worker.partition(":")
    function: Work = getattr(importlib.import_module(module), name)
    return function


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """A context in which Python collects no garbage: modules live on, and looking for garbage among them takes a fifth
    of the time that torch takes to import. What was made up to its end is never looked through again."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def exit_now(code: int) -> NoReturn:
    """Flush and end without the interpreter's own exit.

    gloo's threads are still running when C++ destroys its globals and abort the process then ("terminate called without
    an active exception"), although its work is done and reported.
    """
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def main(spec_path: str, rank: int, report_fd: int) -> NoReturn:
    """Run the function that the JSON file at spec_path names, as `rank`: the supervisor starts this in a process.

    report_fd: file descriptor of the pipe to the supervisor.
    """
    spec = json.loads(Path(spec_path).read_text(encoding="utf-8"))
    finished = threading.Event()
    end_with_supervisor(spec["supervisor_pid"], finished)
    if sys.platform == "linux":  # for who looks for a rank among processes: a forked one has no RANK in /proc
        ctypes.CDLL(None).prctl(_PR_SET_NAME, f"rank {rank}".encode())
    os.set_inheritable(report_fd, False)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the supervisor asks a hanging rank where it is
    actions = LastActions(Path(spec["last_actions"]), spec["world_size"])
    pipe = _MessagePipe(report_fd)
    reporter = Reporter(
        rank=rank,
        local_rank=rank,
        world_size=spec["world_size"],
        init_method=spec["init_method"],
        send=pipe.send,
        write_action=lambda action: actions.write(rank, action),
    )
    try:
        with importing():
            work = resolve(spec["worker"])
        result = work(spec["arguments"], reporter)
        pipe.send({"type": "done", "result": result})
    except BaseException as error:  # whatever it is, the supervisor must hear of it
        with contextlib.suppress(OSError):  # a full disk must not keep the message back
            traceback.print_exception(error)  # first: the supervisor stops us once it knows
        pipe.send({"type": "failed", **describe(error), "last_action": reporter.last_action})
        exit_now(1)
    finished.set()
    # Stay until every rank is done: one that leaves early closes connections that others may still be using. Then the
    # supervisor closes the lifeline, and the thread that watches it ends this process.
    while True:
        signal.pause()


def describe(error: BaseException) -> dict[str, Any]:
    """The exception as plain values, and whether it reads like the echo of another rank's end.

    Every kind of AutoshardError has that name. None is an echo: a store that cannot be reached is no rank's end.
    """
    text = str(error).strip() or repr(error)
    if isinstance(error, AutoshardError):
        return {"error_type": AutoshardError.__name__, "error_text": text, "echo": False}
    return {"error_type": type(error).__name__, "error_text": text, "echo": _is_echo(error)}


def end_with_supervisor(supervisor_pid: int, finished: threading.Event) -> None:
    """End this process when its supervisor is gone, however that ended.

    Its parent's end is noticed, where the system tells it. Everywhere, stdin is a pipe that only the supervisor can
    write to: its end is the supervisor's.
    """
    end_with_parent(supervisor_pid)
    lifeline = os.dup(0)  # not inherited by what this process starts
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    threading.Thread(target=watch_lifeline, args=(lifeline, finished), daemon=True, name="lifeline").start()


def end_with_parent(parent_pid: int) -> None:
    """End this process when its parent, the process parent_pid, is gone, however that ended.

    On Linux the kernel kills it (PR_SET_PDEATHSIG); elsewhere nothing does. A parent that was gone before that was set
    is noticed by the changed parent.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def watch_lifeline(lifeline: int, finished: threading.Event) -> None:
    """Wait for the pipe to close: leave with 0 when the work is finished, else die with everything we started."""
    while os.read(lifeline, 1):
        pass
    if finished.is_set():
        exit_now(0)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


class _MessagePipe:
    """JSON lines; several threads may send."""

    def __init__(self, fd: int) -> None:
        self._file = os.fdopen(fd, "wb", buffering=0)
        self._lock = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        line = memoryview(json.dumps(message, default=_plain).encode() + b"\n")
        with self._lock:
            while line:
                line = line[self._file.write(line) :]


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not a plain value")


_ECHOES = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "timed out waiting",
    "socket timeout",
    "/gloo/",
    "suspected hang",  # Neuron's runtime: another rank did not come (neuron_errors.py)
)


def _is_echo(error: BaseException) -> bool:
    """Lost connections and time-outs in a collective are what every rank sees when one of them ends."""
    seen: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in seen:  # "raise x from y" may close a circle
        is_torch_network_error = type(one).__module__.startswith("torch") and type(one).__name__.startswith("Dist")
        if is_torch_network_error or isinstance(one, ConnectionError):
            return True
        if any(echo in str(one).lower() for echo in _ECHOES):
            return True
        seen.append(one)
        one = one.__cause__ or one.__context__
    return False
