"""Asks what would change the choice and what more nodes would bring; every answer comes from another search."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from math import inf
from typing import Any, NamedTuple, Protocol

from autoshard.cost.interval import FIT_PROBABILITY
from autoshard.explanation.answers import (
    DegreeRow,
    FlipRow,
    PriceRow,
    Sensitivity,
    SizeRow,
    degree_row,
    flip_row,
    price_row,
    problem_of,
    size_row,
)
from autoshard.explanation.flips import Winner, same_layout, winner
from autoshard.explanation.own_constants import has_own_constants
from autoshard.explanation.quantities import quantities
from autoshard.planner.cached_search import OutOfTime, Searches, Start
from autoshard.planner.priced import Clock
from autoshard.plans.layout_syntax import pinned_words
from autoshard.plans.names import short_name
from autoshard.plans.plan import Plan
from autoshard.spec.cluster import instances, load_cluster

OnAnswer = Callable[[int, int], None]
OTHER_TP, FLIPS, MORE_NODES, INSTANCES = "another tp", "what flips the choice", "more nodes", "other instances"


class Question(NamedTuple):
    """One answer to look for, which follows from the plan and this alone. subject: what it is about; questions on one
    subject are asked in a row. function: the one of answers.py that answers. asked: its further arguments."""

    subject: str
    function: Callable[..., Any]
    asked: tuple[Any, ...]


class HelperGone(Exception):
    """Raised by a helper that will answer nothing more."""


class Helper(Protocol):
    """A process beside this one that answers questions about a plan, in the order in which it is given them."""

    def give(self, question: Question) -> None:
        """Ask one more question."""

    def has_answered(self) -> bool:
        """Whether `answer` has something to say, and would not wait for it."""

    def answer(self) -> tuple[Any, ...]:
        """The answer to the first question that has none by now; () where there was no time. Raises HelperGone."""


AHEAD, ENOUGH = 3, 4
"""A helper is given so many questions at a time, so that it has something to do while this process is busy; one at a
time where fewer than ENOUGH are left, or this process would wait for it in the end."""


class _Shared:
    """Questions of which this process answers the first ones and a helper the last ones, until they meet. Mutable."""

    def __init__(self, helper: Helper | None):
        self._helper, self._open, self._given = helper, deque[Question](), deque[Question]()
        self.answers: dict[Question, tuple[Any, ...]] = {}

    def begin(self, questions: Sequence[Question]) -> None:
        """Have those of these questions answered that are not known yet; they stand before the others."""
        known = {*self._open, *self._given, *self.answers}
        self._open.extendleft(one for one in reversed(questions) if one not in known)
        self.go_on()

    def go_on(self) -> None:
        """Take the answers that the helper has by now, and give it more to do."""
        while self._helper and self._given and self._helper.has_answered():
            self._take(self._helper)
        while self._helper and self._open and len(self._given) < (AHEAD if len(self._open) >= ENOUGH else 1):
            self._given.append(self._open.pop())
            self._helper.give(self._given[-1])

    def taken(self) -> Question | None:
        """A question for this process, None where all are answered: while the helper is at the last ones it waits for
        these."""
        self.go_on()
        while self._helper and self._given and not self._open:
            self._take(self._helper)
        return self._open.popleft() if self._open else None

    def _take(self, helper: Helper) -> None:
        try:
            self.answers[self._given[0]] = helper.answer()
            self._given.popleft()
        except HelperGone:
            self._helper = None
            self._open.extend(reversed(self._given))
            self._given.clear()

    def finish(self) -> None:
        """Wait for what the helper has begun; nothing else is answered."""
        self._open.clear()
        self.taken()


def sensitivity(plan: Plan, on_answer: OnAnswer = lambda done, total: None) -> Sensitivity | None:
    """All answers for a plan, however long it takes. None for a plan that was not searched, since there is no choice to
    flip.

    on_answer: called with (answers found, answers wanted).
    """
    return next(reversed([*answers_so_far(plan, Clock(inf), on_answer)]), None)


def answers_so_far(
    plan: Plan,
    clock: Clock,
    on_answer: OnAnswer = lambda done, total: None,
    elsewhere: Callable[[Plan], Helper] | None = None,
) -> Iterator[Sensitivity]:
    """Yields what is known after each subject; the last value has all answers. Yields nothing for a plan that was not
    searched.

    When the clock has run out, nothing more is looked for, and `unanswered` of the last value says what is missing.
    elsewhere: makes a helper; by default there is none.
    """
    if plan.search is None:
        return
    searches, shared = Searches(clock), _Shared(elsewhere(plan) if elsewhere else None)
    sure = plan.search.fit_probability
    shared.begin(of_clusters := [*_on_clusters(plan, sure)])
    try:
        best, refusal = _choice(searches, plan)
    except OutOfTime:
        yield _sensitivity(plan, None, "", [], (OTHER_TP, FLIPS, MORE_NODES, INSTANCES))
        return
    agrees = best is not None and same_layout(best.strategy, plan.strategy)
    start = searches.start(problem_of(plan), plan.pins) if agrees else None
    tried = None if start is None or start.promising is None else len(start.promising)
    now = refusal if best is None else short_name(best.strategy)
    shared.begin(on_choice := [*_on_choice(plan, start, sure)])
    wanted, answers, told = [*on_choice, *of_clusters], shared.answers, 0
    while (question := shared.taken()) is not None:
        known = [*takewhile(answers.__contains__, wanted)]
        if len(known) > told and known[-1].subject != wanted[len(known)].subject:
            told = len(known)
            yield _sensitivity(plan, agrees, now, _rows(answers, known), _subjects(wanted[told:]), tried)
        on_answer(len(answers), len(wanted))
        try:
            answers[question] = (question.function(searches, plan, *question.asked),)
        except OutOfTime:
            shared.finish()
            break
    unanswered = _subjects([one for one in wanted if not answers.get(one)])
    yield _sensitivity(plan, agrees, now, _rows(answers, wanted), unanswered, tried)


def answer_alone(plan: Plan, question: Question, limit_s: float) -> tuple[Any, ...]:
    """The answer to a question about a plan, () where it is not found in limit_s seconds."""
    try:
        return (question.function(Searches(Clock(limit_s)), plan, *question.asked),)
    except OutOfTime:
        return ()


def _rows(answers: Mapping[Question, tuple[Any, ...]], questions: Sequence[Question]) -> list[Any]:
    return [row for one in questions for row in answers.get(one, ())]


def _subjects(questions: Sequence[Question]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.subject for one in questions))


def _sensitivity(
    plan: Plan,
    agrees: bool | None,
    now: str,
    rows: Sequence[Any],
    unanswered: tuple[str, ...],
    tried: int | None = None,
) -> Sensitivity:
    known = instances()
    return Sensitivity(
        agrees,
        now,
        tuple(row for row in rows if isinstance(row, DegreeRow)),
        tuple(row for row in rows if isinstance(row, FlipRow)),
        tuple(row for row in rows if isinstance(row, SizeRow)),
        plan.cluster.price_per_node_hour_usd,
        plan.cluster.usd_per_billion_tokens(plan.estimate.tokens_per_s),
        tuple(sorted((row for row in rows if isinstance(row, PriceRow)), key=lambda row: known.index(row.instance))),
        unanswered,
        tried,
        pinned_words(plan.pins),
    )


def _choice(searches: Searches, plan: Plan) -> Winner:
    """The layout that today's search takes for the plan's problem, or why it takes none."""
    sure = FIT_PROBABILITY if plan.search is None else plan.search.fit_probability
    return winner(searches, problem_of(plan), plan.pins, sure, sparing=False)


def _on_choice(plan: Plan, start: Start | None, sure: float) -> Iterator[Question]:
    """The questions on the plan's own cluster, in the order of the page. start: what is known of the plan's problem;
    None where today's search chooses another layout. Problems with less memory come after those with more, whose
    prices they reuse."""
    on_cluster = not plan.cluster.is_host
    for tp in (2**power for power in range(plan.cluster.devices_per_node.bit_length())) if on_cluster else ():
        if tp != plan.strategy.tp:
            yield Question(OTHER_TP, degree_row, (tp, sure))
    for quantity in quantities(problem_of(plan)) if start is not None else ():
        for furthest in (quantity.furthest, 1 / quantity.furthest):
            if quantity.value(furthest) != quantity.now:  # a batch of 1 cannot be halved
                yield Question(quantity.name, flip_row, (quantity, furthest, sure, start))


def _on_clusters(plan: Plan, sure: float) -> Iterator[Question]:
    """The questions on other clusters, which come last."""
    if plan.cluster.is_host:
        return
    counts = dict.fromkeys((plan.cluster.nodes, plan.cluster.nodes + 1, 2 * plan.cluster.nodes))
    for nodes in filter(plan.cluster.can_have, counts):
        yield Question(MORE_NODES, size_row, (nodes, sure))
    is_priced = plan.cluster.price_per_node_hour_usd is not None and plan.cluster.platform.is_trainium
    if is_priced and not has_own_constants(plan):  # the others' constants are the packaged ones
        for name in instances():
            if name != plan.cluster.instance and load_cluster(name, 1).platform.is_trainium:  # no others are compared
                yield Question(INSTANCES, price_row, (name, sure))
