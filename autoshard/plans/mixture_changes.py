"""Tells what another plan of the same mixture of experts trains otherwise: tokens it drops, and the routers' loss."""

from __future__ import annotations

from autoshard.backends.registry import BACKENDS
from autoshard.plans.plan import Plan


def mixture_changes(before: Plan, after: Plan) -> tuple[str, ...]:
    """Sentences for who goes on with the second plan: its experts drop other tokens than those of the first, or its
    routers are balanced over another number of sequences. None where they do not, and without experts."""
    sentences = []
    was, now = _taken(before), _taken(after)
    if was != now:
        sentences.append(
            f"each expert takes up to {now:,} of a sequence's {after.training.sequence_length:,} tokens from here on, "
            f"{was:,} before: other tokens are dropped"
        )
    was, now = _balanced(before), _balanced(after)
    if was and now and was != now:
        sentences.append(
            f"routers are balanced over {now:,} sequence{'s' * (now != 1)} at a time from here on, over {was:,} "
            "before: their loss is another"
        )
    return tuple(sentences)


def _taken(plan: Plan) -> int:
    """The most tokens of a sequence that one expert takes; all have a slot where it is the sequence."""
    sizes = plan.dim_sizes
    return min(sizes.get("capacity", 0), sizes["seq"])


def _balanced(plan: Plan) -> int:
    """Sequences over which the routers' loss takes its means: a microbatch of all data-parallel ranks; 0 without one,
    and where a backend takes them in a way of its own."""
    if not (plan.model.is_moe and plan.model.router_aux_loss_coef and BACKENDS[plan.backend].balances_microbatches):
        return 0
    return plan.training.global_batch_size // plan.num_microbatches
