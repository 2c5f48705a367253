"""Reads a plan for whoever needs no planner."""

from __future__ import annotations

from pathlib import Path

from autoshard.interface.planned import Plan
from autoshard.plans.validate import read_plan_and_notes


def read_plan_with_notes(path: str | Path) -> tuple[Plan, tuple[str, ...]]:
    """(the plan in a file, sentences on what differs from what this version would write)."""
    found, notes = read_plan_and_notes(path)
    return Plan.of(found), notes
