"""A step with a number that is not finite: who finds one says of what, the trainer says at which step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from autoshard.backends.registry import ANYWHERE
from autoshard.errors import AutoshardError
from autoshard.runtime.session import Session
from autoshard.runtime.worker_arguments import TrainArguments


class NotFinite(AutoshardError):
    """The loss, the gradient norm or an operator's result is nan or inf; the text says which."""


def check_finite(what: str, value: float) -> None:
    """Raise NotFinite where the value is nan or inf. what: its name in the error."""
    if not math.isfinite(value):
        raise NotFinite(f"{what} is {value}")


@contextmanager
def naming_step(session: Session, arguments: TrainArguments) -> Iterator[None]:
    """A context in which NotFinite becomes an AutoshardError that begins with the session's step and ends with the
    option that says more, where that is not given."""
    try:
        yield
    except NotFinite as error:
        option = "--debug-nan" if arguments.backend == ANYWHERE.name else f"--backend {ANYWHERE.name} --debug-nan"
        hint = "" if arguments.debug_nan else f"; {option} names the first operator of a forward pass with nan or inf"
        raise AutoshardError(f"{session.label}: {error}{hint}") from error
