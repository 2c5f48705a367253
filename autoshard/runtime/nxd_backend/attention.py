"""Attention: NxD's NKI kernels on the chip, plain and ring attention of the torch backend in CPU mode."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from autoshard.graph.partition import OperatorStep
from autoshard.runtime.torch_backend.attention import attention
from autoshard.runtime.torch_backend.context import Context

FULL_FORMAT = ("batch", "kvhead", "group", "seq", "headdim")


def nxd_attention(context: Context, step: OperatorStep, cpu_mode: bool, lnc: int) -> Callable[..., torch.Tensor]:
    """q, k and v in the graph's dim order -> like q. lnc: physical cores of a logical one, for the kernel's grid.

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
    """core: on [batch, heads, seq, headdim], keys and values repeated for the heads that share them -> the same."""
    op = step.operator
    query, key = context.dims(op.inputs[0]), context.dims(op.inputs[1])
    to_heads = [query.index(dim) for dim in FULL_FORMAT]
    keys_to_heads = [key.index(dim) for dim in FULL_FORMAT if dim != "group"]
    back = [to_heads.index(place) for place in range(len(to_heads))]

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q = q.permute(to_heads)
        k, v = (x.permute(keys_to_heads).repeat_interleave(q.shape[2], 1) for x in (k, v))
        return core(q.flatten(1, 2), k, v).unflatten(1, q.shape[1:3]).permute(back)

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
