"""Times single matrix products, attention, copies and launches over a range of sizes: what each reaches, and where.

Their names end in the curve that they belong to, as operators' names end in their program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812  # the name that torch's own documentation uses

from autoshard.calibration.clock import Clock
from autoshard.calibration.devices import first_line
from autoshard.calibration.values import ATTENTION_CURVE, FP8, LAUNCH, PRODUCT_CURVE, MemoryTime, OperatorTime
from autoshard.cost.compute import OperatorNeeds
from autoshard.spec.training import DTYPE_BYTES
from autoshard.units import KIB, MIB

T = TypeVar("T")
Sizes = tuple[tuple[int, int, int], ...]
PRODUCTS: dict[bool, Sizes] = {
    False: (
        *((4096, 4096, k) for k in (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)),
        *((size, size, size) for size in (512, 1024, 2048, 8192)),
        *((tokens, 14336, 4096) for tokens in (128, 1024, 8192)),
    ),
    True: (*((256, 256, k) for k in (32, 128, 512, 2048)), (128, 128, 128), (512, 512, 512)),
}
"""Whether the device is a CPU -> (m, n, k) of products m x k by k x n: over k, over size, over tokens of an MLP."""
COPIES: dict[bool, tuple[float, ...]] = {
    False: (MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB),
    True: (64 * KIB, MIB, 16 * MIB),
}
ATTENTIONS: dict[bool, Sizes] = {
    False: ((16, 1024, 128), (8, 2048, 128), (4, 4096, 128), (2, 8192, 128), (1, 16384, 128), (4, 4096, 64)),
    True: ((1, 256, 64), (1, 512, 64)),
}
"""Whether the device is a CPU -> (sequences, tokens of one, head dim)."""
HEADS = {False: 16, True: 2}
LAUNCHES = 200


def curves(dtype: str, clock: Clock, left_out: list[str]) -> Iterator[OperatorTime | MemoryTime]:
    """Yields the time of every product (in FP8 too where the device has it), attention, copy, and one launch.

    left_out: gets a sentence for each size that the device cannot do, or has no memory for.
    """
    small = clock.device.type == "cpu"
    works: list[tuple[str, Callable[[], OperatorTime | MemoryTime]]] = [
        (f"the product {shape}", partial(_product, shape, dtype, clock)) for shape in PRODUCTS[small]
    ]
    if clock.under_test.has_fp8():
        works += [(f"the FP8 product {shape}", partial(_fp8_product, shape, clock)) for shape in PRODUCTS[small]]
    works += [
        (f"attention {shape}", partial(_attention, shape, HEADS[small], dtype, clock)) for shape in ATTENTIONS[small]
    ]
    works += [(f"the copy of {size / MIB:g} MiB", partial(_copy, size, clock)) for size in COPIES[small]]
    for name, work in (*works, ("the launch", partial(_launch, clock))):
        yield from or_left_out(name, lambda work=work: [work()], left_out)  # type: ignore[misc]


def or_left_out(name: str, work: Callable[[], Iterable[T]], left_out: list[str]) -> list[T]:
    """Gives what the work yields; nothing where torch or the device cannot do it: then left_out gets a sentence."""
    try:
        return list(work())
    except torch.OutOfMemoryError:
        left_out.append(f"{name} is left out: it does not fit into the memory")
    except RuntimeError as error:
        left_out.append(f"{name} is left out: {first_line(error)[:200]}")
    return []


def _product(shape: tuple[int, int, int], dtype: str, clock: Clock) -> OperatorTime:
    m, n, k = shape
    a, b = (_random((rows, columns), dtype, clock) for rows, columns in ((m, k), (k, n)))
    return _product_time(shape, dtype, DTYPE_BYTES[dtype], clock.typical_s(lambda: a @ b))


def _fp8_product(shape: tuple[int, int, int], clock: Clock) -> OperatorTime:
    """By torch's scaled product, with one scale a tensor; the output is bf16. Its second factor lies by columns."""
    m, n, k = shape
    a, b = (_random(size, "bfloat16", clock).to(torch.float8_e4m3fn) for size in ((m, k), (n, k)))
    one = torch.ones((), device=clock.device)

    def run() -> Any:
        return torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    return _product_time(shape, FP8, 1, clock.typical_s(run))


def _product_time(shape: tuple[int, int, int], dtype: str, element_bytes: float, seconds: float) -> OperatorTime:
    m, n, k = shape
    moved = element_bytes * (m * k + k * n) + max(element_bytes, 2) * m * n
    needs = OperatorNeeds("matmul", float(m), float(n), float(k), moved, 0.0, 2.0 * m * n * k, 2.0)
    return OperatorTime(f"{m} x {k} by {k} x {n} of {PRODUCT_CURVE}", dtype, needs, seconds, None)


def _attention(shape: tuple[int, int, int], heads: int, dtype: str, clock: Clock) -> OperatorTime:
    """Causal attention by torch's fused kernel; half of the square counts, as in the graphs."""
    batch, seq, head_dim = shape
    q, k, v = (_random((batch, heads, seq, head_dim), dtype, clock).requires_grad_() for _ in range(3))

    def forward() -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    out = forward()
    gradient = torch.ones_like(out)
    forward_s = clock.typical_s(forward)
    backward_s = clock.typical_s(lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True))
    rows, keys = float(batch * heads * seq), seq / 2
    moved = 4 * rows * head_dim * DTYPE_BYTES[dtype]
    traffic = (moved, 0.0, 4 * rows * keys * head_dim, 2.5)
    needs = OperatorNeeds("flash", rows, keys, float(head_dim), *traffic, value_dim=float(head_dim))
    name = f"{batch} x {seq} tokens, {heads} heads x {head_dim} of {ATTENTION_CURVE}"
    return OperatorTime(name, dtype, needs, forward_s, backward_s)


def _copy(size: float, clock: Clock) -> MemoryTime:
    source = torch.ones(int(size), dtype=torch.uint8, device=clock.device)
    target = torch.zeros_like(source)
    return MemoryTime(f"copy {size / MIB:g} MiB", 2 * size, clock.typical_s(lambda: target.copy_(source)))


def _launch(clock: Clock) -> MemoryTime:
    """One of many launches in a row, of an operator that has next to nothing to do."""
    one = torch.zeros(1, device=clock.device)

    def launches() -> None:
        for _ in range(LAUNCHES):
            one.add_(1.0)

    return MemoryTime(LAUNCH, 0.0, clock.typical_s(launches) / LAUNCHES)


def _random(shape: tuple[int, ...], dtype: str, clock: Clock) -> torch.Tensor:
    """Random numbers: on zeros a GPU draws less power, and its clock stays higher than in training."""
    return torch.randn(shape, dtype=getattr(torch, dtype), device=clock.device)
