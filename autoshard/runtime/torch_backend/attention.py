"""Causal grouped-query attention on local tensors: whole sequences, gathered keys and values, Ulysses, and rings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # the name that torch's own documentation uses

from autoshard.graph.attention_kind import CHOSEN, head_dims
from autoshard.graph.partition import OperatorStep
from autoshard.graph.score_tiles import most_of_a_mask
from autoshard.layout.context_parallel import RINGS
from autoshard.runtime.torch_backend.collectives import all_to_all, differentiable
from autoshard.runtime.torch_backend.context import Context, Kernel
from autoshard.runtime.torch_backend.document_mask import document_mask, sees, sees_all_before
from autoshard.runtime.torch_backend.dropout import Mask, dropped_product, places
from autoshard.runtime.torch_backend.flex_attention import Kind, block_mask, flex_attention
from autoshard.runtime.torch_backend.groups import Group
from autoshard.runtime.torch_backend.heads import heads_of_rows, rows_of_keys
from autoshard.runtime.torch_backend.recomputing_ops import MaskedSoftmax, SoftCap
from autoshard.runtime.torch_backend.ring_attention import Ring, ring_attention


def attention(context: Context, step: OperatorStep) -> Kernel:
    """The kernel of attention: q [batch seq kvhead group headdim], k and v [batch seq kvhead headdim], in the graph's
    dim order -> a tensor like q, with heads as wide as those of v."""
    op = step.operator
    query_dims, key_dims = context.dims(op.inputs[0]), context.dims(op.inputs[1])
    (key_value, group), width = head_dims(op), query_dims[-1]
    to_heads = [query_dims.index(dim) for dim in ("batch", key_value, group, "seq", width)]
    keys_to_heads = [key_dims.index(dim) for dim in ("batch", key_value, "seq", width)]
    back = [to_heads.index(i) for i in range(len(to_heads))]
    documents, has_sinks, chooses = (bool(op.attributes.get(name)) for name in ("documents", "sinks", "chosen"))
    mask_to_heads = None
    if "chosen_block" in op.attributes:
        mask_dims = context.dims(op.inputs[CHOSEN])
        mask_to_heads = [mask_dims.index(dim) for dim in ("batch", key_value, "seq", mask_dims[-1])]
    core = without_empty_heads(context, step, _core(context, step))

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        starts = more[-1] if documents else None
        # permute and flatten, not einops: its six patterns a block take a small step 1.5 % longer
        inputs = q.permute(to_heads), k.permute(keys_to_heads), v.permute(keys_to_heads)
        if chooses:
            named = {"sinks": more[1]} if has_sinks else {}
            chosen = more[0] if mask_to_heads is None else more[0].permute(mask_to_heads)
            return core(*inputs, starts=None, chosen=chosen, **named).permute(back)
        more = more[:-1] if documents else more
        if has_sinks:
            return core(*inputs, *more[1:], starts=starts, sinks=more[0]).permute(back)
        return core(*inputs, *more, starts=starts).permute(back)

    return run


def without_empty_heads(context: Context, step: OperatorStep, core: Kernel) -> Kernel:
    """The kernel with the output of empty query heads set to zero. An empty head sees the values of the key-value head
    that it shares; zero makes the gradient of the weights behind it zero."""
    _, group = head_dims(step.operator)
    position, count = context.piece(step, group)
    held = context.graph.sizes[group] // count
    valid: Any = step.operator.attributes.get("valid_group", (position + 1) * held)
    own = valid - position * held  # of the piece of each key-value head
    if own >= held:
        return core

    def run(q: torch.Tensor, *more: torch.Tensor, **named: torch.Tensor | None) -> torch.Tensor:
        full = torch.arange(held, device=q.device) < own
        return core(q, *more, **named) * full.view(held, 1, 1).to(q.dtype)

    return run


def _core(context: Context, step: OperatorStep) -> Kernel:
    """The kernel of attention on q [batch kvhead group seq headdim], k and v [batch kvhead seq headdim], with dropout
    of its weights."""
    op = step.operator
    seq = context.graph.sizes["seq"]
    window: Any = op.attributes["sliding_window"]
    scale: Any = op.attributes.get("scale")
    softcap: Any = op.attributes.get("softcap")
    chunk: Any = op.attributes.get("chunk")
    position, count = context.piece(step, "seq")
    kind = op.attributes.get("context_parallel")
    group = None if kind is None else context.group(step, "seq")  # else nothing is sent here, and none may be there
    plain = op.attributes["kernel"] == "plain"
    reach = seq if window is None else window
    mine = context.positions(step)
    if group is not None and kind in RINGS:
        pieces: Any = op.attributes["sequence_pieces"]
        return _in_tiles(Ring(group, pieces, seq // len(pieces), reach, scale, softcap, chunk), mine)
    over_heads = group is not None and kind == "ulysses"
    if over_heads:
        position, count, mine = 0, 1, torch.arange(seq)
    block: Any = op.attributes.get("chosen_block")
    tiles = _in_tiles(
        Ring(None, tuple(range(count)), seq // count, reach, scale, softcap, chunk, position, block), mine
    )
    if not plain and (softcap is not None or op.attributes.get("sinks") or block is not None):
        whole = tiles  # torch's fused attention knows none of these
    else:
        attend: Kernel = partial(_fused_attention, scale=scale)
        if plain:
            attend = partial(plain_attention, weigh=weighing(context, step), scale=scale, softcap=softcap)
        inside = _inside_documents(context, mine, window, chunk, not plain)
        place = (seq, position, count, window, chunk)
        shared = _shared_mask(context, place, not plain)
        of_chosen = partial(_of_chosen, added=not plain) if block is None else partial(_of_blocks, mine, block, seq)
        whole = _grouped(attend, shared, inside, of_chosen)
        if not plain:
            whole = _unless_too_large(whole, tiles, is_masked=not _is_causal_alone(*place))
    if not plain:
        first = position * (seq // count)
        has_sinks = bool(op.attributes.get("sinks"))
        kind = Kind(first, seq, window, chunk, softcap, scale, has_sinks)
        whole = _flexible(context, kind, whole)
    return _over_heads(whole, group) if group is not None and over_heads else whole


def _flexible(context: Context, kind: Kind, otherwise: Kernel) -> Kernel:
    """The kernel that takes flex_attention where that has one, and the other way elsewhere: on other devices, and where
    a microbatch has documents or chosen keys of its own."""

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *more: torch.Tensor, **named: Any) -> torch.Tensor:
        if named["starts"] is None and named.get("chosen") is None and kind.takes(q, k, v):
            key = ("blocks", kind, q.shape[-2], q.device)
            if key not in context.tables:
                context.tables[key] = block_mask(kind, q.shape[-2], q.device)
            out = flex_attention(kind, q, k, v, named.get("sinks"), context.tables[key])
            if out is not None:
                return out
        return otherwise(q, k, v, *more, **named)

    return run


WIDEST_ON_GPU = 256
"""The widest heads of torch's flash kernels on a GPU. For wider ones it writes all scores in FP32, and keeps them."""


def _unless_too_large(whole: Kernel, tiles: Kernel, is_masked: bool) -> Kernel:
    """The kernel that computes tile by tile where a mask would take too much memory, and what a GPU has no flash kernel
    for; chosen keys without sinks never. is_masked: whether there is a mask without documents, too."""

    def run(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts: torch.Tensor | None, **chosen: torch.Tensor
    ) -> torch.Tensor:
        numbers = q.shape[-2] * k.shape[-2] * (1 if starts is None else len(starts))
        has_mask = is_masked or starts is not None
        is_large = has_mask and numbers > most_of_a_mask(on_gpu=q.device.type == "cuda")
        if not chosen and (is_large or _is_too_wide(q)):
            return tiles(q, k, v, starts)
        return whole(q, k, v, starts=starts, **chosen)

    return run


def _is_too_wide(q: torch.Tensor) -> bool:
    return q.device.type == "cuda" and q.shape[-1] > WIDEST_ON_GPU


def _in_tiles(ring: Ring, mine: torch.Tensor) -> Kernel:
    """The kernel that computes scores tile by tile. mine: places of this rank's queries in the sequence."""

    def run(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        starts: torch.Tensor | None,
        sinks: torch.Tensor | None = None,
        chosen: torch.Tensor | None = None,
    ) -> torch.Tensor:
        own = None if starts is None else starts[:, mine.to(starts.device)]
        return ring_attention(q, k, v, ring, own, sinks, chosen)

    return run


def _inside_documents(
    context: Context, positions: torch.Tensor, window: int | None, chunk: int | None, added: bool
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A function (where documents start [batch row], queries) -> the mask of a microbatch. added: the mask is numbers
    to add to scores, and is kept."""
    if added:
        return lambda starts, q: context.document_masks.added(starts, positions, window, chunk, q)
    return lambda starts, q: document_mask(starts, positions, window, chunk)


def _grouped(
    attend: Kernel,
    mask: Callable[[torch.Tensor], torch.Tensor | None],
    inside: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    of_chosen: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Kernel:
    """The kernel with query heads laid side by side, those that share a key-value head next to each other. q may be a
    piece of the sequence. mask, inside, of_chosen: make the mask of the places of keys, of documents too, or of chosen
    keys."""

    def run(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *more: torch.Tensor,
        starts: torch.Tensor | None,
        chosen: torch.Tensor | None = None,
        **sinks: torch.Tensor,
    ) -> torch.Tensor:
        if chosen is not None:
            seen: torch.Tensor | None = of_chosen(chosen, q)
        else:
            seen = mask(q) if starts is None else inside(starts, q)
        return attend(q.flatten(1, 2), k, v, seen, *more, **sinks).unflatten(1, q.shape[1:3])

    return run


def _of_chosen(chosen: torch.Tensor, q: torch.Tensor, added: bool) -> torch.Tensor:
    """The mask [batch, 1, queries, keys] of chosen keys [batch, queries, keys]. added: as numbers to add to scores."""
    seen = chosen.unsqueeze(1)
    return _added(seen, q) if added else seen


def _of_blocks(mine: torch.Tensor, block: int, seq: int, chosen: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """The mask [batch, kvhead, queries, keys] of chosen blocks of keys [batch, kvhead, queries, blocks]. mine: places
    of the queries in the sequence."""
    keys = torch.arange(seq, device=q.device)
    return chosen.index_select(-1, keys // block) & (keys <= mine.to(q.device).unsqueeze(1))


def _shared_mask(
    context: Context, place: tuple[int, int, int, Any, Any], added: bool
) -> Callable[[torch.Tensor], torch.Tensor | None]:
    """A function from queries to their mask, which is made once for all blocks of the stage. place: arguments of
    `_attention_mask`. added: the mask is numbers to add to scores."""
    if _is_causal_alone(*place):
        return lambda q: None

    def mask(q: torch.Tensor) -> torch.Tensor:
        key = ("mask", *place, added, q.dtype, q.device)
        if key not in context.tables:
            seen = _attention_mask(*place)
            assert seen is not None
            context.tables[key] = _added(seen, q) if added else seen.to(q.device)
        return context.tables[key]

    return mask


def _over_heads(whole: Kernel, group: Group) -> Kernel:
    """The kernel under Ulysses: each rank gets the whole sequence for its share of the heads, and gives back its part
    of the sequence for all heads."""

    def exchange(gather_dim: int, split_dim: int) -> Callable[[torch.Tensor], torch.Tensor]:
        return differentiable(
            lambda x: all_to_all(x, group, gather_dim, split_dim), lambda x: all_to_all(x, group, split_dim, gather_dim)
        )

    heads, query_rows, key_rows = 1, 3, 2
    queries, keys, back = exchange(query_rows, heads), exchange(key_rows, heads), exchange(heads, query_rows)

    def run(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *more: torch.Tensor,
        starts: torch.Tensor | None,
        **sinks: torch.Tensor,
    ) -> torch.Tensor:
        own = {name: x.chunk(group.size)[group.index] for name, x in sinks.items()}
        out: torch.Tensor = _ReplayMark.apply(back(whole(queries(q), keys(k), keys(v), *more, starts=starts, **own)))
        return out

    return run


class _ReplayMark(torch.autograd.Function):
    """The identity, which marks how far a replay under recompute runs: it stops after the last tensor that was
    saved."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x.new_empty(0))
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        assert ctx.saved_tensors
        return grads[0]


def _is_causal_alone(seq: int, position: int, count: int, window: Any, chunk: Any = None) -> bool:
    """Whether the mask is plain causality over the whole sequence."""
    return count == 1 and sees_all_before(seq, window, chunk)


def _attention_mask(seq: int, position: int, count: int, window: Any, chunk: Any = None) -> torch.Tensor | None:
    """Boolean mask [queries, keys], True where a query sees a key; None where plain causality over the whole sequence
    says it all."""
    if _is_causal_alone(seq, position, count, window, chunk):
        return None
    length = seq // count
    query = torch.arange(position * length, (position + 1) * length).unsqueeze(1)
    return sees(query, torch.arange(seq), window, chunk)


def _added(mask: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """The mask as numbers to add to scores, in their dtype; with a boolean mask torch makes and keeps such a copy for
    every microbatch."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=scores.dtype).masked_fill_(~mask, float("-inf"))
    return mask.to(scores)


def _fused_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scale: float | None = None
) -> torch.Tensor:
    if q.device.type == "cpu" and (v.shape[-1] < q.shape[-1] or _pays_wide(k)):
        out: torch.Tensor = _OnCpu.apply(q, k, v, mask, scale)
        return out
    shared, causal, width = q.shape[1] > k.shape[1], mask is None, v.shape[-1]
    attend = partial(F.scaled_dot_product_attention, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=shared)
    if shared and width < q.shape[-1]:  # of torch's kernels one takes heads that share keys, another narrower values
        return attend(q, k, F.pad(v, (0, q.shape[-1] - width)))[..., :width]
    return attend(q, k, v)


SHORT_KEYS = 128
"""Up to so many keys the backward of torch's kernel on CPU takes less time in FP32 than in bfloat16: at 128 keys a
fifth of it for heads of 16 numbers, four fifths for heads of 128, for which it takes more at 256."""


def _pays_wide(k: torch.Tensor) -> bool:
    return k.dtype == torch.bfloat16 and k.shape[-2] <= SHORT_KEYS


class _OnCpu(torch.autograd.Function):
    """Fused attention on CPU where its kernel needs help: values narrower than keys are padded with zeros while it
    runs, and few keys in bfloat16 are converted to FP32. What backward reads is kept as it came. q [batch heads rows
    headdim], k [batch kvheads keys headdim], v [batch kvheads keys valuedim]."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scale: float | None
    ) -> torch.Tensor:
        width = v.shape[-1]
        dtype = torch.float32 if _pays_wide(k) else q.dtype
        seen = None if mask is None else mask.to(dtype)
        wide, log_sum_exp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *(_padded(x, q.shape[-1], dtype) for x in (q, k, v)), 0.0, mask is None, attn_mask=seen, scale=scale
        )
        out = wide.to(q.dtype)
        if width < q.shape[-1]:  # by rows, as the projection behind it reads it
            out = out.transpose(1, 2)[..., :width].contiguous().transpose(1, 2)
        ctx.save_for_backward(q, k, v, out, log_sum_exp, seen)
        ctx.scale, ctx.dtype = scale, dtype
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        q, k, v, out, log_sum_exp, seen = ctx.saved_tensors
        values = [_padded(x, q.shape[-1], ctx.dtype) for x in (grads[0], q, k, v, out)]
        found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *values, log_sum_exp, 0.0, seen is None, attn_mask=seen, scale=ctx.scale
        )
        grad_q, grad_k, grad_v = (x.to(q.dtype) for x in found)
        return grad_q, grad_k, grad_v[..., : v.shape[-1]], None, None


def _padded(x: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor:
    missing = width - x.shape[-1]
    return F.pad(x, (0, missing)).to(dtype) if missing else x.to(dtype)


def weighing(context: Context, step: OperatorStep) -> Kernel:
    """The kernel that weighs values: weights [batch heads queries keys], v [batch kvheads keys headdim] -> [batch
    kvheads heads/kvheads*queries headdim]; with dropout, some weights are dropped."""
    rate: Any = step.operator.attributes.get("dropout")
    if rate is None:
        return _product
    key_value, sharing = head_dims(step.operator)
    heads, queries = places(context, step, key_value), places(context, step, "seq")
    group = context.group(step, "seq")
    if group is not None and step.operator.attributes.get("context_parallel") == "ulysses":
        heads, queries = heads.chunk(group.size)[group.index], torch.arange(context.graph.sizes["seq"])
    keys = torch.arange(context.graph.sizes["seq"])
    mask = Mask(step.operator.name, (heads, places(context, step, sharing), queries, keys), rate)

    def weigh(weights: torch.Tensor, v: torch.Tensor, sequences: torch.Tensor) -> torch.Tensor:
        if not torch.is_grad_enabled():
            return _product(weights, v)
        return dropped_product(weights, v, sequences, mask)

    return weigh


def _product(weights: torch.Tensor, v: torch.Tensor, *unused: torch.Tensor) -> torch.Tensor:
    return rows_of_keys(weights, v.shape[1]) @ v


def plain_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    *more: torch.Tensor,
    weigh: Kernel = _product,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention with scores written out and the softmax in FP32 (or FP64). Query heads that share keys are more rows of
    one matrix product."""
    length, head_dim = q.shape[2:]
    scores = rows_of_keys(q, k.shape[1]) @ k.transpose(-1, -2) * (head_dim**-0.5 if scale is None else scale)
    if softcap is not None:
        scores = SoftCap.apply(scores, softcap)
    if mask is None:
        mask = torch.ones(length, k.shape[-2], dtype=torch.bool, device=q.device).tril()
    weights = MaskedSoftmax.apply(heads_of_rows(scores, length), mask, sinks)
    del scores  # before weights that are dropped are as large as they
    return heads_of_rows(weigh(weights, v, *more), length)
