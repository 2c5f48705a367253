"""Tokens that each expert takes, where another plan of the same model makes them others."""

from __future__ import annotations

from autoshard.plans.plan import Plan


def other_slots(before: Plan, after: Plan) -> str:
    """A sentence for who goes on with the second plan, where its experts drop other tokens than those of the first; ''
    where they do not, and without experts."""
    was, now = _taken(before), _taken(after)
    if was == now:
        return ""
    return (
        f"each expert takes up to {now:,} of a sequence's {after.training.sequence_length:,} tokens from here on, "
        f"{was:,} before: other tokens are dropped"
    )


def _taken(plan: Plan) -> int:
    """The most tokens of a sequence that one expert takes; all have a slot where it is the sequence."""
    sizes = plan.dim_sizes
    return min(sizes.get("capacity", 0), sizes["seq"])
