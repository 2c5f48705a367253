"""Questions about plans from Python: why this one, why not that one, how two compare, what a written layout costs."""

from __future__ import annotations

import json
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

from autoshard.cost.interval import FIT_PROBABILITY
from autoshard.errors import AutoshardError
from autoshard.explanation.compare import Comparison as Compared
from autoshard.explanation.compare import compare as compared
from autoshard.explanation.describe import Description, describe
from autoshard.explanation.doubt_text import compare_page, why_page
from autoshard.explanation.markdown import comparison_markdown, render_markdown
from autoshard.explanation.text import render
from autoshard.explanation.why import Why as Answered
from autoshard.explanation.why import why as answered
from autoshard.files.fields import check_integer, show
from autoshard.interface.inputs import (
    Instance,
    Model,
    Options,
    check_plan,
    checked,
    look_s,
    path_text,
    request_of,
)
from autoshard.interface.limits import TIME_LIMIT_S
from autoshard.interface.shown import Shown
from autoshard.interface.watch import is_interactive, watched
from autoshard.layout.strategy import Strategy
from autoshard.planner.kept import Kept
from autoshard.planner.options import OF_A_SEARCH
from autoshard.planner.written import Sought, Written, check_fixed, check_not_looked_for, check_one_price, sought
from autoshard.plans import plan as plans
from autoshard.plans.layout_syntax import DEGREES, read_fields, read_partial
from autoshard.plans.search_result import Candidate

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from autoshard.backends.rules import Problem
    from autoshard.explanation.answers import Sensitivity
    from autoshard.explanation.sensitivity import Question
    from autoshard.planner.priced import Clock
    from autoshard.planner.score import Score as Priced

ANSWERED: Kept[Sensitivity] = Kept(64)
"""Answers to what would change the choice, for the plans that were asked about last."""
Layout = str | Path | plans.Plan | Strategy | Mapping[str, Any]
"""A file that somebody wrote; a plan; words such as "tp=8 pp=16 mbs=1"; a strategy, or fields of one as a dict."""


@dataclass(frozen=True, repr=False)
class Explanation(Shown):
    """A plan in numbers and words. description: with a name for each number; its `sensitivity` has what would change
    the choice, where that was asked for."""

    description: Description

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return self.description.to_dict()

    def _page(self, width: int, color: bool) -> str:
        return render(self.description, width, color)

    def markdown(self) -> str:
        return render_markdown(self.description)


@dataclass(frozen=True, repr=False)
class Why(Shown):
    """The answer to "why not ...?". answer: the best layout of that kind beside the chosen one, term by term."""

    plan: plans.Plan
    answer: Answered

    def to_dict(self) -> dict[str, Any]:
        """The answer as JSON values."""
        return self.answer.to_dict(self.plan.cluster)

    def _page(self, width: int, color: bool) -> str:
        return why_page(self.answer, self.plan.cluster, width, color)


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """Two plans side by side, differences first. names: what the two are called. plans: the two."""

    found: Compared
    names: tuple[str, str]
    plans: tuple[plans.Plan, plans.Plan]

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        return self.found.to_dict()

    def _page(self, width: int, color: bool) -> str:
        return compare_page(self.found, self.names, width, color)

    def markdown(self) -> str:
        return comparison_markdown(self.found, self.names)

    def save_html(self, path: str | Path) -> Path:
        """Writes both plans with their pictures as one HTML file, which needs no network, and returns its path. Raises
        AutoshardError where it cannot be written."""
        from autoshard.files.atomic_file import write_text
        from autoshard.reports.comparison import comparison_report

        write_text(path, comparison_report(*self.plans, self.names), "page")
        return Path(path)


@dataclass(frozen=True, repr=False)
class Score(Shown):
    """The price of a layout that somebody wrote, beside the best one. best: None where no layout fits."""

    written: Written
    score: Priced
    best: Candidate | None

    @property
    def broken(self) -> tuple[str, ...]:
        """Every rule that the layout breaks, in words; fitting in memory is not among them."""
        return self.score.broken

    @property
    def step_time_s(self) -> float | None:
        """Predicted seconds of a step; None where the layout has no valid schedule to price."""
        return None if self.score.estimate is None else self.score.estimate.step_time_s

    @property
    def fits_probability(self) -> float | None:
        """With what probability every device has room, 0 to 1; None without a price."""
        return None if self.score.estimate is None else self.score.estimate.fits_probability

    def to_dict(self) -> dict[str, Any]:
        """The score as JSON values."""
        from autoshard.explanation.score_page import score_to_dict

        return score_to_dict(self.written, self.score, self.best)

    def _page(self, width: int, color: bool) -> str:
        from autoshard.explanation.score_page import score_page

        return score_page(self.written, self.score, self.best, width, color)


def explain(plan: plans.Plan, *, quick: bool = False, time_limit: float = TIME_LIMIT_S) -> Explanation:
    """Explains what a plan does, why it was chosen, and what would change the choice.

    quick: leave out what would change the choice, which searches again at other bandwidths, memories, batches, nodes
    and prices. time_limit: seconds that this may take; what is not answered by then, or by a Ctrl-C at a Python prompt
    or in a notebook, is said to be open. A process that has explained a plan in full answers at once when it is asked
    again.

    >>> import autoshard
    >>> plan = autoshard.plan("llama3-8b", nodes=4)
    >>> autoshard.explain(plan, quick=True).description.num_devices
    128
    """
    check_plan("explain", plan)
    limit_s = look_s("explain", quick, time_limit)
    with watched(f"explaining {plan.model.name}"):
        answers = [] if quick else [*answers_of(plan, limit_s)]
    return Explanation(describe(plan, answers[-1] if answers else None))


def answers_of(plan: plans.Plan, time_limit: float = TIME_LIMIT_S, processes: int = 1) -> Iterator[Sensitivity]:
    """Yields what would change the choice, each time with more answers, for at most time_limit seconds. On a terminal a
    line shows the progress in between; where a person types at this Python, `watched` has one. processes: with 2, a
    process beside this one answers some of the questions."""
    from autoshard.explanation.sensitivity import answers_so_far
    from autoshard.planner.priced import Clock

    clock, shown = Clock(time_limit), sys.stderr.isatty() and not is_interactive()

    def on_answer(done: int, total: int) -> None:
        if shown:
            sys.stderr.write(f"\r\x1b[Kwhat would change the choice: {done} of {total} answers")
            sys.stderr.flush()

    def clear() -> None:
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    known = ANSWERED.known(_question(plan))
    if known is not None:
        yield known
        return
    with ExitStack() as beside:
        beside.callback(clear)
        elsewhere = partial(_Beside, beside, clock) if processes > 1 else None
        for answers in answers_so_far(plan, clock, on_answer, elsewhere):
            clear()
            if not answers.unanswered:
                ANSWERED.keep(_question(plan), answers)
            yield answers


class _Beside:
    """A process that answers questions about a plan; sensitivity.Helper says more. Mutable."""

    def __init__(self, beside: ExitStack, clock: Clock, plan: plans.Plan):
        """beside: ends the process. clock: of the questions."""
        from autoshard.audits.pool import Pool

        self._pool, self._clock, self._plan = beside.enter_context(Pool(1, forks=True)), clock, plan
        self._told = deque[Callable[[], tuple[Any, ...]]]()

    def give(self, question: Question) -> None:
        from autoshard.explanation.sensitivity import answer_alone

        self._told.append(self._pool.begun(answer_alone, self._plan, question, self._clock.left_s))

    def has_answered(self) -> bool:
        return self._pool.has_answered()

    def answer(self) -> tuple[Any, ...]:
        from autoshard.audits.pool import ProcessGone
        from autoshard.explanation.sensitivity import HelperGone

        try:
            return self._told.popleft()()
        except ProcessGone:
            raise HelperGone from None


def _question(plan: plans.Plan) -> tuple[object, ...]:
    """All that the answers about a plan follow from: its operators too, of which the step time tells."""
    sure = None if plan.search is None else plan.search.fit_probability
    problem = plan.model, plan.training, plan.cluster, plan.backend
    return *problem, plan.pins, plan.strategy, plan.estimate.step_time_s, sure


def why_not(plan: plans.Plan, layout: str) -> Why:
    """Why not this layout: the best one of its kind beside the plan's, term by term.

    layout: named in part, "tp=8 pp=16"; with recompute=by-stage the sets of each stage are searched. Raises
    AutoshardError for words that name no layout.

    >>> import autoshard
    >>> plan = autoshard.plan("llama3-8b", nodes=4)
    >>> autoshard.why_not(plan, "tp=2").answer.best.strategy.tp
    2
    """
    check_plan("why_not", plan)
    with watched(f"why not {layout}"):
        return Why(plan, answered(plan, layout, read_partial(layout)))


def compare(
    one: plans.Plan, other: plans.Plan | None = None, *, names: tuple[str, str] = ("first", "second")
) -> Comparison:
    """Two plans side by side, differences first. names: what to call them. Raises AutoshardError for one plan alone.

    >>> import autoshard
    >>> one, other = (autoshard.plan("llama3-8b", nodes=4, tp=tp) for tp in (8, 32))
    >>> "layout" in [label for label, *_ in autoshard.compare(one, other).found.different]
    True
    """
    check_plan("compare", one)
    if other is None:
        raise AutoshardError("compare takes two plans, not one: autoshard.compare(plan, other)")
    check_plan("compare", other)
    if not isinstance(names, (tuple, list)) or len(names) != 2 or not all(isinstance(name, str) for name in names):
        raise AutoshardError(f"names={names!r:.60} of compare must be two words, one for each plan")
    return Comparison(compared(one, other), (names[0], names[1]), (one, other))


def score(layout: Layout, model: Model | None = None, instance: Instance = None, **options: Unpack[Options]) -> Score:
    """The price of a layout that somebody wrote, beside the best one, whether or not the planner would choose it.

    layout: a plan or plan.json; a recipe; another framework's configuration or script, as `import_plan` reads them;
    words such as "tp=8 pp=4 mbs=1 recompute=full"; a strategy or a dict of its fields. model, instance,
    options: those of `plan`; they say what the layout does not, and overrule what a file says; a plan says all of it.

    Raises AutoshardError where the layout cannot be read or the problem is not said.

    >>> import autoshard
    >>> score = autoshard.score("tp=8 pp=4 mbs=1 recompute=full", "llama3-8b", "trn1.32xlarge", nodes=4)
    >>> score.step_time_s > score.best.estimate.step_time_s
    True
    """
    from autoshard.planner.score import score as priced

    written = _written(layout, model, instance, options)
    with watched("scoring"):
        found = priced(written.problem, written.strategy, written.operators)
        best, notes = _best(written, inf if found.estimate is None else found.estimate.step_time_s)
    return Score(replace(written, notes=(*written.notes, *notes)), found, best)


def _best(written: Written, own_s: float) -> tuple[Candidate | None, tuple[str, ...]]:
    """(the best layout, notes on why there is none, or why it is one that is slower). own_s: seconds of a step of the
    layout that was given."""
    from autoshard.planner.search import search

    problem = written.problem
    try:
        found = search(*problem[:3], backend=problem.backend, top=0, **written.sought._asdict())
    except AutoshardError as error:
        return None, (f"the planner itself has none: {error}",)
    is_slower = found.best.estimate.step_time_s > own_s
    return found.best, tuple(f"of the best layout: {note}" for note in found.notes) if is_slower else ()


def _written(layout: Layout, model: Model | None, instance: Instance, options: Mapping[str, Any]) -> Written:
    given = {name: value for name, value in options.items() if value is not None}
    said = [*(["model"] if model is not None else []), *(["instance"] if instance is not None else []), *given]
    if isinstance(layout, plans.Plan):
        _says_all("the layout", said)
        return _of_plan(layout)
    check_not_looked_for("score", given, OF_A_SEARCH)
    if isinstance(layout, (Strategy, Mapping)) or (isinstance(layout, str) and _is_words(layout)):
        return _in_words(layout, model, instance, given)
    if not isinstance(layout, (str, Path)) or layout == "":
        raise AutoshardError(
            f"layout={show(layout)} of score must be words such as 'tp=8 pp=4', a strategy, a plan or a path"
        )
    file = path_text("score", "layout", layout)
    if file.endswith(".json") and (found := _in_plan(file)) is not None:
        _says_all(file, said)
        return found
    from autoshard.planner.written import read_written

    if model is not None and not isinstance(model, (str, Path)):
        raise AutoshardError(f"model={show(model)} beside the file {file} must be a name or the path of a config.json")
    names = {"model": model, "instance": instance}
    return read_written(file, checked({**{name: one for name, one in names.items() if one is not None}, **given}))


def _is_words(text: str) -> bool:
    """Whether a text is words of a layout, 'tp=8 pp=4', and not a file."""
    try:
        is_file = Path(text).exists()
    except OSError:  # longer than the name of any file
        is_file = False
    return re.fullmatch(r"\w+=[^/]*", text) is not None and not is_file


def _says_all(what: str, said: list[str]) -> None:
    if said:
        raise AutoshardError(f"{what} is a plan, which says all that --{said[0].replace('_', '-')} could")


def _problem_of(plan: plans.Plan) -> Problem:
    from autoshard.backends.rules import Problem

    return Problem(plan.model, plan.training, plan.cluster, plan.backend)


def _in_words(
    layout: Strategy | Mapping[str, Any] | str, model: Model | None, instance: Instance, options: Mapping[str, Any]
) -> Written:
    """A layout in words or fields, on the problem that the other arguments say."""
    from autoshard.backends.rules import Problem
    from autoshard.planner.inputs import backend_of, inputs_of
    from autoshard.planner.score import completed

    if model is None:
        raise AutoshardError(
            "score of a layout in words needs a model: score 'tp=8 pp=4' --model llama3-8b --nodes 4, or in Python "
            "score('tp=8 pp=4', 'llama3-8b', nodes=4)"
        )
    request = request_of(model, instance, options)
    check_fixed(options)
    if request.pins:
        raise AutoshardError(f"{next(iter(request.pins))} beside a layout, which has it; say it there")
    check_one_price(request)
    spec, training, cluster, notes = inputs_of(request)
    problem = Problem(spec, training, cluster, backend_of(request, cluster))
    if isinstance(layout, Strategy):
        return Written(problem, layout, "layout", request.backend, notes, sought=sought(request))
    fields = read_fields(layout) if isinstance(layout, str) else dict(layout)
    known = set(Strategy.__dataclass_fields__)
    if unknown := [name for name in fields if name not in known]:
        raise AutoshardError(f"the layout has {show(unknown[0])}; a strategy has: {', '.join(sorted(known))}")
    plain = {name: _plain(name, value) for name, value in fields.items()}
    strategy = completed(problem, plain)
    taken = [] if "recompute" in plain else ["recompute=none"]
    taken += ["blocks cut evenly into stages"] if len(strategy.stage_layers) > 1 and "stage_layers" not in plain else []
    if taken:
        notes += (f"taken where the layout does not say: {' and '.join(taken)}; others may be faster, or need less",)
    return Written(problem, strategy, "layout", request.backend, notes, sought=sought(request))


def _plain(name: str, value: object) -> object:
    """A field of a layout in the form that `completed` takes; the rest is checked there. Raises AutoshardError."""
    if isinstance(value, (list, tuple)):
        if name == "axis_order" and all(isinstance(one, str) for one in value):
            return "-".join(value)
        if name in ("stage_layers", "recompute"):
            return tuple(_plain("", one) for one in value)
    elif isinstance(value, SupportsIndex) and not isinstance(value, bool):
        try:
            value = index(value)  # numpy's whole numbers too
        except TypeError:  # an array of several, or the type itself
            raise AutoshardError(f"{name}={show(value)} of the layout must be a plain value") from None
    if name in DEGREES.values() and not (name == "etp" and value is None):
        check_integer("the layout", name, value)
    if name == "stage_layers":
        raise AutoshardError(f"stage_layers={show(value)} of the layout must be blocks of each stage, such as (8, 8)")
    if name in ("axis_order", "attention_kernel", "context_parallel") and not isinstance(value, str):
        raise AutoshardError(f"{name}={show(value)} of the layout must be a word")
    return value


def _in_plan(file: str) -> Written | None:
    """The layout that a plan file says; None for a configuration of DeepSpeed. Only the inputs and strategy of a plan
    are read, so a hand-edited one has a price too, and a note says what is wrong with the file."""
    from autoshard.interop.deepspeed import is_deepspeed
    from autoshard.layout.strategy import read_strategy
    from autoshard.plans.validate import in_file, plan_from_dict, problem_from_dict, read_plan_object

    data = read_plan_object(file)
    if "strategy" not in data and is_deepspeed(data):
        return None
    if not isinstance(data.get("strategy"), dict):
        raise AutoshardError(f"{file}: this is not a plan: it lacks strategy")
    problem, _ = in_file(file, lambda: problem_from_dict(data))
    strategy = in_file(file, lambda: read_strategy(data["strategy"], "strategy"))
    try:
        return _of_plan(plan_from_dict(data))
    except AutoshardError as error:
        return Written(problem, strategy, "plan", notes=(f"other readers refuse the file: {error}",))


def _of_plan(plan: plans.Plan) -> Written:
    from autoshard.plans.prices import other_operators

    operators = other_operators(plan)
    told = "operators as the plan has them; the planner's layout is searched with Megatron's"
    sure = FIT_PROBABILITY if plan.search is None else plan.search.fit_probability
    said = (told,) if operators else ()
    return Written(_problem_of(plan), plan.strategy, "plan", notes=said, operators=operators, sought=Sought(sure))


def trace(plan: plans.Plan, out: str | Path | None = None, *, measured: str | Path | None = None) -> dict[str, Any]:
    """The predicted timeline of one step, all pipeline ranks, in Chrome's trace format for https://ui.perfetto.dev.

    out: a file to write it to. measured: run.json or trace.json of a profiled run of the plan, to go beside it.
    Raises AutoshardError for a run of another plan, and a file that cannot be read or written.

    >>> import autoshard
    >>> len(autoshard.trace(autoshard.plan("llama3-8b", nodes=4))["traceEvents"]) > 100
    True
    """
    from autoshard.explanation.trace import measured_events, predicted_events
    from autoshard.files.atomic_file import write_text
    from autoshard.files.trace_events import document

    check_plan("trace", plan)
    events = predicted_events(plan)
    if measured is not None:
        events += measured_events(plan, path_text("trace", "measured", measured))
    found = document(events)
    if out is not None:
        write_text(out, json.dumps(found, separators=(",", ":")) + "\n", "trace")
    return found
