"""Rules for causal attention: torch's own operator, or products, mask and softmax written out; heads shared or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch

from autoshard.tracer.arrange import TIES
from autoshard.tracer.dims import Dim, Dims, resolve, same, size_of, unify
from autoshard.tracer.rules.experts import is_row_of_each_token
from autoshard.tracer.tracer import Tracer, rule
from autoshard.tracer.values import Constant, Gates, Operation, Parameter, Scores, Unsupported, Value, View

HIDDEN_SCORE = -1e4
"""A number of at most this, added to a score, hides it."""


@rule("scaled_dot_product_attention")
def scaled_dot_product_attention(
    t: Tracer,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    if attn_mask is None and not is_causal:
        raise Unsupported("attention without a causal mask has no rule: tokens must not see later ones")
    window = None if attn_mask is None else _window(t, attn_mask)
    q, k, v = (t.view(one) for one in (query, key, value))
    return attend(t, q, k, v, scale, window, enable_gqa)


def product_of_activations(t: Tracer, x: View | Scores, y: Value) -> Value:
    """The value of a product of two activations: scores q k^T, or attention's result, probabilities times v."""
    if isinstance(x, Scores):
        if not x.softmaxed:
            raise Unsupported("attention scores are multiplied without a softmax before")
        return attend(t, x.query, x.key, t.view(y), x.factor, x.window, False)
    right = t.view(y)
    if len(x.axes) != 4 or len(right.axes) != 4 or x.shape[2] != (t.seq,) or right.shape[3] != (t.seq,):
        raise Unsupported("a product of two activations has a rule where it is q @ k^T, [batch, heads, tokens, head]")
    key = View(right.tensor, (*right.axes[:2], right.axes[3], right.axes[2]))
    return Scores(x, key, 1.0)


def scale_scores(x: Scores, number: float) -> Scores:
    if x.masked:
        raise Unsupported("attention scores are multiplied behind their mask")
    return Scores(x.query, x.key, x.factor * number)


def add_to_scores(t: Tracer, x: Scores, mask: Constant) -> Scores:
    return _masked(x, _window(t, mask))


def _masked(x: Scores, window: int | None) -> Scores:
    """Scores behind one more causal mask: a query sees the keys that every mask shows, so the smallest window holds."""
    if x.softmaxed:
        raise Unsupported("attention scores are masked behind their softmax")
    windows = [one for one in (x.window, window) if one is not None]
    return Scores(x.query, x.key, x.factor, True, min(windows, default=None))


@rule("masked_fill", "where")
def masked_fill(t: Tracer, *args: Value) -> Value:
    """Scores with a causal mask, from scores.masked_fill(hidden, -inf) or where(seen, scores, -inf)."""
    scores, mask, filler = args if isinstance(args[0], Scores) else (args[1], args[0], args[2])
    number = t.number(filler)
    if not isinstance(scores, Scores) or not isinstance(mask, Constant) or number is None or number > HIDDEN_SCORE:
        raise Unsupported("it fills a tensor by a mask, which has a rule for attention scores and -inf only")
    window = _window(t, mask, hides=isinstance(args[0], Scores))
    return _masked(scores, window)


@rule("softmax", "_softmax")
def softmax(t: Tracer, x: Value, axis: int, *args: Value, **kwargs: Value) -> Value:
    if axis not in (-1, len(t.shape) - 1):
        raise Unsupported("softmax has a rule over the last axis only")
    if isinstance(x, Scores):
        if x.softmaxed:
            raise Unsupported("it takes the softmax of attention's probabilities")
        if not x.masked:
            raise Unsupported("attention without a causal mask has no rule: tokens must not see later ones")
        return Scores(x.query, x.key, x.factor, True, x.window, softmaxed=True)
    if isinstance(x, Gates) and x.part == "weights" and not x.softmaxed and is_row_of_each_token(t, x.top_k):
        return replace(x, softmaxed=True, normalized=True)  # of the top k alone: they add up to 1
    return Gates(t.view(x), True)


def _window(t: Tracer, mask: Value, hides: bool = False) -> int | None:
    """The number of keys that a query sees by a mask, itself included; None if the mask is causal alone.

    hides: whether True in the mask hides a key. Raises Unsupported for any other mask.
    """
    if not isinstance(mask, Constant):
        raise Unsupported("its mask depends on the tokens or on parameters")
    if (mask, hides) not in t.windows:
        seen = _seen(mask.compute())
        t.windows[mask, hides] = _keys_seen(~seen if hides else seen, t.seq.size)
    return t.windows[mask, hides]


def _seen(mask: torch.Tensor) -> torch.Tensor:
    """Which keys each query sees [query, key], from a mask of booleans or of numbers that are added."""
    if mask.dtype == torch.bool:
        return mask
    seen = mask > HIDDEN_SCORE
    if bool((mask[seen] != 0).any()):
        raise Unsupported("it adds other numbers to attention scores than 0 and -inf")
    return seen


def _keys_seen(mask: torch.Tensor, length: int) -> int | None:
    rows = mask.expand(*mask.shape[:-2], length, length).reshape(-1, length, length)
    seen = rows[0]
    if not all(torch.equal(other, seen) for other in rows[1:]):
        raise Unsupported("its mask differs between heads or sequences")
    causal = torch.ones(length, length, dtype=torch.bool).tril_()
    if torch.equal(seen, causal):
        return None
    window = int(seen[-1].sum())
    if not torch.equal(seen, causal.triu_(1 - window)):
        raise Unsupported("its mask is neither causal nor causal with a window")
    return window


def attend(t: Tracer, q: View, k: View, v: View, scale: float | None, window: int | None, shares_heads: bool) -> View:
    """The result of attention [batch, heads, tokens, head], from q, k and v of this shape.

    Heads become (kvhead, group).
    """
    for view in (q, k, v):
        if len(view.axes) != 4 or view.shape[2] != (t.seq,) or view.shape[0] != (t.batch,):
            raise Unsupported("attention has a rule for tensors [batch, heads, tokens, head]")
    (kv_heads, group), head, value_head = _share_heads(t, q, k, v, shares_heads)
    t.roles += [("kvhead", kv_heads), ("group", group), ("headdim", head), ("headdim", value_head)]
    query = q.tensor
    factor = 1.0 if scale is None else scale * size_of(head) ** 0.5
    if abs(factor - 1) > 1e-5:
        query = t.emit("elementwise", (query,), query.dims, function="pointwise", expression=f"(mul x0 {factor!r})")
    heads = resolve(q.axes[1]) or (*kv_heads, *group)
    dims = (t.batch, t.seq, *heads, *value_head)
    found = t.emit("attention", (query, k.tensor, v.tensor), dims, sliding_window=window)
    return View(found, (q.axes[0], heads, q.axes[2], value_head))


def _share_heads(t: Tracer, q: View, k: View, v: View, shares_heads: bool) -> tuple[tuple[Dims, Dims], Dims, Dims]:
    """((kvhead, group), head of queries and keys, head of values): the dims into which the query's heads split.

    kvhead is the part that the keys have.
    """
    key_heads, key_head = _own_heads(k)
    value_heads, value_head = _own_heads(v)
    unify(key_heads, value_heads)
    key_heads = resolve(key_heads)
    held = set(key_heads)
    repeats = tuple(dim for dim in resolve(k.axes[1]) if dim not in held)
    unify(repeats, [dim for dim in resolve(v.axes[1]) if dim not in held])
    repeats = resolve(repeats)
    if not same(k.axes[1], v.axes[1]):
        raise Unsupported("it repeats the heads of keys in one order and those of values in another")
    if shares_heads and not repeats:
        repeats = (Dim(size_of(q.axes[1]) // size_of(key_heads)),)
    group = repeats or (Dim(1),)
    order = [dim for dim in resolve(k.axes[1]) if dim in held or dim in group]
    heads = (*(order if len(order) == len(held) + len(group) else (*key_heads, *group)),)
    query_head = _give_heads(t, q, heads)
    unify(query_head, key_head)
    return (key_heads, group), resolve(key_head), resolve(value_head)


def _own_heads(view: View) -> tuple[Dims, Dims]:
    """(dims of its heads, dims of one head) of keys or values. If all queries share one head, it gets a dim of
    size 1.
    """
    held = set(view.tensor.dims)
    heads = tuple(dim for dim in resolve(view.axes[1]) if dim in held)
    head = resolve(view.axes[3])
    if heads:
        return heads, head
    one, rest = Dim(1), Dim(head[0].size)
    head[0].becomes((one, rest))
    return (one,), (rest, *head[1:])


def _read_again(operations: Sequence[Operation]) -> str | None:
    """The first parameter that several operators read; None without one. A table of token embeddings may be read again:
    the head may have it.
    """
    tables = {one for op in operations if op.kind == "embedding" for one in op.inputs}
    read = Counter(one for op in operations for one in op.inputs if isinstance(one, Parameter) and one not in tables)
    return next((one.tensor for one, count in read.items() if count > 1), None)


def _give_heads(t: Tracer, q: View, heads: Dims) -> Dims:
    """Make `heads` the dims of the query's heads, and return the dims of one head."""
    own, head = resolve(q.axes[1]), resolve(q.axes[3])
    if set(own) & set(heads):
        told = "queries and keys are parts of one tensor whose heads cannot be told apart"
        again = _read_again(t.operations)
        raise Unsupported(told if again is None else f"parameter {again} was read before; {TIES}")
    if size_of(own) != size_of(heads):
        raise Unsupported(f"{size_of(own)} heads of queries meet {size_of(heads)} of keys")
    if not own:
        rest = Dim(head[0].size)
        head[0].becomes((*heads, rest))
        return (rest, *head[1:])
    if len(own) == 1:
        own[0].becomes(heads)
        return head
    if len(own) != len(heads) or any(a.size != b.size for a, b in zip(own, heads, strict=True)):
        raise Unsupported("the heads of queries are of several dims, and of other ones than those of keys")
    for mine, theirs in zip(own, heads, strict=True):
        mine.becomes((theirs,))
    return head
