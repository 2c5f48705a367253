"""The arguments that the processes of a calibration are given."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.runtime.worker_arguments import check_types


@dataclass(frozen=True)
class CalibrationArguments:
    """The choices of a calibration that each of its processes is told.

    device: cpu, cuda or neuron. shapes: how many shapes to time, the first ones; None: all.
    """

    device: str
    shapes: int | None = None

    def __post_init__(self) -> None:
        check_types(self, "arguments")
