"""Ring attention: queries stay, pieces of keys and values go from rank to rank, the softmax is computed on the way.

Where every rank has all keys it is FlashAttention in tiles, for scores that torch's fused attention does not know.

Liu et al. 2023 (ring attention) with FlashAttention's online softmax. With pieces in zigzag order every rank has the
same work under a causal mask. Backward passes keys and values around once more, with their gradients, which end where
they belong. Transfers are hidden behind computing with the piece at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from einops import rearrange

from autoshard.graph.score_tiles import tile_rows
from autoshard.runtime.torch_backend.collectives import pass_on
from autoshard.runtime.torch_backend.groups import Group
from autoshard.runtime.torch_backend.turns import turns


@dataclass(frozen=True)
class Ring:
    """A ring of ranks that share a sequence. pieces: the sequence's equal pieces, of piece_length tokens, in the order
    in which ranks hold them. window: the most keys that a query sees, itself included. scale: factor of the scores,
    None for 1/sqrt(headdim). softcap: a score s becomes softcap * tanh(s / softcap); None leaves it as it is. chunk: a
    query sees keys of its own chunk of so many places alone; None: no chunks.

    group: the ranks; None where all keys are here, and then `position` is the place of the one piece of queries.
    chosen_block: keys of a block, where blocks of keys were chosen, not each key by itself.
    """

    group: Group | None
    pieces: tuple[int, ...]
    piece_length: int
    window: int
    scale: float | None = None
    softcap: float | None = None
    chunk: int | None = None
    position: int = 0
    chosen_block: int | None = None

    @property
    def size(self) -> int:
        """Times that keys and values come by."""
        return 1 if self.group is None else self.group.size

    @property
    def index(self) -> int:
        return 0 if self.group is None else self.group.index

    @property
    def queries(self) -> tuple[int, ...]:
        """First positions of the pieces of this rank's queries, rising."""
        return (self.position * self.piece_length,) if self.group is None else self.held_by(self.index)

    def held_by(self, rank: int) -> tuple[int, ...]:
        """First positions of the pieces of one rank's keys, rising."""
        each = len(self.pieces) // self.size
        return tuple(piece * self.piece_length for piece in self.pieces[rank * each : (rank + 1) * each])

    def first_key(self, query: int) -> int:
        """The first place that a query's chunk has."""
        return 0 if self.chunk is None else query // self.chunk * self.chunk


@dataclass(frozen=True)
class _Tile:
    """A tile of scores: rows of the local queries against columns of the keys at hand.

    mask: [rows columns], True where a row sees a column; [batch rows columns] where documents are kept apart, or keys
    were chosen; [batch kvhead rows columns] where blocks of keys were.
    """

    rows: slice
    columns: slice
    mask: torch.Tensor | None


class Span(NamedTuple):
    """The place of a tile of scores. row, column: its first query and key among those at hand. query, key: the places
    of these in the sequence. hides: whether some of its queries do not see some of its keys."""

    row: int
    rows: int
    column: int
    columns: int
    query: int
    key: int
    hides: bool

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.rows, self.columns, int(self.hides)

    @property
    def scores(self) -> int:
        return self.rows * self.columns


def spans(ring: Ring, source: int, heads: int, sequences: int) -> Iterator[Span]:
    """Yields where the tiles of this rank's queries with rank `source`'s keys lie; the diagonal of a piece before the
    tiles left of it. heads: of one sequence. sequences: of the microbatch."""
    length = ring.piece_length
    at_once, few = tile_rows(heads, length, sequences)
    for i, query_start in enumerate(ring.queries):
        for j, key_start in sorted(enumerate(ring.held_by(source)), key=lambda one: -one[1]):
            distance = query_start - key_start
            sees_all = length <= distance <= ring.window - length
            step = at_once if sees_all else few
            for first in range(0, length, step):
                rows, query = min(step, length - first), query_start + first
                hidden = max(0, ring.first_key(query) - key_start)
                low, high = max(hidden, distance + first - ring.window + 1), min(length, distance + first + rows)
                if low < high:
                    hides = _hides(ring, query, rows, range(key_start + low, key_start + high))
                    yield Span(i * length + first, rows, j * length + low, high - low, query, key_start + low, hides)


def _hides(ring: Ring, query: int, rows: int, keys: range) -> bool:
    """Whether some of the queries from place `query` on do not see some of these keys, as far as places tell."""
    last = query + rows - 1
    return keys[-1] > query or keys[0] <= last - ring.window or ring.first_key(query) != ring.first_key(last)


def _tiles(
    ring: Ring,
    source: int,
    heads: int,
    sequences: int,
    device: torch.device,
    starts: torch.Tensor | None = None,
    chosen: torch.Tensor | None = None,
) -> Iterator[_Tile]:
    """Yields the tiles at the `spans`. starts, chosen: as in ring_attention."""
    several = [*spans(ring, source, heads, sequences)]
    for one in turns(several, lambda span: span.sizes, lambda span: span.scores):
        own, keys = slice(one.row, one.row + one.rows), range(one.key, one.key + one.columns)
        mask = _inside(_of_chunks(_visible(ring, one, keys, device), ring, one, keys, device), starts, own, keys)
        if chosen is not None:
            seen = _of_chosen(chosen, ring, own, keys)
            mask = seen if mask is None else seen & mask
        yield _Tile(own, slice(one.column, one.column + one.columns), mask)


def _of_chosen(chosen: torch.Tensor, ring: Ring, rows: slice, keys: range) -> torch.Tensor:
    """The part of the mask of chosen keys, or of blocks of these, for some rows and the keys of these places."""
    if ring.chosen_block is None:
        return chosen[:, rows, keys.start : keys.stop]
    blocks = torch.arange(keys.start, keys.stop, device=chosen.device) // ring.chosen_block
    return chosen[:, :, rows].index_select(-1, blocks)


def _of_chunks(
    mask: torch.Tensor | None, ring: Ring, span: Span, keys: range, device: torch.device
) -> torch.Tensor | None:
    """The mask of a tile's queries so that they see keys of their own chunk alone."""
    behind = span.query + span.rows
    if ring.chunk is None or ring.first_key(span.query) == ring.first_key(behind - 1):
        return mask  # of one chunk, before which the tile does not begin
    begins = torch.arange(span.query, behind, device=device) // ring.chunk * ring.chunk
    inside = torch.arange(keys.start, keys.stop, device=device) >= begins.unsqueeze(1)
    return inside if mask is None else inside & mask


def _inside(mask: torch.Tensor | None, starts: torch.Tensor | None, rows: slice, keys: range) -> torch.Tensor | None:
    """The mask of some rows so that they see no key before the start of their document. keys: places in the
    sequence."""
    if starts is None:
        return mask
    inside = torch.arange(keys.start, keys.stop, device=starts.device) >= starts[:, rows, None]
    return inside if mask is None else inside & mask


def _visible(ring: Ring, span: Span, keys: range, device: torch.device) -> torch.Tensor | None:
    """The mask of a tile by the distance of its queries from its keys; None where they see all."""
    offset = span.query - span.key
    if span.columns <= offset + 1 and offset + span.rows - 1 < ring.window:
        return None
    distance = torch.arange(span.query, span.query + span.rows, device=device).unsqueeze(1)
    distance = distance - torch.arange(keys.start, keys.stop, device=device)
    return (distance >= 0) & (distance < ring.window)


def ring_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ring: Ring,
    starts: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    chosen: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of this rank's rows: q [batch kvhead group rows headdim], k and v [batch kvhead rows headdim] -> a
    tensor like q, with heads as wide as those of v, which may differ from those of k.

    starts [batch rows]: place in the sequence of the first key that a row sees; None: rows see all keys up to
    themselves. sinks [kvhead group]: a score more in each row's softmax, which weighs no value. chosen [batch rows
    keys], where all keys are here and there are sinks: whether a row sees a key; or with a chosen_block [batch kvhead
    rows blocks], of which each row sees that with its own key.
    """
    assert chosen is None or (ring.group is None and (sinks is not None or ring.chosen_block is not None)), ring
    out: torch.Tensor = _RingAttention.apply(q, k, v, sinks, ring, starts, chosen)
    return out


def _by_rows(x: torch.Tensor) -> torch.Tensor:
    """x [batch kvhead group rows headdim] as [batch*kvhead rows*group headdim]: heads that share keys are one matrix.

    It copies where memory has another order, so it gets the rows of a tile, or what is small.
    """
    return rearrange(x, "batch kvhead group rows headdim -> (batch kvhead) (rows group) headdim")


def _packed(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Keys and values [batch kvhead rows headdim] behind one another in one flat buffer, which travels as one."""
    pair = k.new_empty(k.numel() + v.numel())
    for place, one in zip(_split(pair, k, v), (k, v), strict=True):
        place.copy_(one)
    return pair


def _split(pair: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of keys and values, or their gradients, in a flat buffer, each shaped as k and v."""
    keys, values = pair.split((k.numel(), v.numel()))
    return keys.view(k.shape), values.view(v.shape)


def _by_heads(pair: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same as views [batch*kvhead rows headdim]."""
    keys, values = _split(pair, k, v)
    return keys.flatten(0, 1), values.flatten(0, 1)


class _RingAttention(torch.autograd.Function):
    """Ring attention as an autograd function. Keeps q, k, v, the output and the log-sum-exp of each row.

    The output lies in memory as [batch rows kvhead group headdim], so the projection that reads it row by row keeps it
    as it is, without a copy.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None,
        ring: Ring,
        starts: torch.Tensor | None,
        chosen: torch.Tensor | None,
    ) -> torch.Tensor:
        accurate = torch.promote_types(q.dtype, torch.float32)
        batch, kv_heads, group = q.shape[:3]
        top = q.new_full((batch * kv_heads, q.shape[3] * group), float("-inf"), dtype=accurate)
        total, sums = torch.zeros_like(top), top.new_zeros(*top.shape, v.shape[-1])
        if sinks is not None:  # first: a row may have chosen none of its first tile's keys
            top.copy_(_of_rows(sinks, batch, q.shape[3]))
            total.fill_(1.0)
        pair = _packed(k, v)
        for hop in range(ring.size):
            arriving = _next(pair, ring) if hop < ring.size - 1 else None
            source = (ring.index - hop) % ring.size
            keys = _by_heads(pair, k, v)
            for tile in _tiles(ring, source, kv_heads * group, batch, q.device, starts, chosen):
                _attend(q, keys, tile, group, ring, top, total, sums)
            if arriving is not None:
                pair = arriving()
        sums = sums.div_(total.unsqueeze(-1))
        by_rows = rearrange(
            sums, "(batch kvhead) (rows group) headdim -> batch rows kvhead group headdim", batch=batch, group=group
        )
        by_rows = by_rows.to(q.dtype, memory_format=torch.contiguous_format).contiguous()  # `to` the same dtype is none
        out = rearrange(by_rows, "batch rows kvhead group headdim -> batch kvhead group rows headdim")
        more = (one for one in (sinks, chosen) if one is not None)
        ctx.save_for_backward(q, k, v, out, top.add_(total.log_()), *more)
        ctx.ring, ctx.starts, ctx.num_sinks = ring, starts, 0 if sinks is None else 1
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, out, log_sum_exp, *more = ctx.saved_tensors
        sinks, rest = more[: ctx.num_sinks], more[ctx.num_sinks :]
        chosen = rest[0] if rest else None
        ring: Ring = ctx.ring
        batch, kv_heads, group = q.shape[:3]
        grad = grads[0].to(q.dtype)
        through_sum = _by_rows((grad.to(log_sum_exp.dtype) * out).sum(-1, keepdim=True)).squeeze(-1)
        grad_q = log_sum_exp.new_zeros(*log_sum_exp.shape, q.shape[-1])
        rows = _Rows(q, grad, log_sum_exp, through_sum, grad_q)

        def of_keys(pair: torch.Tensor, source: int) -> torch.Tensor:
            """Gradients of rank `source`'s keys and values by the local queries."""
            grad_pair = torch.zeros_like(pair, dtype=log_sum_exp.dtype)
            keys, grad_keys = _by_heads(pair, k, v), _by_heads(grad_pair, k, v)
            for tile in _tiles(ring, source, kv_heads * group, batch, q.device, ctx.starts, chosen):
                _attend_backward(rows, keys, tile, group, ring, grad_keys)
            return grad_pair

        pair = _packed(k, v)
        returning = None
        for hop in range(ring.size):
            arriving = _next(pair, ring) if hop < ring.size - 1 else None
            grad_pair = of_keys(pair, (ring.index - hop) % ring.size)
            if returning is not None:
                grad_pair += returning()
            returning = None  # frees what was sent and received before there is more of it
            returning = _next(grad_pair, ring)
            del grad_pair
            if arriving is not None:
                pair = arriving()
            arriving = None
        assert returning is not None
        del pair
        grad_k, grad_v = _split(returning().to(k.dtype), k, v)
        by_queries = rearrange(
            grad_q.to(q.dtype),
            "(batch kvhead) (rows group) headdim -> batch kvhead group rows headdim",
            batch=batch,
            group=group,
        )
        grad_sinks = None
        if sinks:
            weights = (_of_rows(sinks[0], batch, q.shape[3]).to(log_sum_exp.dtype) - log_sum_exp).exp_()
            by_head = (weights * through_sum).view(batch, kv_heads, -1, group).sum((0, 2))
            grad_sinks = by_head.neg_().to(sinks[0].dtype)
        return by_queries, grad_k, grad_v, grad_sinks, None, None, None


def _next(pair: torch.Tensor, ring: Ring) -> Callable[[], torch.Tensor]:
    """Sends to the next rank, and returns what waits for what the one before has sent; without others, the same."""
    return (lambda: pair) if ring.group is None else pass_on(pair, ring.group)


def _of_rows(sinks: torch.Tensor, batch: int, rows: int) -> torch.Tensor:
    """sinks [kvhead group] for every row, [batch*kvhead rows*group]."""
    kv_heads, group = sinks.shape
    return sinks.view(1, kv_heads, 1, group).expand(batch, kv_heads, rows, group).reshape(batch * kv_heads, -1)


def _scale(k: torch.Tensor, scale: float | None) -> float:
    return float(k.shape[-1] ** -0.5) if scale is None else scale


def _scores(q: torch.Tensor, k: torch.Tensor, ring: Ring, accurate: torch.dtype) -> torch.Tensor:
    """Scores [heads rows*group columns] of q [heads rows*group headdim] and k [heads columns headdim], unmasked."""
    scores = q.new_empty(*q.shape[:2], k.shape[1])
    scores = scores.baddbmm_(q, k.transpose(1, 2), beta=0, alpha=_scale(k, ring.scale)).to(accurate)
    return scores if ring.softcap is None else scores.div_(ring.softcap).tanh_().mul_(ring.softcap)


def _hide(scores: torch.Tensor, tile: _Tile) -> torch.Tensor:
    """The scores with minus infinity where the mask hides, in place."""
    if tile.mask is not None:
        rows, columns = tile.mask.shape[-2:]
        hidden = ~tile.mask.view(-1, 1, rows, 1, columns)  # for every batch row, or one for all
        scores.view(len(hidden), -1, rows, scores.shape[1] // rows, columns).masked_fill_(hidden, float("-inf"))
    return scores


def _add_product(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scale: float = 1.0) -> None:
    """Adds scale * a b to `total` in place; total may be more accurate than the factors."""
    if total.dtype == a.dtype:
        total.baddbmm_(a, b, alpha=scale)
    else:
        total.add_(torch.bmm(a, b), alpha=scale)


def _attend(
    q: torch.Tensor,
    pair: tuple[torch.Tensor, torch.Tensor],
    tile: _Tile,
    group: int,
    ring: Ring,
    top: torch.Tensor,
    total: torch.Tensor,
    sums: torch.Tensor,
) -> None:
    """Adds a tile to the running maximum, sum of exponentials and weighted sum of values of its rows, in place. q: all
    local queries [batch kvhead group rows headdim].

    A row's first tile must show it something, if it has no sink: `_tiles` yields the diagonal first.
    """
    k, v = (one[:, tile.columns] for one in pair)
    at = slice(tile.rows.start * group, tile.rows.stop * group)
    top, total, sums = top[:, at], total[:, at], sums[:, at]
    scores = _hide(_scores(_by_rows(q[:, :, :, tile.rows]), k, ring, top.dtype), tile)
    new_top = torch.maximum(top, scores.amax(-1))
    fading = (top - new_top).exp_()
    weights = scores.sub_(new_top.unsqueeze(-1)).exp_()
    total.mul_(fading).add_(weights.sum(-1))
    _add_product(sums.mul_(fading.unsqueeze(-1)), weights.to(v.dtype), v)
    top.copy_(new_top)


@dataclass(frozen=True)
class _Rows:
    """The local queries in backward: q and grad_out [batch kvhead group rows headdim]; by rows [batch*kvhead rows*group
    ...] what is known of each, and their gradient, which is summed up here."""

    q: torch.Tensor
    grad_out: torch.Tensor
    log_sum_exp: torch.Tensor
    through_sum: torch.Tensor
    grad_q: torch.Tensor

    def of(self, tile: _Tile, group: int) -> _Rows:
        """The rows of one tile, all of them by rows."""
        at = slice(tile.rows.start * group, tile.rows.stop * group)
        q, grad_out = (_by_rows(x[:, :, :, tile.rows]) for x in (self.q, self.grad_out))
        log_sum_exp, through_sum, grad_q = (x[:, at] for x in (self.log_sum_exp, self.through_sum, self.grad_q))
        return _Rows(q, grad_out, log_sum_exp, through_sum, grad_q)


def _attend_backward(
    rows: _Rows,
    pair: tuple[torch.Tensor, torch.Tensor],
    tile: _Tile,
    group: int,
    ring: Ring,
    grad_pair: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """Adds a tile's gradients in place: the probabilities follow from the scores and the rows' log-sum-exp."""
    k, v = (one[:, tile.columns] for one in pair)
    grad_k, grad_v = (one[:, tile.columns] for one in grad_pair)
    own, scale = rows.of(tile, group), _scale(k, ring.scale)
    scores = _scores(own.q, k, ring, own.log_sum_exp.dtype)
    slopes = None if ring.softcap is None else 1 - (scores / ring.softcap).square_()
    weights = _hide(scores, tile).sub_(own.log_sum_exp.unsqueeze(-1)).exp_()
    _add_product(grad_v, weights.to(v.dtype).transpose(1, 2), own.grad_out)
    grad_scores = torch.bmm(own.grad_out, v.transpose(1, 2)).to(weights.dtype)
    grad_scores = grad_scores.sub_(own.through_sum.unsqueeze(-1)).mul_(weights)
    grad_scores = (grad_scores if slopes is None else grad_scores.mul_(slopes)).to(k.dtype)
    _add_product(own.grad_q, grad_scores, k, scale)
    _add_product(grad_k, grad_scores.transpose(1, 2), own.q, scale)
