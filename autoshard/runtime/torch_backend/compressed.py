"""Attention to a window of tokens and to entries that stand for pieces of the sequence (graph/compressed_kinds.py)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # the name that torch's own documentation uses

from autoshard.graph.attention_kind import head_dims
from autoshard.graph.compressed_kinds import SERIES
from autoshard.graph.partition import OperatorStep
from autoshard.graph.score_tiles import compressed_tile
from autoshard.runtime.torch_backend.attention import plain_attention, without_empty_heads
from autoshard.runtime.torch_backend.collectives import all_gather
from autoshard.runtime.torch_backend.context import Context, Kernel
from autoshard.runtime.torch_backend.indexer import best_seen
from autoshard.runtime.torch_backend.pieces import pieces
from autoshard.runtime.torch_backend.recomputing_ops import at_least_fp32
from autoshard.runtime.torch_backend.rotation import rotation
from autoshard.runtime.torch_backend.run_again import WHOLE, Again
from autoshard.runtime.torch_backend.turns import turns


def compress(context: Context, step: OperatorStep) -> Kernel:
    """The kernel of entries: values and gates [batch, seq, (series,) width], bias [rate, (series,) width] -> [batch,
    entry, width]."""
    op = step.operator
    rate: Any = op.attributes["rate"]
    function = partial(pieces, rate=rate, overlaps=SERIES in context.dims(op.inputs[0]))

    def run(values: torch.Tensor, gates: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = Again.apply(function, WHOLE, values, gates, bias)
        return out

    return run


def compressed_attention(context: Context, step: OperatorStep) -> Kernel:
    """The kernel of attention: q [batch seq kvhead group headdim] in the graph's dim order, keys [batch seq headdim],
    sinks [kvhead group] and perhaps entries [batch entry headdim] and a mask of them -> a tensor like q."""
    op = step.operator
    dims, width = context.dims(op.inputs[0]), context.dims(op.output)[-1]
    to_heads = [dims.index(dim) for dim in ("batch", *head_dims(op), "seq", width)]
    back = [to_heads.index(i) for i in range(len(to_heads))]
    window: Any = op.attributes["sliding_window"]
    rate: Any = op.attributes.get("rate", 1)
    position, count = context.piece(step, "seq")  # which nobody reorders: rings are refused
    sees = _Sees(window, rate, position * (context.graph.sizes["seq"] // count))
    core = without_empty_heads(context, step, partial(_plain if op.attributes["kernel"] == "plain" else _flash, sees))

    def run(q: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        return core(q.permute(to_heads), *inputs).permute(back)

    return run


@dataclass(frozen=True)
class _Sees:
    """The reach of queries: each sees `window` keys, its own included, and those entries, of `rate` tokens each, that
    end with it or before. first: place of the first query in the sequence."""

    window: int
    rate: int
    first: int

    def keys(self, start: int, stop: int) -> tuple[int, int]:
        """The keys that some of the queries [start, stop) see."""
        return max(0, self.first + start + 1 - self.window), self.first + stop

    def entries(self, stop: int) -> int:
        """Entries that the query before `stop` sees."""
        return (self.first + stop) // self.rate

    def mask(self, queries: tuple[int, int], keys: tuple[int, int], count: int, device: torch.device) -> torch.Tensor:
        """[queries, keys and entries], True where one of the queries sees one of the keys, or of the first `count`
        entries. queries, keys: (the first one, where they stop)."""
        query = torch.arange(*queries, device=device).unsqueeze(1) + self.first
        key, entry = torch.arange(*keys, device=device), torch.arange(count, device=device)
        return torch.cat(((key <= query) & (key > query - self.window), entry < (query + 1) // self.rate), 1)


def _plain(sees: _Sees, q: torch.Tensor, keys: torch.Tensor, sinks: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
    """Attention with scores written out. q [batch kvhead group queries headdim]. more: entries, and a mask of them."""
    columns = torch.cat((keys, *more[:1]), 1).unsqueeze(1)
    length = keys.shape[1]
    seen = sees.mask((0, q.shape[3]), (0, length), columns.shape[2] - length, q.device)
    if len(more) > 1:
        seen = seen.repeat(len(q), 1, 1, 1)
        seen[..., length:] &= more[1].unsqueeze(1)
    return plain_attention(q.flatten(1, 2), columns, columns, seen, sinks=sinks).unflatten(1, q.shape[1:3])


def _flash(sees: _Sees, q: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
    """Attention some queries at a time. q [batch kvhead group queries headdim]."""
    keys, sinks, *more = inputs
    out: torch.Tensor = _InTiles.apply(sees, q.flatten(1, 2), keys, sinks.flatten(), *more)
    return out.unflatten(1, q.shape[1:3])


class _InTiles(torch.autograd.Function):
    """Attention of q [batch head queries headdim] to keys [batch key headdim], sinks [head], and perhaps entries and a
    mask of them. Keeps its inputs, its output and one number a row; backward computes the scores again.

    All heads see the same columns: the queries of a tile are rows of one product, whatever their head.
    """

    @staticmethod
    def forward(ctx: Any, sees: _Sees, q: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        keys, sinks, *more = inputs
        out = torch.empty_like(q)
        wide = torch.promote_types(q.dtype, torch.float32)
        log_sum_exp = q.new_empty(q.shape[:-1], dtype=wide)
        of_heads = sinks.to(wide).unsqueeze(-1)
        for one in _tiles(sees, q, keys, *more):
            scores = one.scores(one.rows(q))
            top = torch.maximum(scores.amax(-1), of_heads)
            scores = scores.sub_(top.unsqueeze(-1)).exp_()
            total = scores.sum(-1).add_((of_heads - top).exp_())
            weights = scores.div_(total.unsqueeze(-1)).to(q.dtype)
            out[:, :, one.start : one.stop] = torch.bmm(weights.flatten(1, 2), one.columns).view(*top.shape, -1)
            log_sum_exp[:, :, one.start : one.stop] = total.log_().add_(top)
        ctx.save_for_backward(q, out, log_sum_exp, *inputs)
        ctx.sees = sees
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        q, out, log_sum_exp, keys, sinks, *more = ctx.saved_tensors
        grad, wide = grads[0], log_sum_exp.dtype
        along = (grad * out).sum(-1, dtype=wide)
        to_q = torch.empty_like(q)
        to_keys, *to_entries = (torch.zeros_like(x, dtype=wide) for x in (keys, *more[:1]))
        for one in _tiles(ctx.sees, q, keys, *more):
            tile = slice(one.start, one.stop)
            rows, of_rows = one.rows(q), one.rows(grad)
            weights = one.scores(rows).sub_(log_sum_exp[:, :, tile].unsqueeze(-1)).exp_()
            to_scores = torch.bmm(of_rows, one.columns.mT).view(weights.shape).to(wide)
            to_scores = to_scores.sub_(along[:, :, tile].unsqueeze(-1)).mul_(weights).mul_(one.scale)
            to_scores = to_scores.to(q.dtype).flatten(1, 2)
            to_q[:, :, tile] = torch.bmm(to_scores, one.columns).view(*weights.shape[:-1], -1)
            found = torch.bmm(to_scores.mT, rows).to(wide)
            found += torch.bmm(weights.to(q.dtype).flatten(1, 2).mT, of_rows)
            count = one.stop_key - one.first_key
            to_keys[:, one.first_key : one.stop_key] += found[:, :count]
            for of_entries in to_entries:
                of_entries[:, : found.shape[1] - count] += found[:, count:]
        lost = (sinks.to(wide).view(1, -1, 1) - log_sum_exp).exp_().mul_(along)
        to_sinks = lost.sum((0, 2)).neg_().to(sinks.dtype)
        found_entries = (of_entries.to(keys.dtype) for of_entries in to_entries)
        nothing = (None,) * len(more[1:])
        return None, to_q, to_keys.to(keys.dtype), to_sinks, *found_entries, *nothing


@dataclass(frozen=True)
class _Tile:
    """The queries [start, stop) and what they see. columns [batch, keys and entries, headdim]. hidden: [queries,
    columns] or [batch, 1, queries, columns], True where a query does not see a column."""

    start: int
    stop: int
    first_key: int
    stop_key: int
    columns: torch.Tensor
    hidden: torch.Tensor

    @property
    def scale(self) -> float:
        return float(self.columns.shape[-1] ** -0.5)

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, head and query, headdim] of x [batch head queries headdim]."""
        return x[:, :, self.start : self.stop].flatten(1, 2)

    def scores(self, rows: torch.Tensor) -> torch.Tensor:
        """[batch, head, queries, columns] in FP32, or FP64, minus infinity where a query does not see a column. rows:
        queries, as of `rows`."""
        products = torch.bmm(rows, self.columns.mT).unflatten(1, (-1, self.stop - self.start))
        return at_least_fp32(products).mul_(self.scale).masked_fill_(self.hidden, float("-inf"))


def _tiles(sees: _Sees, q: torch.Tensor, keys: torch.Tensor, *more: torch.Tensor) -> Iterator[_Tile]:
    """Yields the tiles of q [batch head queries headdim]. more: entries, and a mask of them."""
    batch, heads, length = q.shape[:3]
    count = more[0].shape[1] if more else 0
    rows, _ = compressed_tile(batch * heads, sees.window, count, length)
    spans = [_span(sees, start, min(start + rows, length), count) for start in range(0, length, rows)]
    for start, stop, first, behind, whole in turns(spans, _sizes):
        columns = torch.cat((keys[:, first:behind], *(one[:, :whole] for one in more[:1])), 1)
        hidden = ~sees.mask((start, stop), (first, behind), whole, q.device)
        if len(more) > 1:
            hidden = hidden.repeat(batch, 1, 1, 1)
            hidden[..., behind - first :] |= ~more[1][:, start:stop, :whole].unsqueeze(1)
        yield _Tile(start, stop, first, behind, columns, hidden)


def _span(sees: _Sees, start: int, stop: int, count: int) -> tuple[int, int, int, int, int]:
    """(start, stop, first key, where the keys stop, entries) that the queries [start, stop) see of `count` entries."""
    return start, stop, *sees.keys(start, stop), min(count, sees.entries(stop))


def _sizes(span: tuple[int, int, int, int, int]) -> tuple[int, int, int]:
    start, stop, first, behind, entries = span
    return stop - start, behind - first, entries


def choose_entries(context: Context, step: OperatorStep) -> Kernel:
    """The kernel of an indexer of entries: hidden state, compressed queries and weights -> the mask [batch, queries,
    entry], True where a query sees an entry. Heads are weighed and added up in FP32, or FP64."""
    op, attributes = step.operator, dict[str, Any](step.operator.attributes)
    top_k, rate, eps = attributes["top_k"], attributes["rate"], attributes["eps"]
    group, visible = context.group(step, "seq"), (context.positions(step) + 1) // rate
    place = partial(context.place, step)
    heads, width = (context.graph.sizes[dim] for dim in ("index_head", "index_dim"))
    turn_queries = rotation(context, step, ("batch", "seq", "index_head", "index_dim"))
    entry = context.dims(op.output)[-1]
    turn_entries = rotation(context, step, ("batch", entry, "index_dim"), every=rate)
    scale = (heads * width) ** -0.5

    def run(h: torch.Tensor, compressed: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        wq_b, weights_proj, wkv, wgate, bias, norm = weights
        q = turn_queries(F.linear(compressed, wq_b.flatten(0, 1)).unflatten(-1, (heads, width)))
        both = F.linear(h, torch.cat((wkv, wgate)).flatten(0, 1))
        if group is not None:
            both = all_gather(both, group, 1)
        values, gates = both.unflatten(-1, (2, 2, width)).unbind(2)
        made = at_least_fp32(pieces(values, gates, bias.to(gates.dtype), rate, overlaps=True))
        normal = made * torch.rsqrt(made.square().mean(-1, keepdim=True) + eps) * norm.to(made.dtype)
        k = turn_entries(normal.to(h.dtype))
        of_heads = at_least_fp32(weights_proj) * scale
        return best_seen(h, q, k, of_heads, visible, lambda query: (place(query) + 1) // rate, top_k)

    return lambda *inputs: torch.no_grad()(run)(*inputs)
