"""How the processes of a run on this machine start, known from its options alone: before its plan is read."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from autoshard.backends.registry import ANYWHERE, BACKENDS
from autoshard.runtime.fork_server import fork_server
from autoshard.runtime.options import RunOptions
from autoshard.runtime.processes import Start, start_interpreter

TRAINER = "autoshard.runtime.trainer.worker"
"""The module whose functions are the work of every process."""


def starter(options: RunOptions) -> AbstractContextManager[Start]:
    """How processes start: on the CPU as forks of one that imports, from now on, what they need."""
    backend = BACKENDS[ANYWHERE.name if options.backend == "auto" else options.backend]
    if not backend.early_imports or options.device not in ("auto", "cpu"):
        return nullcontext(start_interpreter)
    return fork_server([TRAINER, *backend.early_imports])
