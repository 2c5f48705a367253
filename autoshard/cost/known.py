"""Results by device, and what of a case was never measured: each thing that is not known widens its intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import hypot

from autoshard.spec.model import ModelSpec
from autoshard.spec.training import Precision

DEVICE, MODEL, PRECISION = "device", "model", "precision"
UNKNOWN = (DEVICE, MODEL, PRECISION)
"""What may never have been measured, beside the software."""
DENSE, EXPERTS = "dense", "experts"
KINDS = (DENSE, EXPERTS)
HALF, SINGLE = "half", "fp32"


@dataclass(frozen=True)
class Measured:
    """Kinds of models and number formats of matrix products that were measured on one device."""

    models: tuple[str, ...]
    precisions: tuple[str, ...]


@dataclass(frozen=True)
class Width:
    """By how much one unknown thing widens an interval of log(measured / predicted). low: <= 0, high: >= 0; both are
    added as squares. results, sources: how many it comes from."""

    low: float
    high: float
    results: int
    sources: int


def model_kind(model: ModelSpec) -> str:
    return EXPERTS if model.is_moe else DENSE


def kind_of_results(kind: str, unknown: Iterable[str]) -> str:
    """The kind of model whose results tell how far software that was never measured is missed. kind: of the case's own
    model. unknown: what was never measured of it; where that is its kind, dense models tell, and the kind adds to it.
    """
    return DENSE if MODEL in unknown else kind


def number_format(precision: Precision) -> str:
    """The format that matrix products are computed in."""
    if precision.products is not None:
        return precision.products.name
    return SINGLE if precision.compute_dtype == "float32" else HALF


def measured_by(cases: Iterable[tuple[str, str, str]]) -> dict[str, Measured]:
    """The kinds of models and number formats that were measured, by device. cases: (device, kind of model,
    number format) of each result."""
    seen = sorted(set(cases))
    return {
        device: Measured(
            tuple(dict.fromkeys(model for one, model, _ in seen if one == device)),
            tuple(sorted({precision for one, _, precision in seen if one == device})),
        )
        for device in dict.fromkeys(one for one, _, _ in seen)
    }


def never_measured(known: Mapping[str, Measured], device: str, model: str, precision: str) -> tuple[str, ...]:
    """The things of UNKNOWN that no result has: on this device or, where it has no results, on any."""
    on = [known[device]] if device in known else [*known.values()]
    missing = {
        DEVICE: device not in known,
        MODEL: not any(model in one.models for one in on),
        PRECISION: not any(precision in one.precisions for one in on),
    }
    return tuple(name for name in UNKNOWN if missing[name])


def widened(low: float, high: float, widths: Iterable[Width]) -> tuple[float, float]:
    """An interval (low <= 0, high >= 0) with what is not known added as squares: errors of different things are taken
    for independent."""
    widths = tuple(widths)
    return -hypot(low, *(one.low for one in widths)), hypot(high, *(one.high for one in widths))
