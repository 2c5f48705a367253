"""Work for a process of its own: plans, reports and comparisons from checked values, as JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple

from autoshard.errors import AutoshardError
from autoshard.explanation.describe import describe
from autoshard.explanation.doubt import pairs
from autoshard.explanation.flips import same_layout
from autoshard.explanation.page import more
from autoshard.explanation.why import why
from autoshard.files.json_file import parse_json
from autoshard.models.huggingface import from_config
from autoshard.planner.options import request_from
from autoshard.planner.planning import answer, plan_for, plan_of
from autoshard.plans.layout_syntax import read_partial
from autoshard.plans.names import short_name
from autoshard.plans.plan import Plan
from autoshard.plans.plan_json import plan_to_json
from autoshard.plans.validate import plan_from_dict
from autoshard.reports.candidates import Candidates, thinned
from autoshard.reports.comparison import comparison_body, comparison_report
from autoshard.reports.html import Html, element
from autoshard.reports.page import report_page
from autoshard.reports.sections import body, section, term_pairs
from autoshard.reports.view import view_of
from autoshard.spec.model import ModelSpec
from autoshard.units import format_bytes, format_seconds

FAST_LIMIT_S, SEARCH_LIMIT_S, REPORT_LIMIT_S = 0.5, 8.0, 5.0
"""Seconds that a search may take for the first answer, for the second where the first came too early, for a report."""
NAMES = ("left", "right")
TRIED = {"tp": (1, 2, 4, 8, 16, 32, 64), "pp": (1, 2, 4, 8, 16, 32), "cp": (1, 2, 4, 8)}


def work(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer to one request. job: {do, states: [{values, plan, why}], uploads: {name: bytes}, fast}.
    fast: the best that is known in half a second."""
    do = {"answer": _answer, "plan": _plan_file, "report": _report_file, "compare": _compare_file, "look": _look}
    return do[job["do"]](job)


def _look(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """What an upload is: {kind: plan or model, name}."""
    [content] = job["uploads"].values()
    data = parse_json(content, "the upload")
    if isinstance(data, dict) and "format_version" in data:
        return {"kind": "plan", "name": describe(plan_from_dict(data)).model}
    return {"kind": "model", "name": _model(content).name}


def _model(content: bytes) -> ModelSpec:
    return from_config(parse_json(content, "the uploaded config"), "uploaded")


class Found(NamedTuple):
    """A plan, with the layouts that were priced on the way where there are any. ended: whether the search came to its
    own end."""

    plan: Plan
    priced: Candidates | None = None
    ended: bool = True


def _find(state: Mapping[str, Any], uploads: Mapping[str, bytes], limit_s: float = SEARCH_LIMIT_S) -> Found:
    if state["plan"]:
        return Found(plan_from_dict(parse_json(uploads[state["plan"]], "the uploaded plan")))
    values = state["values"]
    if "model" not in values:
        raise AutoshardError("model is missing")
    request = replace(request_from(values), time_limit=limit_s)
    if values["model"] in uploads:
        request = replace(request, model=_model(uploads[values["model"]]))
    begin_s = perf_counter()
    if request.precision == "auto" or "," in request.precision or not request.objective_is_plain:
        plan = plan_for(request)
        return Found(plan, None, perf_counter() - begin_s < limit_s)
    found = answer(request)
    ended = perf_counter() - begin_s < limit_s
    priced = getattr(found.result, "priced", None)
    return Found(plan_of(request, found), None if priced is None else thinned(priced), ended)


def _answer(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """{html, data, title, open}: a plan, or two side by side. open: whether more time finds more to say."""
    states, fast = job["states"], job["fast"]
    limit_s = FAST_LIMIT_S / len(states) if fast else SEARCH_LIMIT_S
    found = [_find(state, job["uploads"], limit_s) for state in states]
    views = [replace(view_of(one.plan, quick=True), found=one.priced) for one in found]
    more_to_say = fast and (not all(one.ended for one in found) or any(state["why"] for state in states))
    asked = [] if more_to_say else [_why(one.plan, state["why"]) for one, state in zip(found, states, strict=True)]
    if len(views) == 2:
        html, data = comparison_body((views[0], views[1]), NAMES)
        return {"html": "".join([*asked, html]), "data": data, "title": "two plans", "open": more_to_say}
    html, data = body(views[0])
    parts = [_questions(views[0].plan), *asked, html]
    return {"html": "".join(parts), "data": data, "title": views[0].description.layout, "open": more_to_say}


def _questions(plan: Plan) -> Html:
    """Links that ask why the plan is not another one."""
    most = plan.cluster.world_size
    chosen = {"tp": plan.strategy.tp, "pp": plan.strategy.pp, "cp": plan.strategy.cp}
    asked = [
        f"{name}={size}" for name, sizes in TRIED.items() for size in sizes if size <= most and size != chosen[name]
    ]
    asked += ["recompute=none", "recompute=full"]
    links = [element("li", element("a", f"{one}?", href="#", data_why=one)) for one in asked]
    return element("nav", element("p", "Why not ..."), element("ul", links), aria_label="Why not another layout")


def _why(plan: Plan, asked: str) -> Html:
    if not asked:
        return Html("")
    found = why(plan, asked, read_partial(asked, "why"))
    parts = []
    if found.is_the_choice:
        parts.append(element("p", f"It is the choice: its best completion is {short_name(plan.strategy)}."))
    elif found.refusal:
        parts.append(element("p", f"Because {found.refusal}."))
    if found.best is not None and not same_layout(found.best.strategy, plan.strategy):
        one, other = plan.estimate, found.best.estimate
        slower = more(other.step_time_s / one.step_time_s - 1)
        room = f"{format_bytes(other.fullest.total_bytes)} of {format_bytes(other.memory_capacity_bytes)}"
        best = element("code", short_name(found.best.strategy))
        said = f" would take ~{format_seconds(other.step_time_s)} a step, {slower}, and {room} of memory."
        parts += [
            element("p", "nearest to fitting: " if found.refusal else "", best, said),
            term_pairs(
                pairs(one.time_terms, other.time_terms), format_seconds, "The plan first, what was asked second"
            ),
        ]
    return section(f"Why not {asked}?", "", *parts)


def _plan_file(job: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"text": plan_to_json(_find(job["states"][0], job["uploads"]).plan)}


def _report_file(job: Mapping[str, Any]) -> Mapping[str, Any]:
    plan, priced, _ = _find(job["states"][0], job["uploads"])
    view = view_of(plan, quick=priced is not None, time_limit_s=REPORT_LIMIT_S)
    return {"text": report_page(view if priced is None else replace(view, found=priced))}


def _compare_file(job: Mapping[str, Any]) -> Mapping[str, Any]:
    if len(job["states"]) < 2:
        raise AutoshardError("a comparison needs two states")
    one, other = (_find(state, job["uploads"]).plan for state in job["states"])
    return {"text": comparison_report(one, other, NAMES)}
