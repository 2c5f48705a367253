"""Lists the options of a run that its plan has no prices for."""

from __future__ import annotations

from autoshard.layout.context_parallel import RINGS
from autoshard.plans.plan import Plan
from autoshard.spec.training import DTYPE_BYTES
from autoshard.units import format_bytes


def document_masks(plan: Plan) -> str:
    """A sentence on what document_mask changes: the plan is priced for attention that is causal over whole rows."""
    size = document_mask_bytes(plan)
    kept = f"; a microbatch's mask takes {format_bytes(size)} of each device, for as long as its attention is kept"
    return "not in the plan's prices: attention inside documents only" + (kept if size else "")


def document_mask_bytes(plan: Plan) -> int:
    """Bytes of the masks that attention keeps of a microbatch, on one device; the blocks of a stage share them. Rings
    and plain attention keep none."""
    strategy, training = plan.strategy, plan.training
    ring = strategy.cp > 1 and strategy.context_parallel in RINGS
    if ring or strategy.attention_kernel == "plain":
        return 0
    keys = training.sequence_length
    queries = keys if strategy.context_parallel == "ulysses" else keys // strategy.cp
    return strategy.microbatch_size * queries * keys * DTYPE_BYTES[training.precision.compute_dtype]
