"""A plan as JSON: the same plan, the same bytes, and readable. `plan.schema.json` documents each field."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from autoshard.cost.values import Estimate
from autoshard.files.atomic_file import write_text
from autoshard.files.codec import to_json
from autoshard.plans.derived_sections import derived_sections
from autoshard.plans.differences import loses
from autoshard.plans.plan import Plan
from autoshard.plans.search_result import Candidate

FORMAT_VERSION = 2
UNDIGESTED_VERSION = 1
"""Still read: the same sections but the digest."""
DIGEST = "sha256"
LINE_WIDTH = 150
_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
SECTIONS = (
    "format_version",
    "made_by",
    "inputs",
    "backend",
    "strategy",
    "mesh",
    "stages",
    "schedule",
    "sequence",
    "recompute",
    "precision",
    "optimizer",
    "estimate",
    "search",
    "runners_up",
    "notes",
    "operators",
    "parameters",
    "activations",
    "collectives",
    DIGEST,
)
"""Top-level fields in the order of the file: what was asked, what was chosen, why, every tensor, a digest of all."""


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """Plain JSON values. Raises NoTransition where the strategy does not divide the model."""
    values = {
        "format_version": FORMAT_VERSION,
        "made_by": plan.made_by,
        "inputs": {
            "model": to_json(plan.model),
            "training": to_json(plan.training),
            "cluster": to_json(plan.cluster),
            "pins": to_json(plan.pins),
        },
        "backend": plan.backend,
        "strategy": to_json(plan.strategy),
        **derived_sections(plan),
        "estimate": to_json(plan.estimate),
        "search": to_json(plan.search),
        "runners_up": [_runner_up_to_dict(plan.estimate, one) for one in plan.runners_up],
        "notes": list(plan.notes),
    }
    values = {name: values[name] for name in SECTIONS if name != DIGEST}
    return {**values, DIGEST: digest(values)}


def text_digest(plan: Plan) -> str:
    """SHA-256, in hexadecimal, of all of plan.json's text."""
    return hashlib.sha256(plan_to_json(plan).encode()).hexdigest()


def digest(values: Mapping[str, Any]) -> str:
    """SHA-256, in hexadecimal, of what a plan's sections say, its digest left out.

    Neither layout nor the order of names counts, and 1 and 1.0 are one number.
    """
    said = _numbers_alike({name: value for name, value in values.items() if name != DIGEST})
    return hashlib.sha256(json.dumps(said, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _numbers_alike(value: object) -> object:
    """Each number as a float where a float holds it; -0 is 0."""
    if type(value) is float or (type(value) is int and abs(value) < 2**1000 and float(value) == value):
        return float(value) + 0.0
    if isinstance(value, dict):
        return {key: _numbers_alike(item) for key, item in value.items()}
    return [_numbers_alike(item) for item in value] if isinstance(value, (list, tuple)) else value


def plan_to_json(plan: Plan) -> str:
    """The text of plan.json, ending with a newline."""
    return compact_json(plan_to_dict(plan)) + "\n"


def write_plan(plan: Plan, path: str | Path) -> None:
    """Raises AutoshardError, naming the path, where it cannot be written; a file that was there then stays as it is."""
    write_text(path, plan_to_json(plan), "plan")


def _runner_up_to_dict(best: Estimate, one: Candidate) -> dict[str, Any]:
    return {
        "strategy": to_json(one.strategy),
        "loses": loses(best, one.estimate),
        "estimate": to_json(one.estimate),
    }


def compact_json(value: object, indent: int = 0, used: int = 0) -> str:
    """JSON for people: one line for what fits into one, full lines of plain values, else one item a line. No NaN.

    used: columns that the key takes before the value.
    """
    if not isinstance(value, (dict, list, tuple)) or not value:
        return _ENCODE(_whole(value))
    if isinstance(value, dict):
        keys = [f"{_ENCODE(key)}: " for key in value]
        items: Collection[object] = value.values()
        texts = [key + compact_json(item, indent + 1, len(key)) for key, item in zip(keys, items, strict=True)]
    else:
        items = value
        texts = [compact_json(item, indent + 1) for item in items]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    line = f"{opening}{', '.join(texts)}{closing}"
    if indent + used + len(line) <= LINE_WIDTH and "\n" not in line:  # an item that fills lines makes its parent do so
        return line
    inner = "\n" + " " * (indent + 1)
    plain = not any(isinstance(item, (dict, list, tuple)) for item in items)
    body = inner.join(_filled(texts, LINE_WIDTH - indent - 1)) if plain else f",{inner}".join(texts)
    return f"{opening}{inner}{body}\n{' ' * indent}{closing}"


def _filled(texts: list[str], width: int) -> list[str]:
    """The texts with commas, as many in each line as fit."""
    lines = [texts[0]]
    for text in texts[1:]:
        if len(lines[-1]) + 2 + len(text) < width:
            lines[-1] += f", {text}"
        else:
            lines[-1] += ","
            lines.append(text)
    return lines


def _whole(value: object) -> object:
    """A whole float as an integer: 15900000000, not 15900000000.0."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value
