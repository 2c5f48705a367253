"""Compares two plans: what differs first, then their terms, then what they share."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from autoshard.explanation.describe import Description, describe
from autoshard.explanation.doubt import Doubt, Pair, doubt, pairs
from autoshard.plans.plan import Plan
from autoshard.plans.search_result import Candidate

FACTS = (
    ("model", "model"),
    ("cluster", "cluster"),
    ("sequences", "global_batch_size"),
    ("tokens a sequence", "sequence_length"),
    ("precision", "precision"),
    ("backend", "backend"),
    ("layout", "layout"),
)
NONE = "-"
"""Shown for a fact that only the other plan has, such as the links of UltraServers."""


@dataclass(frozen=True)
class Comparison:
    """Two plans compared.

    different, same: (label, text of the first, text of the second); in `same` both texts are equal. doubt: how sure the
    order of their step times is; None where they are not for the same training on the same cluster.
    """

    one: Description
    other: Description
    different: tuple[tuple[str, str, str], ...]
    same: tuple[tuple[str, str], ...]
    time: tuple[Pair, ...]
    memory: tuple[Pair, ...]
    doubt: Doubt | None

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        named = {"one": self.one.layout, "other": self.other.layout}
        step = {"one": self.one.step_time_s, "other": self.other.step_time_s}
        memory = {"one": self.one.memory_bytes, "other": self.other.memory_bytes}
        return {
            "layout": named,
            "different": [{"what": what, "one": a, "other": b} for what, a, b in self.different],
            "same": [{"what": what, "value": value} for what, value in self.same],
            "step_time_s": step,
            "time_terms": [asdict(pair) for pair in self.time],
            "memory_bytes": memory,
            "memory_terms": [asdict(pair) for pair in self.memory],
            "doubt": None if self.doubt is None else asdict(self.doubt),
        }


def compare(one: Plan, other: Plan) -> Comparison:
    """The comparison of two plans. Memory is that of each plan's fullest pipeline rank."""
    first, second = describe(one), describe(other)
    facts = [(label, _text(getattr(first, name)), _text(getattr(second, name))) for label, name in FACTS]
    ours, theirs = dict(first.facts), dict(second.facts)
    facts += [(label, ours.get(label, NONE), theirs.get(label, NONE)) for label in dict.fromkeys((*ours, *theirs))]
    if one.model.dropout or other.model.dropout:
        facts.append(("dropout", str(one.model.dropout), str(other.model.dropout)))
    alike = (one.model, one.training, one.cluster) == (other.model, other.training, other.cluster)
    candidates = (Candidate(plan.strategy, plan.estimate) for plan in (one, other))
    return Comparison(
        first,
        second,
        tuple(fact for fact in facts if fact[1] != fact[2]),
        tuple((label, text) for label, text, other_text in facts if text == other_text),
        pairs(one.estimate.time_terms, other.estimate.time_terms),
        pairs(one.estimate.fullest.terms, other.estimate.fullest.terms),
        doubt(one.cluster, *candidates) if alike else None,
    )


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
