"""A line of the doctor's report."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARNING, STOPS = "ok", "warning", "stops"


@dataclass(frozen=True)
class Finding:
    """A line of the report.

    level: ok, warning (the plan will not go as planned) or stops (it will not run). advice: empty if all is well.
    """

    what: str
    found: str
    level: str = OK
    advice: str = ""
