"""Cost models that price a search besides autoshard's own, by name: those of plug-ins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoshard.plugins.table import Table

if TYPE_CHECKING:
    from autoshard.planner.space import CostModel

COST_MODELS: Table[CostModel] = Table("cost_models", callable, "a function of (problem, columns)")
"""autoshard's own is not among them."""
