"""Results of methods end with their object."""

from __future__ import annotations

import gc
from weakref import ref

from autoshard.planner.memo import kept_by_object


class Square:
    asked = 0

    @kept_by_object
    def of(self, side: int) -> int:
        self.asked += 1
        return side * side


def test_a_result_is_found_once_and_kept_as_long_as_its_object() -> None:
    one, other = Square(), Square()
    assert [one.of(3), one.of(3), one.of(4), other.of(3)] == [9, 9, 16, 9]
    assert (one.asked, other.asked) == (2, 1)
    gone = ref(one)
    gc.disable()
    try:
        del one
        assert gone() is None  # no circle holds it
    finally:
        gc.enable()
