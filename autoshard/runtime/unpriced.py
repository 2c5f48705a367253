"""Lists the options of a run that its plan has no prices for."""

from __future__ import annotations

from autoshard.graph.score_tiles import most_of_a_mask
from autoshard.layout.context_parallel import RINGS
from autoshard.plans.plan import Plan, Stage
from autoshard.spec.training import DTYPE_BYTES
from autoshard.units import format_bytes


def document_masks(plan: Plan) -> str:
    """A sentence on what document_mask changes: the plan is priced for attention that is causal over whole rows."""
    size = document_mask_bytes(plan)
    kept = f"; a microbatch's masks take {format_bytes(size)} of a device, for as long as its attention is kept"
    return "not in the plan's prices: attention inside documents only" + (kept if size else "")


def document_mask_bytes(plan: Plan) -> int:
    """Bytes of the masks that attention keeps of a microbatch, on the device that keeps most; the blocks of a stage
    that see alike share one. Rings, plain attention, and scores with a cap or sinks keep none, nor do chosen keys, and
    attention in tiles, where masks would be large."""
    strategy, training = plan.strategy, plan.training
    keys = training.sequence_length
    queries = keys if strategy.context_parallel == "ulysses" else keys // strategy.cp
    numbers = strategy.microbatch_size * queries * keys
    if numbers > most_of_a_mask(plan.cluster.platform.is_cuda):
        return 0
    mask_bytes = numbers * DTYPE_BYTES[training.precision.compute_dtype]
    return mask_bytes * max(_masks_kept(plan, stage) for stage in plan.stages)


def _masks_kept(plan: Plan, stage: Stage) -> int:
    """The number of masks that a stage keeps of a microbatch: one for each window and chunk."""
    kinds = [kind for kind, _ in plan.model.kind_counts(stage.first_layer, stage.stop_layer)]
    found = [op.attributes for op in plan.graph(kinds, False, False).operators if op.kind == "attention"]
    kept = [one for one in found if one["kernel"] != "plain" and one.get("context_parallel") not in RINGS]
    whole = [one for one in kept if one.get("softcap") is None and not one.get("sinks") and not one.get("chosen")]
    return len({(one["sliding_window"], one.get("chunk")) for one in whole})
