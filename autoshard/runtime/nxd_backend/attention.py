"""Attention of the nxd backend: NxD's NKI kernels on the chip, the torch backend's own kernels in CPU mode."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from einops import rearrange, repeat

from autoshard.graph.partition import OperatorStep
from autoshard.runtime.torch_backend.attention import attention
from autoshard.runtime.torch_backend.context import Context

HEADS = "batch (kvhead group) seq headdim"
"""Dims that a kernel takes: heads that share keys are neighbours."""


def nxd_attention(context: Context, step: OperatorStep, cpu_mode: bool, lnc: int) -> Callable[..., torch.Tensor]:
    """A function of q, k and v in the graph's dim order -> a tensor like q. lnc: physical cores of a logical one, for
    the kernel's grid.

    On the chip a kernel sees all of its keys: with a sliding window or kernel "plain", scores are masked by a constant.
    """
    op = step.operator
    window: Any = op.attributes["sliding_window"]
    whole = window is None or window >= context.graph.sizes["seq"]
    if cpu_mode or op.attributes["kernel"] == "plain" or not whole:
        return attention(context, step)
    ring = context.piece(step, "seq")[1] > 1
    return _on_heads(context, step, _ring if ring else partial(_flash, lnc=lnc))


def _on_heads(context: Context, step: OperatorStep, core: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The same function, of tensors in the graph's dim order. core: a function of [batch, heads, seq, headdim], with
    keys and values repeated for the heads that share them."""
    op = step.operator
    query, key = context.dims(op.inputs[0]), context.dims(op.inputs[1])
    scale: Any = op.attributes.get("scale")
    scaled = None if scale is None else scale * context.graph.sizes[query[-1]] ** 0.5
    queries, keys, group_dim = " ".join(query), " ".join(key), query.index("group")

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        group = q.shape[group_dim]
        q = q if scaled is None else q * scaled
        k, v = (repeat(x, f"{keys} -> {HEADS}", group=group) for x in (k, v))
        return rearrange(core(rearrange(q, f"{queries} -> {HEADS}"), k, v), f"{HEADS} -> {queries}", group=group)

    return run


def _flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lnc: int) -> torch.Tensor:
    from neuronx_distributed.kernels.flash_attn import nki_flash_attn_func

    out: torch.Tensor = nki_flash_attn_func(q, k, v, lnc, causal=True, transpose_nki_inputs=False)
    return out


def _ring(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    from neuronx_distributed.kernels.ring_attention_kernel import nki_ring_attn_func
    from neuronx_distributed.parallel_layers.parallel_state import get_context_model_parallel_src_tgt_pairs

    rank = torch.distributed.get_rank()
    out: torch.Tensor = nki_ring_attn_func(q, k, v, rank, get_context_model_parallel_src_tgt_pairs(), causal=True)
    return out
