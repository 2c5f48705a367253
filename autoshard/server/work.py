"""Work for a process of its own: plans, reports and comparisons from checked values, as JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

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
from autoshard.planner.priced_columns import priced_columns
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
from autoshard.reports.view import View, view_of
from autoshard.spec.model import ModelSpec
from autoshard.units import format_bytes, format_seconds

SEARCH_LIMIT_S, REPORT_LIMIT_S = 8.0, 5.0
NAMES = ("left", "right")
TRIED = {"tp": (1, 2, 4, 8, 16, 32, 64), "pp": (1, 2, 4, 8, 16, 32), "cp": (1, 2, 4, 8)}


def work(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer to one request. job: {do, states: [{values, plan, why}], uploads: {name: bytes}}."""
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


def _plan(state: Mapping[str, Any], uploads: Mapping[str, bytes]) -> tuple[Plan, Candidates | None]:
    if state["plan"]:
        return plan_from_dict(parse_json(uploads[state["plan"]], "the uploaded plan")), None
    values = state["values"]
    if "model" not in values:
        raise AutoshardError("model is missing")
    request = replace(request_from(values), time_limit=SEARCH_LIMIT_S)
    if values["model"] in uploads:
        request = replace(request, model=_model(uploads[values["model"]]))
    if request.precision == "auto" or "," in request.precision or not request.objective_is_plain:
        return plan_for(request), None
    found = answer(request)
    priced = getattr(found.result, "priced", None)
    return plan_of(request, found), None if priced is None else thinned(priced_columns(priced))


def _view(job: Mapping[str, Any], place: int) -> View:
    plan, found = _plan(job["states"][place], job["uploads"])
    return replace(view_of(plan, quick=True), found=found)


def _answer(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """{html, data, title}: a plan, or two side by side."""
    states = job["states"]
    views = [_view(job, place) for place in range(len(states))]
    asked = [_why(view.plan, state["why"]) for view, state in zip(views, states, strict=True) if state["why"]]
    if len(views) == 2:
        html, data = comparison_body((views[0], views[1]), NAMES)
        return {"html": Html("".join(asked)) + html, "data": data, "title": "two plans"}
    html, data = body(views[0])
    parts = [_questions(views[0].plan), *asked, html]
    return {"html": "".join(parts), "data": data, "title": f"{describe(views[0].plan).layout}"}


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
    return {"text": plan_to_json(_plan(job["states"][0], job["uploads"])[0])}


def _report_file(job: Mapping[str, Any]) -> Mapping[str, Any]:
    plan, found = _plan(job["states"][0], job["uploads"])
    view = view_of(plan, quick=found is not None, time_limit_s=REPORT_LIMIT_S)
    return {"text": report_page(view if found is None else replace(view, found=found))}


def _compare_file(job: Mapping[str, Any]) -> Mapping[str, Any]:
    if len(job["states"]) < 2:
        raise AutoshardError("a comparison needs two states")
    one, other = (_plan(state, job["uploads"])[0] for state in job["states"])
    return {"text": comparison_report(one, other, NAMES)}
