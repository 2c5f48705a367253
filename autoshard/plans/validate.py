"""Read a plan and believe nothing: what follows from inputs and choices is derived again and compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from autoshard.backends.registry import BACKENDS
from autoshard.backends.rules import Problem, check_strategy
from autoshard.cost.values import SUM_TOLERANCE, Estimate
from autoshard.errors import AutoshardError
from autoshard.files.codec import Text, from_json, read_value
from autoshard.files.fields import check_format, show
from autoshard.files.json_file import read_json
from autoshard.files.strict import Reader
from autoshard.files.text_file import printable
from autoshard.graph.partition import Choice
from autoshard.graph.redistribute import NoTransition
from autoshard.layout.buckets import held_apart
from autoshard.layout.sharding import legal_values
from autoshard.layout.strategy import Strategy, read_strategy
from autoshard.plans.plan import Plan, SearchSummary, made_by, operator_choices, operators_of_templates
from autoshard.plans.plan_json import DIGEST, FORMAT_VERSION, SECTIONS, UNDIGESTED_VERSION, digest, plan_to_dict
from autoshard.plans.prices import is_cheap, other_prices, priced
from autoshard.plans.search_result import Candidate, Pins
from autoshard.spec.cluster import Cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.routing import check_routing
from autoshard.spec.training import TrainingSpec
from autoshard.units import MB, format_seconds

MAX_PLAN_BYTES = 8 * MB
"""A plan of the largest model has some 100 KB."""

SOURCES = {
    "mesh": "the degrees in strategy give",
    "stages": "strategy.stage_layers gives",
    "schedule": "inputs and strategy give",
    "sequence": "strategy.context_parallel and strategy.cp give",
    "recompute": "strategy.recompute gives",
    "precision": "inputs.training.precision gives",
    "optimizer": "strategy and inputs.training.precision give",
    "operators": "strategy gives",
    "parameters": "inputs, strategy and operators give",
    "activations": "inputs, strategy and operators give",
    "collectives": "inputs, strategy and operators give",
}
"""Derived section -> what it has to agree with, as the start of an error's last part."""

T = TypeVar("T")


def read_plan(path: str | Path) -> Plan:
    """The plan in a file.

    Raises AutoshardError, one line with the file, the field, its value and what would work, for anything that
    `autoshard plan` would not have written.
    """
    return _read(path)[1]


def read_plan_and_notes(path: str | Path) -> tuple[Plan, tuple[str, ...]]:
    """The plan, as read_plan gives it, and what a person should know before using it, in sentences.

    A plan of another version, or with other prices than this version's, is right and runs: what it says of the layout
    is checked. Its numbers are those of its maker.
    """
    data, plan = _read(path)
    anew = f"`autoshard replan {path} -o NEW.json` writes it anew"
    notes = []
    if data["format_version"] == UNDIGESTED_VERSION:
        notes.append(
            f"{path} has format_version {UNDIGESTED_VERSION}, without a {DIGEST}: changes by "
            f"hand are not all seen; {anew}"
        )
    if (words := other_prices(plan)) is not None:
        notes.append(f"{path}, by {plan.made_by}: {words}; {anew}")
    return plan, tuple(notes)


def _read(path: str | Path) -> tuple[dict[str, Any], Plan]:
    data = read_plan_object(path)
    return data, in_file(path, lambda: plan_from_dict(data))


def read_plan_object(path: str | Path) -> dict[str, Any]:
    """The JSON object in a file, of which nothing is checked. Raises AutoshardError where there is none."""
    return in_file(path, lambda: _object(read_json(path, "plan", int(MAX_PLAN_BYTES))))


def in_file(path: str | Path, read: Callable[[], T]) -> T:
    """Put the file in front of an error that does not name it."""
    try:
        return read()
    except AutoshardError as error:
        text = str(error)
        named = printable(path)
        raise AutoshardError(text if named in text else f"{named}: {text}") from None


def _object(data: object) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise AutoshardError(f"a plan must be an object with named fields, not {show(data)}")
    return data


def plan_from_dict(data: object) -> Plan:
    """The inverse of plan_json.plan_to_dict; AutoshardError for anything else."""
    sections = _sections(_object(data))
    reader = Reader(data, "plan")
    values = {name: reader.any(name) for name in sections}
    reader.finish()
    plan = _plan_from_sections(values)
    try:
        expected = plan_to_dict(plan)
    except NoTransition as error:
        raise AutoshardError(f"strategy or operators do not divide the model: {error}") from None
    _check_shared(plan)
    for name in sections:
        if name not in ("format_version", DIGEST):
            _compare(values[name], expected[name], name, SOURCES.get(name, "the rest of the plan gives"))
    if DIGEST in sections and values[DIGEST] != digest(values):
        _refuse_changed(plan, expected)
    return plan


def _check_shared(plan: Plan) -> None:
    """Raises AutoshardError where two stages that share a parameter would hold different pieces of it."""
    if not plan.model.shares_embedding:
        return
    first, last = plan.stage_programs[0], plan.stage_programs[-1]
    if (name := held_apart(first, last)) is not None:
        theirs = (" ".join(map("=".join, zip(one.axes, one.states[name], strict=True))) for one in (first, last))
        raise AutoshardError(
            f"operators: the first and the last stage share {name}, which they would hold as {' and '.join(theirs)}, "
            "or sum its gradient over other axes; its operators must choose alike, as by Megatron's rule"
        )


def _sections(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the sections of a plan with this file's format_version.

    Raises AutoshardError for a file without one, or with one that this version does not read.
    """
    if "format_version" not in data:
        raise AutoshardError("this is not a plan: it lacks format_version")
    version = data["format_version"]
    check_format("plan.json", version, UNDIGESTED_VERSION, FORMAT_VERSION)
    return SECTIONS if version == FORMAT_VERSION else tuple(name for name in SECTIONS if name != DIGEST)


def _refuse_changed(plan: Plan, said: dict[str, Any]) -> NoReturn:
    """Raise for a file that says other than when it was made. Where this version made it, prices may tell what."""
    how = f"the file was changed after {plan.made_by} made it; `autoshard replan` makes such changes on purpose"
    if plan.made_by == made_by() and is_cheap(plan):
        expected = plan_to_dict(priced(plan))
        try:
            _compare(said["estimate"], expected["estimate"], "estimate", "inputs and strategy give")
            _compare(said["runners_up"], expected["runners_up"], "runners_up", "inputs and strategy give")
        except AutoshardError as error:
            raise AutoshardError(f"{error}: {how}") from None
    raise AutoshardError(f"{DIGEST} is not that of the other fields: {how}")


def problem_from_dict(data: Mapping[str, Any]) -> tuple[Problem, object]:
    """(what is trained on what with which backend, the pins as they stand there) of a plan's sections.

    Raises AutoshardError for anything that is not an input of a plan.
    """
    if missing := [name for name in ("inputs", "backend") if name not in data]:
        raise AutoshardError(f"this is not a plan: it lacks {missing[0]}")
    inputs = Reader(data["inputs"], "inputs")
    model = from_json(ModelSpec, inputs.any("model"), "inputs.model")
    training = from_json(TrainingSpec, inputs.any("training"), "inputs.training")
    check_routing(model, training)
    cluster = from_json(Cluster, inputs.any("cluster"), "inputs.cluster")
    pins = inputs.any("pins")
    inputs.finish()
    backend = data["backend"]
    if not isinstance(backend, str) or backend not in BACKENDS:
        raise AutoshardError(f"backend={show(backend)} must be one of: {', '.join(BACKENDS)}")
    return Problem(model, training, cluster, backend), pins


def chosen_from_dict(data: Mapping[str, Any]) -> tuple[Problem, Pins, Strategy]:
    """(problem, pins, strategy) of a plan's sections; the strategy obeys all rules and has what is pinned.

    Raises AutoshardError, one line with the field, for anything else.
    """
    problem, pinned = problem_from_dict(data)
    if "strategy" not in data:
        raise AutoshardError("this is not a plan: it lacks strategy")
    pins = _at("inputs.pins", lambda: from_json(Pins, pinned, "pins"))
    strategy = _strategy(data["strategy"], "strategy", *problem)
    _check_pins(pins, strategy)
    return problem, pins, strategy


def _plan_from_sections(values: dict[str, Any]) -> Plan:
    (model, training, cluster, backend), pins, strategy = chosen_from_dict(values)
    estimate = estimate_from_dict(values["estimate"], "estimate", strategy, training, cluster)
    return Plan(
        made_by=read_value(Text, values["made_by"], "made_by"),
        model=model,
        training=training,
        cluster=cluster,
        backend=backend,
        pins=pins,
        strategy=strategy,
        operators=_operators(values["operators"], model, training, cluster, strategy, backend),
        estimate=estimate,
        search=None if values["search"] is None else _search(values["search"]),
        runners_up=tuple(
            _runner_up(one, f"runners_up[{i}]", model, training, cluster, backend)
            for i, one in enumerate(read_value(tuple[Any, ...], values["runners_up"], "runners_up"))
        ),
        notes=read_value(tuple[Text, ...], values["notes"], "notes"),
    )


def _strategy(
    data: object, where: str, model: ModelSpec, training: TrainingSpec, cluster: Cluster, backend: str
) -> Strategy:
    strategy = _at(where, lambda: read_strategy(data, where))
    _at(where, lambda: check_strategy(model, training, cluster, backend, strategy))
    return strategy


def _operators(
    data: object, model: ModelSpec, training: TrainingSpec, cluster: Cluster, strategy: Strategy, backend: str
) -> dict[str, Choice]:
    """The choices in the file as far as each is one that its operators have, in blocks of every kind; the rest of a
    plan is derived from them.

    What is missing or of another form is taken from the rule, so that comparing tells of it.
    """
    choices = operator_choices(model, training, cluster, strategy)
    for name, operators in operators_of_templates(model, training, strategy).items():
        entry = data.get(name) if isinstance(data, dict) else None
        choice = entry.get("choice") if isinstance(entry, dict) else None
        if not isinstance(choice, dict) or set(choice) != set(choices[name]):
            continue
        for axis in choices[name]:
            of_each = [legal_values(op, axis, choices[name], BACKENDS[backend].solves_operators) for op in operators]
            known = [value for value in of_each[-1] if all(value in values for values in of_each)]
            if choice[axis] not in known:
                raise AutoshardError(
                    f"operators.{name}.choice.{axis} is {show(choice[axis])}; "
                    f"with this strategy and backend {backend} it can be: {', '.join(known)}"
                )
        choices[name] = {axis: choice[axis] for axis in choices[name]}
    return choices


def _check_pins(pins: Pins, strategy: Strategy) -> None:
    for name, value in pins.fixed.items():
        chosen = pinned_value(strategy, name)
        if not _same(value, chosen):
            raise AutoshardError(f"inputs.pins.{name} is {show(value)}, but strategy.{name} is {show(chosen)}")


def pinned_value(strategy: Strategy, name: str) -> object:
    """The value of a strategy that a pin of this name fixes, in the form of the pin. name: a field of Pins."""
    if name == "etp":
        return strategy.etp or strategy.tp
    return getattr(strategy, {"recompute": "recompute_name", "axis_order": "axis_order_name"}.get(name, name))


def _at(where: str, read: Callable[[], T]) -> T:
    """Put the place in front of an error that does not name it."""
    try:
        return read()
    except AutoshardError as error:
        text = str(error)
        raise AutoshardError(text if text.startswith(where) else f"{where}: {text}") from None


def estimate_from_dict(
    data: object, where: str, strategy: Strategy, training: TrainingSpec, cluster: Cluster
) -> Estimate:
    """The inverse of to_json. Raises AutoshardError for numbers that contradict each other."""
    estimate = from_json(Estimate, data, where)
    step_time_s = estimate.step_time_s
    total = sum(term.value for term in estimate.time_terms)
    if not math.isclose(total, step_time_s, rel_tol=SUM_TOLERANCE):
        raise AutoshardError(
            f"{where}.time_terms add up to {format_seconds(total)}, "
            f"but {where}.step_time_s is {format_seconds(step_time_s)}"
        )
    if len(estimate.memory) != strategy.pp:
        raise AutoshardError(f"{where}.memory has {len(estimate.memory)} pipeline ranks, but pp={strategy.pp}")
    _check_rates(estimate, where, training, cluster)
    _check_uncertainty(estimate, where)
    return estimate


def _check_uncertainty(estimate: Estimate, where: str) -> None:
    """An interval holds its prediction; a probability is at most 1."""
    low, high = estimate.step_time_low_s, estimate.step_time_high_s
    if not low <= estimate.step_time_s <= high:
        raise AutoshardError(
            f"{where}.step_time_s is {estimate.step_time_s:.6g}, outside of its interval: "
            f"step_time_low_s is {low:.6g}, step_time_high_s is {high:.6g}"
        )
    if estimate.fits_probability > 1:
        raise AutoshardError(f"{where}.fits_probability is {estimate.fits_probability:.6g}; a probability is at most 1")


def _check_rates(estimate: Estimate, where: str, training: TrainingSpec, cluster: Cluster) -> None:
    """Raise AutoshardError where a number that follows from inputs and step time by its definition is another."""
    step_time_s = estimate.step_time_s
    peak = cluster.world_size * cluster.device.peak_flops_per_s(training.precision.fastest_dtype)
    for name, got, want in (
        ("tokens_per_s", estimate.tokens_per_s, training.tokens_per_step / step_time_s),
        ("mfu", estimate.mfu, estimate.model_flops_per_step / (peak * step_time_s)),
        ("memory_capacity_bytes", estimate.memory_capacity_bytes, cluster.device.memory_bytes),
    ):
        if not math.isclose(got, want, rel_tol=SUM_TOLERANCE):
            raise AutoshardError(f"{where}.{name} is {got:.6g}, but inputs and {where}.step_time_s give {want:.6g}")


def _search(data: object) -> SearchSummary:
    search = from_json(SearchSummary, data, "search")
    if search.fit_probability >= 1:
        raise AutoshardError(
            f"search.fit_probability is {search.fit_probability:g}; it must be below 1: nothing fits for sure"
        )
    total = search.fitting + sum(one.count for one in search.rejections)
    if total != search.considered:
        raise AutoshardError(
            f"search.considered is {search.considered:,}, but search.fitting and search.rejections add up to {total:,}"
        )
    return search


def _runner_up(
    data: object, where: str, model: ModelSpec, training: TrainingSpec, cluster: Cluster, backend: str
) -> Candidate:
    reader = Reader(data, where)
    strategy = _strategy(reader.any("strategy"), f"{where}.strategy", model, training, cluster, backend)
    estimate = estimate_from_dict(reader.any("estimate"), f"{where}.estimate", strategy, training, cluster)
    read_value(Text, reader.any("loses"), f"{where}.loses")
    reader.finish()
    return Candidate(strategy, estimate)


def _compare(got: object, want: object, where: str, source: str) -> None:
    """Raise for the first leaf of `got` that is not that of `want`. source: 'strategy gives'."""
    if isinstance(want, dict) and isinstance(got, dict):
        for name in want:
            if name not in got:
                raise AutoshardError(f"{where} lacks {show(name)}; {source} {_shown(want[name])}")
        for name in got:
            if name not in want:
                raise AutoshardError(f"{where} has {show(name)}, which does not belong there; {source} {_names(want)}")
        for name, value in want.items():
            _compare(got[name], value, f"{where}.{name}", source)
    elif isinstance(want, (list, tuple)) and isinstance(got, list):
        if len(got) != len(want):
            raise AutoshardError(f"{where} has {len(got)} entries, but {source} {len(want)}")
        for index, (one, other) in enumerate(zip(got, want, strict=True)):
            _compare(one, other, f"{where}[{index}]", source)
    elif not _same(got, want):
        _differs(got, want, where, source)


def _same(got: object, want: object) -> bool:
    """1 and 1.0 are one number; true and 1 are not."""
    if isinstance(got, bool) or isinstance(want, bool):
        return got is want
    return got == want and not isinstance(got, (dict, list))


def _differs(got: object, want: object, where: str, source: str) -> NoReturn:
    raise AutoshardError(f"{where} is {show(got)}, but {source} {_shown(want)}")


def _shown(value: object) -> str:
    return show(list(value) if isinstance(value, tuple) else value)


def _names(values: dict[str, Any]) -> str:
    names = list(values)
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "") if names else "nothing"
