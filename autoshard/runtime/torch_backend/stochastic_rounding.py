"""Rounds to bf16 at random, right on average, with the same random numbers in every layout.

The random bits of an element are a function of the seed, the step, the parameter's name and the element's place in the
whole parameter. No rank draws from a stream whose state would depend on what it holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

import torch

from autoshard.runtime.torch_backend.halves import Halves

Wide = TypeVar("Wide", torch.Tensor, Halves)
"""64-bit integers: an int64 tensor, or halves where the device computes 32 bits."""

_DROPPED = 16
"""Number of bits of an FP32 mantissa that bf16 does not have."""
_STEPS = ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15))
"""Shifts and odd multipliers of splitmix64 (Steele et al. 2014), as signed numbers."""


def random_key(seed: int, step: int, name: str) -> int:
    """The key of a parameter's random bits in a step, a signed 64-bit number."""
    digest = hashlib.sha256(f"{seed} {step} {name}".encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def random_bits(places: Wide, key: int | Wide) -> torch.Tensor:
    """Random bits, int32 in [0, 2^16), for 64-bit places: the upper bits of splitmix64 of each place."""
    found = _shifted(mixed(places, key), 64 - _DROPPED)
    return found.low if isinstance(found, Halves) else found.to(torch.int32)


def mixed(places: Wide, key: int | Wide) -> Wide:
    """splitmix64 of each place under a key, without its last shift, which leaves the upper half as it is."""
    found = places * -0x61C8864680B583EB + key
    for shift, multiplier in _STEPS:
        found = (found ^ _shifted(found, shift)) * multiplier
    return found


def _shifted(x: Wide, bits: int) -> Wide:
    """x shifted logically to the right."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def rounded(x: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """x (FP32) as bf16, rounded up in as many of 2^16 cases as x lies above the bf16 number below it (in size). x must
    be finite."""
    whole = (x.view(torch.int32) + bits) >> _DROPPED << _DROPPED
    return whole.view(torch.float32).to(torch.bfloat16)


def places(shape: Sequence[int], starts: Sequence[int], lengths: Sequence[int], zero: Wide) -> Wide:
    """Flat places in a parameter of this shape, of the piece with these starts and lengths along each dim. zero: a
    number of the device, of the kind that places shall have."""
    found = zero
    for size, start, length in zip(shape, starts, lengths, strict=True):
        if isinstance(zero, Halves):
            along: Wide = Halves.counted(start, start + length, zero.low.device)
        else:
            along = torch.arange(start, start + length, device=zero.device)
        found = found.unsqueeze(-1) * size + along
    return found.flatten()
