"""Loops whose turns compute alike on tensors of other sizes: tiles of scores, heads of an indexer, chunks of a state.

All turns run, unless somebody who asks for sizes alone chooses those that tell of all. Results then mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

Turn = TypeVar("Turn")
Sizes = tuple[int, ...]
Choice = Callable[[Sequence[Any], Callable[[Any], Sizes], Callable[[Any], int]], Iterable[Any]]
"""The arguments of `turns` -> some of the turns, in their order."""
_choice: Choice | None = None


def turns(
    several: Sequence[Turn], sizes: Callable[[Turn], Sizes], products: Callable[[Turn], int] = lambda turn: 0
) -> Iterable[Turn]:
    """The turns of a loop that are to run, in their order.

    sizes: numbers with each of which the tensors of a turn grow. They are gone when the turn after the next one begins,
    or written into tensors that were there before. products: what a turn's matrix products are proportional to, where
    somebody counts these.
    """
    return several if _choice is None else _choice(several, sizes, products)


@contextmanager
def choosing(choice: Choice) -> Iterator[None]:
    """Within, of each loop those turns run that are chosen."""
    global _choice
    before, _choice = _choice, choice
    try:
        yield
    finally:
        _choice = before
