"""FLOPs of torch's fused attention, which its own counter skips on CPU. Entries that the mask hides are not counted."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from autoshard.layout.context_parallel import RINGS, sequence_pieces
from autoshard.models.padding import padded_heads
from autoshard.plans.plan import Plan
from autoshard.runtime.torch_backend.attention import _attention_mask
from autoshard.runtime.torch_backend.ring_attention import Ring, _tiles

_FORWARD = "aten::_scaled_dot_product_flash_attention_for_cpu"
_BACKWARD = _FORWARD + "_backward"


@dataclass(frozen=True)
class AttentionWork:
    """mean_keys: that a query of this rank sees, where a mask says so. tile_share: of the scores that a ring computes
    in whole tiles, those that the mask lets through; 1 without a ring. value_share: width of a value over that of a
    query; values are padded to it while CPU's kernel runs."""

    mean_keys: float
    tile_share: float = 1.0
    value_share: float = 1.0

    def flops(self, func: Any, args: Any, kwargs: Any) -> float:
        """0 for what is not attention. Backward: 5 matrix products against 2 forward (Dao et al. 2022)."""
        name = func._schema.name
        if name not in (_FORWARD, _BACKWARD):
            return 0.0
        given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
        query, key = given["query"], given["key"]
        keys = key.shape[-2] / 2 if given.get("is_causal") else float(key.shape[-2])
        if given.get("attn_mask") is not None:
            keys = self.mean_keys
        forward: float = 2.0 * (1 + self.value_share) * query.numel() * keys
        return forward if name == _FORWARD else 2.5 * forward


def attention_work(plan: Plan, position: int) -> dict[int | None, AttentionWork]:
    """The work of each window that blocks have, by the runtime's own masks and tiles for this position along cp.
    Outside of fake tensors, which have no values."""
    windows = {plan.model.sliding_window, *map(plan.model.window_of, plan.model.kinds)}
    if plan.model.graph is not None:
        windows |= {dict(op.attributes).get("sliding_window") for op in plan.model.graph.operators}
    return {window: _work_of_window(plan, position, window) for window in windows}


def _work_of_window(plan: Plan, position: int, window: int | None) -> AttentionWork:
    """A query's own place counts half, as in seq / 2 keys."""
    latent = plan.model.latent_attention
    values = 1.0 if latent is None else latent.v_head_dim / plan.model.head_dim
    seq, count = plan.training.sequence_length, plan.mesh.size(("cp",))
    if count > 1 and plan.strategy.context_parallel in RINGS:
        return AttentionWork(0.0, _tile_share(plan, position, window))
    if plan.strategy.context_parallel == "ulysses":
        position, count = 0, 1
    mask = _attention_mask(seq, position, count, window)
    if mask is None:
        return AttentionWork(seq / 2, value_share=values)
    seen = mask.sum(1)
    first = position * len(seen)
    grows = seen == torch.arange(first, first + len(seen)) + 1
    return AttentionWork(float((seen - 0.5 * grows).mean()), value_share=values)


def _tile_share(plan: Plan, position: int, window: int | None) -> float:
    """Share (0 to 1) of the scores in one rank's ring tiles that the mask lets through, all hops together.

    position: index of the rank along cp. window: keys that a query sees, itself included; None is all before it.
    """
    strategy, seq = plan.strategy, plan.training.sequence_length
    pieces = sequence_pieces(strategy.context_parallel, strategy.cp)
    neighbours: Any = SimpleNamespace(size=strategy.cp, index=position)
    ring = Ring(neighbours, pieces, seq // len(pieces), seq if window is None else window)
    heads = strategy.microbatch_size * padded_heads(plan.model, strategy.tp).queries // strategy.tp
    computed = seen = 0
    for source in range(strategy.cp):
        for tile in _tiles(ring, source, heads, torch.device("cpu")):
            scores = (tile.rows.stop - tile.rows.start) * (tile.columns.stop - tile.columns.start)
            computed += scores
            seen += scores if tile.mask is None else int(tile.mask.sum())
    return seen / computed
