"""Reads a sweep file: options of `autoshard plan`, and a grid of options with several values each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.files.yaml_file import read_yaml
from autoshard.planner.options import OPTIONS
from autoshard.units import MB

MAX_SWEEP_BYTES = int(1 * MB)
MOST_POINTS = 10_000

Point = Mapping[str, Any]
"""Option name -> value for one point of the sweep, grid options included."""


@dataclass(frozen=True)
class Sweep:
    """A sweep file. fixed: options of every point. grid: option -> its values; the last option varies fastest."""

    name: str
    fixed: Mapping[str, Any]
    grid: Mapping[str, tuple[Any, ...]]

    @property
    def points(self) -> tuple[Point, ...]:
        return tuple(
            {**self.fixed, **dict(zip(self.grid, values, strict=True))} for values in product(*self.grid.values())
        )


def read_sweep(path: Path) -> Sweep:
    """The sweep in a file. Raises AutoshardError, naming the file and the option, for anything that is not a sweep."""
    return _sweep(read_yaml(path, "sweep", MAX_SWEEP_BYTES), path.stem, f"sweep {path}")


def sweep_of(options: Mapping[str, Any], name: str) -> Sweep:
    """The sweep of options some of which are lists of values. Raises AutoshardError as `read_sweep` does."""
    grid = {option: list(values) for option, values in options.items() if isinstance(values, (list, tuple, range))}
    rest = {option: value for option, value in options.items() if option not in grid}
    return _sweep({**rest, "grid": grid}, name, f"sweep {name}")


def _sweep(data: object, name: str, what: str) -> Sweep:
    """what: the sweep in errors."""
    if not isinstance(data, dict) or not isinstance(data.get("grid"), dict) or not data["grid"]:
        raise AutoshardError(f"{what} must have a grid: option names with lists of values, such as nodes: [8, 16]")
    fixed = {option: value for option, value in data.items() if option != "grid"}
    grid = {option: _values(what, option, values) for option, values in data["grid"].items()}
    both = [option for option in grid if option in fixed]
    if both:
        raise AutoshardError(f"{what} has {both[0]} beside the grid and in it; keep one")
    sweep = Sweep(name, {option: _value(what, option, value) for option, value in fixed.items()}, grid)
    if "model" not in {*fixed, *grid}:
        raise AutoshardError(f"{what} names no model")
    size = 1
    for values in grid.values():
        size *= len(values)
    if size > MOST_POINTS:
        raise AutoshardError(f"{what} has {size:,} points; at most {MOST_POINTS:,} are planned in one sweep")
    return sweep


def _values(what: str, name: object, values: object) -> tuple[Any, ...]:
    if not isinstance(values, list) or not values:
        raise AutoshardError(f"grid.{name} of {what} is {show(values)}; it must be a list of values")
    found = tuple(_value(what, name, value) for value in values)
    if len(set(found)) < len(found):
        raise AutoshardError(f"grid.{name} of {what} holds a value twice")
    return found


def _value(what: str, name: object, value: object) -> Any:
    option = OPTIONS.get(name) if isinstance(name, str) else None
    if option is None:
        raise AutoshardError(f"{what} has {show(name)}, which is not an option; options: {', '.join(OPTIONS)}")
    try:
        return option.parse(value)
    except ValueError as error:
        raise AutoshardError(f"{name} of {what}: {error}") from None
