"""Starts processes that run a function of these tests."""

import atexit
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from autoshard.backends.torch import TORCH
from autoshard.runtime.fork_server import fork_server
from autoshard.runtime.launch import RunOutcome, run_processes
from autoshard.runtime.processes import Start, common_environment, start_interpreter
from autoshard.runtime.starting import TRAINER

IMPORTED = ("tests.multiprocess.compared", TRAINER, *TORCH.early_imports)
"""Modules that most functions need, with torch and the runtime: imported once for all processes of many tests."""


def results(function: str, world_size: int, hang_timeout_s: float) -> dict[str, Any]:
    """What rank 0 returns of a function ("module:name" in tests.multiprocess) that many tests look at."""
    return first_rank(_outcome(function, world_size, hang_timeout_s))


@cache
def _outcome(function: str, world_size: int, hang_timeout_s: float) -> RunOutcome:
    """The processes run once, even where that fails."""
    return start(function, world_size, {}, hang_timeout_s)


def start(
    function: str, world_size: int, arguments: dict[str, Any], hang_timeout_s: float, package: str = "multiprocess"
) -> RunOutcome:
    """The outcome of a function ("module:name" in tests.<package>) in processes."""
    with TemporaryDirectory(prefix="autoshard-test-") as logs:
        return run_processes(
            f"tests.{package}.{function}",
            arguments,
            world_size,
            on_message=lambda message: None,
            log_directory=Path(logs),
            hang_timeout_s=hang_timeout_s,
            trusted_prefix="tests.",
            start=forked() if package == "multiprocess" else start_interpreter,
        )


def forked() -> Start:
    """How processes of these tests start: as forks of one that imports once and ends with this one, with the variables
    that are set by then."""
    server = _server()
    return lambda beginning, stopped: server(
        replace(beginning, environment=common_environment() | beginning.environment), stopped
    )


def still_forks() -> bool:
    """Whether processes of these tests are forks, as long as any has started and the system has forks."""
    if sys.platform != "linux" or not _server.cache_info().currsize:
        return True
    return bool(first_rank(start("launch_workers:parent", 1, {}, hang_timeout_s=60))["forked"])


@cache
def _server() -> Start:
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(fork_server(IMPORTED))


def first_rank(outcome: RunOutcome) -> dict[str, Any]:
    assert outcome.exit_code == 0, outcome.message
    assert outcome.results[0] is not None
    return outcome.results[0]


@contextmanager
def by_default(number: signal.Signals) -> Iterator[None]:
    """What starts in here does by default what the signal says, though this process ignore it, as under nohup or in the
    background of a shell: processes ignore what their parent does."""
    before = signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(number, before)
