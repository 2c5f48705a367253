"""Kinds of attention that torch's flash kernel does not know, timed on a GPU for `benchmarks.on_gpu`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from autoshard.calibration.devices import DeviceUnderTest
from autoshard.runtime.torch_backend.flex_attention import Kind, block_mask, flex_attention
from autoshard.runtime.torch_backend.ring_attention import Ring, ring_attention

Sizes = tuple[int, int, int]
"""Query heads, key-value heads, width of a head."""
CAUSAL = Kind(first=0, seq=4096, window=None, chunk=None, softcap=None, scale=None, sinks=False)
KINDS: dict[str, tuple[Kind, Sizes]] = {
    "capped scores": (replace(CAUSAL, softcap=50.0), (8, 4, 256)),
    "capped scores, window of 1,024": (replace(CAUSAL, softcap=50.0, window=1024), (8, 4, 256)),
    "window of 1,024": (replace(CAUSAL, window=1024), (32, 8, 128)),
    "sinks": (replace(CAUSAL, sinks=True), (64, 8, 64)),
    "sinks, window of 128": (replace(CAUSAL, sinks=True, window=128), (64, 8, 64)),
}
"""As Gemma 2, Mistral and gpt-oss have them."""
WARM_UP, TIMED = 3, 10


def times_s(kind: Kind, sizes: Sizes, under_test: DeviceUnderTest) -> dict[str, float]:
    """Seconds of forward and backward of one sequence in BF16: "flex_s" by flex_attention, "otherwise_s" as it is
    computed elsewhere."""
    heads, kv_heads, width = sizes
    like: dict[str, Any] = {"device": under_test.device, "dtype": torch.bfloat16, "requires_grad": True}
    shapes = ((kv_heads, heads // kv_heads), (kv_heads,), (kv_heads,))
    q, k, v = (torch.randn(1, *shape, kind.seq, width, **like) for shape in shapes)
    sinks = torch.zeros(kv_heads, heads // kv_heads, **like) if kind.sinks else None
    blocks, otherwise = block_mask(kind, kind.seq, under_test.device), elsewhere(kind, under_test.device)
    return {
        "flex_s": _seconds(lambda: flex_attention(kind, q, k, v, sinks, blocks), under_test),
        "otherwise_s": _seconds(lambda: otherwise(q, k, v, sinks), under_test),
    }


def elsewhere(kind: Kind, device: torch.device) -> Callable[..., torch.Tensor]:
    """Attention of this kind without flex_attention: in tiles, or by torch's kernel behind a mask."""
    window = kind.window or kind.seq
    if kind.softcap is not None or kind.sinks:
        ring = Ring(None, (0,), kind.seq, window, kind.scale, kind.softcap)
        return lambda q, k, v, sinks: ring_attention(q, k, v, ring, None, sinks)
    places = torch.arange(kind.seq, device=device)
    behind = places.unsqueeze(1) - places
    hidden = (behind < 0) | (behind >= window)

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: None) -> torch.Tensor:
        mask = torch.zeros(hidden.shape, dtype=q.dtype, device=device).masked_fill_(hidden, float("-inf"))
        return scaled_dot_product_attention(q.flatten(1, 2), k, v, mask, enable_gqa=True)

    return run


def _seconds(run: Callable[[], Any], under_test: DeviceUnderTest) -> float:
    """Mean seconds of forward and backward."""
    gradient = torch.randn_like(run())

    def several(count: int) -> None:
        for _ in range(count):
            run().backward(gradient)
        under_test.wait()

    several(WARM_UP)
    start = perf_counter()
    several(TIMED)
    return (perf_counter() - start) / TIMED
