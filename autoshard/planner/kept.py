"""Answers that this process has found, so that a question that is asked again is not searched again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from autoshard.planner.watching import goes_on

T = TypeVar("T")


class Kept(Generic[T]):
    """The answers to the questions that were asked last, `most` of them. A question is everything that its answer
    follows from, by value. Mutable."""

    def __init__(self, most: int):
        self._most = most
        self._answers: OrderedDict[Hashable, T] = OrderedDict()

    def known(self, question: Hashable) -> T | None:
        """The answer, if it is kept."""
        found = self._answers.pop(question, None)
        if found is not None:
            self._answers[question] = found  # asked last
        return found

    def keep(self, question: Hashable, answer: T) -> T:
        """Keeps an answer, unless somebody ended the search for it early; returns it."""
        if goes_on():
            self._answers[question] = answer
            while len(self._answers) > self._most:
                self._answers.popitem(last=False)
        return answer

    def forget(self) -> None:
        """Drops all answers."""
        self._answers.clear()
