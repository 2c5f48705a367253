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
    """An operator's result is nan or inf, or a number of the whole step is; the text says which."""


class StepNotFinite(NotFinite):
    """The loss or the gradient norm is nan or inf."""


def check_finite(what: str, value: float) -> None:
    """Raise StepNotFinite where the value is nan or inf. what: its name in the error."""
    if not math.isfinite(value):
        raise StepNotFinite(f"{what} is {value}")


@contextmanager
def naming_step(session: Session, arguments: TrainArguments) -> Iterator[None]:
    """A context in which NotFinite becomes an AutoshardError that begins with the session's step and ends with the
    option that says more, where that is not given."""
    try:
        yield
    except NotFinite as error:
        option = "--debug-nan" if arguments.backend == ANYWHERE.name else f"--backend {ANYWHERE.name} --debug-nan"
        hint = f"; {option} names the first operator of a forward pass with nan or inf"
        if arguments.debug_nan:
            is_later = isinstance(error, StepNotFinite)
            hint = "; all operators of the forward pass gave finite numbers, so it is of backward" if is_later else ""
        raise AutoshardError(f"{session.label}: {error}{hint}") from error
