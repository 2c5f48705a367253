"""Finds and loads plug-ins: installed packages with entry points in the groups `autoshard.models`, ..."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from autoshard.errors import AutoshardError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUPS = {
    "models": "a family of models, by its model_type",
    "hardware": "a hardware file, or a folder of them",
    "schedules": "a pipeline schedule",
    "searchers": "how `plan --search` looks for a layout",
    "cost_models": "what `plan --cost-model` takes for time and memory",
    "renderers": "a page of `explain --format`",
    "predictors": "an entry of `bench predictors`",
}
"""Group, without `autoshard.` before it -> what a plug-in of it is."""
RAISED = (Exception, SystemExit)
"""Whatever other people's code raises: it is said in one line. Ctrl-C stays the user's."""


class Plugin(NamedTuple):
    """A plug-in that is installed. target: what is loaded, 'module:name'. package: its package and version."""

    group: str
    name: str
    target: str
    package: str


def installed(group: str) -> tuple[str, ...]:
    """The names of a group's plug-ins, sorted; nothing is loaded."""
    return tuple(dict.fromkeys(plugin.name for plugin in every(group)))


def named(group: str, name: str) -> Plugin | None:
    """The plug-in of a name; None where there is none. Raises AutoshardError where two packages give it."""
    found = [plugin for plugin in every(group) if plugin.name == name]
    if len(found) > 1:
        one, other, *_ = (plugin.package for plugin in found)
        raise AutoshardError(
            f"plug-in {name} of autoshard.{group} comes from {one} and from {other}; uninstall one of them"
        )
    return found[0] if found else None


def every(group: str) -> tuple[Plugin, ...]:
    """The plug-ins of a group, sorted by name; two may have the same."""
    return tuple(sorted({_plugin(group, entry) for entry in _entries(tuple(sys.path), group)}))


def load(plugin: Plugin) -> Any:
    """The value that a plug-in gives. Raises AutoshardError, naming its package, where it fails to load."""
    entry = next(one for one in _entries(tuple(sys.path), plugin.group) if _plugin(plugin.group, one) == plugin)
    try:
        return entry.load()
    except RAISED as error:
        raise AutoshardError(
            f"plug-in {plugin.name} of {plugin.package} does not load: {in_one_line(error)}"
        ) from error


def call(
    plugin: Plugin, function: Callable[..., Any], given: tuple[Any, ...], let: type[Exception] = AutoshardError
) -> Any:
    """The value that a plug-in's function gives. let: what it may raise, besides AutoshardError.

    Raises AutoshardError, naming its package, for whatever else it raises.
    """
    try:
        return function(*given)
    except (AutoshardError, let):
        raise
    except RAISED as error:
        raise AutoshardError(f"plug-in {plugin.name} of {plugin.package} fails: {in_one_line(error)}") from error


def in_one_line(error: BaseException) -> str:
    """An exception of other people's code in one line: its type, and the beginning of its text; ours is its text."""
    said = " ".join("".join(one if one.isprintable() else " " for one in str(error)).split())
    if isinstance(error, AutoshardError):
        return said
    return f"{type(error).__name__}: {said[:200]}" if said else type(error).__name__


def _plugin(group: str, entry: EntryPoint) -> Plugin:
    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unnamed package"
    return Plugin(group, entry.name, entry.value, package)


@lru_cache(maxsize=32)
def _entries(places: tuple[str, ...], group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group. places: sys.path, so that a folder that joins it is looked at."""
    from importlib.metadata import entry_points  # not at the top: it takes as long as all else of this folder

    return tuple(entry_points(group=f"autoshard.{group}"))
