"""A layout that is named in part, such as 'tp=8 pp=16': from the words of a layout to what search takes."""

from __future__ import annotations

import re

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.plans.names import BY_STAGE
from autoshard.plans.search_result import Pins

SEQUENCE_PARALLEL = "sequence_parallel"
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
}
EXAMPLE = "such as 'tp=8 pp=16'"
ONE_SET = "give one set for all stages, such as recompute=full, or leave it out"
_WORDS = {field: word for word, field in (*DEGREES.items(), *CHOICES.items())}
_BETWEEN = re.compile(r"[\s,]+(?![\s,]|[\w+]+\*\d)")
"""Blanks or commas between words; not those of 'recompute=mlp*3,none*5', the sets of runs of stages."""


def pinned_words(pins: Pins) -> tuple[str, ...]:
    """('tp=8', 'mbs=1'): what is pinned, in the words of a layout."""
    return tuple(f"{_WORDS.get(field, field)}={value}" for field, value in pins.fixed.items())


def read_partial(text: str, searches_sets: bool = False) -> Pins:
    """'tp=8 pp=16' -> Pins, as `read_fields` reads them. Raises AutoshardError also for sp, which no search fixes."""
    fields = read_fields(text, searches_sets)
    if SEQUENCE_PARALLEL in fields:
        raise AutoshardError("the layout has sp, which is searched with all that is not named; leave it out")
    return Pins(**fields)  # type: ignore[arg-type]


def read_fields(text: str, searches_sets: bool = False) -> dict[str, int | str | bool]:
    """'tp=8 sp=off' -> fields of a strategy. Words as `explain` prints them; blanks or commas between. searches_sets:
    whether recompute=by-stage leaves the sets to a search, which tries those by stage too; else it says too little.

    Raises AutoshardError for a word that is none, one that comes twice, a degree that is no whole number, sets that
    differ from stage to stage, whose cut no word says, and nothing.
    """
    if not isinstance(text, str):
        raise AutoshardError(f"the layout {show(text)} must be name=value with blanks between, {EXAMPLE}")
    fields: dict[str, int | str | bool] = {}
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
            raise AutoshardError(f"the layout has {word}, which does not say what each stage recomputes; {ONE_SET}")
        if name == "recompute" and "*" in value:
            raise AutoshardError(f"the layout has {word[:60]}, sets of single stages; {ONE_SET}")
        field = {**DEGREES, **CHOICES}[name]
        if name == "sp":
            fields[field] = SWITCH[value]
        else:
            fields[field] = int(value) if value.isascii() and value.isdigit() else value
    return fields
