"""FLOPs of torch's fused attention, which its own counter skips on CPU. Entries that the mask hides are not counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from autoshard.layout.plan import Plan
from autoshard.runtime.torch_backend.attention import _attention_mask

_FORWARD = "aten::_scaled_dot_product_flash_attention_for_cpu"
_BACKWARD = _FORWARD + "_backward"


@dataclass(frozen=True)
class AttentionWork:
    """mean_keys: that a query of this rank sees, where a mask says so."""

    mean_keys: float

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
        forward: float = 4.0 * query.numel() * keys
        return forward if name == _FORWARD else 2.5 * forward


def attention_work(plan: Plan, position: int) -> AttentionWork:
    """By the runtime's own mask for this position along cp. A query's own place counts half, as in seq / 2 keys."""
    count = plan.mesh.size(("cp",))
    mask = _attention_mask(plan.training.sequence_length, position, count, plan.model.sliding_window)
    if mask is None:
        return AttentionWork(plan.training.sequence_length / 2)
    seen = mask.sum(1)
    first = position * len(seen)
    grows = seen == torch.arange(first, first + len(seen)) + 1
    return AttentionWork(float((seen - 0.5 * grows).mean()))
