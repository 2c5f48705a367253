"""What the cost model answers: seconds and bytes as named terms that add up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import is_finite, show
from autoshard.files.strict import Reader


@dataclass(frozen=True)
class Term:
    """Seconds of step time, or bytes of memory."""

    name: str
    value: float


@dataclass(frozen=True)
class StageMemory:
    """Bytes on each device of one pipeline rank, at the worst moment of a step."""

    pipeline_rank: int
    terms: tuple[Term, ...]

    @property
    def total_bytes(self) -> float:
        """The sum of the terms, on one device."""
        return sum(term.value for term in self.terms)


@dataclass(frozen=True)
class Estimate:
    """What one optimizer step is expected to take.

    time_terms: exposed seconds on the busiest pipeline rank and what it waits for; they add up to step_time_s.
    memory: one for each pipeline rank, in order; each counts what the runtime and the compiler reserve, so it is held
    against memory_capacity_bytes, the whole memory of a device.
    step_time_low_s, step_time_high_s: the step takes between them with 90 % probability. fits_probability: of the
    fullest rank, to stay within its memory.
    tokens_per_s: of the whole cluster. mfu: model_flops_per_step, which leave recompute out, over what all devices
    could do at their peak in step_time_s.
    """

    step_time_s: float
    time_terms: tuple[Term, ...]
    memory: tuple[StageMemory, ...]
    memory_capacity_bytes: float
    tokens_per_s: float
    mfu: float
    model_flops_per_step: float
    step_time_low_s: float
    step_time_high_s: float
    fits_probability: float

    @property
    def fullest(self) -> StageMemory:
        """The first of the pipeline ranks with the most memory in use."""
        return max(self.memory, key=lambda stage: stage.total_bytes)

    @property
    def fits(self) -> bool:
        """Whether the fullest rank, as predicted, stays within its memory; fits_probability says how surely."""
        return self.fullest.total_bytes <= self.memory_capacity_bytes

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; terms as name -> value, in order."""
        numbers = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("time_terms", "memory")}
        return {
            "step_time_s": numbers.pop("step_time_s"),
            "time_terms": {term.name: term.value for term in self.time_terms},
            "memory": [{term.name: term.value for term in stage.terms} for stage in self.memory],
            **numbers,
        }

    @staticmethod
    def from_dict(value: object, path: str = "estimate") -> Estimate:
        """The inverse of to_dict. Raises AutoshardError for what is missing, unknown or not a number."""
        reader = Reader(value, path)
        memory = reader.any("memory")
        if not isinstance(memory, list) or not memory:
            raise AutoshardError(
                f"{path}.memory is {show(memory)}; it must be a list with an entry for each pipeline rank"
            )
        estimate = Estimate(
            time_terms=_terms(reader.any("time_terms"), f"{path}.time_terms"),
            memory=tuple(
                StageMemory(rank, _terms(terms, f"{path}.memory[{rank}]")) for rank, terms in enumerate(memory)
            ),
            **{f.name: _number(reader.any(f.name), f"{path}.{f.name}") for f in fields(Estimate) if f.type == "float"},
        )
        reader.finish()
        return estimate


def _terms(value: object, path: str) -> tuple[Term, ...]:
    if not isinstance(value, Mapping):
        raise AutoshardError(f"{path} is {show(value)}; it must be an object of names and numbers")
    return tuple(Term(str(name), _number(number, f"{path}.{name}")) for name, number in value.items())


def _number(value: object, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not is_finite(value) or value < 0:
        raise AutoshardError(f"{path} is {show(value)}; it must be a finite number of at least 0")
    return float(value)
