"""64-bit integers as pairs of 32-bit tensors, for devices that compute 64-bit integers in 32 bits without a word."""

from __future__ import annotations

from dataclasses import dataclass

import torch

_SIGN = -(2**31)


@dataclass(frozen=True)
class Halves:
    """Integers modulo 2^64 as two int32 tensors whose shapes broadcast.

    Operators are those of int64 tensors, bit for bit: they wrap, and `>>` is arithmetic.
    """

    low: torch.Tensor
    high: torch.Tensor

    @staticmethod
    def of(x: torch.Tensor) -> Halves:
        """The numbers of an int64 tensor of the host."""
        return Halves.paired(x.contiguous().unsqueeze(-1).view(torch.int32))

    @staticmethod
    def paired(pairs: torch.Tensor) -> Halves:
        """The numbers of an int32 tensor [..., 2]: lower half, upper half."""
        return Halves(pairs[..., 0], pairs[..., 1])

    @staticmethod
    def counted(start: int, stop: int, device: torch.device) -> Halves:
        """The numbers from start up to stop, all below 2^31."""
        low = torch.arange(start, stop, dtype=torch.int32, device=device)
        return Halves(low, torch.zeros_like(low))

    def __add__(self, other: Halves | int) -> Halves:
        low, high = _halves(other)
        total = self.low + low
        carry = (total ^ _SIGN) < (self.low ^ _SIGN)  # compared without their sign
        return Halves(total, self.high + high + carry)

    def __mul__(self, factor: int) -> Halves:
        low, high = _of_number(factor)
        upper = _upper_product(self.low, low) + self.low * high + self.high * low
        return Halves(self.low * low, upper)

    def __xor__(self, other: Halves | int) -> Halves:
        low, high = _halves(other)
        return Halves(self.low ^ low, self.high ^ high)

    def __and__(self, other: int) -> Halves:
        low, high = _of_number(other)
        return Halves(self.low & low, self.high & high)

    def __rshift__(self, bits: int) -> Halves:
        assert 0 < bits < 64, bits
        if bits >= 32:
            return Halves(self.high >> (bits - 32), self.high >> 31)
        return Halves(_logical(self.low, bits) | (self.high << (32 - bits)), self.high >> bits)

    def __getitem__(self, places: slice) -> Halves:
        return Halves(self.low[places], self.high[places])

    def unsqueeze(self, dim: int) -> Halves:
        return Halves(self.low.unsqueeze(dim), self.high.unsqueeze(dim))

    def flatten(self) -> Halves:
        low, high = torch.broadcast_tensors(self.low, self.high)
        return Halves(low.flatten(), high.flatten())


def _halves(x: Halves | int) -> tuple[torch.Tensor, torch.Tensor] | tuple[int, int]:
    return (x.low, x.high) if isinstance(x, Halves) else _of_number(x)


def _of_number(x: int) -> tuple[int, int]:
    """Both halves of a number modulo 2^64, each as a signed number of 32 bits."""
    return _signed(x), _signed(x >> 32)


def _signed(x: int) -> int:
    return ((x & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


def _logical(x: torch.Tensor, bits: int) -> torch.Tensor:
    """int32 shifted logically to the right, by 1 to 31 bits."""
    return (x >> bits) & ((1 << (32 - bits)) - 1)


def _upper_product(x: torch.Tensor, factor: int) -> torch.Tensor:
    """The upper 32 bits of x * factor, both taken without their sign: schoolbook, in pieces of 16 bits."""
    x0, x1 = x & 0xFFFF, _logical(x, 16)
    f0, f1 = factor & 0xFFFF, (factor >> 16) & 0xFFFF
    crossed, back = x0 * f1, x1 * f0
    middle = _logical(x0 * f0, 16) + (crossed & 0xFFFF) + (back & 0xFFFF)
    return x1 * f1 + _logical(crossed, 16) + _logical(back, 16) + (middle >> 16)
