"""Plans from Python: search, the result with everything that was priced, plan files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoshard.cost.fit_probability import levels
from autoshard.errors import AutoshardError
from autoshard.files.fields import check_choice, show
from autoshard.interface.inputs import Instance, Model, Options, request_of, rows
from autoshard.interface.planned import Plan
from autoshard.interface.reading import read_plan_with_notes
from autoshard.interface.shown import Shown
from autoshard.interface.watch import watched
from autoshard.planner.answer import Answer, answer
from autoshard.planner.planning import plan_for, plan_of
from autoshard.planner.request import TOP, PlanRequest
from autoshard.planner.search import Searched
from autoshard.plans.names import short_name
from autoshard.plans.search_result import Candidate, Rejection
from autoshard.units import format_bytes, format_seconds, percent

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Unpack

    from autoshard.interface.frontier import Frontier

FORMS = ("numpy", "pandas", "pyarrow")
SHOWN_ROWS = 10


@dataclass(frozen=True, repr=False)
class SearchResult(Shown):
    """The answer of a search. plan: the best layout as a plan; its `runners_up` and `search` have the rest in words."""

    plan: Plan
    answer: Answer

    @property
    def optimality(self) -> str:
        """The claim that is proven of the plan, in a sentence."""
        return self.answer.result.optimality

    @property
    def considered(self) -> int:
        """Whole layouts looked at; a bound may stand for many."""
        return self.answer.result.considered

    @property
    def fitting(self) -> int:
        """Layouts that broke no rule and, by their prediction, fit into memory, however surely."""
        return self.answer.result.fitting

    @property
    def rejections(self) -> tuple[Rejection, ...]:
        """Why the others were dropped: reason, count and example of each."""
        return self.answer.result.rejections

    def table(self, form: str = "numpy") -> Any:
        """Every candidate that was priced, by the search and the cost model that were asked for, as columns with an
        entry for each; the plan and its runners-up are among them. Of other layouts, cuts and sets by stage that were
        ruled out by a bound, or solved and are slower, are not.

        form: "numpy", a dict of arrays; "pandas", a DataFrame; "pyarrow", a Table. Columns: tp, pp, dp, cp, ep, etp (0:
        experts are cut as tp says), dp_replicate, num_virtual_stages, microbatch_size, num_microbatches, schedule,
        zero, sequence_parallel, attention_kernel, context_parallel, axis_order, recompute, stage_layers ("10-10-12");
        step_time_s (seconds; a lower bound where step_time_is_bound), memory_bytes (of the fullest device), fits
        (whether the device has so much), fits_probability (how surely; the plan is chosen among those that do with
        fit_probability, as `fastest` is). Raises AutoshardError for another form, and where its package is missing.
        """
        check_choice("table", "form", form, FORMS)
        assert isinstance(self.answer.result, Searched)
        columns = self.answer.result.columns()
        if form == "numpy":
            return columns
        try:
            if form == "pandas":
                import pandas as pd

                return pd.DataFrame(columns)
            import pyarrow as pa

            return pa.table(columns)
        except ImportError:
            raise AutoshardError(f"table({form!r}) needs {form}: pip install {form}") from None

    def fastest(self, count: int = SHOWN_ROWS) -> Mapping[str, np.ndarray[Any, Any]]:
        """The first rows of `table()` that fit as surely as the search was asked for, or as any does, by step time (or
        its bound). Raises AutoshardError where count is no number of rows."""
        import numpy as np

        count = rows("count", count)
        columns = self.table()
        needed_bytes = columns["memory_bytes"]
        assert self.plan.search is not None
        wanted = (one.memory_bytes for one in levels(self.plan.cluster, self.plan.search.fit_probability))
        fit = np.flatnonzero(needed_bytes <= next((one for one in wanted if one >= needed_bytes.min()), 0.0))
        first = fit[np.argsort(columns["step_time_s"][fit], kind="stable")[:count]]
        return {name: column[first] for name, column in columns.items()}

    def _page(self, width: int, color: bool) -> str:
        return self.plan.page(width, color)

    def markdown(self) -> str:
        from autoshard.explanation.markdown import markdown_table

        plan, others = self.plan, self.plan.runners_up
        rows = [
            (
                f"`{short_name(one.strategy)}`",
                f"~{format_seconds(one.estimate.step_time_s)}",
                f"~{format_bytes(one.estimate.fullest.total_bytes)}",
                percent(one.estimate.fits_probability),
            )
            for one in (Candidate(plan.strategy, plan.estimate), *others)
        ]
        table = markdown_table(("layout", "step", "memory", "fits"), rows)
        found = f"{self.considered:,} layouts considered, {self.fitting:,} fit; {self.optimality}"
        return "\n".join([f"### {plan.title}", "", *table, "", found, ""])

    def __repr__(self) -> str:
        return f"<SearchResult {self.considered:,} considered, {self.fitting:,} fit, best {self.plan!r}>"


def plan(
    model: Model,
    instance: Instance = None,
    *,
    top: int = TOP,
    exhaustive: bool = False,
    beaten_path: bool = False,
    **options: Unpack[Options],
) -> Plan:
    """The best layout of a model on a cluster, as `autoshard plan` finds it.

    model: a built-in name, a Hugging Face repository, the path or the contents of a config.json, transformers' config,
    a ModelSpec, or a live torch module, which is traced. instance: an instance type, a cluster (`autoshard.cluster`),
    or None for the default. top: runners-up to keep. exhaustive: price every layout, also those that a bound rules out.
    beaten_path: choose only what is known to have run. options: those of the command line, with underscores; see
    `autoshard plan --help`. A name that is pinned (tp=8) is kept, everything else is searched.

    Raises AutoshardError for a wrong value, NoLayoutFits where nothing fits into memory. At a Python prompt and in a
    notebook Ctrl-C gives the best plan that is known by then.

    >>> import autoshard
    >>> plan = autoshard.plan("llama3-8b", "trn1.32xlarge", nodes=4, tp=8)
    >>> plan.strategy.tp, plan.fits_probability > 0.9
    (8, True)
    """
    request = _request(model, instance, options, top, exhaustive, beaten_path)
    with watched(f"planning {_named(request)}"):
        return Plan.of(plan_for(request))


def search(
    model: Model,
    instance: Instance = None,
    *,
    top: int = TOP,
    exhaustive: bool = False,
    beaten_path: bool = False,
    **options: Unpack[Options],
) -> SearchResult:
    """Searches as `plan` does and keeps everything that was priced on the way: `search(...).table()`.

    It searches one cluster for the fastest step in one precision; objective, tokens and days are `plan`'s alone.
    Raises what `plan` raises, and AutoshardError for those options.

    >>> import autoshard
    >>> result = autoshard.search("llama3-8b", nodes=4)
    >>> columns = result.table()
    >>> bool((columns["step_time_s"] > 0).all()), set(columns["tp"][columns["fits"]]) <= {1, 2, 4, 8, 16, 32}
    (True, True)
    """
    request = _request(model, instance, options, top, exhaustive, beaten_path)
    for name in ("tokens", "days"):
        if getattr(request, name) is not None:
            raise AutoshardError(
                f"{name}={getattr(request, name):g}: a search is of one step; autoshard.plan takes {name}"
            )
    if not request.objective_is_plain or "," in request.precision or request.precision == "auto":
        raise AutoshardError(
            "a search has one cluster and one precision, and looks for the fastest step; autoshard.plan takes "
            "objective, lnc='auto' and several precisions"
        )
    with watched(f"searching {_named(request)}"):
        found = answer(request)
        return SearchResult(Plan.of(plan_of(request, found)), found)


def frontier(
    model: Model, instance: Instance = None, *, beaten_path: bool = False, **options: Unpack[Options]
) -> Frontier:
    """The fastest step of 1, 2, 4, ... up to `nodes` nodes, as `autoshard plan --pareto`: by rising nodes, those that
    are faster than every smaller one. At a Python prompt and in a notebook Ctrl-C gives those that are done.

    >>> import autoshard
    >>> [point["nodes"] for point in autoshard.frontier("llama3-8b", nodes=4).to_list()]
    [1, 2, 4]
    """
    from autoshard.interface.frontier import frontier_of

    return frontier_of(_request(model, instance, options, 0, False, beaten_path))


def read_plan(path: str | Path) -> Plan:
    """The plan in a file that `save`, `autoshard plan` or a person wrote. Its prices may be another cost model's, which
    `validate` tells. Raises AutoshardError, naming file and field, for anything that is not a plan or does not follow
    from its inputs."""
    return read_plan_with_notes(path)[0]


def _request(
    model: Model, instance: Instance, options: Mapping[str, Any], top: int, exhaustive: bool, beaten_path: bool
) -> PlanRequest:
    for name, value in (("exhaustive", exhaustive), ("beaten_path", beaten_path)):
        if not isinstance(value, bool):
            raise AutoshardError(f"{name}={show(value)} must be True or False")
    return replace(request_of(model, instance, options, top), exhaustive=exhaustive, beaten_path=beaten_path)


def _named(request: PlanRequest) -> str:
    return request.model if isinstance(request.model, str) else request.model.name
