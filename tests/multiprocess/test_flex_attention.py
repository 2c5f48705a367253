"""What flex_attention is told, against attention in tiles and with a mask. Its own kernels need a GPU; on a CPU torch
computes the same function without gradients: `benchmarks.on_gpu` compares those."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention as flex
from torch.utils._python_dispatch import TorchDispatchMode

from autoshard.runtime.torch_backend import flex_attention as ours
from autoshard.runtime.torch_backend.flex_attention import Kind, block_mask, flex_attention
from autoshard.runtime.torch_backend.ring_attention import Ring, ring_attention
from benchmarks import on_gpu_attention

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

SEQ, BATCH, HEADS, GROUP, WIDTH = 256, 2, 2, 3, 16
PLAIN = Kind(first=0, seq=SEQ, window=None, chunk=None, softcap=None, scale=None, sinks=False)
KINDS = {
    "window": replace(PLAIN, window=37),
    "chunks": replace(PLAIN, chunk=50),
    "capped scores": replace(PLAIN, softcap=0.7),
    "capped scores in a window, scaled": replace(PLAIN, softcap=0.7, window=100, scale=0.3),
    "sinks": replace(PLAIN, sinks=True),
    "sinks in a window": replace(PLAIN, sinks=True, window=130),
    "the second half of the queries": replace(PLAIN, first=128),
    "the second half of the queries, chunks": replace(PLAIN, first=128, chunk=96),
}


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "_kernel", lambda: flex.flex_attention)


def inputs(rows: int) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    q = torch.randn(BATCH, HEADS, GROUP, rows, WIDTH, dtype=torch.float64)
    k, v = (torch.randn(BATCH, HEADS, SEQ, WIDTH, dtype=torch.float64) for _ in range(2))
    return q, k, v, torch.randn(HEADS, GROUP, dtype=torch.float64)


@pytest.mark.parametrize("name", KINDS)
def test_it_is_told_what_tiles_compute(name: str) -> None:
    kind = KINDS[name]
    rows = SEQ - kind.first
    q, k, v, sinks = inputs(rows)
    pieces, window = tuple(range(SEQ // rows)), kind.window or SEQ
    ring = Ring(None, pieces, rows, window, kind.scale, kind.softcap, kind.chunk, position=kind.first // rows)
    with torch.no_grad():
        found = flex_attention(kind, q, k, v, sinks if kind.sinks else None, block_mask(kind, rows, q.device))
        wanted = ring_attention(q, k, v, ring, None, sinks if kind.sinks else None)
    assert found is not None
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def on(device: str, kind: Kind, seq: int = SEQ, width: int = WIDTH) -> bool:
    """Whether it is the kernel for such queries. The meta device stands in for a GPU."""
    q, k, v = (torch.empty(1, 1, *group, seq, width, device="meta") for group in ((1,), (), ()))
    stand_in = type("OnGpu", (), {"type": device})
    shown = [type("Shown", (), {"device": stand_in, "shape": x.shape}) for x in (q, k, v)]
    return kind.takes(*shown)  # type: ignore[arg-type]


def test_where_it_is_the_kernel() -> None:
    window = KINDS["window"]
    assert on("cuda", window) and not on("cpu", window) and not on("neuron", window)
    assert not on("cuda", PLAIN)  # the flash kernel's
    assert not on("cuda", replace(PLAIN, window=SEQ)) and on("cuda", replace(PLAIN, first=128))
    assert not on("cuda", window, seq=64) and not on("cuda", window, width=8) and not on("cuda", window, width=48)


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def test_it_is_not_the_kernel_where_every_operator_is_watched() -> None:
    window = KINDS["window"]
    with Watching():
        assert not on("cuda", window)
    assert on("cuda", window)


def test_where_torch_has_no_kernel_attention_goes_without_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*values: object, **named: object) -> None:
        raise torch._dynamo.exc.BackendCompilerFailed(None, RuntimeError("out of resource: shared memory"), None)

    kind = KINDS["sinks"]
    monkeypatch.setattr(ours, "_kernel", lambda: fails)
    monkeypatch.setattr(ours, "_WITHOUT_KERNEL", set())
    q, k, v, sinks = inputs(SEQ)
    assert on("cuda", kind)
    with pytest.warns(
        UserWarning, match=r"^flex_attention has no kernel for heads of 16 \(.*shared memory.*attention goes without$"
    ):
        assert flex_attention(kind, q, k, v, sinks, None) is None
    assert not on("cuda", kind)


@pytest.mark.parametrize("name", on_gpu_attention.KINDS)
def test_what_it_is_timed_beside_computes_the_same(name: str) -> None:
    kind, (heads, kv_heads, _) = on_gpu_attention.KINDS[name]
    short = replace(kind, seq=SEQ, window=kind.window and kind.window // 16)
    torch.manual_seed(0)
    shapes = ((kv_heads, heads // kv_heads), (kv_heads,), (kv_heads,))
    q, k, v = (torch.randn(1, *shape, SEQ, WIDTH, dtype=torch.float64) for shape in shapes)
    sinks = torch.zeros(kv_heads, heads // kv_heads, dtype=torch.float64) if kind.sinks else None
    with torch.no_grad():
        found = flex_attention(short, q, k, v, sinks, block_mask(short, SEQ, q.device))
        wanted = on_gpu_attention.elsewhere(short, q.device)(q, k, v, sinks)
    assert found is not None
    torch.testing.assert_close(found.flatten(), wanted.flatten(), rtol=1e-9, atol=1e-9)
