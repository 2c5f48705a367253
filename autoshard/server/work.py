"""Work for a process of its own: plans, reports and comparisons from checked values, as JSON values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

from autoshard.errors import AutoshardError
from autoshard.explanation.describe import describe
from autoshard.explanation.doubt import pairs
from autoshard.explanation.flips import same_layout
from autoshard.explanation.page import more
from autoshard.explanation.why import why
from autoshard.files.json_file import parse_json
from autoshard.models.huggingface import from_config
from autoshard.models.text_part import other_parts
from autoshard.planner.options import request_from
from autoshard.planner.planning import plan_for, plan_of
from autoshard.planner.precisions import best_precision, is_compared
from autoshard.planner.watching import BestSoFar, shown_to
from autoshard.plans.layout_syntax import read_partial
from autoshard.plans.names import short_name
from autoshard.plans.plan import Plan
from autoshard.plans.plan_json import plan_to_json
from autoshard.plans.validate import plan_from_dict
from autoshard.reports.candidates import Candidates, candidates_of
from autoshard.reports.comparison import comparison_body, comparison_report
from autoshard.reports.html import Html, code, element
from autoshard.reports.page import report_page
from autoshard.reports.sections import body, capital, section, term_pairs
from autoshard.reports.view import view_of
from autoshard.server.best_shown import BestShown
from autoshard.server.isolated import Say
from autoshard.server.state import SEARCH_LIMIT_S, check_answerable
from autoshard.spec.model import ModelSpec
from autoshard.units import format_bytes, format_seconds

REPORT_LIMIT_S = 5.0
"""Seconds that what a report asks beside its plan may take."""
TRIED = {"tp": (1, 2, 4, 8, 16, 32, 64), "pp": (1, 2, 4, 8, 16, 32), "cp": (1, 2, 4, 8)}


def work(job: Mapping[str, Any], say: Say) -> Mapping[str, Any]:
    """The answer to one request. job: {do, states: [{values, plan, why}], uploads: {name: bytes}}. say: gets answers
    before the last one."""
    if job["do"] == "answer":
        return _answer(job, say)
    do = {"plan": _plan_file, "report": _report_file, "compare": _compare_file, "look": _look}
    return do[job["do"]](job)


def _look(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """The kind of an upload and its name: {kind: plan or model, name}."""
    [content] = job["uploads"].values()
    data = parse_json(content, "the upload")
    if isinstance(data, dict) and "format_version" in data:
        return {"kind": "plan", "name": describe(plan_from_dict(data)).model}
    return {"kind": "model", "name": _model(content).name}


def _model(content: bytes) -> ModelSpec:
    return from_config(parse_json(content, "the uploaded config"), "uploaded")


class Found(NamedTuple):
    """A plan, with the layouts that were priced on the way where there are any."""

    plan: Plan
    priced: Candidates | None = None


def _find(
    state: Mapping[str, Any], uploads: Mapping[str, bytes], show: Callable[[BestSoFar], None] | None = None
) -> Found:
    """The plan of a state. show: gets the best layout while it is looked for."""
    if state["plan"]:
        return Found(plan_from_dict(parse_json(uploads[state["plan"]], "the uploaded plan")))
    values = state["values"]
    check_answerable(values)
    request = replace(request_from(values), time_limit=SEARCH_LIMIT_S)
    if values["model"] in uploads:
        content = uploads[values["model"]]
        request = replace(request, model=_model(content), left_out=other_parts(parse_json(content, "the upload")))
    if not request.objective_is_plain:
        return Found(plan_for(request))
    with (
        nullcontext() if show is None or is_compared(request) else shown_to(show)
    ):  # of several searches none is the best
        found = best_precision(request)
    plan = plan_of(request, found)
    return Found(plan, candidates_of(plan, found.result))


def _answer(job: Mapping[str, Any], say: Say) -> Mapping[str, Any]:
    """{html, data, title, proven, open}: a plan, or two side by side. Before that, `open`, it says what it knows."""
    states, found = job["states"], list[Found]()
    for state in states:
        before = tuple(short_name(one.plan.strategy) for one in found)
        found.append(_find(state, job["uploads"], BestShown(say, before)))
    views = [replace(view_of(one.plan, quick=True), found=one.priced) for one in found]
    html, data = body(views[0]) if len(views) == 1 else comparison_body((views[0], views[1]))
    title = views[0].description.layout if len(views) == 1 else "two plans"
    questions = _questions(views[0].plan) if len(views) == 1 else ""
    last = {"data": data, "title": title, "proven": "", "open": False}
    if any(state["why"] for state in states):
        say({**last, "html": f"{questions}{html}", "open": True})
    asked = [_why(one.plan, state["why"]) for one, state in zip(found, states, strict=True)]
    return {**last, "html": "".join([questions, *asked, html])}


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
    found = why(plan, asked, read_partial(asked))
    parts = []
    if found.is_the_choice:
        parts.append(element("p", f"It is the choice: its best completion is {short_name(plan.strategy)}."))
    elif found.refusal:
        parts.append(element("p", f"Because {found.refusal}."))
    if found.best is not None and not same_layout(found.best.strategy, plan.strategy):
        one, other = plan.estimate, found.best.estimate
        slower = more(other.step_time_s / one.step_time_s - 1)
        room = f"{format_bytes(other.fullest.total_bytes)} of {format_bytes(other.memory_capacity_bytes)}"
        best = code(short_name(found.best.strategy))
        said = f" would take ~{format_seconds(other.step_time_s)} a step, {slower}, and {room} of memory."
        parts += [
            element("p", "nearest to fitting: " if found.refusal else "", best, said),
            *(element("p", f"{capital(note)}.") for note in found.notes),
            term_pairs(
                pairs(one.time_terms, other.time_terms), format_seconds, "The plan first, what was asked second"
            ),
        ]
    return section(f"Why not {asked}?", "", *parts)


def _plan_file(job: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"text": plan_to_json(_find(job["states"][0], job["uploads"]).plan)}


def _report_file(job: Mapping[str, Any]) -> Mapping[str, Any]:
    plan, priced = _find(job["states"][0], job["uploads"])
    view = view_of(plan, quick=priced is not None, time_limit_s=REPORT_LIMIT_S)
    return {"text": report_page(view if priced is None else replace(view, found=priced))}


def _compare_file(job: Mapping[str, Any]) -> Mapping[str, Any]:
    if len(job["states"]) < 2:
        raise AutoshardError("a comparison needs two states")
    one, other = (_find(state, job["uploads"]).plan for state in job["states"])
    return {"text": comparison_report(one, other)}
