"""Brings each piece of the sequence down to one vector: entries of compressed attention, and pools of an indexer."""

from __future__ import annotations

import torch

from autoshard.runtime.torch_backend.recomputing_ops import at_least_fp32


def pieces(values: torch.Tensor, gates: torch.Tensor, bias: torch.Tensor, rate: int, overlaps: bool) -> torch.Tensor:
    """[batch, piece, width]: in each number the sum of a piece's values [batch, seq, (series,) width], weighed by the
    softmax of its gates, like values, plus the bias [rate, (series,) width] of places. rate: tokens of a piece; those
    behind the last whole one are in none. overlaps: whether a piece has its second series, and the first one of the
    piece before."""
    whole = values.shape[1] // rate * rate
    values, gates = (x[:, :whole].unflatten(1, (-1, rate)) for x in (values, gates))
    gates = gates + bias
    if overlaps:
        values, gates = _with_piece_before(values, 0.0), _with_piece_before(gates, float("-inf"))
    weights = torch.softmax(at_least_fp32(gates), 2).to(values.dtype)
    return (values * weights).sum(2)


def _with_piece_before(x: torch.Tensor, nothing: float) -> torch.Tensor:
    """[batch, entry, 2 rate, width] of pieces [batch, entry, rate, series, width]: the first series of the piece before
    and the second one of its own. nothing: what stands before the first piece."""
    earlier, own = x.unbind(3)
    before = torch.cat((torch.full_like(earlier[:, :1], nothing), earlier[:, :-1]), 1)
    return torch.cat((before, own), 2)
