"""Computes blocks that mix tokens by a recurrence: causal convolution, gated delta rule, Mamba-2's state space, and
lightning attention, which is such a state space; and Mamba-1's.

In FP32 (or FP64), in chunks: within a chunk matrix products, from chunk to chunk the recurrence; of Mamba-1 all chunks
go token by token at once. They keep their inputs
alone; backward computes forward again. Where several documents share a row, one more input says where the document of
each token starts: a convolution sees no token before that, and at the first token of a document all of a state fades.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # the name that torch's own documentation uses

from autoshard.graph.partition import OperatorStep
from autoshard.graph.recurrent_kinds import DELTA_CHUNK, fades_by_channel, numbers_of_head
from autoshard.graph.score_tiles import scan_tile
from autoshard.runtime.torch_backend.context import Context, Kernel, in_pieces
from autoshard.runtime.torch_backend.recomputing_ops import at_least_fp32
from autoshard.runtime.torch_backend.run_again import WHOLE, Again, Slices
from autoshard.runtime.torch_backend.turns import turns

L2_EPS = 1e-6
"""Added to the squared length of queries and keys of the delta rule: flash-linear-attention's and transformers'."""


DELTA_BLOCK = 8
"""Tokens of a block of a chunk of the delta rule: where channels fade by themselves, each pair within it has factors of
its own. Blocks of 4 hold as much in backward; of 16 more."""

SLICES_OF_DOCUMENTS = 16
"""Parts of its channels that a convolution works off one after the other where documents are told apart. It then holds
no more than without documents; all at once, in FP32 and tap by tap, it would hold three times as much."""


def _in_order(
    context: Context, step: OperatorStep, function: Callable[..., torch.Tensor], sequences: int, slices: Slices = WHOLE
) -> Kernel:
    """The kernel of a function whose first `sequences` inputs, and its output, are [batch, seq, ...] in the order of
    the original sequence; the graph's may lie in other pieces."""
    pieces: Any = step.operator.attributes.get("sequence_pieces")
    if pieces is None or pieces == tuple(sorted(pieces)):
        return lambda *values: Again.apply(function, slices, *values)
    places = in_pieces(context.graph.sizes["seq"], pieces)

    def ordered(*values: torch.Tensor) -> torch.Tensor:
        here = places.to(values[0].device)
        original = here.argsort()
        mixed = function(*(x[:, original] for x in values[:sequences]), *values[sequences:])
        return mixed[:, here]

    return lambda *values: Again.apply(ordered, slices, *values)


def _told_apart(step: OperatorStep, kernel: Callable[[torch.Tensor | None], Kernel]) -> Kernel:
    """The kernel of an operator. kernel: makes it for where the document of each token starts [batch, row], which is
    the last input where documents are told apart; None where they are not."""
    if not step.operator.attributes.get("documents"):
        return kernel(None)
    return lambda *values: kernel(values[-1])(*values[:-1])


def causal_conv(context: Context, step: OperatorStep) -> Kernel:
    """The kernel of a causal convolution: x [batch, seq, channels...], weight [channels..., tap] and perhaps a bias
    [channels...] -> a tensor like x."""
    attributes: Any = step.operator.attributes
    function = partial(
        _activated if attributes.get("activates", True) else _convolved, dilation=attributes.get("dilation", 1)
    )

    def kernel(starts: torch.Tensor | None) -> Kernel:
        convolved = partial(function, starts=starts)
        if starts is None:
            return _in_order(context, step, convolved, 1)

        def run(*values: torch.Tensor) -> torch.Tensor:
            slices = Slices((2, 0, 0), -(-values[0].shape[2] // SLICES_OF_DOCUMENTS))
            return _in_order(context, step, convolved, 1, slices)(*values)

        return run

    return _told_apart(step, kernel)


def _activated(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    starts: torch.Tensor | None,
    dilation: int = 1,
) -> torch.Tensor:
    return F.silu(_convolved(x, weight, bias, starts=starts, dilation=dilation))


def _convolved(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    starts: torch.Tensor | None,
    dilation: int = 1,
) -> torch.Tensor:
    if starts is not None:
        return _convolved_inside(x, weight, bias, starts, dilation)
    flat, taps = x.flatten(2).transpose(1, 2), weight.shape[-1]
    out = F.conv1d(
        F.pad(flat, ((taps - 1) * dilation, 0)),
        weight.flatten(0, -2).unsqueeze(1),
        None if bias is None else bias.flatten(),
        dilation=dilation,
        groups=flat.shape[1],
    )
    # its channels are torch's second dim; a linear layer behind would copy it once more and keep the copy, too
    return out.transpose(1, 2).reshape(x.shape).contiguous()


def _convolved_inside(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, starts: torch.Tensor, dilation: int
) -> torch.Tensor:
    """The convolution of each document by itself, tap by tap."""
    taps, seq = weight.shape[-1], x.shape[1]
    since = torch.arange(seq, device=x.device) - starts  # the start of each token's document
    flat, each = at_least_fp32(x.flatten(2)), at_least_fp32(weight.flatten(0, -2))
    out = flat * each[:, -1]
    for tap in range(1, min(taps, -(-seq // dilation))):
        apart = tap * dilation
        before = F.pad(flat[:, :-apart], (0, 0, apart, 0)).masked_fill((since < apart).unsqueeze(-1), 0)
        out = out + before * each[:, -1 - tap]
    return (out if bias is None else out + bias.flatten()).view(x.shape).to(x.dtype)


def _forgets(decay: torch.Tensor, starts: torch.Tensor | None) -> torch.Tensor:
    """The logarithms of what tokens leave of a state [batch, seq, ...]: nothing at the first token of a document."""
    if starts is None:
        return decay
    begins = starts == torch.arange(starts.shape[1], device=starts.device)
    return decay.masked_fill(begins.view(*begins.shape, *(1,) * (decay.dim() - 2)), float("-inf"))


def gated_delta_rule(context: Context, step: OperatorStep) -> Kernel:
    """The kernel of the gated delta rule: q, k [batch, seq, head, width], v [batch, seq, head, group, width], b, a
    [batch, seq, head, group], A_log, dt_bias [head, group] -> a tensor like v. Where each channel of a key fades by
    itself: a [batch, seq, head, width], A_log [head], dt_bias [head, width]."""
    by_channel, form = fades_by_channel(step.operator, context.graph), step.operator.attributes
    beta_scale, lower_bound = form.get("beta_scale"), form.get("lower_bound")

    def kernel(starts: torch.Tensor | None) -> Kernel:
        rule = partial(
            _delta_rule, by_channel=by_channel, beta_scale=beta_scale, lower_bound=lower_bound, starts=starts
        )
        if not by_channel:
            return _in_order(context, step, rule, 5)

        def run(*values: torch.Tensor) -> torch.Tensor:
            _, seq, heads, width = values[0].shape
            _, some = scan_tile(1, heads, int(numbers_of_head(seq, width)))
            slices = WHOLE if some == heads else Slices((2, 2, 2, 2, 2, 0, 0), some)
            return _in_order(context, step, rule, 5, slices)(*values)

        return run

    return _told_apart(step, kernel)


def _delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    *,
    by_channel: bool,
    beta_scale: Any = None,
    lower_bound: Any = None,
    starts: torch.Tensor | None = None,
) -> torch.Tensor:
    """The rule as in arXiv 2412.06464, section 3.3, or with by_channel as in arXiv 2510.26692, section 3: within a
    chunk, values that the state of its start already answers are taken off by the inverse of a triangular matrix.
    beta_scale: by which the sigmoid of b is multiplied; None: by nothing. lower_bound: the least logarithm of what a
    token leaves; None: there is none. starts: of documents [batch, seq]."""
    dtype, seq = v.dtype, v.shape[1]
    q, k, v, b, a, a_log, dt_bias = map(at_least_fp32, (q, k, v, b, a, a_log, dt_bias))
    rate = a_log.exp().unsqueeze(-1) if by_channel else a_log.exp()
    decay = -rate * F.softplus(a + dt_bias) if lower_bound is None else lower_bound * (rate * (a + dt_bias)).sigmoid()
    decay = _forgets(decay, starts)
    chunk = min(DELTA_CHUNK, seq + -seq % DELTA_BLOCK if by_channel else seq)
    # [batch, head, group, chunk, token, width]; queries and keys are those of all value heads in their group
    q, k = (_chunks(_unit(x), chunk).permute(0, 3, 1, 2, 4).unsqueeze(2) for x in (q, k))
    v = _chunks(v, chunk).permute(0, 3, 4, 1, 2, 5)
    part = b.sigmoid() if beta_scale is None else b.sigmoid() * beta_scale
    beta = _chunks(part, chunk).permute(0, 3, 4, 1, 2).unsqueeze(-1)
    decay = _chunks(decay, chunk)
    q = q * q.shape[-1] ** -0.5
    weighed = k * beta
    if by_channel:
        decay = decay.permute(0, 3, 1, 2, 4).unsqueeze(2)
        since, told = decay.cumsum(-2).exp(), k * _until_end(decay)
        system, inside = _faded_products((weighed, q), k, decay)
    else:
        decay = decay.permute(0, 3, 4, 1, 2)
        since, between = decay.cumsum(-1).exp().unsqueeze(-1), _kept_between(decay)
        told = k * between[..., -1, :].unsqueeze(-1)
        system, inside = (weighed @ k.mT) * between, (q @ k.mT) * between
    # the system's diagonal counts as ones
    new = torch.linalg.solve_triangular(system, v * beta, upper=False, unitriangular=True)
    known = torch.linalg.solve_triangular(system, weighed * since, upper=False, unitriangular=True)
    asked, fading = (q * since).expand_as(known), since[..., -1, :].unsqueeze(-1).expand(*v.shape[:4], -1, 1)
    told = told.expand_as(known)
    moved, answered = _StatesOfChunks.apply(*(x.flatten(0, 2) for x in (new, known, told, fading, asked)))
    answers = inside @ moved.view(v.shape) + answered.view(v.shape)
    out = answers.permute(0, 3, 4, 1, 2, 5).flatten(1, 2)
    return out[:, :seq].to(dtype)


class _StatesOfChunks(torch.autograd.Function):
    """The delta rule from chunk to chunk: (values moved, what states answer), each [rows, chunk, token, valuedim], of
    new [rows, chunk, token, valuedim], known, told and asked [rows, chunk, token, keydim], fading [rows, chunk, 1, 1]
    or, where each channel of a key fades by itself, [rows, chunk, keydim, 1].

    A chunk moves what is new but for what its state knows; its state fades, and is told what was moved. What does not
    wait for another chunk is one product of all of them, forward and backward: for a GPU the launches count.
    """

    @staticmethod
    def forward(ctx: Any, *values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        new, known, told, fading, asked = values
        (rows, chunks), keys = new.shape[:2], known.shape[-1]
        moved, states = torch.empty_like(new), new.new_empty(rows, chunks, keys, new.shape[-1])
        states[:, 0] = 0
        for i in turns(range(chunks), _alike):
            torch.baddbmm(new[:, i], known[:, i], states[:, i], alpha=-1, out=moved[:, i])
            if i + 1 < chunks:
                behind = torch.mul(states[:, i], fading[:, i], out=states[:, i + 1])
                behind.baddbmm_(told[:, i].mT, moved[:, i])
        ctx.save_for_backward(known, told, fading, asked, moved, states)
        return moved, asked @ states

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        known, told, fading, asked, moved, states = ctx.saved_tensors
        of_moved, of_answers = grads
        new, behind = torch.empty_like(moved), torch.empty_like(states)  # behind: of the state behind each chunk
        behind[:, -1] = 0
        for i in turns(range(moved.shape[1] - 1, -1, -1), _alike):
            torch.baddbmm(of_moved[:, i], told[:, i], behind[:, i], out=new[:, i])
            if i:
                before = torch.mul(behind[:, i], fading[:, i], out=behind[:, i - 1])
                before.baddbmm_(asked[:, i].mT, of_answers[:, i]).baddbmm_(known[:, i].mT, new[:, i], alpha=-1)
        each, other = (x.flatten(-2).unflatten(-1, (fading.shape[-2], -1)) for x in (states, behind))
        faded = (each.unsqueeze(-2) @ other.unsqueeze(-1)).squeeze(-1)
        return new, (new @ states.mT).neg_(), moved @ behind.mT, faded, of_answers @ states.mT


def _alike(chunk: int) -> tuple[int, ...]:
    """The sizes of what each chunk's state takes: those of all others."""
    return ()


GROUPS, HEADS = (2, 2, 2, 2, 0, 0, 0), (3, 3, None, None, 1, 1, 1)
"""The dims of groups, and of their heads, of a scan's inputs."""


def state_space_scan(context: Context, step: OperatorStep) -> Kernel:
    """The kernel of Mamba-2's state space: x [batch, seq, head, width], dt [batch, seq, head], B, C [batch, seq,
    state], A_log, D, dt_bias [head] -> a tensor like x. Groups of heads, each with its B and C, are a dim more."""
    chunk: Any = step.operator.attributes["chunk_size"]

    def kernel(starts: torch.Tensor | None) -> Kernel:
        function = partial(_scan, chunk=chunk, starts=starts)

        def scan(*values: torch.Tensor) -> torch.Tensor:
            _, seq, groups, heads = values[1].shape
            some_groups, some_heads = scan_tile(groups, heads, seq * min(chunk, seq))
            if some_heads == heads:
                return _in_order(context, step, function, 4, Slices(GROUPS, some_groups))(*values)
            each = zip(*(x.split(1, dim) for x, dim in zip(values, GROUPS, strict=True)), strict=True)
            of_heads = _in_order(context, step, function, 4, Slices(HEADS, some_heads))
            return torch.cat([of_heads(*one) for one in each], 2)

        if "mamba_group" in step.operator.loop_dims:
            return scan
        return lambda *values: scan(*(x.unsqueeze(dim) for x, dim in zip(values, GROUPS, strict=True))).squeeze(2)

    return _told_apart(step, kernel)


def _scan(
    x: torch.Tensor,
    dt: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    a_log: torch.Tensor,
    d: torch.Tensor,
    dt_bias: torch.Tensor,
    *,
    chunk: int,
    starts: torch.Tensor | None = None,
) -> torch.Tensor:
    """The scan as in arXiv 2405.21060, section 6: x [batch, seq, group, head, width], dt [batch, seq, group, head], b,
    c [batch, seq, group, state], others [group, head]. starts: of documents [batch, seq]."""
    dtype, seq, given = x.dtype, x.shape[1], x
    x, dt, b, c, a_log, d, dt_bias = map(at_least_fp32, (x, dt, b, c, a_log, d, dt_bias))
    dt = F.softplus(dt + dt_bias)
    chunk = min(chunk, seq)
    # [batch, group, head, chunk, token, width]; B and C are those of all heads of a group
    decay = _chunks(_forgets(-a_log.exp() * dt, starts), chunk).permute(0, 3, 4, 1, 2)
    values = _chunks(x * dt.unsqueeze(-1), chunk).permute(0, 3, 4, 1, 2, 5)
    b, c = (_chunks(one, chunk).permute(0, 3, 1, 2, 4).unsqueeze(2) for one in (b, c))

    def output(answers: torch.Tensor) -> torch.Tensor:
        out = answers.permute(0, 3, 4, 1, 2, 5).flatten(1, 2)[:, :seq]
        return (out + at_least_fp32(given) * d.unsqueeze(-1)).to(dtype)

    return _answered(c, b, values, decay, output)


def _answered(
    asked: torch.Tensor,
    told: torch.Tensor,
    values: torch.Tensor,
    decay: torch.Tensor,
    output: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """The output of a recurrence: at each token the state fades, the token's value is added, times what it tells, and
    the token gets the state times what it asks.

    asked, told: [..., chunk, token, state]. values: [..., chunk, token, width]. decay: logarithms of how much of the
    state is left at a token, [..., chunk or 1, token], which all chunks may share. output: makes the result of what
    tokens get, [..., chunk, token, width].
    """
    since, between = decay.cumsum(-1).exp(), _kept_between(decay)
    inside = ((asked @ told.mT) * between) @ values
    states = values.mT @ (told * between[..., -1, :].unsqueeze(-1))
    # a chunk starts with what those before it told, faded by the chunks in between
    of_chunks = decay.sum(-1).expand(*decay.shape[:-2], values.shape[-3])
    ends = _kept_between(of_chunks) @ states.flatten(-2)
    starts = F.pad(ends[..., :-1, :], (0, 0, 1, 0)).view(states.shape)
    before = (asked @ starts.mT) * since.unsqueeze(-1)
    return output(inside + before)


CHANNELS = (2, 2, None, None, 0, 0, 0)
"""The dims of channels of a selective scan's inputs."""
STEP = 16
"""Tokens of a chunk of a selective scan. Few mean few launches, but more of them for the chunks' own states; a guess
between both."""


def selective_scan(context: Context, step: OperatorStep) -> Kernel:
    """The kernel of Mamba-1's state space: x, dt [batch, seq, channel], B, C [batch, seq, state], A_log [channel,
    state], D, dt_bias [channel] -> a tensor like x."""

    def kernel(starts: torch.Tensor | None) -> Kernel:
        function = partial(_selective, starts=starts)

        def scan(*values: torch.Tensor) -> torch.Tensor:
            (_, seq, channels), state = values[0].shape, values[2].shape[-1]
            _, some = scan_tile(1, channels, seq * state)
            slices = WHOLE if some == channels else Slices(CHANNELS, some)
            return _in_order(context, step, function, 4, slices)(*values)

        return scan

    return _told_apart(step, kernel)


def _selective(
    x: torch.Tensor,
    dt: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    a_log: torch.Tensor,
    d: torch.Tensor,
    dt_bias: torch.Tensor,
    *,
    starts: torch.Tensor | None = None,
) -> torch.Tensor:
    """The scan as in arXiv 2312.00752, algorithm 2. Inputs: as of `selective_scan`. starts: of documents [batch,
    seq]."""
    dtype = x.dtype
    x, dt, b, c, a_log, d, dt_bias = map(at_least_fp32, (x, dt, b, c, a_log, d, dt_bias))
    time = F.softplus(dt + dt_bias)
    answers: torch.Tensor = _StatesOfTokens.apply(time, -a_log.exp(), x * time, b, c, starts)
    return (answers + x * d).to(dtype)


class _StatesOfTokens(torch.autograd.Function):
    """The answers that tokens get of the states of channels [batch, seq, channel]: at each token each number of a state
    is multiplied by exp(time * rate), and told * b is added; a token gets the state times c.

    time, told: [batch, seq, channel]. rate: [channel, state]. b, c: [batch, seq, state]. starts: of documents [batch,
    seq], or None.
    """

    @staticmethod
    def forward(ctx: Any, *values: torch.Tensor) -> torch.Tensor:
        time, rate, told, b, c, starts = values
        kept = (time.unsqueeze(-1) * rate).exp_()
        if starts is not None:
            begins = starts == torch.arange(starts.shape[1], device=starts.device)
            kept.masked_fill_(begins[..., None, None], 0)
        states = told.unsqueeze(-1) * b.unsqueeze(-2)
        _follow(kept.clone(), states)
        ctx.save_for_backward(time, rate, told, b, c, kept, states)
        return (states @ c.unsqueeze(-1)).squeeze(-1)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        time, rate, told, b, c, kept, states = ctx.saved_tensors
        [grad] = grads
        by_c = (grad.unsqueeze(-2) @ states).squeeze(-2)
        by_state = grad.unsqueeze(-1) * c.unsqueeze(-2)
        _follow(kept.roll(-1, 1), by_state, back=True)
        by_told = (by_state @ b.unsqueeze(-1)).squeeze(-1)
        by_b = (told.unsqueeze(-2) @ by_state).squeeze(-2)
        # of the exponent: the gradient of the state, times what was kept of the one before
        by_state.mul_(kept)[:, 1:].mul_(states[:, :-1])
        by_state[:, 0] = 0
        of_channels = by_state.flatten(0, 1).transpose(0, 1)  # [channel, token of all rows, state]
        by_time = (of_channels @ rate.unsqueeze(-1)).squeeze(-1).mT.view(time.shape)
        by_rate = (time.flatten(0, 1).mT.unsqueeze(-2) @ of_channels).squeeze(-2)
        return by_time, by_rate, by_told, by_b, by_c, None


def _follow(kept: torch.Tensor, states: torch.Tensor, back: bool = False) -> None:
    """To what is told at each token [batch, token, ...], add the state at the one before (with back, behind) times
    kept, which is the token's own; in place, and kept is spoilt.

    All chunks of STEP tokens go token by token at once, each from nothing; then their last states follow each other by
    the same rule, and what each began with is added. Products of what is kept are all that is ever multiplied: no
    number is divided or subtracted, however fast a state fades.
    """
    seq, before = states.shape[1], 1 if back else -1
    order = range(seq - 2, -1, -1) if back else range(1, seq)
    if seq <= STEP:
        for i in turns(order, _alike):
            states[:, i].addcmul_(kept[:, i], states[:, i + before])
        return
    rest = seq % STEP  # at the end, or with back at the beginning: what comes last
    whole = slice(rest, seq) if back else slice(0, seq - rest)
    own, told = (x[:, whole].unflatten(1, (-1, STEP)) for x in (kept, states))
    for i in turns(range(STEP - 2, -1, -1) if back else range(1, STEP), _alike):
        told[:, :, i].addcmul_(own[:, :, i], told[:, :, i + before])
        own[:, :, i].mul_(own[:, :, i + before])
    last = 0 if back else STEP - 1
    _follow(own[:, :, last], told[:, :, last], back)
    if back:
        told[:, :-1, 1:].addcmul_(own[:, :-1, 1:], told[:, 1:, :1])
    else:
        told[:, 1:, :-1].addcmul_(own[:, 1:, :-1], told[:, :-1, -1:])
    for i in turns(order[seq - 1 - rest :], _alike):
        states[:, i].addcmul_(kept[:, i], states[:, i + before])


def lightning_attention(context: Context, step: OperatorStep) -> Kernel:
    """The kernel of lightning attention: q, k, v [batch, seq, head, width] -> a tensor like v."""
    op = step.operator
    chunk: Any = op.attributes["chunk_size"]
    rates = _local_rates(context, step)

    def kernel(starts: torch.Tensor | None) -> Kernel:
        function = partial(_lightning, chunk=chunk, starts=starts)

        def run(*values: torch.Tensor) -> torch.Tensor:
            _, seq, heads, _ = values[0].shape
            at_once = scan_tile(1, heads, seq * min(chunk, seq))[1]
            slices = WHOLE if at_once == heads else Slices((2, 2, 2, 0), at_once)
            return _in_order(context, step, function, 3, slices)(*values, rates(values[0]))

        return run

    return _told_apart(step, kernel)


def _local_rates(context: Context, step: OperatorStep) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function from a tensor to the rates of fading of this rank's heads [head] beside it, in FP32 at least; heads
    that are padding do not fade."""
    published: Any = step.operator.attributes["rates"]
    position, count = context.piece(step, "lightning_head")
    padding = context.graph.sizes["lightning_head"] - len(published)
    whole = torch.tensor((*published, *(0.0,) * padding), dtype=torch.float64)

    def rates(like: torch.Tensor) -> torch.Tensor:
        dtype = torch.promote_types(like.dtype, torch.float32)
        place = (step.operator.name, position, count, dtype, like.device)
        if place not in context.tables:
            context.tables[place] = whole.chunk(count)[position].to(device=like.device, dtype=dtype)
        return context.tables[place]

    return rates


def _lightning(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    rates: torch.Tensor,
    *,
    chunk: int,
    starts: torch.Tensor | None = None,
) -> torch.Tensor:
    """Linear attention of the silu of q, k, v [batch, seq, head, width], as Mamba-2's scan with a state for each head.
    rates: [head]. starts: of documents [batch, seq]."""
    dtype, (batch, seq, heads, _) = v.dtype, v.shape
    chunk = min(chunk, seq)
    # [batch, head, chunk, token, width], each copied once, and not by every product that reads it
    q, k, v = (F.silu(at_least_fp32(_chunks(x, chunk).permute(0, 3, 1, 2, 4).contiguous())) for x in (q, k, v))
    if starts is None:
        decay = -rates.view(1, heads, 1, 1).expand(1, heads, 1, chunk)
    else:
        decay = _chunks(_forgets(-rates.expand(batch, seq, heads), starts), chunk).permute(0, 3, 1, 2)
    return _answered(q, k, v, decay, lambda out: out.to(dtype).permute(0, 2, 3, 1, 4).flatten(1, 2)[:, :seq])


def _kept_between(decay: torch.Tensor) -> torch.Tensor:
    """[..., chunk, chunk]: which part of what token j told is left at token i of its chunk; zero before j.

    decay [..., chunk]: logarithms. Summed from j on: differences of sums from the first token would lose their digits.
    """
    chunk = decay.shape[-1]
    causal = torch.ones(chunk, chunk, dtype=torch.bool, device=decay.device).tril()
    steps = decay.unsqueeze(-1).expand(*decay.shape, chunk).masked_fill(~causal.tril(-1), 0)
    return steps.cumsum(-2).masked_fill(~causal, float("-inf")).exp()


def _faded_products(xs: Sequence[torch.Tensor], k: torch.Tensor, decay: torch.Tensor) -> list[torch.Tensor]:
    """[..., token i, token j] of each x [..., token, channel]: the product of x at i and k at j, of which each channel
    has faded from j to i; zero where j is behind i.

    No factor is above 1, however fast a channel fades: within a block of tokens each pair has a factor of its own,
    other keys fade up to the end of their block, the blocks behind it, and up to token i.
    """
    k, decay, *xs = (x.unflatten(-2, (-1, DELTA_BLOCK)) for x in (k, decay, *xs))
    since, told, through = decay.cumsum(-2).exp(), k * _until_end(decay), decay.sum(-2, keepdim=True).exp()
    inside = _faded_within(xs, k, decay)
    rows: list[list[torch.Tensor]] = [[] for _ in xs]
    before = told[..., 0, :0, :]
    for n in range(k.shape[-3]):
        behind = (k.shape[-3] - n - 1) * DELTA_BLOCK
        for x, own, found in zip(xs, inside, rows, strict=True):
            faded = (x[..., n, :, :] * since[..., n, :, :]) @ before.mT
            found.append(F.pad(torch.cat((faded, own[..., n, :, :]), -1), (0, behind)))
        before = torch.cat((before * through[..., n, :, :], told[..., n, :, :]), -2)
    return [torch.cat(found, -2) for found in rows]


def _faded_within(xs: Sequence[torch.Tensor], k: torch.Tensor, decay: torch.Tensor) -> list[torch.Tensor]:
    """The same of the tokens of each block alone, [..., block, token i, token j]: by how far apart both are."""
    tokens, bands = k.shape[-2], [list[torch.Tensor]() for _ in xs]
    kept = torch.zeros_like(decay)
    for apart in range(tokens):
        kept = kept[..., 1:, :] + decay[..., 1 : tokens - apart + 1, :] if apart else kept
        faded = k[..., : tokens - apart, :] * kept.exp()
        for x, found in zip(xs, bands, strict=True):
            found.append(F.pad((x[..., apart:, :] * faded).sum(-1), (apart, 0)))
    place = torch.arange(tokens, device=k.device)
    columns = (place.unsqueeze(-1) - place) % tokens  # of a token behind i there is a zero
    return [torch.stack(found, -1).gather(-1, columns.expand(*found[0].shape, -1)) for found in bands]


def _until_end(decay: torch.Tensor) -> torch.Tensor:
    """Which part of what each token told is left at the last one. decay [..., token, channel]: logarithms."""
    return F.pad(decay[..., 1:, :], (0, 0, 0, 1)).flip(-2).cumsum(-2).flip(-2).exp()


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x * (x.square().sum(-1, keepdim=True) + L2_EPS).rsqrt()


def _chunks(x: torch.Tensor, chunk: int) -> torch.Tensor:
    """[batch, chunks, chunk, ...] of x [batch, seq, ...], with zeros behind the end."""
    more = -x.shape[1] % chunk
    padded = F.pad(x, (*(0,) * 2 * (x.dim() - 2), 0, more)) if more else x
    return padded.unflatten(1, (-1, chunk))
