"""Writes the numbers of each step to a JSONL file, TensorBoard and W&B. Only the supervising process uses it."""

from __future__ import annotations

import importlib
import json
import math
import netrc
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlparse

from autoshard.errors import AutoshardError
from autoshard.runtime.tensorboard_events import EventFile

METRICS_FILE = "metrics.jsonl"
_WANDB_HOST = "api.wandb.ai"
"""Host under which keys were stored before wandb changed its default; such keys are still found."""
_WANDB_INIT_TIMEOUT_S = 30.0
"""How many seconds wandb gets to start: a guess, longer than a slow network and shorter than a person's patience."""


class MetricsWriter:
    """Writes to metrics.jsonl and tensorboard/ in the run's directory and, when asked, to Weights & Biases.

    directory: made when missing. project, name, group, config: what W&B shows; the name defaults to the directory's,
    the group to WANDB_RUN_GROUP, which wandb reads.
    wandb: without an account (or with WANDB_MODE=offline) the run is kept in directory/wandb, for `wandb sync`.
    locations: one line for each place that the numbers go to, for people.
    Raises AutoshardError when a file cannot be written, and when wandb is asked for and missing or unreachable.
    """

    def __init__(
        self,
        directory: Path,
        *,
        wandb: bool = False,
        project: str = "autoshard",
        name: str | None = None,
        group: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = directory / METRICS_FILE
        self._wandb: _WandbRun | None = None
        with _disk_errors(directory):
            directory.mkdir(parents=True, exist_ok=True)
        with _disk_errors(self.path):
            self._file = self.path.open("w", encoding="utf-8")
        self._events: EventFile | None = None
        try:
            with _disk_errors(directory / "tensorboard"):
                self._events = EventFile(directory / "tensorboard")
            if wandb:
                self._wandb = _WandbRun(directory, project, name or directory.resolve().name, group, config or {})
        except BaseException:
            self.close(exit_code=1)
            raise
        found = (str(self.path), f"tensorboard --logdir {self._events.path.parent}")
        self.locations = found if self._wandb is None else (*found, *self._wandb.locations)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one step's numbers; they are on disk when this returns. step: its number, from 1 on. NaN, which JSON
        lacks, is written as the string "NaN"."""
        record = {"step": step} | {name: _json_number(value) for name, value in values.items()}
        with _disk_errors(self.path):
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        if self._events is not None:
            with _disk_errors(self._events.path):
                self._events.add_scalars(step, values)
        if self._wandb is not None:
            self._wandb.log(step, values)

    def show(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], image: Path | None) -> None:
        """Shows a table of these columns and, where there is one, a picture; on W&B alone."""
        if self._wandb is not None:
            self._wandb.show(name, columns, rows, image)

    def close(self, summary: Mapping[str, Any] | None = None, exit_code: int = 0) -> None:
        """Closes everything; closing again does nothing. summary: numbers of the whole run, shown by W&B beside its
        name."""
        with suppress(OSError):  # what a full disk refused was told by write
            self._file.close()
        if self._events is not None:
            self._events.close()
        if self._wandb is not None:
            self._wandb.finish(summary or {}, exit_code)
            self._wandb = None

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(exit_code=0 if error is None else 1)


def has_wandb_key(environment: Mapping[str, str], home: Path, hosts: Collection[str]) -> bool:
    """Whether credentials for one of the hosts are where wandb looks for them: its variables, the netrc file."""
    if environment.get("WANDB_API_KEY") or environment.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    given = environment.get("NETRC")
    for file in [Path(given)] if given else [home / ".netrc", home / "_netrc"]:
        with suppress(OSError, netrc.NetrcParseError, UnicodeDecodeError):
            if any(netrc.netrc(str(file)).authenticators(host) for host in hosts):
                return True
    return False


class _WandbRun:
    def __init__(self, directory: Path, project: str, name: str, group: str | None, config: Mapping[str, Any]) -> None:
        try:
            self._module = importlib.import_module("wandb")
        except ImportError as error:
            raise AutoshardError("--wandb needs the wandb package: pip install 'autoshard[wandb]'") from error
        settings = self._module.Settings(
            silent=True, console="off", init_timeout=_WANDB_INIT_TIMEOUT_S, x_disable_stats=True, disable_git=True
        )
        given = os.environ.get("WANDB_BASE_URL")
        hosts = [urlparse(given or settings.base_url).netloc] + ([] if given else [_WANDB_HOST])
        # Left to wandb where it is configured: WANDB_MODE, or the `wandb offline` command, may say otherwise.
        configured = "WANDB_MODE" in os.environ or has_wandb_key(os.environ, Path.home(), hosts)
        try:
            self._module.setup(settings=settings)  # before init, whose first words would not be silent
            self._run = self._module.init(
                project=project,
                name=name,
                group=group,
                dir=str(directory),
                mode=None if configured else "offline",
                config=dict(config),
                settings=settings,
            )
        except Exception as error:  # wandb's own, the network's, or a folder that cannot be written
            self._module.teardown()
            first, *rest = str(error).splitlines() or [type(error).__name__]
            if rest and "validation error" in first:  # pydantic's: the field and what is wrong with it come below
                first = ": ".join(line.strip() for line in rest[:2])
            reason = first.rstrip(".")
            raise AutoshardError(
                f"Weights & Biases did not start: {reason}; WANDB_MODE=offline needs neither account nor network"
            ) from error
        if self._run.settings.mode == "offline":
            self.locations: tuple[str, ...] = (f"wandb sync {self._run.settings.sync_dir}",)
        else:
            self.locations = (f"wandb: {self._run.url}",) if self._run.url else ()  # none with WANDB_MODE=disabled

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def show(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], image: Path | None) -> None:
        # A column of a table has one type: what is not a number is text.
        cells = [
            [cell if isinstance(cell, (int, float)) or cell is None else str(cell) for cell in row] for row in rows
        ]
        shown = {name: self._module.Table(columns=list(columns), data=cells, allow_mixed_types=True)}
        if image is not None:
            shown["plot"] = self._module.Image(str(image))
        self._run.log(shown)

    def finish(self, summary: Mapping[str, Any], exit_code: int) -> None:
        self._run.summary.update(dict(summary))
        self._run.finish(exit_code=exit_code)
        self._module.teardown()  # or its helper process stays until this one ends


def _json_number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise AutoshardError(f"cannot write {error.filename or path}: {error.strerror or error}") from error
