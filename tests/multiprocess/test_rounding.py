"""bf16 with stochastic rounding: right on average, and the same numbers however the parameters are cut. One process."""

from __future__ import annotations

import pytest
import torch

from autoshard.runtime.torch_backend.rounded_adamw import Piece, RoundedAdamW
from autoshard.runtime.torch_backend.stochastic_rounding import places, random_bits, random_key, rounded

ZERO = torch.tensor(0)
BETAS = (0.9, 0.95)


def test_rounding_is_right_on_average() -> None:
    # 1.003 lies 0.384 of the way from 1 to the next bf16 number, 1 + 2^-7
    bits = random_bits(torch.arange(1 << 20), random_key(0, 1, "weight"))
    for sign in (1, -1):
        found = rounded(torch.full((1 << 20,), sign * 1.003), bits)
        assert set(found.tolist()) == {sign * 1.0, sign * (1 + 2**-7)}
        assert abs(float((found.double() != sign).double().mean()) - 0.384) < 2e-3


def test_numbers_that_bf16_has_stay() -> None:
    exact = torch.tensor([0.0, 1.0, -2.5, 3.0e38, 1e-30]).bfloat16()
    assert torch.equal(rounded(exact.float(), torch.full((5,), 2**16 - 1, dtype=torch.int32)), exact)


def test_a_piece_draws_what_the_whole_draws_there() -> None:
    whole = places((6, 10), (0, 0), (6, 10), ZERO).view(6, 10)
    assert torch.equal(places((6, 10), (2, 5), (3, 5), ZERO), whole[2:5, 5:].flatten())


def test_steps_do_not_depend_on_how_a_parameter_is_cut() -> None:
    """One shard with all of an 8 x 6 parameter, against columns cut in two, each cut again in mid-row."""
    torch.manual_seed(0)
    weight, steps = torch.randn(8, 6).bfloat16(), [torch.randn(8, 6) for _ in range(3)]
    everything = RoundedAdamW(weight.flatten().clone(), [Piece("w", 0, 48, 0, (8, 6), (0, 0), (8, 6))], seed=3)
    shards = []
    for column in (0, 3):
        local = weight[:, column : column + 3].flatten()
        for start, stop in ((0, 13), (13, 24)):
            piece = Piece("w", 0, stop - start, start, (8, 6), (0, column), (8, 3))
            shards.append((column, start, stop, RoundedAdamW(local[start:stop].clone(), [piece], seed=3)))
    for gradient in steps:
        everything.step(gradient.flatten(), 1e-2, BETAS, 1e-8, 0.1)
        for column, start, stop, shard in shards:
            shard.step(gradient[:, column : column + 3].flatten()[start:stop], 1e-2, BETAS, 1e-8, 0.1)
    whole = everything.weights.view(8, 6)
    assert not torch.equal(whole, weight)
    for column, start, stop, shard in shards:
        assert torch.equal(shard.weights, whole[:, column : column + 3].flatten()[start:stop])


def test_small_steps_are_not_lost() -> None:
    """A step of 2^-12 of the weight is below what bf16 can add to it: to the nearest, nothing would ever change."""
    weights = torch.ones(4096).bfloat16()
    adamw = RoundedAdamW(weights, [Piece("w", 0, 4096, 0, (4096,), (0,), (4096,))], seed=0)
    for _ in range(64):
        adamw.step(torch.ones(4096), 2**-12, BETAS, 0.0, 0.0)
    moved = 1 - float(weights.double().mean())
    assert abs(moved / (64 * 2**-12) - 1) < 0.05


@pytest.mark.parametrize("elements", [1, 5, 7, 12, 13, 100])
@pytest.mark.parametrize(
    "piece",
    [
        Piece("w", 3, 51, 0, (8, 6), (0, 0), (8, 6)),
        Piece("w", 0, 13, 9, (8, 6), (0, 3), (8, 3)),
        Piece("w", 2, 60, 11, (4, 5, 7), (1, 0, 2), (3, 5, 5)),
        Piece("w", 0, 9, 4, (40,), (10,), (20,)),
    ],
)
def test_parts_of_a_piece_have_its_places(piece: Piece, elements: int) -> None:
    parts = list(piece.parts(elements))
    assert all(part.stop - part.start <= elements for part in parts)
    held = [part.places(torch.device("cpu")) for part in parts]
    found = torch.cat([one for one in held if isinstance(one, torch.Tensor)])
    whole = places(piece.shape, piece.starts, piece.lengths, ZERO)
    assert torch.equal(found, whole[piece.skipped : piece.skipped + piece.stop - piece.start])


def test_an_update_in_parts_is_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, gradient = torch.randn(8, 6).bfloat16(), torch.randn(48)
    found = []
    for at_once in (2**22, 7):
        monkeypatch.setattr("autoshard.runtime.torch_backend.rounded_adamw.AT_ONCE", at_once)
        adamw = RoundedAdamW(weight.flatten().clone(), [Piece("w", 0, 48, 0, (8, 6), (0, 0), (8, 6))], seed=3)
        for _ in range(3):
            adamw.step(gradient, 1e-2, BETAS, 1e-8, 0.1)
        found.append(adamw.weights)
    assert torch.equal(*found)
