"""The answer of the cost model: seconds and bytes as named terms that add up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

from autoshard.errors import AutoshardError
from autoshard.files.codec import Form, NotNegative, Positive, Text, Whole, reader_of, to_json
from autoshard.files.strict import Reader

SUM_TOLERANCE = 2e-5
"""Relative: each term of a file is rounded to six digits."""


@dataclass(frozen=True)
class Term:
    """Seconds of step time, or bytes of memory."""

    name: str
    value: float


def six_digits(value: float) -> float:
    """The value rounded to six significant digits: what plan.json keeps of an estimate."""
    return float(f"{value:.6g}")


def _write_terms(terms: tuple[Term, ...]) -> dict[str, float]:
    values = {term.name: term.value for term in terms}
    assert len(values) == len(terms), terms
    return values


_READ_NAME, _READ_NUMBER = reader_of(Text), reader_of(NotNegative)


def _read_terms(data: object, where: str) -> tuple[Term, ...]:
    reader = Reader(data, where)
    names = reader.names
    if not names:
        raise AutoshardError(f"{where} is empty; it must hold at least one term")
    place = f"the name of a term in {where}"
    return tuple(Term(_READ_NAME(name, place), _READ_NUMBER(reader.any(name), f"{where}.{name}")) for name in names)


TERMS_FORM = Form(
    _write_terms,
    _read_terms,
    {"type": "object", "minProperties": 1, "additionalProperties": {"type": "number", "minimum": 0}},
)


RESERVE = "runtime and compiler reserve"
"""The term of memory that the device's own software takes."""


@dataclass(frozen=True)
class StageMemory:
    """Bytes on each device of one pipeline rank, at the worst moment of a step."""

    pipeline_rank: Whole
    terms: Annotated[tuple[Term, ...], TERMS_FORM]

    @property
    def total_bytes(self) -> float:
        """The sum of the terms, on one device."""
        return sum(term.value for term in self.terms)

    @property
    def reserved_bytes(self) -> float:
        """The share of the device's own software, which counters of a device leave out."""
        return sum(term.value for term in self.terms if term.name == RESERVE)


@dataclass(frozen=True)
class WrittenMemory:
    """One pipeline rank.

    pipeline_rank: Which one.
    total_bytes: Sum of the terms, bytes on each of its devices.
    terms: Bytes by what they hold; what the runtime and the compiler reserve is one of them.
    """

    pipeline_rank: Whole
    total_bytes: Positive
    terms: Annotated[tuple[Term, ...], TERMS_FORM]


_READ_WRITTEN = reader_of(tuple[WrittenMemory, ...])


def _write_memory(memory: tuple[StageMemory, ...]) -> Any:
    return to_json([WrittenMemory(rank.pipeline_rank, six_digits(rank.total_bytes), rank.terms) for rank in memory])


def _read_memory(data: object, where: str) -> tuple[StageMemory, ...]:
    written = _READ_WRITTEN(data, where)
    return tuple(_stage_memory(rank, f"{where}[{index}]", index) for index, rank in enumerate(written))


def _stage_memory(written: WrittenMemory, where: str, index: int) -> StageMemory:
    if written.pipeline_rank != index:
        raise AutoshardError(
            f"{where}.pipeline_rank is {written.pipeline_rank}, but its place in the list gives {index}"
        )
    memory = StageMemory(written.pipeline_rank, written.terms)
    if not math.isclose(memory.total_bytes, written.total_bytes, rel_tol=SUM_TOLERANCE):
        raise AutoshardError(
            f"{where}.terms add up to {memory.total_bytes:,.0f} bytes, but total_bytes is {written.total_bytes:,.0f}"
        )
    return memory


MEMORY_FORM = Form(_write_memory, _read_memory, {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/memory"}})


PROBABILITY_FORM = Form(
    to_json,
    _READ_NUMBER,  # that it is at most 1 is checked with the step time
    {"type": "number", "minimum": 0, "maximum": 1},
)


@dataclass(frozen=True)
class Estimate:
    """The cost of one optimizer step as predicted.

    step_time_s: Seconds of one optimizer step.
    step_time_low_s: A step takes at least so many seconds with 95 % probability.
    step_time_high_s: A step takes at most so many seconds with 95 % probability.
    time_terms: Exposed seconds on the busiest pipeline rank and what it waits for, by what they are spent on; they
        add up to step_time_s.
    tokens_per_s: Tokens of the whole cluster in one second.
    mfu: Model FLOP/s utilisation: model_flops_per_step over what all devices could do at their dense peak in
        step_time_s. A fraction, not per cent.
    model_flops_per_step: FLOPs of the model in one step, forward and backward; recompute is left out.
    memory_capacity_bytes: Memory of one device, bytes.
    fits_probability: Of the fullest pipeline rank, to stay within its memory.
    memory: Memory at the worst moment of a step, one entry for each pipeline rank, in order; each counts what the
        runtime and the compiler reserve, so it is held against memory_capacity_bytes, the whole memory of a device.
    """

    step_time_s: Positive
    step_time_low_s: Positive
    step_time_high_s: Positive
    time_terms: Annotated[tuple[Term, ...], TERMS_FORM]
    tokens_per_s: NotNegative
    mfu: NotNegative
    model_flops_per_step: NotNegative
    memory_capacity_bytes: Positive
    fits_probability: Annotated[float, PROBABILITY_FORM]
    memory: Annotated[tuple[StageMemory, ...], MEMORY_FORM]

    @property
    def fullest(self) -> StageMemory:
        """The first of the pipeline ranks with the most memory in use."""
        return max(self.memory, key=lambda stage: stage.total_bytes)

    @property
    def fits(self) -> bool:
        """Whether the fullest rank, as predicted, stays within its memory; fits_probability says how surely."""
        return self.fullest.total_bytes <= self.memory_capacity_bytes
