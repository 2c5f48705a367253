"""A rank's piece of a tensor that every rank has: what it holds in memory."""

import pytest
import torch

from autoshard.runtime.torch_backend.collectives import take_piece


@pytest.mark.parametrize("batch", [1, 2])
def test_a_piece_holds_its_own_bytes_alone(batch: int) -> None:
    # FP32, (batch, 8, 3) along dim 1: a piece of 4 has batch * 4 * 3 * 4 bytes. With a batch of 1 it lies in one run in
    # the whole, so that a view of it would do, and would keep the whole
    whole = torch.arange(batch * 24.0).view(batch, 8, 3)
    piece = take_piece(whole, 1, 2, 1)
    torch.testing.assert_close(piece, whole[:, 4:], rtol=0, atol=0)
    assert piece.is_contiguous() and piece.untyped_storage().nbytes() == batch * 48
