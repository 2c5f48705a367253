"""Which keys a query of sparse attention sees: those that an indexer scores highest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial, reduce
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # the name that torch's own documentation uses

from autoshard.graph.partition import OperatorStep
from autoshard.graph.score_tiles import choice_tile
from autoshard.runtime.torch_backend.collectives import all_gather
from autoshard.runtime.torch_backend.context import Context, Kernel
from autoshard.runtime.torch_backend.pieces import pieces
from autoshard.runtime.torch_backend.recomputing_ops import at_least_fp32, offset_rms_norm
from autoshard.runtime.torch_backend.rotation import Rotation, rotation
from autoshard.runtime.torch_backend.turns import turns


def choose_keys(context: Context, step: OperatorStep) -> Kernel:
    """The kernel of an indexer (graph/indexer_kind.py): hidden state, compressed queries and weights -> the mask
    [batch, queries, keys], True where a query sees a key. Products are in the dtype of their inputs; heads are weighed
    and added up in FP32, or FP64."""
    attributes: Any = step.operator.attributes
    top_k, eps = attributes["top_k"], attributes["eps"]
    norms, grows, scales, apart = (bool(attributes.get(name)) for name in ("norms", "grows", "scales", "documents"))
    group, visible, place = context.group(step, "seq"), context.positions(step) + 1, partial(context.place, step)
    turn_queries = turn_keys = None
    if attributes["rotary_dim"]:
        turn_queries = rotation(context, step, ("batch", "seq", "index_head", "index_dim"))
        turn_keys = rotation(context, step, ("batch", "seq", "index_dim"))
    heads, width = (context.graph.sizes[dim] for dim in ("index_head", "index_dim"))
    scale, logs = (heads * width) ** -0.5, context.logarithms(step)

    def turned(x: torch.Tensor, turn: Rotation | None, exponents: torch.Tensor | None) -> torch.Tensor:
        return x if turn is None else turn(x, exponents)

    def run(
        h: torch.Tensor,
        compressed: torch.Tensor,
        wq_b: torch.Tensor,
        wk: torch.Tensor,
        norm: torch.Tensor,
        norm_bias: torch.Tensor,
        weights_proj: torch.Tensor,
        *more: torch.Tensor,
    ) -> torch.Tensor:
        others = iter(more)
        if norms:
            scale_of_norm, bias_of_norm = (next(others).to(h) for _ in range(2))
            compressed = F.layer_norm(compressed, compressed.shape[-1:], scale_of_norm, bias_of_norm, eps)
        q = F.linear(compressed, wq_b.flatten(0, 1)).unflatten(-1, (heads, width))
        del compressed
        growth = [at_least_fp32(next(others)) for _ in range(2)] if grows else []
        exponents = next(others) if scales else None
        starts = next(others) if apart else None
        if growth:
            by_place = logs(h) if starts is None else logs(h, starts)
            q = q * (growth[0] * by_place.unsqueeze(-1) + growth[1]).to(q.dtype).unsqueeze(-1)
        q = turned(q, turn_queries, exponents)
        made = at_least_fp32(F.linear(h, wk))
        k = F.layer_norm(made, (width,), norm.to(made), norm_bias.to(made), eps).to(h.dtype)
        k = turned(k, turn_keys, exponents)
        if group is not None:
            k = all_gather(k, group, 1)
        first = None if starts is None else starts[:, visible.to(starts.device) - 1]
        of_heads = at_least_fp32(weights_proj) * scale
        return best_seen(h, q, k, of_heads, visible, lambda query: place(query) + 1, top_k, first)

    return lambda *inputs: torch.no_grad()(run)(*inputs)


def choose_pools(context: Context, step: OperatorStep) -> Kernel:
    """The kernel of an indexer that scores pools: the inputs of `choose_keys`, gate and bias -> the mask [batch,
    queries, keys]."""
    attributes: Any = step.operator.attributes
    top_k, rate, eps = (attributes[name] for name in ("top_k", "rate", "eps"))
    group, positions, place = context.group(step, "seq"), context.positions(step), partial(context.place, step)
    heads, width, length = (context.graph.sizes[dim] for dim in ("index_head", "index_dim", "seq"))
    scale = (heads * width) ** -0.5

    def run(h: torch.Tensor, compressed: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        wq_b, wk, norm, norm_bias, weights_proj, gate, bias = weights
        q = F.linear(compressed, wq_b.flatten(0, 1)).unflatten(-1, (heads, width))
        made = at_least_fp32(F.linear(h, wk))
        k = F.layer_norm(made, (width,), norm.to(made), norm_bias.to(made), eps).to(h.dtype)
        both = torch.cat((k, F.linear(h, gate)), -1)
        if group is not None:
            both = all_gather(both, group, 1)
        k, gates = both.split(width, -1)
        gates = at_least_fp32(gates)
        pools = pieces(k, gates, bias.to(gates), rate, overlaps=False)
        of_heads = at_least_fp32(weights_proj) * scale
        return _of_pools(h, q, pools, of_heads, positions, place, top_k, rate, length)

    return lambda *inputs: torch.no_grad()(run)(*inputs)


def choose_means(context: Context, step: OperatorStep) -> Kernel:
    """The kernel of an indexer that scores means of keys: hidden state and weights -> the mask [batch, queries, keys].
    Products are in the dtype of their inputs; heads are added up in FP32, or FP64."""
    attributes: Any = step.operator.attributes
    top_k, rate, eps = (attributes[name] for name in ("top_k", "rate", "eps"))
    group, positions, place = context.group(step, "seq"), context.positions(step), partial(context.place, step)
    turn_queries = rotation(context, step, ("batch", "seq", "index_head", "index_dim"))
    turn_pools = rotation(context, step, ("batch", "pooled_key", "index_dim"), every=rate)
    width, length = (context.graph.sizes[dim] for dim in ("index_dim", "seq"))
    whole = length // rate * rate

    def run(
        h: torch.Tensor, q_proj: torch.Tensor, k_proj: torch.Tensor, q_norm: torch.Tensor, k_norm: torch.Tensor
    ) -> torch.Tensor:
        q = F.linear(h, q_proj.flatten(0, 1)).unflatten(-1, q_proj.shape[:2])
        k = F.linear(h, k_proj)
        if group is not None:
            k = all_gather(k, group, 1)
        pools = at_least_fp32(k[:, :whole].unflatten(1, (-1, rate))).mean(2).to(k.dtype)
        q = turn_queries(offset_rms_norm(q, q_norm, eps)[0])
        pools = turn_pools(offset_rms_norm(pools, k_norm, eps)[0])
        return _of_pools(h, q, pools, width**-0.5, positions, place, top_k, rate, length)

    return lambda *inputs: torch.no_grad()(run)(*inputs)


def _of_pools(
    h: torch.Tensor,
    q: torch.Tensor,
    pools: torch.Tensor,
    of_heads: torch.Tensor | float,
    positions: torch.Tensor,
    place_of: Callable[[int], int],
    top_k: int,
    rate: int,
    length: int,
) -> torch.Tensor:
    """Bool [batch, queries, keys], True for the keys of the pools that score most, and for those of each query's own
    pool up to itself.

    pools [batch, pools, width]: their keys. positions [queries]: places of queries; place_of: the same as numbers.
    top_k, rate: as in graph/indexer_kind.py. length: of the whole sequence. h, q, of_heads: as of `best_seen`.
    """
    ended = (positions + 1) // rate
    chosen = best_seen(h, q, pools, of_heads, ended, lambda query: (place_of(query) + 1) // rate, top_k // rate)
    first, here = (x.to(h.device).unsqueeze(1) for x in (ended * rate, positions))
    key = torch.arange(length, device=h.device)
    seen = ((key >= first) & (key <= here)).repeat(len(h), 1, 1)
    seen[..., : length // rate * rate].unflatten(-1, (-1, rate)).logical_or_(chosen.unsqueeze(-1))
    return seen


def choose_blocks(context: Context, step: OperatorStep) -> Kernel:
    """The kernel of an indexer of blocks of keys: hidden state and weights -> the mask [batch, queries, key-value
    heads, blocks]. Products are in the dtype of their inputs."""
    attributes: Any = step.operator.attributes
    eps, block, local, top_k = (attributes[name] for name in ("eps", "block", "local", "top_k"))
    group, positions, place = context.group(step, "seq"), context.positions(step), partial(context.place, step)
    turn_queries = rotation(context, step, ("batch", "seq", "kvhead", "index_dim"))
    turn_keys = rotation(context, step, ("batch", "seq", "index_dim"))
    blocks = -(-context.graph.sizes["seq"] // block)

    def run(
        h: torch.Tensor, q_proj: torch.Tensor, k_proj: torch.Tensor, q_norm: torch.Tensor, k_norm: torch.Tensor
    ) -> torch.Tensor:
        q = F.linear(h, q_proj.flatten(0, 1)).unflatten(-1, q_proj.shape[:2])
        q = turn_queries(offset_rms_norm(q, q_norm, eps)[0])
        k = turn_keys(offset_rms_norm(F.linear(h, k_proj), k_norm, eps)[0])
        if group is not None:
            k = all_gather(k, group, 1)
        keys = F.pad(k, (0, 0, 0, blocks * block - k.shape[1])).transpose(1, 2)
        return _best_blocks(q, keys, positions, place, block, local, top_k)

    return lambda *inputs: torch.no_grad()(run)(*inputs)


def _best_blocks(
    q: torch.Tensor,
    keys: torch.Tensor,
    positions: torch.Tensor,
    place_of: Callable[[int], int],
    block: int,
    local: int,
    top_k: int,
) -> torch.Tensor:
    """Bool [batch, queries, heads, blocks], True for the blocks that each query sees. Some heads at a time, for a tile
    of queries.

    q [batch, queries, heads, width]; keys [batch, width, blocks of `block` keys]; positions [queries]: their places,
    which grow; place_of: the same as numbers. local, top_k: as in graph/indexer_kind.py.
    """
    length = keys.shape[-1]
    chosen = torch.zeros(*q.shape[:3], length // block, dtype=torch.bool, device=q.device)
    rows, at_once = choice_tile(q.shape[2], length, q.shape[1], q.shape[0])
    for tile, stop in _tiles(q.shape[1], rows, lambda query: place_of(query) // block + 1):
        places = positions[tile].to(q.device).unsqueeze(1)
        own, place = places // block, torch.arange(stop, device=q.device)
        behind = (torch.arange(stop * block, device=q.device) > places).unsqueeze(1)
        seen, near = ((place <= own).unsqueeze(1), ((place <= own) & (place > own - local)).unsqueeze(1))
        parts = [slice(some, min(some + at_once, q.shape[2])) for some in range(0, q.shape[2], at_once)]
        for heads in turns(parts, lambda part: (part.stop - part.start,)):
            queries = q[:, tile, heads]
            scores = (queries.flatten(1, 2) @ keys[..., : stop * block]).unflatten(1, queries.shape[1:3])
            scores = scores.masked_fill_(behind, float("-inf")).unflatten(-1, (stop, block)).amax(-1)
            chosen[:, tile, heads, :stop] = best(scores.masked_fill_(near, float("inf")), top_k) & seen
    return chosen


def best_seen(
    h: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    of_heads: torch.Tensor | float,
    visible: torch.Tensor,
    visible_to: Callable[[int], int],
    top_k: int,
    first_seen: torch.Tensor | None = None,
) -> torch.Tensor:
    """Bool [batch, queries, columns], True for the top_k columns of each query that score most, of those that it may
    see: the first `visible` [queries], which grow with the query, but for those before `first_seen` [batch, queries].
    Some heads at a time, for a tile of queries. visible_to: `visible` as numbers.

    h [batch, queries, embed] weighs heads by of_heads [heads, embed], a number weighs all alike; q [batch, queries,
    heads, width]; k [batch, columns, width].
    """
    columns = k.shape[1]
    seen = torch.zeros(*h.shape[:2], columns, dtype=torch.bool, device=h.device)
    rows, at_once = choice_tile(q.shape[2], max(1, columns), h.shape[1], h.shape[0])
    for tile, stop in _tiles(h.shape[1], rows, visible_to):
        if isinstance(of_heads, torch.Tensor):
            weights = F.linear(h[:, tile].to(of_heads.dtype), of_heads)
        else:
            weights = at_least_fp32(q.new_empty(0)).new_full(q[:, tile].shape[:3], of_heads)
        parts = [*zip(q[:, tile].split(at_once, 2), weights.split(at_once, 2), strict=True)]
        some = turns(parts, lambda part: (part[0].shape[2],))
        scores = reduce(torch.Tensor.add_, (weighed_scores(part, k[:, :stop], weight) for part, weight in some))
        column = torch.arange(stop, device=h.device)
        hidden = column >= visible[tile].to(h.device).unsqueeze(1)
        if first_seen is not None:
            hidden = hidden | (column < first_seen[:, tile].unsqueeze(-1))
        seen[:, tile, :stop] = best(scores.masked_fill_(hidden, float("-inf")), top_k) & ~hidden
    return seen


def _tiles(queries: int, rows: int, seen: Callable[[int], int]) -> Iterable[tuple[slice, int]]:
    """(queries, columns that the last of them sees) of each tile of so many rows that sees any. seen: columns that a
    query sees, which grow."""
    tiles = [slice(first, min(first + rows, queries)) for first in range(0, queries, rows)]
    several = [(tile, stop) for tile in tiles if (stop := seen(tile.stop - 1))]
    return turns(several, lambda one: (one[0].stop - one[0].start, one[1]))


def weighed_scores(q: torch.Tensor, k: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The scores [batch, queries, keys] of q [batch, queries, heads, width] and k [batch, keys, width], with weights
    [batch, queries, heads]."""
    of_heads = at_least_fp32((q.flatten(1, 2) @ k.transpose(1, 2)).unflatten(1, q.shape[1:3])).relu_()
    return (weights.unsqueeze(2) @ of_heads).squeeze(2)


def best(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Bool like scores, True for the `count` largest of each row; of those that equal the smallest of them, the first
    ones."""
    if count >= scores.shape[-1]:
        return torch.ones_like(scores, dtype=torch.bool)
    least = scores.topk(count, -1).values[..., -1:]
    more, equal = scores > least, scores == least
    missing = count - more.sum(-1, keepdim=True)
    return more | (equal & (equal.cumsum(-1) <= missing))
