"""The state that a page is asked for: values in its address, checked against a list of what may be asked."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import near, show
from autoshard.files.option_values import number
from autoshard.models.registry import builtin_models
from autoshard.planner.options import OPTIONS, PINS
from autoshard.spec.hardware_file import packaged_instances

ASKED = (
    "model",
    "instance",
    "nodes",
    "lnc",
    "sdk",
    "seq_len",
    "global_batch",
    "precision",
    "state_dtypes",
    "keep_bf16",
    "expert_imbalance",
    "dropout",
    "lora",
    "optimizer",
    "backend",
    "stack",
    "fit_probability",
    "price_per_node_hour",
)
"""Options of `plan` that a page may ask for; every pin may be, too. None of them names a file: `model` and
`expert_imbalance`, which can on the command line, are checked here."""
NAMES = (*ASKED, *(option.name for option in PINS))
SIDES = ("first", "second")
"""The names of the plans of two states."""
PLAN_FILES, CONFIG_FILES = ("plan.json", "other.json"), ("config.json", "other_config.json")
PLAN, WHY, OTHER = "plan", "why", "b."
"""An uploaded plan in place of all that; the question why not another layout; in front of the names of a second
state."""
SEARCH_LIMIT_S = 8.0
"""Seconds that a search may take here."""
MOST_LETTERS, MOST_VALUES = 300, 100
UPLOAD = re.compile(r"upload:[0-9a-f]{32}")


@dataclass(frozen=True)
class State:
    """One plan that is asked for. values: options of `plan` by name, checked. plan: an upload in their place. why: a
    layout in words, or ''."""

    values: Mapping[str, Any]
    plan: str = ""
    why: str = ""

    @property
    def uploads(self) -> tuple[str, ...]:
        """The uploads that it names."""
        return tuple(one for one in (self.values.get("model", ""), self.plan) if UPLOAD.fullmatch(str(one)))


def commands(states: Sequence[State]) -> list[str]:
    """The commands that make the plans of one or two states, in PLAN_FILES. Comments before them say under which names
    uploads must be saved, and how to end a search where it ends here.

    Raises AutoshardError for a state that has no plan."""
    saved, made, configs = list[str](), list[str](), dict[str, str]()
    for side, one, file in zip(SIDES, states, PLAN_FILES, strict=False):
        where = f" ({side})" if len(states) > 1 else ""
        if one.plan:
            saved.append(f"# save the plan that was uploaded{where} as {file}")
            continue
        check_answerable(one.values)
        values = dict(one.values)
        for upload in one.uploads:
            if upload not in configs:
                configs[upload] = CONFIG_FILES[len(configs)]
                saved.append(f"# save the config that was uploaded{where} as {configs[upload]}")
            values["model"] = configs[upload]
        words = [word for name, value in values.items() for word in (OPTIONS[name].flag, str(value))]
        made.append(shlex.join(["autoshard", "plan", *words, "-o", file]))
    limit = f"{SEARCH_LIMIT_S:g}"
    stops = f"# the page stops a search after {limit} s; with --time-limit {limit} a command does so, too"
    return [*saved, *([stops] if made else []), *made]


def check_answerable(values: Mapping[str, Any]) -> None:
    """Raise AutoshardError where the options of a state lack what no plan is made without."""
    if "model" not in values:
        raise AutoshardError("model is missing")


def read_states(pairs: Sequence[tuple[str, str]]) -> tuple[State, ...]:
    """The one or two states in an address. pairs: its names and values; empty values are left out.

    Raises AutoshardError for a name or a value that is none, and for anything that would name a file.
    """
    if len(pairs) > MOST_VALUES:
        raise AutoshardError(f"the address has {len(pairs)} values; at most {MOST_VALUES} work")
    ours = [(name, value) for name, value in pairs if not name.startswith(OTHER) and value]
    theirs = [(name[len(OTHER) :], value) for name, value in pairs if name.startswith(OTHER) and value]
    return (_state(ours), *([_state(theirs)] if theirs else []))


def _state(pairs: Sequence[tuple[str, str]]) -> State:
    given = dict(pairs)
    if len(given) < len(pairs):
        raise AutoshardError("the address has a name twice")
    for name, value in pairs:
        if len(value) > MOST_LETTERS or not value.isprintable():
            raise AutoshardError(f"{show(name)} must be at most {MOST_LETTERS} printable letters")
    plan, why = given.pop(PLAN, ""), given.pop(WHY, "")
    if plan and not UPLOAD.fullmatch(plan):
        raise AutoshardError(f"plan={show(plan)} must be an upload of this server; it reads no files")
    if plan and given:
        raise AutoshardError(f"{show(next(iter(given)))} beside an uploaded plan, which says all of it; leave it out")
    if plan:
        return State({}, plan, why)
    for name in given:
        if name not in NAMES:
            close = near(name, list(NAMES))
            hint = f"did you mean {' or '.join(close)}?" if close else f"names: {', '.join(NAMES)}"
            raise AutoshardError(f"{show(name)} cannot be asked for here; {hint}")
    return State({name: _value(name, given[name]) for name in NAMES if name in given}, "", why)


def _value(name: str, value: str) -> Any:
    if name == "model" and value not in builtin_models() and not UPLOAD.fullmatch(value):
        raise AutoshardError(
            f"model={show(value)} must be a built-in model or an upload; this server reads no files and runs no code"
        )
    if name == "instance" and value not in packaged_instances() and not re.fullmatch(r"[a-z0-9-]+\.[a-z0-9]+", value):
        raise AutoshardError(f"instance={show(value)} must be one of: {', '.join(packaged_instances())}")
    try:
        return number(value) if name == "expert_imbalance" else OPTIONS[name].parse(value)
    except ValueError as error:
        raise AutoshardError(f"{name}: {error}") from None
