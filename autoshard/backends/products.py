"""Which precisions a backend runs; plans price others too."""

from __future__ import annotations

from autoshard.backends.backend import Backend
from autoshard.errors import AutoshardError
from autoshard.spec.training import EIGHT_BITS, PRECISIONS, Precision


def unrunnable(backend: Backend, precision: Precision) -> str | None:
    """A sentence on what in the precision the backend cannot do, though plans price it; None where it can do all.

    Every backend computes in the dtype of the parameters.
    """
    products, cannot = precision.products, ""
    if precision.compute_dtype != precision.parameter_dtype:
        cannot = f"compute in {precision.compute_dtype} with parameters in {precision.parameter_dtype}"
    elif products is not None and products.name not in backend.product_formats:
        cannot = f"multiply in {products.forward_dtype}"
    elif precision.optimizer_dtype in EIGHT_BITS:
        cannot = f"keep moments in {precision.optimizer_dtype}"
    if not cannot:
        return None
    runs = [one.name for one in PRECISIONS.values() if one.products is None]
    return (
        f"precision {precision.name}: backend {backend.name} cannot {cannot}, the plan is a price; "
        f"{', '.join(runs)} run"
    )


def check_runs(backend: Backend, precision: Precision) -> None:
    """Raises AutoshardError with that sentence."""
    refused = unrunnable(backend, precision)
    if refused is not None:
        raise AutoshardError(refused)
