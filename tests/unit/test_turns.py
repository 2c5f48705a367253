"""The turns of a loop that an audit runs: they hold as much as all, and nothing is held that all would not hold."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from autoshard.audits.turns import telling

SIZES = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=12)


def test_turns_by_hand() -> None:
    assert telling(()) == ()
    assert telling(((1,),)) == (0,)
    assert telling(tuple((4, place) for place in range(1, 100))) == (0, 97, 98)  # each tile sees more keys
    assert telling(((4, 9), *((4, place) for place in range(1, 100)), (2, 99))) == (0, 98, 99, 100)  # one that is short
    assert telling(((),) * 50) == (0, 48, 49)
    # the second and the third-last are as small as no neighbour of the large ones is: nothing is left out
    assert telling(((9, 1), (1, 1), (1, 1), (1, 9))) == (0, 1, 2, 3)


@given(SIZES)
def test_neighbours_hold_no_less_and_no_more_than_in_the_whole_loop(sizes: list[tuple[int, int]]) -> None:
    """What stands beside the loop, in front of it and behind it, is a turn without sizes."""

    def pairs(places: list[int]) -> list[tuple[int, ...]]:
        beside = [(0, 0), *(sizes[place] for place in places), (0, 0)]
        return [(*one, *other) for one, other in pairwise(beside)]

    def covered(some: list[tuple[int, ...]], others: list[tuple[int, ...]]) -> bool:
        return all(any(all(a <= b for a, b in zip(one, other, strict=True)) for other in others) for one in some)

    whole, few = pairs([*range(len(sizes))]), pairs([*telling(tuple(sizes))])
    assert covered(whole, few) and covered(few, whole)
