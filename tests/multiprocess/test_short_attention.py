"""Attention over few keys in bfloat16, which CPU computes in FP32: the same values, and backward keeps no more."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from autoshard.runtime.torch_backend.attention import SHORT_KEYS, _fused_attention
from autoshard.runtime.torch_backend.onlooker import Onlooker

QUERY, KEY = (2, 6, 128, 16), (2, 2, 128, 16)


Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def tensors(*shapes: tuple[int, ...]) -> Three:
    torch.manual_seed(0)
    q, k, v = (torch.randn(shape).bfloat16().requires_grad_() for shape in shapes)
    return q, k, v


@pytest.mark.parametrize("width", [16, 8])
@pytest.mark.parametrize("masked", [False, True])
def test_values_and_gradients_are_those_of_fp32(width: int, masked: bool) -> None:
    ours = tensors(QUERY, KEY, (*KEY[:3], width))
    q, k, v = wide = [x.detach().float().requires_grad_() for x in ours]
    mask = torch.zeros(128, 128).masked_fill_(torch.ones(128, 128, dtype=torch.bool).triu(1), float("-inf"))
    found = _fused_attention(*ours, mask.bfloat16() if masked else None)
    exact = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), exact, rtol=2**-8, atol=1e-6)  # rounded once
    gradient = torch.randn_like(exact).bfloat16()
    for one, other in zip(
        torch.autograd.grad(found, ours, gradient), torch.autograd.grad(exact, wide, gradient.float()), strict=True
    ):
        assert one.dtype == torch.bfloat16
        torch.testing.assert_close(one.float(), other, rtol=0.02, atol=0.02)


def test_what_is_kept_for_backward_is_as_wide_as_it_came() -> None:
    kept: list[torch.Tensor] = []

    def keep(x: torch.Tensor) -> torch.Tensor:
        kept.append(x)
        return x

    ours = tensors(QUERY, KEY, KEY)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        _fused_attention(*ours, None)
    assert [(x.dtype, x.shape) for x in kept[:4]] == [
        (torch.bfloat16, torch.Size(one)) for one in (QUERY, KEY, KEY, QUERY)
    ]
    assert kept[4].numel() == 2 * 6 * 128 and len(kept) == 5


@pytest.mark.parametrize("keys", [SHORT_KEYS, 2 * SHORT_KEYS])
def test_only_few_keys_are_converted(keys: int) -> None:
    seen: list[torch.dtype] = []

    class Seen(Onlooker):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if func is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default:
                seen.append(args[0].dtype)
            return func(*args, **(kwargs or {}))

    with Seen():
        _fused_attention(*tensors(*[(1, 2, keys, 16)] * 3), None)
    assert seen == [torch.float32 if keys == SHORT_KEYS else torch.bfloat16]
