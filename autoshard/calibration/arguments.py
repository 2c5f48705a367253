"""The arguments that the processes of a calibration are given."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.runtime.worker_arguments import check_types


@dataclass(frozen=True)
class CalibrationArguments:
    """device: cpu, cuda or neuron. shapes: time only the first so many; None: all."""

    device: str
    shapes: int | None = None

    def __post_init__(self) -> None:
        check_types(self, "arguments")
