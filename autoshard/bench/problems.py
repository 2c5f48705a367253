"""The problems that searchers are compared on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from autoshard.backends.registry import usual_backend
from autoshard.backends.rules import Problem
from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.files.json_file import read_json
from autoshard.planner.inputs import inputs_of, pins_of
from autoshard.planner.options import OPTIONS, request_from
from autoshard.plans.search_result import Pins

FILE = "planbench_problems.json"
MOST_BYTES = 1_000_000
FORMAT_VERSION = 1


class Asked(NamedTuple):
    """A problem by its name, with what is pinned."""

    name: str
    problem: Problem
    pins: Pins


def read_problems(folder: Path) -> tuple[Asked, ...]:
    """The problems of a folder of data. Raises AutoshardError for a file that is none, and for options that are
    wrong."""
    data = read_json(folder / FILE, "problems", MOST_BYTES)
    listed = data.get("problems") if isinstance(data, dict) and data.get("format_version") == FORMAT_VERSION else None
    if not isinstance(listed, list) or not listed:
        raise AutoshardError(f"{folder / FILE} must have format_version {FORMAT_VERSION} and a list of problems")
    return tuple(_asked(one, folder) for one in listed)


def _asked(one: Any, folder: Path) -> Asked:
    if not isinstance(one, dict) or not isinstance(one.get("name"), str):
        raise AutoshardError(f"{folder / FILE} has {show(one)}; a problem has a name, a model and options")
    options = {name: value for name, value in one.items() if name != "name"}
    for name, value in options.items():
        if name not in OPTIONS:
            raise AutoshardError(f"{folder / FILE}: {show(name)} of {one['name']} is not an option of autoshard plan")
        try:
            options[name] = OPTIONS[name].parse(value)
        except ValueError as error:
            raise AutoshardError(f"{folder / FILE}: {name} of {one['name']}: {error}") from None
    request = request_from(options)
    model, training, cluster, _ = inputs_of(request)
    return Asked(one["name"], Problem(model, training, cluster, usual_backend(cluster).name), pins_of(request))
