"""Reads a plan for whoever needs no planner."""

from __future__ import annotations

from pathlib import Path

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.interface.planned import Plan
from autoshard.plans.validate import read_plan_and_notes


def read_plan_with_notes(path: str | Path) -> tuple[Plan, tuple[str, ...]]:
    """(the plan in a file, sentences on what differs from what this version would write). Raises AutoshardError as
    `autoshard.read_plan` does."""
    if not isinstance(path, (str, Path)):
        raise AutoshardError(f"plan={show(path)} must be the path of a file")
    found, notes = read_plan_and_notes(path)
    return Plan.of(found), notes
