"""The type of what numbers of many layouts are kept in."""

from __future__ import annotations

from typing import Any

Array = Any
"""numpy.ndarray: named so that the planner's types do not depend on numpy's stubs."""
