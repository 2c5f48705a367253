"""Changes of a plan's JSON that keep its form: what a person, or a slip, makes of one field."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any, NamedTuple


class Mutation(NamedTuple):
    """A plan with one change. what: the place and the kind of change."""

    what: str
    plan: dict[str, Any]


def mutated(plan: dict[str, Any], random: Random) -> Mutation:
    """One change at a place of the plan: every leaf, list and object is as likely as any other."""
    places = list(_places(plan))
    words = _words(plan)
    *parents, last = random.choice(places)
    found = copy.deepcopy(plan)
    node: Any = found
    for part in parents:
        node = node[part]
    kind, value = random.choice(_changes(node[last], last, words, random))
    node[last] = value
    where = ".".join(map(str, (*parents, last)))
    if isinstance(node, dict) and random.random() < 0.1:
        kind, name = random.choice([("removed", None), ("renamed", f"{last}_"), ("added", "more")])
        old = copy.deepcopy(_at(plan, (*parents, last)))
        node[last] = old
        if kind == "added":
            node[name] = old
        else:
            items = [(name if key == last else key, item) for key, item in node.items()]
            node.clear()
            node.update((key, item) for key, item in items if key is not None)
    return Mutation(f"{where}: {kind}", found)


def meaning(value: object) -> str:
    """JSON in which two values are alike where they mean the same: 1 and 1.0 do, 1 and true do not."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{meaning(value[key])}" for key in sorted(value)) + "}"
    return "[" + ",".join(map(meaning, value)) + "]" if isinstance(value, list) else json.dumps(value)


def _places(node: Any, path: tuple[Any, ...] = ()) -> Any:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in items:
        yield (*path, key)
        yield from _places(child, (*path, key))


def _at(node: Any, path: tuple[Any, ...]) -> Any:
    for part in path:
        node = node[part]
    return node


def _words(plan: Any) -> dict[object, list[str]]:
    """Key -> texts that stand under it anywhere in the plan."""
    found: dict[object, set[str]] = {}
    for path in _places(plan):
        value = _at(plan, path)
        if isinstance(value, str):
            key = path[-2] if isinstance(path[-1], int) and len(path) > 1 else path[-1]
            found.setdefault(key, set()).add(value)
    return {key: sorted(texts) for key, texts in found.items()}


LEGAL = {
    "backend": ("nxd", "torch"),
    "schedule": ("1f1b", "interleaved", "gpipe", "zero_bubble"),
    "attention_kernel": ("flash", "plain"),
    "context_parallel": ("zigzag_ring", "ring", "ulysses", "all_gather"),
    "layout_rules": ("trn1", "trn2", "none"),
    "instance": ("trn1.32xlarge", "trn2.48xlarge", "cpu"),
    "model_type": ("llama", "mistral", "mixtral", "qwen2", "traced"),
    "hidden_act": ("silu", "gelu"),
    "compute_dtype": ("bfloat16", "float32"),
    "made_by": ("autoshard 0.0.9", "autoshard 9.9.9"),
}
"""Other legal values of a text, beside those that the plan has elsewhere."""


def _changes(value: Any, key: object, words: dict[object, list[str]], random: Random) -> list[tuple[str, Any]]:
    """(kind, new value) of everything that may become of a value."""
    if isinstance(value, bool):
        return [("flipped", not value), ("as a number", int(value))]
    if isinstance(value, (int, float)):
        near = value + 1 if isinstance(value, int) else value * 1.001
        return [
            ("nudged", near),
            ("by a thousandth", value * 1.001),
            ("doubled", value * 2),
            ("negated", -value),
            ("zeroed", 0),
        ]
    if isinstance(value, str):
        others = [*LEGAL.get(str(key), ()), *words.get(key, ()), value + "x"]
        return [("swapped", random.choice([one for one in others if one != value]))]
    if value is None:
        return [("set", 1), ("set", "flash"), ("set", 8)]
    if isinstance(value, dict):
        return [("emptied", {}), ("nulled", None), ("with more", {**value, "more": 1})]
    if not value:
        return [("filled", ["x"]), ("filled", [1])]
    place, other = random.randrange(len(value)), random.randrange(len(value))
    swapped = list(value)
    swapped[place], swapped[other] = swapped[other], swapped[place]
    return [
        ("one removed", value[:place] + value[place + 1 :]),
        ("one twice", [*value[:place], value[place], *value[place:]]),
        ("reversed", value[::-1]),
        ("two swapped", swapped),
    ]
