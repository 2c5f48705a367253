"""Spreads the points of a sweep over the workers of a Dask cluster (extra `cluster`).

`dask scheduler` prints its address, `dask worker ADDRESS` starts workers; they need this version of autoshard and, for
runs and for files that options name, a file system that they share with this machine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import replace

from autoshard.errors import AutoshardError
from autoshard.plugins.version import version_with_plugins
from autoshard.sweeps.outcome import LOST, Outcome
from autoshard.sweeps.point import Spread, Task, done_json, outcome_from, task_json
from autoshard.sweeps.table import files_of

INSTALL = "--scheduler needs Dask: pip install 'autoshard[cluster]'"
PATIENCE_S = 30.0
"""How long the scheduler gets to answer, and then the first worker to arrive: a guess, longer than a slow start."""


def on_dask(address: str) -> Spread:
    """Does tasks on the cluster of the scheduler at this address, such as tcp://10.0.0.1:8786. Dask gives a task whose
    worker was killed to another.

    Raises AutoshardError without Dask, where no scheduler answers or no worker comes, and for a worker with another
    version of autoshard or without it.
    """

    def spread(tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        if not tasks:
            return
        try:
            from distributed import Client, KilledWorker, as_completed
        except ImportError:
            raise AutoshardError(INSTALL) from None
        try:
            client = Client(address, timeout=PATIENCE_S, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise AutoshardError(
                f"scheduler={address} does not answer: {why}; `dask scheduler` prints its address when it starts"
            ) from None
        with _silent(), client, client.as_current():
            try:
                client.wait_for_workers(1, timeout=PATIENCE_S)
            except (TimeoutError, asyncio.TimeoutError):  # one and the same from Python 3.11 on
                raise AutoshardError(
                    f"scheduler={address} has no worker: start some with `dask worker {address}`"
                ) from None
            version = version_with_plugins()
            texts = [task_json(_anywhere(task)) for task in tasks]
            asked = [client.submit(done_on_worker, text, version, pure=False) for text in texts]
            futures = dict(zip(asked, tasks, strict=True))
            try:
                for future in as_completed(futures):
                    task, failed = futures.pop(future), future.exception()
                    if isinstance(failed, KilledWorker):
                        yield task, Outcome(LOST, "its workers were killed while they did this point")
                    elif failed is not None:
                        why = str(failed).splitlines()[0] if str(failed) else type(failed).__name__
                        raise AutoshardError(f"a worker of scheduler={address}: {why}") from None
                    else:
                        yield task, outcome_from(future.result())
            except (CancelledError, OSError):
                raise AutoshardError(
                    f"scheduler={address} was lost before all points were done; those that were are in the table: "
                    "start it again and repeat the sweep"
                ) from None

    return spread


@contextmanager
def _silent() -> Iterator[None]:
    """A context in which Dask's client logs nothing: it tells of a lost scheduler by tracebacks of its own."""
    logger = logging.getLogger("distributed.client")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


def _anywhere(task: Task) -> Task:
    """The task with whole paths of the files that its options name: workers stand in other folders."""
    found = {
        name: f"{path.resolve()}{made}"
        for name, (path, made) in files_of(task.point).items()
        if (len(path.parts) > 1 or path.suffix) and path.exists()
    }
    return replace(task, point={**task.point, **found})


def done_on_worker(text: str, version: str) -> str:
    """`done_json` on a worker. Raises AutoshardError where its autoshard is not of this version: prices may differ."""
    if version_with_plugins() != version:
        raise AutoshardError(f"it has autoshard {version_with_plugins()}, the sweep {version}; install the same on all")
    return done_json(text)
