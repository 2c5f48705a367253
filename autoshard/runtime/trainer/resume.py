"""The first step of a run, the batch of each step, and the steps that save: from 0, or as a checkpoint left it."""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose
from pathlib import Path

from autoshard.checkpoint.manifest import Base, Manifest
from autoshard.files.codec import to_json
from autoshard.runtime.data import TokenStream
from autoshard.runtime.learning_rate import learning_rate
from autoshard.runtime.resume import batches_ahead
from autoshard.runtime.session import Session
from autoshard.runtime.trainer.checkpoint import Checkpoints
from autoshard.runtime.worker import Reporter
from autoshard.runtime.worker_arguments import CheckpointOptions, TrainArguments

CLOSE = 1e-9
"""Share by which a learning rate may be off for rounding."""


def _changes(manifest: Manifest, arguments: TrainArguments) -> Iterator[str]:
    """Sentences on what a run that goes on does otherwise than the one that saved."""
    peak, warmup = arguments.learning_rate, arguments.warmup_steps
    rate = learning_rate(arguments.lr_schedule, manifest.step - 1, arguments.steps, peak, warmup)
    if manifest.learning_rate > 0 and not isclose(rate, manifest.learning_rate, rel_tol=CLOSE):
        yield (
            f"the learning rate follows another curve from here on: step {manifest.step} had "
            f"{manifest.learning_rate:.4g}, these options have {rate:.4g} there; --learning-rate, --lr-schedule, "
            "--warmup-steps and --steps of the run before go on as it would have"
        )
    if arguments.weights is not None and manifest.base is None:
        beside = "" if arguments.adapter is None else f" and adapter={arguments.adapter}"
        yield f"weights={arguments.weights}{beside} are not read: the checkpoint comes first"
    elif arguments.adapter is not None:
        yield f"adapter={arguments.adapter} is not read: the checkpoint comes first"


class Progress:
    """The place of a run in its training: its first step and the batch of each, from 0 or as a checkpoint left them."""

    def __init__(
        self,
        session: Session,
        options: CheckpointOptions | None,
        arguments: TrainArguments,
        stream: TokenStream,
        reporter: Reporter,
    ):
        self.first_step, self._ahead = 0, 0
        self._steps = arguments.steps
        self._stream, self._reporter, self._checkpoints = stream, reporter, None
        if options is None:
            return
        reporter.last_action = "reading checkpoints"
        self._checkpoints = Checkpoints(
            session, options, arguments.seed, lambda text: reporter.report("note", text=text)
        )
        manifest = self._checkpoints.resume(None if arguments.weights is None else Path(arguments.weights))
        folder = self._checkpoints.resumed_from
        if manifest is None or folder is None:
            return
        self.first_step = manifest.step
        self._ahead = batches_ahead(manifest, stream, self._steps, folder)
        if session.rank == 0:
            for sentence in _changes(manifest, arguments):
                reporter.report("note", text=sentence)

    @property
    def unsaved(self) -> str:
        """On rank 0, what to say where the last checkpoint is not there; '' where it is, or none was asked for."""
        return "" if self._checkpoints is None else self._checkpoints.unsaved

    def save_beside(self, base: Base | None) -> bool:
        """Saves adapters alone from here on, beside these weights; None: whole states. Returns whether any is saved."""
        if self._checkpoints is None:
            return False
        self._checkpoints.base = base
        return self._checkpoints.saves

    def batch_of(self, step: int) -> int:
        """Its number in the data; a plan with another batch size counts its batches differently."""
        return step + self._ahead

    def after_step(self, step: int, learning_rate: float) -> None:
        if self._checkpoints is not None:
            self._reporter.last_action = f"step {step + 1}, checkpoint"
            position = to_json(self._stream.position(self.batch_of(step) + 1))
            self._checkpoints.after_step(step + 1, learning_rate, position, last=step + 1 == self._steps)
