"""The arguments that the processes of a calibration are given."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from autoshard.files.fields import values_for
from autoshard.runtime.worker_arguments import check_types


@dataclass(frozen=True)
class CalibrationArguments:
    """device: cpu, cuda or neuron. shapes: time only the first so many; None: all."""

    device: str
    shapes: int | None = None

    def __post_init__(self) -> None:
        check_types(self, "arguments")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, all fields."""
        return asdict(self)

    @staticmethod
    def from_dict(value: object) -> CalibrationArguments:
        """The inverse of to_dict. Raises AutoshardError for a missing or unknown field and for a value of another
        type."""
        return CalibrationArguments(**values_for(CalibrationArguments, value, "arguments"))
