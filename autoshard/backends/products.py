"""Which backend multiplies in which format."""

from __future__ import annotations

from autoshard.backends.backend import Backend
from autoshard.errors import AutoshardError
from autoshard.spec.training import PRECISIONS, Precision


def unrunnable(backend: Backend, precision: Precision) -> str | None:
    """A sentence where the backend cannot multiply in the precision's format, which plans price all the same."""
    products = precision.products
    if products is None or products.name in backend.product_formats:
        return None
    runs = [one.name for one in PRECISIONS.values() if one.products is None]
    return (
        f"precision {precision.name}: backend {backend.name} cannot multiply in {products.forward_dtype}, the plan "
        f"is a price; {', '.join(runs)} run"
    )


def check_runs(backend: Backend, precision: Precision) -> None:
    """Raises AutoshardError with that sentence."""
    refused = unrunnable(backend, precision)
    if refused is not None:
        raise AutoshardError(refused)
