"""The first step of a run, the batch of each step, and the steps that save: from 0, or as a checkpoint left it."""

from __future__ import annotations

from autoshard.files.codec import to_json
from autoshard.runtime.data import TokenStream
from autoshard.runtime.resume import batches_ahead
from autoshard.runtime.session import Session
from autoshard.runtime.trainer.checkpoint import Checkpoints
from autoshard.runtime.worker import Reporter
from autoshard.runtime.worker_arguments import CheckpointOptions, TrainArguments


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
        manifest = self._checkpoints.resume()
        if manifest is None:
            return
        self.first_step = manifest.step
        self._ahead = batches_ahead(manifest, stream, self._steps, options.location)

    @property
    def unsaved(self) -> str:
        """On rank 0, what to say where the last checkpoint is not there; '' where it is, or none was asked for."""
        return "" if self._checkpoints is None else self._checkpoints.unsaved

    def batch_of(self, step: int) -> int:
        """Its number in the data; a plan with another batch size counts its batches differently."""
        return step + self._ahead

    def after_step(self, step: int, learning_rate: float) -> None:
        if self._checkpoints is not None:
            self._reporter.last_action = f"step {step + 1}, checkpoint"
            position = to_json(self._stream.position(self.batch_of(step) + 1))
            self._checkpoints.after_step(step + 1, learning_rate, position, last=step + 1 == self._steps)
