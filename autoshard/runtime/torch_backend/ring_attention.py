"""Ring attention: queries stay, pieces of keys and values go from rank to rank, the softmax is taken on the way.

Liu et al. 2023 (ring attention) with FlashAttention's online softmax; with pieces in zigzag order every rank has the
same work under a causal mask. Backward passes keys and values around once more, with their gradients, which end at
home. What is computed while a piece arrives hides the transfer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from autoshard.runtime.torch_backend.collectives import pass_on
from autoshard.runtime.torch_backend.groups import Group

SCORES_AT_ONCE = 2**24
"""Scores that are held at one time, elements: 64 MiB in FP32."""


@dataclass(frozen=True)
class Ring:
    """pieces: the sequence's equal pieces, of piece_length tokens, in the order in which ranks hold them.

    window: keys that a query sees at most, itself included.
    """

    group: Group
    pieces: tuple[int, ...]
    piece_length: int
    window: int

    def held_by(self, rank: int) -> tuple[int, ...]:
        """First positions of the pieces of one rank, rising."""
        each = len(self.pieces) // self.group.size
        return tuple(piece * self.piece_length for piece in self.pieces[rank * each : (rank + 1) * each])


@dataclass(frozen=True)
class _Tile:
    """Rows of the local queries against columns of the keys at hand. mask: True where a row sees a column.

    first_key: place of the first column in the sequence.
    """

    rows: slice
    columns: slice
    mask: torch.Tensor | None
    first_key: int

    def seen(self, starts: torch.Tensor | None) -> torch.Tensor | None:
        """The mask [batch or 1, 1, 1, rows, columns], of rows whose documents start there; None: all is seen."""
        if starts is None:
            return self.mask
        columns = self.columns.stop - self.columns.start
        keys = torch.arange(self.first_key, self.first_key + columns, device=starts.device)
        inside = keys >= starts[:, None, None, self.rows, None]
        return inside if self.mask is None else inside & self.mask


def _tiles(ring: Ring, source: int, heads: int, device: torch.device) -> Iterator[_Tile]:
    """What this rank's queries see of rank `source`'s keys; the diagonal of a piece before what lies left of it."""
    length = ring.piece_length
    at_once = max(1, min(length, SCORES_AT_ONCE // (heads * length)))
    for i, query_start in enumerate(ring.held_by(ring.group.index)):
        for j, key_start in sorted(enumerate(ring.held_by(source)), key=lambda one: -one[1]):
            for first in range(0, length, at_once):
                rows = min(at_once, length - first)
                tile = _visible(query_start + first - key_start, rows, length, ring.window, device)
                if tile is not None:
                    low, high, mask = tile
                    start = i * length + first
                    columns = slice(j * length + low, j * length + high)
                    yield _Tile(slice(start, start + rows), columns, mask, key_start + low)


def _visible(
    offset: int, rows: int, length: int, window: int, device: torch.device
) -> tuple[int, int, torch.Tensor | None] | None:
    """Columns [low, high) of `length` keys that some of `rows` queries see, the first query `offset` behind key 0."""
    low, high = max(0, offset - window + 1), min(length, offset + rows)
    if low >= high:
        return None
    last = offset + rows - 1
    if high <= offset + 1 and low > last - window:
        return low, high, None
    distance = torch.arange(offset, offset + rows, device=device).unsqueeze(1) - torch.arange(low, high, device=device)
    return low, high, (distance >= 0) & (distance < window)


def ring_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ring: Ring, starts: torch.Tensor | None = None
) -> torch.Tensor:
    """q [batch kvhead group rows headdim], k and v [batch kvhead rows headdim]: this rank's rows -> like q.

    starts [batch rows]: place in the sequence from which on a row sees keys; None: from the first on.
    """
    out: torch.Tensor = _RingAttention.apply(q, k, v, ring, starts)
    return out


class _RingAttention(torch.autograd.Function):
    """Keeps q, k, v, the output and the log-sum-exp of each row."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ring: Ring, starts: torch.Tensor | None
    ) -> torch.Tensor:
        accurate = torch.promote_types(q.dtype, torch.float32)
        top = q.new_full(q.shape[:-1], float("-inf"), dtype=accurate)
        total, sums = torch.zeros_like(top), torch.zeros_like(q, dtype=accurate)
        heads = top[..., 0].numel()
        pair = torch.stack((k, v))
        for hop in range(ring.group.size):
            arriving = pass_on(pair, ring.group) if hop < ring.group.size - 1 else None
            for tile in _tiles(ring, (ring.group.index - hop) % ring.group.size, heads, q.device):
                _attend(q, pair, tile, starts, top, total, sums)
            if arriving is not None:
                pair = arriving()
        out = (sums / total.unsqueeze(-1)).to(q.dtype)
        ctx.save_for_backward(q, k, v, out, top + total.log())
        ctx.ring, ctx.starts = ring, starts
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None, None]:
        q, k, v, out, log_sum_exp = ctx.saved_tensors
        ring: Ring = ctx.ring
        grad_out = grads[0].to(q.dtype)
        through_sum = (grad_out.to(log_sum_exp.dtype) * out).sum(-1)
        grad_q = torch.zeros_like(q, dtype=log_sum_exp.dtype)
        heads = log_sum_exp[..., 0].numel()
        pair = torch.stack((k, v))
        returning = None
        for hop in range(ring.group.size):
            arriving = pass_on(pair, ring.group) if hop < ring.group.size - 1 else None
            grad_pair = torch.zeros_like(pair, dtype=log_sum_exp.dtype)
            for tile in _tiles(ring, (ring.group.index - hop) % ring.group.size, heads, q.device):
                _attend_backward(q, pair, tile, ctx.starts, log_sum_exp, grad_out, through_sum, grad_q, grad_pair)
            if returning is not None:
                grad_pair += returning()
            returning = pass_on(grad_pair, ring.group)
            if arriving is not None:
                pair = arriving()
        assert returning is not None
        grad_k, grad_v = returning().to(k.dtype).unbind(0)
        return grad_q.to(q.dtype), grad_k, grad_v, None, None


def _scores(
    q: torch.Tensor, k: torch.Tensor, tile: _Tile, starts: torch.Tensor | None, accurate: torch.dtype
) -> torch.Tensor:
    """[batch kvhead group rows columns], minus infinity where the mask hides."""
    batch, kv_heads, group, rows, head_dim = q.shape
    scores = q.reshape(batch, kv_heads, group * rows, head_dim) @ k.transpose(-1, -2)
    scores = scores.to(accurate).mul_(head_dim**-0.5).view(batch, kv_heads, group, rows, -1)
    seen = tile.seen(starts)
    return scores if seen is None else scores.masked_fill_(~seen, float("-inf"))


def _attend(
    q: torch.Tensor,
    pair: torch.Tensor,
    tile: _Tile,
    starts: torch.Tensor | None,
    top: torch.Tensor,
    total: torch.Tensor,
    sums: torch.Tensor,
) -> None:
    """Add a tile to the running maximum, sum of exponentials and weighted sum of values of its rows, in place.

    A row's first tile must show it something: `_tiles` yields the diagonal first.
    """
    k, v = pair[:, :, :, tile.columns]
    top, total, sums = top[..., tile.rows], total[..., tile.rows], sums[..., tile.rows, :]
    scores = _scores(q[..., tile.rows, :], k, tile, starts, top.dtype)
    new_top = torch.maximum(top, scores.amax(-1))
    fading = (top - new_top).exp_()
    weights = scores.sub_(new_top.unsqueeze(-1)).exp_()
    total.mul_(fading).add_(weights.sum(-1))
    values = (weights.to(v.dtype).flatten(2, 3) @ v).view(sums.shape)
    sums.mul_(fading.unsqueeze(-1)).add_(values)
    top.copy_(new_top)


def _attend_backward(
    q: torch.Tensor,
    pair: torch.Tensor,
    tile: _Tile,
    starts: torch.Tensor | None,
    log_sum_exp: torch.Tensor,
    grad_out: torch.Tensor,
    through_sum: torch.Tensor,
    grad_q: torch.Tensor,
    grad_pair: torch.Tensor,
) -> None:
    """Add a tile's gradients, in place: the probabilities follow from the scores and the rows' log-sum-exp."""
    k, v = pair[:, :, :, tile.columns]
    grad_k, grad_v = grad_pair[:, :, :, tile.columns]
    q, grad_out = q[..., tile.rows, :], grad_out[..., tile.rows, :].flatten(2, 3)
    weights = _scores(q, k, tile, starts, log_sum_exp.dtype).sub_(log_sum_exp[..., tile.rows].unsqueeze(-1)).exp_()
    grad_v.add_(weights.to(v.dtype).flatten(2, 3).transpose(-1, -2) @ grad_out)
    grad_weights = (grad_out @ v.transpose(-1, -2)).view(weights.shape)
    grad_scores = weights.mul_(grad_weights - through_sum[..., tile.rows].unsqueeze(-1)).mul_(q.shape[-1] ** -0.5)
    grad_scores = grad_scores.to(q.dtype).flatten(2, 3)
    grad_q[..., tile.rows, :].add_((grad_scores @ k).view(q.shape))
    grad_k.add_(grad_scores.transpose(-1, -2) @ q.flatten(2, 3))
