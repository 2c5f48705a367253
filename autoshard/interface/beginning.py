"""Runs a plan that is read while the processes of the run begin to import what they need, which takes longer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from autoshard.runtime.environment import cluster_environment
from autoshard.runtime.options import options_from
from autoshard.runtime.starting import starter

if TYPE_CHECKING:
    from autoshard.interface.planned import Plan


def run_read(file: str, read: Callable[[str, bool], Plan], options: Mapping[str, Any]) -> int:
    """The exit code of `run`, of the plan that `read` gives for the file and whether a launcher started this process,
    one of many. What is wrong with the options is said before it is read."""
    checked = options_from(options)
    if cluster_environment() is not None:
        from autoshard.interface.running import run

        return run(read(file, True), **options).exit_code
    with starter(checked) as start:
        plan = read(file, False)
        from autoshard.runtime.run import run_plan

        return run_plan(plan, checked, start=start)
