"""A layout that is named in part, such as 'tp=8 pp=16': from the words of a layout to what search takes."""

from __future__ import annotations

import re
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.plans.names import BY_STAGE
from autoshard.plans.search_result import Pins

SEQUENCE_PARALLEL, STAGE_LAYERS = "sequence_parallel", "stage_layers"
SWITCH = {"on": True, "off": False}
DEGREES = {
    "tp": "tp",
    "pp": "pp",
    "dp": "dp",
    "cp": "cp",
    "ep": "ep",
    "etp": "etp",
    "vpp": "num_virtual_stages",
    "mbs": "microbatch_size",
    "dp_replicate": "dp_replicate",
}
CHOICES = {
    "schedule": "schedule",
    "recompute": "recompute",
    "attention": "attention_kernel",
    "context": "context_parallel",
    "order": "axis_order",
    "zero": "zero",
    "sp": SEQUENCE_PARALLEL,
    "stages": STAGE_LAYERS,
}
EXAMPLE = "such as 'tp=8 pp=16'"
SETS = "give one set for all stages, such as recompute=full, or one for runs of stages, such as recompute=full*1,none*3"
_WORDS = {field: word for word, field in (*DEGREES.items(), *CHOICES.items())}
_RUN = re.compile(r"([\w+]+)\*(\d{1,4})")
_BETWEEN = re.compile(r"[\s,]+(?![\s,]|[\w+]+\*\d)")
"""Blanks or commas between words; not those of 'recompute=mlp*3,none*5', the sets of runs of stages."""


def pinned_words(pins: Pins) -> tuple[str, ...]:
    """('tp=8', 'mbs=1'): what is pinned, in the words of a layout."""
    return tuple(f"{_WORDS.get(field, field)}={value}" for field, value in pins.fixed.items())


def read_partial(text: str) -> Pins:
    """'tp=8 pp=16' -> Pins, as `read_fields` reads them; recompute=by-stage leaves the sets to the search, which tries
    those by stage too. Raises AutoshardError also for what no search fixes: sp, the cut, a set for some stages."""
    fields = read_fields(text, searches_sets=True)
    if fixed := next((field for field in (SEQUENCE_PARALLEL, STAGE_LAYERS) if field in fields), None):
        raise AutoshardError(
            f"the layout has {_WORDS[fixed]}, which is searched with all that is not named; leave it out"
        )
    if isinstance(fields.get("recompute"), tuple):
        raise AutoshardError("the layout has recompute of single stages, which are searched: recompute=by-stage")
    return Pins(**fields)


def read_fields(text: str, searches_sets: bool = False) -> dict[str, Any]:
    """'tp=8 sp=off' -> fields of a strategy. Words as `layout_name` has them; blanks or commas between. searches_sets:
    whether recompute=by-stage leaves the sets to a search; else it says too little.

    Raises AutoshardError for a word that is none, one that comes twice, a degree that is no whole number, a cut or
    runs of stages that are not as `layout_name` has them, and nothing.
    """
    if not isinstance(text, str):
        raise AutoshardError(f"the layout {show(text)} must be name=value with blanks between, {EXAMPLE}")
    fields: dict[str, Any] = {}
    seen = set[str]()
    for word in _BETWEEN.split(text.strip()):
        name, equals, value = word.partition("=")
        if not equals or not value:
            raise AutoshardError(f"the layout {text[:60]!r} must be name=value with blanks between, {EXAMPLE}")
        if name not in DEGREES and name not in CHOICES:
            raise AutoshardError(f"the layout has {name[:60]!r}; a layout has: {', '.join((*DEGREES, *CHOICES))}")
        if name in seen:
            raise AutoshardError(f"the layout has {name} twice")
        seen.add(name)
        if name in DEGREES and not re.fullmatch(r"[1-9]\d{0,8}", value):
            raise AutoshardError(f"the layout has {name}={value[:60]}; it must be a whole number from 1 to 999,999,999")
        if name == "sp" and value not in SWITCH:
            raise AutoshardError(f"the layout has sp={value[:60]}; it must be one of: {', '.join(SWITCH)}")
        if word == f"recompute={BY_STAGE}":
            if searches_sets:
                continue
            raise AutoshardError(f"the layout has {word}, which does not say what each stage recomputes; {SETS}")
        field = {**DEGREES, **CHOICES}[name]
        if name == "sp":
            fields[field] = SWITCH[value]
        elif name == "stages":
            if not re.fullmatch(r"\d{1,4}(-\d{1,4})*", value):
                raise AutoshardError(
                    f"the layout has {word[:60]}; it must be blocks of each stage, such as stages=9-8-8-7"
                )
            fields[field] = tuple(map(int, value.split("-")))
        elif name == "recompute" and "*" in value:
            fields[field] = _sets(value)
        else:
            fields[field] = int(value) if value.isascii() and value.isdigit() else value
    return fields


def _sets(text: str) -> tuple[str, ...]:
    """'full*1,none*3' -> ('full', 'none', 'none', 'none'). Raises AutoshardError for what is no run of stages."""
    runs = [(one, _RUN.fullmatch(one)) for one in re.split(r"[\s,]+", text)]
    if wrong := next((one for one, run in runs if run is None), None):
        raise AutoshardError(f"the layout has {wrong[:60]!r} in recompute={text[:60]}; {SETS}")
    return tuple(name for _, run in runs if run for name in [run[1]] * int(run[2]))
