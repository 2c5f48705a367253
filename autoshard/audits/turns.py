"""The turns of a loop that hold as much as all of them, by the sizes of what each computes."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

from autoshard.runtime.torch_backend.turns import Sizes


@lru_cache(maxsize=256)
def telling(sizes: tuple[Sizes, ...]) -> tuple[int, ...]:
    """Places, rising, of turns that hold as much at one time as all of them do, where tensors grow with each size.

    While a turn runs, something of the one before may still be there. So the first and the last turn are taken, which
    stand beside what is in front of the loop and behind it, and of neighbours all that no others exceed in every size.
    Two that are neighbours only because what lay between is left out must not exceed real ones; else all are taken.
    """
    pairs: list[tuple[Sizes, Sizes]] = []
    kept = {0, len(sizes) - 1} if sizes else set()
    for place in range(len(sizes) - 1, 0, -1):
        pair = sizes[place - 1], sizes[place]
        if not _exceeded(pair, pairs):
            pairs.append(pair)
            kept |= {place - 1, place}
    found = tuple(sorted(kept))
    if all(_exceeded((sizes[one], sizes[other]), pairs) for one, other in pairwise(found)):
        return found
    return tuple(range(len(sizes)))


def _exceeded(pair: tuple[Sizes, Sizes], pairs: list[tuple[Sizes, Sizes]]) -> bool:
    """Whether one of the pairs has no size below this one's."""
    return any(all(map(_covers, other, pair)) for other in pairs)


def _covers(sizes: Sizes, others: Sizes) -> bool:
    return all(one >= other for one, other in zip(sizes, others, strict=True))
