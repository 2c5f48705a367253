"""The built-in models and the packaged instances as tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from autoshard.explanation.catalogue import (
    KnownInstance,
    KnownModel,
    instances_page,
    known_instances,
    known_models,
    models_page,
)
from autoshard.explanation.page import NARROWEST, Line, paint
from autoshard.interface.shown import Shown

T = TypeVar("T", KnownModel, KnownInstance)


@dataclass(frozen=True, repr=False)
class Listing(Shown, Generic[T]):
    """Models or instances, a row each; print() shows a table."""

    rows: tuple[T, ...]
    lines: Callable[[Sequence[T], int], list[Line]]

    def to_list(self) -> list[dict[str, Any]]:
        """A dict for each row."""
        return [row._asdict() for row in self.rows]

    def _page(self, width: int, color: bool) -> str:
        width = max(NARROWEST, width)
        return paint(self.lines(self.rows, width), width, color)

    def __repr__(self) -> str:
        first, *others = self.rows
        return f"<Listing: {first.name}{f' and {len(others):,} more' if others else ''}>"


def list_models(text: str = "") -> Listing[KnownModel]:
    """The built-in models with their parameters and what they are built of.

    text: words that a model has all of, in its name, its family, what it is built of or its Hugging Face repositories.
    Raises AutoshardError where no model has.

    >>> import autoshard
    >>> [(one.name, one.num_parameters) for one in autoshard.list_models("mixtral 8x7b").rows]
    [('mixtral-8x7b', 46702792704)]
    """
    return Listing(known_models(text), models_page)


def list_instances(text: str = "") -> Listing[KnownInstance]:
    """The packaged instances with the devices, memory, network and price of a node.

    text: words that an instance has all of, in its names. Raises AutoshardError where none has.

    >>> import autoshard
    >>> [one.devices_per_node for one in autoshard.list_instances("trn2.48xlarge").rows]
    [64]
    """
    return Listing(known_instances(text), instances_page)
