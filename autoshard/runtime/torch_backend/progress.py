"""Where a run starts, which batch a step takes and when it saves: from 0, or as a checkpoint left it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoshard.files.codec import to_json
from autoshard.runtime.data import TokenStream
from autoshard.runtime.resume import batches_ahead
from autoshard.runtime.torch_backend.checkpoint import CheckpointOptions, Checkpoints
from autoshard.runtime.torch_backend.session import Session
from autoshard.runtime.worker import Reporter


class Progress:
    """Where training starts and which batch a step takes: from 0, or as a checkpoint left them."""

    def __init__(
        self,
        session: Session,
        options: CheckpointOptions | None,
        arguments: Mapping[str, Any],
        stream: TokenStream,
        reporter: Reporter,
    ):
        self.first_step, self._ahead = 0, 0
        self._steps: int = arguments["steps"]
        self._stream, self._reporter, self._checkpoints = stream, reporter, None
        if options is None:
            return
        reporter.last_action = "reading checkpoints"
        self._checkpoints = Checkpoints(
            session, options, arguments["seed"], lambda text: reporter.report("note", text=text)
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


def checkpoint_options(values: Mapping[str, Any] | None) -> CheckpointOptions | None:
    """From plain values."""
    return None if values is None else CheckpointOptions(**values)
