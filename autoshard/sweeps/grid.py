"""Reads a sweep file: options of `autoshard plan`, a grid of options with several values each, options of runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import option_instead, show
from autoshard.files.yaml_file import read_yaml
from autoshard.planner.options import OPTIONS
from autoshard.runtime.options import PATHS, options_from
from autoshard.units import MB

MAX_SWEEP_BYTES = int(1 * MB)
MOST_POINTS = 10_000

OF_ONE_PLAN = ("exhaustive", "beaten_path", "top", "out", "pareto", "verbose", "format")
"""Options of the command `plan` that a point of a sweep does not have."""
DECIDED = ("output", "wandb", "wandb_project", "resume", "checkpoint_dir")
"""Options of runs that are the same for all points, or else differ from point to point."""

Point = Mapping[str, Any]
"""Option name -> value for one point of the sweep, grid options included; None: as where it is not named."""
MODELS = ", a built-in name, the path of a config.json or my_file.py:MyModel: a later sweep knows its rows by it"
UNNAMED = "default"
"""How people read None."""


@dataclass(frozen=True)
class Sweep:
    """A sweep file. fixed: options of every point. grid: option -> its values; the last option varies fastest.
    run: fields of RunOptions, for points that are executed."""

    name: str
    fixed: Mapping[str, Any]
    grid: Mapping[str, tuple[Any, ...]]
    run: Mapping[str, Any] = field(default_factory=dict)
    shard: tuple[int, int] = (1, 1)
    """(number of the part from 1 on, how many parts there are): points are dealt out to parts like cards."""

    @property
    def points(self) -> tuple[Point, ...]:
        """The points, or those of the shard."""
        number, count = self.shard
        points = [
            {**self.fixed, **dict(zip(self.grid, values, strict=True))} for values in product(*self.grid.values())
        ]
        return tuple(points[number - 1 :: count])


def read_sweep(path: Path) -> Sweep:
    """The sweep in a file. Raises AutoshardError, naming the file and the option, for anything that is not a sweep."""
    return _sweep(read_yaml(path, "sweep", MAX_SWEEP_BYTES), path.stem, f"sweep {path}")


def sweep_of(options: Mapping[str, Any], name: str) -> Sweep:
    """The sweep of options some of which are lists or arrays of values; or of what a sweep file holds, where these
    stand under `grid`. Raises AutoshardError as `read_sweep` does."""
    if "grid" in options:
        return _sweep(dict(options), name, f"sweep {name}")
    plain = {option: value.tolist() if hasattr(value, "tolist") else value for option, value in options.items()}
    grid = {option: list(values) for option, values in plain.items() if isinstance(values, (list, tuple, range))}
    rest = {option: value for option, value in plain.items() if option not in grid}
    return _sweep({**rest, "grid": grid}, name, f"sweep {name}")


def with_run(sweep: Sweep, options: Mapping[str, Any]) -> Sweep:
    """The sweep with these options of runs in place of its own. Raises AutoshardError as `read_sweep` does."""
    return replace(sweep, run=_run(f"sweep {sweep.name}", dict(options)))


def part(sweep: Sweep, shard: str) -> Sweep:
    """The points of one shard, given as "2/8". Raises AutoshardError for one that has no point."""
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", str(shard))
    number, count = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= number <= count <= len(sweep.points):
        raise AutoshardError(
            f"shard={show(shard)} must be N/M, the N-th of M parts; sweep {sweep.name} has {len(sweep.points)} points, "
            f"so M is at most that"
        )
    return replace(sweep, shard=(number, count))


def _sweep(data: object, name: str, what: str) -> Sweep:
    """The sweep that a file's content asks for. what: the sweep in errors."""
    if not isinstance(data, dict) or not isinstance(data.get("grid"), dict) or not data["grid"]:
        raise AutoshardError(f"{what} must have a grid: option names with lists of values, such as nodes: [8, 16]")
    fixed = {option: value for option, value in data.items() if option not in ("grid", "run")}
    grid = {option: _values(what, option, values) for option, values in data["grid"].items()}
    both = [option for option in grid if option in fixed]
    if both:
        raise AutoshardError(f"{what} has {both[0]} beside the grid and in it; keep one")
    fixed = {option: _value(what, option, value) for option, value in fixed.items()}
    fixed = {option: value for option, value in fixed.items() if value is not None}
    sweep = Sweep(name, fixed, grid, _run(what, data.get("run")))
    if "model" not in fixed and None in grid.get("model", (None,)):
        raise AutoshardError(f"{what} names no model")
    size = 1
    for values in grid.values():
        size *= len(values)
    if size > MOST_POINTS:
        raise AutoshardError(f"{what} has {size:,} points; at most {MOST_POINTS:,} are planned in one sweep")
    return sweep


def word(value: object) -> str:
    """A value of an option for people."""
    return UNNAMED if value is None else str(value)


def _run(what: str, given: object) -> Mapping[str, Any]:
    """The options of runs. Raises AutoshardError for one that is none or is wrong, and for what the sweep decides."""
    options: Mapping[str, Any] = given if isinstance(given, dict) else {}
    if given is not None and not isinstance(given, dict):
        raise AutoshardError(
            f"run of {what} is {show(given)}; it must be options of `autoshard run`, such as steps: 10"
        )
    for name in DECIDED:
        if name in options:
            raise AutoshardError(f"run of {what} has {name}, which the sweep decides; leave it out")
    try:
        options_from(options)
    except AutoshardError as error:
        raise AutoshardError(f"run of {what}: {error}") from None
    except TypeError:
        raise AutoshardError(f"run of {what}: a value is of the wrong kind: {show(dict(options))}") from None
    paths = {name: str(Path(options[name]).resolve()) for name in PATHS if options.get(name) is not None}
    return {**options, **paths}  # whole paths: a point may be done from another folder


def _values(what: str, name: object, values: object) -> tuple[Any, ...]:
    if not isinstance(values, list) or not values:
        raise AutoshardError(f"grid.{name} of {what} is {show(values)}; it must be a list of some values")
    found = tuple(_value(what, name, value) for value in values)
    if len(set(found)) < len(found):
        raise AutoshardError(f"grid.{name} of {what} holds a value twice")
    return found


def _value(what: str, name: object, value: object) -> Any:
    """A value of an option; null stands for the default, as in a recipe."""
    option = OPTIONS.get(name) if isinstance(name, str) else None
    if name in OF_ONE_PLAN:
        raise AutoshardError(f"{what} has {name}, which is of a single plan; a sweep does not have it")
    if name == "name":
        raise AutoshardError(f"{what} has name, which a sweep does not have: its file's name is its own; leave it out")
    if option is None:
        raise AutoshardError(f"{what} has {show(name)}, which is not an option{option_instead(name, OPTIONS)}")
    try:
        return None if value is None else option.parse(str(value) if isinstance(value, Path) else value)
    except ValueError as error:
        meant = MODELS if name == "model" and not isinstance(value, str) else ""
        raise AutoshardError(f"{name} of {what}: {error}{meant}") from None
