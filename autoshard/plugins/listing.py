"""Every installed plug-in, and whether it can be used."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from autoshard.errors import AutoshardError
from autoshard.plugins.found import GROUPS, every, load
from autoshard.plugins.table import Table


class Listed(NamedTuple):
    """An installed plug-in. group: 'schedules'. target: 'module:name'. problem: why it cannot be used, in a sentence;
    None where it can."""

    group: str
    name: str
    package: str
    target: str
    problem: str | None


def listed(
    tables: Mapping[str, Table[Any]],
    taken: Mapping[str, Collection[str]],
    checks: Mapping[str, Callable[[Any], None]],
) -> tuple[Listed, ...]:
    """Every plug-in, in the order of GROUPS and then by name; each is loaded.

    tables: by group, what checks what its plug-ins give. taken: by group, names that are built in besides the table's.
    checks: by group, what raises AutoshardError for an entry of the table that cannot be used.
    """
    found = []
    for group in GROUPS:
        plugins = every(group)
        for plugin in plugins:
            problem = None
            others = [one.package for one in plugins if one.name == plugin.name and one != plugin]
            if plugin.name in (*tables[group], *taken.get(group, ())):
                problem = f"{plugin.name} is built in, and what is built in is taken; give it another name"
            elif others:
                problem = f"{others[0]} gives the same name; uninstall one of them"
            else:
                try:
                    checks.get(group, _nothing)(tables[group].check(plugin, load(plugin)))
                except AutoshardError as error:
                    problem = str(error)
            found.append(Listed(group, plugin.name, plugin.package, plugin.target, problem))
    return tuple(found)


def _nothing(_: Any) -> None:
    """Is no check."""
