"""Tables of what is built in, which plug-ins add to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.files.option_values import WrongValueError, one_of
from autoshard.plugins.found import Plugin, call, installed, load, named

V = TypeVar("V")


class Table(dict[str, V], Generic[V]):
    """Values that are built in, by name. A name that is not among them is looked for among the plug-ins, when it is
    asked for; going through the table gives what is built in alone, so that an installed plug-in changes no plan by
    itself."""

    def __init__(
        self,
        group: str,
        is_one: Callable[[Any], bool],
        wanted: str,
        built_in: Mapping[str, V] | None = None,
        of: Callable[[Any], V] | None = None,
    ) -> None:
        """group: of the plug-ins, 'schedules'. is_one: whether what a plug-in gives can stand in the table. wanted:
        what it must be, in words. of: the entry of what a plug-in gives, where it is not that itself."""
        super().__init__(built_in or {})
        self.group, self._is_one, self._wanted, self._of = group, is_one, wanted, of
        self._loaded: dict[Plugin, V] = {}

    def __missing__(self, name: str) -> V:
        plugin = self.plugin(name)
        if plugin is None:
            raise KeyError(name)
        if plugin not in self._loaded:
            self._loaded[plugin] = self.check(plugin, load(plugin))
        return self._loaded[plugin]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (super().__contains__(name) or self.plugin(name) is not None)

    def get(self, name: str, default: Any = None) -> Any:
        """The entry of a name, or the default where neither this table nor a plug-in has it."""
        return self[name] if name in self else default  # noqa: SIM401  it is that method

    def known(self, name: object) -> tuple[str, ...]:
        """The names that are built in, and this one where a plug-in has it: what a name is checked against."""
        names = tuple(self)
        return (*names, name) if isinstance(name, str) and name not in names and name in self else names

    def plugin(self, name: str) -> Plugin | None:
        """The plug-in that has a name; None for what is built in, and where none has it."""
        return None if super().__contains__(name) else named(self.group, name)

    def said(self, name: str) -> str:
        """A name with the package that it comes from, 'mine (my-package 1.0)', for plans and pages."""
        plugin = self.plugin(name)
        return name if plugin is None else f"{name} ({plugin.package})"

    def name_of(self, value: V) -> str | None:
        """The name of an entry, as `said` says it; None for a value that is none."""
        entries = (*self.items(), *((plugin.name, one) for plugin, one in self._loaded.items()))
        return next((self.said(name) for name, one in entries if one is value), None)

    def call(self, name: str, *given: Any, let: type[Exception] = AutoshardError) -> Any:
        """The value of the function that a name has. let: what one of a plug-in may raise, besides AutoshardError.

        Raises AutoshardError, naming the plug-in, for whatever else it raises.
        """
        function: Any = self[name]
        plugin = self.plugin(name)
        return function(*given) if plugin is None else call(plugin, function, given, let)

    def check(self, plugin: Plugin, value: Any) -> V:
        """The entry that a plug-in gave, if it is what the table holds. Raises AutoshardError where it is not."""
        if not self._is_one(value):
            raise AutoshardError(
                f"plug-in {plugin.name} of {plugin.package} gives {show(value)}; autoshard.{plugin.group} wants "
                f"{self._wanted}"
            )
        found: V = value if self._of is None else self._of(value)
        return found


class one_of_table(one_of):  # noqa: N801 - reads as a function, as `one_of` does
    """A parser of an option for one of a few words, or a name of a table or of its plug-ins."""

    def __init__(self, table: Table[Any], *words: str) -> None:
        super().__init__(*words, *table)
        self._table = table

    def __call__(self, value: Any) -> str:
        if value not in self.known and value in self._table:
            return str(value)
        try:
            return super().__call__(value)
        except WrongValueError as error:
            more = installed(self._table.group)
            raise WrongValueError(f"{error}{'; of plug-ins: ' + ', '.join(more) if more else ''}") from None
