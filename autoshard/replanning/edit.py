"""Edits a plan: its inputs and choices are changed on purpose, and everything else is derived from them again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from autoshard.backends.registry import BACKENDS
from autoshard.backends.rules import Problem, warnings
from autoshard.cost.estimate import Estimate, estimate
from autoshard.errors import AutoshardError
from autoshard.files.codec import from_json, to_json
from autoshard.files.json_file import parse_json
from autoshard.files.option_values import shortened
from autoshard.graph.redistribute import NoTransition
from autoshard.layout.mesh import parse_axis_order
from autoshard.layout.sharding import OperatorChoices
from autoshard.layout.strategy import Strategy
from autoshard.plans.plan import Plan, made_by, make_plan
from autoshard.plans.plan_json import FORMAT_VERSION, SECTIONS, plan_to_json
from autoshard.plans.prices import other_operators, other_prices, priced
from autoshard.plans.search_result import Pins
from autoshard.plans.validate import (
    SOURCES,
    chosen_from_dict,
    estimate_from_dict,
    in_file,
    pinned_value,
    plan_from_dict,
    read_plan_object,
)
from autoshard.spec.cluster import Cluster, instances
from autoshard.spec.training import load_precision

GIVEN = ("inputs", "backend", "strategy")
"""Sections of a plan that a person may change; all others follow from these."""
EXAMPLE = "such as strategy.microbatch_size=2"
_FIELD = re.compile(r"\w+(\.\w+|\[\d+\])*")
_PART = re.compile(r"\w+")
_SHOWN, _ENTRIES, _TOLD = 40, 4, 1_000
"""The most characters of a value on a page, entries of a list in an error, and characters of all changes in a note."""


class Change(NamedTuple):
    """One changed field, named as in errors. before, after: its JSON values; None where the field is not there."""

    field: str
    before: object
    after: object

    def __str__(self) -> str:
        return f"{self.field} {shown(self.before)} -> {shown(self.after)}"


@dataclass(frozen=True)
class Edited:
    """A plan after an edit.

    plan: the new plan, checked and priced. changes: the edits; for a file that was changed by hand, which other fields
    had to follow. before: the estimate without the edits, by the same cost model; for a file changed by hand what the
    file says, None where it no longer says that. by_hand: why the file is refused as it stands; '' where it is not.
    """

    plan: Plan
    changes: tuple[Change, ...]
    before: Estimate | None
    by_hand: str = ""


def edited(before: Plan, edits: Sequence[str]) -> Edited:
    """The plan with some fields of its inputs, backend or strategy set. The layout is kept, not searched again.

    edits: such as 'strategy.microbatch_size=2', the value as JSON or as text. A field that was pinned is pinned to its
    new value. Raises AutoshardError for a field that a person may not set, a wrong value, a broken rule, and where
    nothing changes.
    """
    old, new = (json.loads(plan_to_json(before)) for _ in range(2))
    for edit in edits:
        _set(new, edit)
    _let_pins_follow(new, before)
    _let_domains_follow(new, before)
    problem, pins, strategy = chosen_from_dict(new)
    if problem.cluster.instance != before.cluster.instance and problem.cluster.instance in instances():
        raise AutoshardError(
            f"--edit inputs.cluster.instance: the speeds in the plan are those of {before.cluster.instance}; "
            "make a plan of another instance with autoshard plan --instance"
        )
    if problem.cluster.lnc != before.cluster.lnc:
        raise AutoshardError(
            f"--edit inputs.cluster.lnc: the devices in the plan are those at lnc {before.cluster.lnc}; "
            "make a plan of another with autoshard plan --lnc"
        )
    if problem.cluster.sdk != before.cluster.sdk:
        raise AutoshardError(
            f"--edit inputs.cluster.sdk: the speeds in the plan are those under {before.cluster.sdk}; "
            "make a plan of another release with autoshard plan --sdk"
        )
    if problem.cluster.stack != before.cluster.stack:
        raise AutoshardError(
            f"--edit inputs.cluster.stack: the constants in the plan are those of {_run_by(before.cluster)}; "
            "make a plan of another stack with autoshard plan --stack"
        )
    if problem.backend != before.backend:
        _check_constants(problem)
    new["strategy"] = to_json(strategy)
    changes = tuple(change for name in GIVEN for change in _differences(old[name], new[name], name))
    if not changes:
        raise AutoshardError(f"--edit {edits[0][:100]}: the plan has that already")
    others = other_operators(before)
    note = f"edited, not searched: {', '.join(map(str, changes))}"
    return Edited(_made(problem, pins, strategy, note, others), changes, priced(before).estimate)


def _check_constants(problem: Problem) -> None:
    """Raise AutoshardError where a backend runs on another stack than that which the constants of a cluster are of."""
    cluster = problem.cluster
    takes_stack = BACKENDS[problem.backend].runs_stacks and bool(cluster.platform.stacks)
    if takes_stack != (cluster.stack is not None):
        raise AutoshardError(
            f"--edit backend={problem.backend}: the constants in the plan are those of {_run_by(cluster)}; make a plan "
            "of another backend with autoshard plan --backend"
        )


def _run_by(cluster: Cluster) -> str:
    """The stack of native PyTorch whose constants a cluster has, or what it has those of without."""
    return cluster.stack or "compiled passes"


def made_anew(file: str | Path) -> Edited:
    """A new plan from the inputs, backend and strategy in a plan's file, whether it was changed by hand or not.

    Operators are sharded by the rule of layout/sharding.py, and nothing is searched. A valid file in the previous
    format keeps all that it says. Raises AutoshardError for wrong inputs, for a broken rule, and where nothing is wrong
    with the file.
    """
    data = read_plan_object(file)
    by_hand = ""
    try:
        plan = plan_from_dict(data)
    except AutoshardError as error:
        by_hand = str(error)
    else:
        if other_prices(plan) is None:
            if data["format_version"] == FORMAT_VERSION:
                raise AutoshardError(
                    f"{file} is as it was made; --nodes N or --edit FIELD=VALUE makes another plan of it"
                )
            return Edited(replace(plan, made_by=made_by()), (), plan.estimate)
    problem, pins, strategy = in_file(file, lambda: chosen_from_dict(data))
    note = f"made anew from the inputs and the strategy in a file: {by_hand or 'its prices were of another cost model'}"
    made = _made(problem, pins, strategy, note)
    new = json.loads(plan_to_json(made))
    told = (name for name in SOURCES if name not in ("activations", "collectives"))
    changes = tuple(change for name in told for change in _differences(data.get(name), new[name], name))
    try:
        said = estimate_from_dict(data.get("estimate"), "estimate", strategy, problem.training, problem.cluster)
    except AutoshardError:
        said = None
    return Edited(made, changes, said, by_hand)


def shown(value: object) -> str:
    """A value as JSON, cut short; runs of equal values in a list are folded: '[5 x 16]'."""
    if isinstance(value, list) and value and not any(isinstance(item, (dict, list)) for item in value):
        runs = [(json.dumps(item), len(list(run))) for item, run in groupby(value)]
        text = f"[{', '.join(item if count == 1 else f'{item} x {count}' for item, count in runs)}]"
    else:
        text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _set(plan: dict[str, Any], edit: str) -> None:
    field, equals, text = edit.partition("=")
    if not equals or not _FIELD.fullmatch(field):
        raise AutoshardError(f"--edit {json.dumps(edit[:100])[1:-1]} must be FIELD=VALUE, {EXAMPLE}")
    *parents, last = _PART.findall(field)
    first = (*parents, last)[0]
    if first not in GIVEN:
        raise AutoshardError(f"--edit {field}: {_not_given(plan, first)}")
    node: Any = plan
    for part in parents:
        node = node[_key(node, part, field)]
    key = _key(node, last, field, new=True)
    value = _value(text)
    if isinstance(node, dict) and isinstance(node.get(key), str) and isinstance(value, (int, float)):
        value = text  # such as a release, 2.20
    if isinstance(node, dict) and isinstance(node.get(key), list) and isinstance(value, str):
        value = _listed(field, value, node[key])
    if field == "inputs.training.precision" and isinstance(value, str):
        value = to_json(load_precision(value))
    now = node[key] if isinstance(node, list) else node.get(key)
    if isinstance(now, dict) and not isinstance(value, (dict, type(None))):
        raise AutoshardError(
            f"--edit {field}={shortened(text)}: there is more than one value; name one of: {_fields(now)}"
        )
    node[key] = value


def _listed(field: str, text: str, now: list[Any]) -> list[Any]:
    """The list that a text stands for: one entry for all, or an axis order as pages have it. now: what the field holds.
    Raises AutoshardError, with the list as JSON, where several entries are wanted or other ones than texts."""
    if field == "strategy.axis_order":
        return list(parse_axis_order(text))
    are_texts, words = all(isinstance(one, str) for one in now), text.split(",")
    if are_texts and len(words) == 1:
        return [text]
    listed = _value(f"[{text}]") if text else ""
    if isinstance(listed, str) and are_texts and all(map(_PART.fullmatch, words)):
        listed = words
    whole = listed if isinstance(listed, list) else now if len(now) <= _ENTRIES else None
    wanted = json.dumps(whole) if whole is not None else f"{json.dumps(now[:_ENTRIES])[:-1]}, ...]"
    raise AutoshardError(f"--edit {field}={shortened(text)} must be a list in JSON: --edit '{field}={wanted[:_TOLD]}'")


def _not_given(plan: Mapping[str, Any], name: str) -> str:
    if name in SECTIONS:
        return f"that follows from {', '.join(GIVEN[:-1])} and {GIVEN[-1]}; edit these, {EXAMPLE}"
    inside = next((f"strategy.{name}" for known in plan["strategy"] if known == name), None)
    hint = f"did you mean {inside}?" if inside else EXAMPLE
    return f"fields begin with {', '.join(GIVEN[:-1])} or {GIVEN[-1]}; {hint}"


def _key(node: object, part: str, field: str, new: bool = False) -> Any:
    """The key or index that one part of a field's name stands for, in the object or list `node`. new: the key need not
    exist yet."""
    if isinstance(node, dict) and (part in node or new):
        return part
    if isinstance(node, list) and part.isdecimal() and len(part) < 10 and int(part) < len(node):
        return int(part)
    known = _fields(node) if isinstance(node, dict) else ""
    has = f"there is: {known}" if known else f"a list of {len(node)}" if isinstance(node, list) else "a value"
    raise AutoshardError(f"--edit {field}: there is no {part}; {has}")


def _fields(node: Mapping[str, Any]) -> str:
    """The names of a node's fields, the first twenty."""
    return ", ".join(list(node)[:20])


def _value(text: str) -> object:
    try:
        return parse_json(text.encode(errors="replace"), "")
    except AutoshardError:
        return text


def _let_pins_follow(new: dict[str, Any], before: Plan) -> None:
    """Changes pins in `new` in place: a pin that agreed with the layout before the edit agrees with the new layout."""
    try:
        strategy = from_json(Strategy, new["strategy"], "strategy")
    except (AutoshardError, TypeError):  # read again with everything else, and told
        return
    pins = new["inputs"].get("pins") if isinstance(new["inputs"], dict) else None
    for name, pinned in before.pins.fixed.items():
        if isinstance(pins, dict) and pins.get(name) == pinned:
            pins[name] = pinned_value(strategy, name)


def _let_domains_follow(new: dict[str, Any], before: Plan) -> None:
    """Changes the cluster in `new` in place: other nodes take as many of a scale-up domain as `with_nodes` says, unless
    the edit says how many."""
    cluster, old = new["inputs"].get("cluster") if isinstance(new["inputs"], dict) else None, before.cluster
    if not isinstance(cluster, dict) or cluster.get("nodes_per_domain") != old.nodes_per_domain:
        return
    try:
        cluster["nodes_per_domain"] = old.with_nodes(cluster.get("nodes")).nodes_per_domain  # type: ignore[arg-type]
    except AutoshardError:  # read again with everything else, and told
        return


def _differences(before: object, after: object, field: str) -> Iterator[Change]:
    """Yields the fields that differ. A list of plain values, or one whose length changed, counts as one field."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys((*before, *after)):
            place = name if name.isprintable() else ascii(name)
            yield from _differences(before.get(name), after.get(name), f"{field}.{place}")
    elif _are_lists_of_objects(before, after):
        assert isinstance(before, list) and isinstance(after, list)
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from _differences(one, other, f"{field}[{index}]")
    elif before != after or isinstance(before, bool) != isinstance(after, bool):
        yield Change(field, before, after)


def _are_lists_of_objects(before: object, after: object) -> bool:
    if not isinstance(before, list) or not isinstance(after, list) or len(before) != len(after):
        return False
    return any(isinstance(item, (dict, list)) for item in (*before, *after))


def _made(problem: Problem, pins: Pins, strategy: Strategy, note: str, others: OperatorChoices = ()) -> Plan:
    """The new plan. others: operators' choices to keep as far as the new layout still has them."""
    cost = estimate(*problem[:3], strategy)
    plan = make_plan(*problem, strategy, cost, pins=pins)
    notes: tuple[str, ...] = (note if len(note) <= _TOLD else f"{note[:_TOLD]}...",)
    if others:
        kept = with_operators(plan, others)
        plan = kept or plan
        notes += () if kept else ("operators by Megatron's rule: those of the plan before do not go with the changes",)
    if not plan.estimate.fits:
        notes += ("by the estimate it does not fit into memory",)
    return replace(plan, notes=(*notes, *warnings(problem, strategy)))


def with_operators(plan: Plan, others: OperatorChoices) -> Plan | None:
    """The plan with these choices of operators; None where they do not go with its layout."""
    operators = dict(plan.operators)
    for template, choice in others:
        if template not in operators or set(operators[template]) != {axis for axis, _ in choice}:
            return None
        operators[template] = dict(choice)
    try:
        return plan_from_dict(json.loads(plan_to_json(priced(replace(plan, operators=operators)))))
    except (AutoshardError, NoTransition):
        return None
