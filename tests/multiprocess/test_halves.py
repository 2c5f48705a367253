"""64-bit integers in two halves are int64, bit for bit; dropout and stochastic rounding draw the same from both."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autoshard.runtime.torch_backend import devices
from autoshard.runtime.torch_backend.dropout import Mask, on_device, sequence_keys
from autoshard.runtime.torch_backend.halves import Halves
from autoshard.runtime.torch_backend.rounded_adamw import Piece
from autoshard.runtime.torch_backend.stochastic_rounding import random_bits

NUMBERS = st.integers(-(2**63), 2**63 - 1)
CPU = torch.device("cpu")


def number(x: Halves) -> int:
    low, high = int(x.low), int(x.high)
    return high * 2**32 + low % 2**32


def halves(x: int) -> Halves:
    return Halves.of(torch.tensor(x))


@given(NUMBERS, NUMBERS, st.integers(1, 63))
def test_operators_are_those_of_int64(a: int, b: int, bits: int) -> None:
    wide, other = torch.tensor(a), torch.tensor(b)
    assert number(halves(a)) == a
    assert number(halves(a) + halves(b)) == number(halves(a) + b) == int(wide + other)
    assert number(halves(a) * b) == int(wide * other)
    assert number(halves(a) ^ halves(b)) == number(halves(a) ^ b) == int(wide ^ other)
    assert number(halves(a) & b) == int(wide & other)
    assert number(halves(a) >> bits) == int(wide >> bits)


def test_shapes_follow_those_of_tensors() -> None:
    x = torch.arange(6).view(2, 3) * 2**40 + 7
    split = Halves.of(x)
    grown = split.unsqueeze(-1) + Halves.counted(0, 2, CPU)
    expected = x.unsqueeze(-1) + torch.arange(2)
    assert torch.equal(grown.low, Halves.of(expected).low)
    flat = (Halves(split.low, split.high[:, :1]).flatten())[2:5]
    assert flat.low.tolist() == [7, 7, 7] and flat.high.tolist() == [0, 768, 768]


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr(devices, "has_64_bits", lambda device: False)


def test_places_beyond_32_bits_draw_the_same_bits(narrow: Callable[[], None]) -> None:
    piece = Piece("weight", 0, 5000, 17, (200_000, 70_000), (150_000, 3), (2, 4000))  # from place 10.5 e9 on
    wide: Any = piece.places(CPU)
    assert int(wide[0]) == 150_000 * 70_000 + 3 + 17
    narrow()
    split: Any = piece.places(CPU)
    assert isinstance(split, Halves)
    assert torch.equal((split.high.long() << 32) + (split.low.long() & 0xFFFFFFFF), wide)
    for key in (0, -(2**63), 2**63 - 1, 0x123456789ABCDEF):
        bits = random_bits(wide, key)
        assert torch.equal(random_bits(split, key), bits)
        assert bits.dtype == torch.int32 and int(bits.min()) >= 0 and int(bits.max()) < 2**16


def test_dropout_keeps_the_same_elements(narrow: Callable[[], None]) -> None:
    places = (torch.arange(3), torch.arange(100, 140), torch.arange(64))
    keys = sequence_keys(seed=1, step=2, sequences=5)
    wide = Mask("attention", places, 0.3)
    assert on_device(keys, CPU) is keys
    expected = wide.kept(wide.rows(keys))
    narrow()
    split = Mask("attention", places, 0.3)
    assert on_device(keys, CPU).shape == (5, 2)
    assert torch.equal(split.kept(split.rows(on_device(keys, CPU))), expected)
    assert 0.65 < float(expected.float().mean()) < 0.75
