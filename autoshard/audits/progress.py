"""How many roles are audited: a bar on a terminal, a line for each elsewhere."""

from __future__ import annotations

import os
from types import TracebackType
from typing import TextIO

from autoshard.audits.values import RoleAudit
from autoshard.runtime.progress import format_duration, wants_plain_text


class RoleProgress:
    """Writes to `file`, which is not where the result goes."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._bar = None
        if not wants_plain_text(file, os.environ):
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), MofNCompleteColumn()
            self._bar = Progress(*columns, TimeElapsedColumn(), console=Console(file=file, force_terminal=True))
            self._task = self._bar.add_task("auditing", total=None)
            self._bar.start()

    def update(self, done: int, total: int, one: RoleAudit) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)
            return
        verdict = "agrees" if one.agrees else "differs"
        took = format_duration(one.seconds)
        self._file.write(f"audited {done} of {total}: stage {one.role.pipeline_rank} {verdict} ({took})\n")
        self._file.flush()

    def __enter__(self) -> RoleProgress:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
