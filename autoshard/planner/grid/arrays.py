"""The type of arrays that hold a number for each of many layouts."""

from __future__ import annotations

from typing import Any

Array = Any
"""numpy.ndarray: named so that the planner's types do not depend on numpy's stubs."""
