"""Recurrences in chunks: equal to going token by token and to transformers, and they keep their inputs alone."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import accumulate, pairwise, product
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # the name that torch's own documentation uses
from torch._subclasses.fake_tensor import FakeTensorMode

from autoshard.cost.working_bytes import working_bytes
from autoshard.graph import score_tiles
from autoshard.graph.partition import OperatorStep, Program, partition
from autoshard.graph.recurrent_kinds import DELTA_CHUNK
from autoshard.models.registry import load_model
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.runtime.torch_backend.context import Context
from autoshard.runtime.torch_backend.kernels import kernel
from autoshard.runtime.torch_backend.parameters import initial_parameter
from autoshard.runtime.torch_backend.recomputing_ops import OffsetLayerNorm
from autoshard.runtime.torch_backend.recurrences import (
    GROUPS,
    _activated,
    _convolved,
    _delta_rule,
    _lightning,
    _scan,
    _selective,
    gated_delta_rule,
    lightning_attention,
    selective_scan,
    state_space_scan,
)
from autoshard.runtime.torch_backend.run_again import WHOLE
from autoshard.spec.linear_attention import LightningAttention, LinearAttention, Mamba, Mamba1
from autoshard.spec.model import ModelSpec
from benchmarks.graph_counts import measure
from tests.cases import some
from tests.multiprocess.held import Held
from tests.multiprocess.models import MODELS

BATCH, HEADS, GROUP, KEY, VALUE, STATE = 2, 3, 2, 8, 6, 5
Values = tuple[torch.Tensor, ...]


def numbers(dtype: torch.dtype, *shapes: tuple[int, ...]) -> Values:
    generator = torch.Generator().manual_seed(0)
    return tuple(
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes
    )


def delta_inputs(dtype: torch.dtype, seq: int) -> Values:
    token, heads = (BATCH, seq, HEADS), (HEADS, GROUP)
    keys = (*token, KEY)
    return numbers(dtype, keys, keys, (*token, GROUP, VALUE), (*token, GROUP), (*token, GROUP), heads, heads)


def scan_inputs(dtype: torch.dtype, seq: int) -> Values:
    token = (BATCH, seq)
    heads = ((HEADS,),) * 3
    return numbers(dtype, (*token, HEADS, KEY), (*token, HEADS), (*token, STATE), (*token, STATE), *heads)


def delta_token_by_token(*values: torch.Tensor) -> torch.Tensor:
    q, k, v, b, a, a_log, dt_bias = values
    q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    kept = torch.exp(-a_log.exp() * F.softplus(a + dt_bias))
    state, out = v.new_zeros(BATCH, HEADS, GROUP, KEY, VALUE), []
    for token in range(v.shape[1]):
        key, query = k[:, token, :, None, :, None], q[:, token, :, None, :, None]
        state = state * kept[:, token, ..., None, None]
        error = v[:, token] - (state * key).sum(-2)
        state = state + key * (b[:, token].sigmoid().unsqueeze(-1) * error).unsqueeze(-2)
        out.append((state * query).sum(-2) * KEY**-0.5)
    return torch.stack(out, 1)


def channel_inputs(dtype: torch.dtype, seq: int) -> Values:
    """As delta_inputs, with a rate of fading for each channel of a key."""
    token = (BATCH, seq, HEADS)
    keys = (*token, KEY)
    return numbers(dtype, keys, keys, (*token, GROUP, VALUE), (*token, GROUP), keys, (HEADS,), (HEADS, KEY))


def fading_of_channels(
    a: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor, bound: float | None
) -> torch.Tensor:
    """Logarithms of what is left. bound: the least, None: none."""
    rate = a_log.exp().unsqueeze(-1)
    return -rate * F.softplus(a + dt_bias) if bound is None else bound * torch.sigmoid(rate * (a + dt_bias))


def channels_token_by_token(*values: torch.Tensor, bound: float | None = None) -> torch.Tensor:
    q, k, v, b, a, a_log, dt_bias = values
    q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    kept = fading_of_channels(a, a_log, dt_bias, bound).exp()
    state, out = v.new_zeros(BATCH, HEADS, GROUP, KEY, VALUE), []
    for token in range(v.shape[1]):
        key, query = k[:, token, :, None, :, None], q[:, token, :, None, :, None]
        state = state * kept[:, token, :, None, :, None]
        error = v[:, token] - (state * key).sum(-2)
        state = state + key * (b[:, token].sigmoid().unsqueeze(-1) * error).unsqueeze(-2)
        out.append((state * query).sum(-2) * KEY**-0.5)
    return torch.stack(out, 1)


def of_transformers(family: str, name: str) -> Callable[..., Any]:
    """A function of transformers, which is imported with the first: that takes 2 s, and few processes call one."""
    function: Callable[..., Any] = getattr(import_module(f"transformers.models.{family}.modeling_{family}"), name)
    return function


def channels_of_transformers(*values: torch.Tensor, bound: float | None = None) -> torch.Tensor:
    """Whose value heads each have a key."""
    q, k, v, b, a, a_log, dt_bias = values
    g = fading_of_channels(a, a_log, dt_bias, bound)
    q, k, g = (x.repeat_interleave(GROUP, 2) for x in (q, k, g))
    given = q, k, v.flatten(2, 3), g, b.sigmoid().flatten(2)
    function = of_transformers("kimi_linear", "chunk_kimi_delta_attention")
    found: torch.Tensor = function(*given, use_qk_l2norm_in_kernel=True)[0]
    return found.view(v.shape)


def scan_token_by_token(*values: torch.Tensor) -> torch.Tensor:
    x, dt, b, c, a_log, d, dt_bias = values
    dt = F.softplus(dt + dt_bias)
    state, out = x.new_zeros(BATCH, HEADS, KEY, STATE), []
    for token in range(x.shape[1]):
        time = dt[:, token, :, None, None]
        state = state * torch.exp(-a_log.exp()[:, None, None] * time)
        state = state + time * x[:, token, ..., None] * b[:, token, None, None, :]
        out.append((state * c[:, token, None, None, :]).sum(-1) + d[:, None] * x[:, token])
    return torch.stack(out, 1)


def grouped_scan_inputs(dtype: torch.dtype, length: int) -> Values:
    """As scan_inputs, with GROUP groups of heads behind the tokens."""
    token, heads = (BATCH, length, GROUP), ((GROUP, HEADS),) * 3
    return numbers(dtype, (*token, HEADS, KEY), (*token, HEADS), (*token, STATE), (*token, STATE), *heads)


def grouped_scan_token_by_token(*values: torch.Tensor) -> torch.Tensor:
    groups = zip(*(x.unbind(dim) for x, dim in zip(values, GROUPS, strict=True)), strict=True)
    return torch.stack([scan_token_by_token(*one) for one in groups], 2)


def grouped_scan_in_chunks(*values: torch.Tensor) -> torch.Tensor:
    return _scan(*values, chunk=16)


def grouped_scan_of_transformers(*values: torch.Tensor) -> torch.Tensor:
    """Whose heads lie behind one another, those of a group together."""
    x, dt, b, c, *of_heads = values
    a_log, d, dt_bias = (one.flatten() for one in of_heads)
    given = (x.flatten(2, 3), dt.flatten(2), -a_log.exp(), b, c)
    function = of_transformers("granitemoehybrid", "mamba2_chunk_scan")
    found: torch.Tensor = function(*given, chunk_size=16, D=d, dt_bias=dt_bias, dt_softplus=True)
    return found.view(x.shape)


def delta_of_transformers(*values: torch.Tensor) -> torch.Tensor:
    q, k, v, b, a, a_log, dt_bias = values
    g = -a_log.exp() * F.softplus(a + dt_bias)
    out, _ = of_transformers("qwen3_next", "torch_chunk_gated_delta_rule")(
        q, k, v.flatten(2, 3), g=g.flatten(2), beta=b.sigmoid().flatten(2), use_qk_l2norm_in_kernel=True
    )
    found: torch.Tensor = out
    return found.view(v.shape)


def scan_of_transformers(*values: torch.Tensor) -> torch.Tensor:
    x, dt, b, c, a_log, d, dt_bias = values
    given = (x, dt, -a_log.exp(), b.unsqueeze(2), c.unsqueeze(2))
    function = of_transformers("granitemoehybrid", "mamba2_chunk_scan")
    found: torch.Tensor = function(*given, chunk_size=16, D=d, dt_bias=dt_bias, dt_softplus=True)
    return found


def scan_in_chunks(*values: torch.Tensor, starts: torch.Tensor | None = None) -> torch.Tensor:
    grouped = (x.unsqueeze(dim) for x, dim in zip(values, GROUPS, strict=True))
    return _scan(*grouped, chunk=16, starts=starts).squeeze(2)


def selective_inputs(dtype: torch.dtype, seq: int) -> Values:
    token, channels = (BATCH, seq), (HEADS,)
    of_channels = ((HEADS, STATE), channels, channels)
    return numbers(dtype, *((*token, HEADS),) * 2, *((*token, STATE),) * 2, *of_channels)


def selective_token_by_token(*values: torch.Tensor) -> torch.Tensor:
    x, dt, b, c, a_log, d, dt_bias = values
    dt = F.softplus(dt + dt_bias)
    state, out = x.new_zeros(BATCH, HEADS, STATE), []
    for token in range(x.shape[1]):
        time = dt[:, token].unsqueeze(-1)
        state = state * torch.exp(-a_log.exp() * time) + time * x[:, token].unsqueeze(-1) * b[:, token].unsqueeze(1)
        out.append((state * c[:, token].unsqueeze(1)).sum(-1) + d * x[:, token])
    return torch.stack(out, 1)


def selective_of_transformers(*values: torch.Tensor) -> torch.Tensor:
    *of_tokens, a_log, d, dt_bias = values
    x, dt, b, c = (one.mT for one in of_tokens)
    function = of_transformers("jamba", "mamba_selective_scan")
    found: torch.Tensor = function(x, dt, -a_log.exp(), b, c, D=d, delta_bias=dt_bias, delta_softplus=True)
    return found.mT


def lightning_inputs(dtype: torch.dtype, seq: int) -> Values:
    return numbers(dtype, *((BATCH, seq, HEADS, KEY),) * 3)


RATES = (1.5, 0.2, 1e-5)


def lightning_token_by_token(*values: torch.Tensor) -> torch.Tensor:
    q, k, v = map(F.silu, values)
    kept = torch.tensor(RATES, dtype=v.dtype).neg().exp().view(HEADS, 1, 1)
    state, out = v.new_zeros(BATCH, HEADS, KEY, KEY), []
    for token in range(v.shape[1]):
        state = state * kept + k[:, token].unsqueeze(-1) * v[:, token].unsqueeze(-2)
        out.append((q[:, token].unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(out, 1)


def lightning_in_chunks(*values: torch.Tensor, starts: torch.Tensor | None = None) -> torch.Tensor:
    q, k, v = values
    return _lightning(q, k, v, torch.tensor(RATES, dtype=v.dtype), chunk=16, starts=starts)


def conv_inputs(dtype: torch.dtype, seq: int) -> Values:
    return numbers(dtype, (BATCH, seq, HEADS, KEY), (HEADS, KEY, 4), (HEADS, KEY))


Function = Callable[..., torch.Tensor]
EVERY = pytest.mark.parametrize(
    ("chunked", "by_token", "theirs", "inputs"),
    [
        (partial(_delta_rule, by_channel=False), delta_token_by_token, delta_of_transformers, delta_inputs),
        (partial(_delta_rule, by_channel=True), channels_token_by_token, channels_of_transformers, channel_inputs),
        (
            partial(_delta_rule, by_channel=True, lower_bound=-5.0),
            partial(channels_token_by_token, bound=-5.0),
            partial(channels_of_transformers, bound=-5.0),
            channel_inputs,
        ),
        (scan_in_chunks, scan_token_by_token, scan_of_transformers, scan_inputs),
        (grouped_scan_in_chunks, grouped_scan_token_by_token, grouped_scan_of_transformers, grouped_scan_inputs),
        (_selective, selective_token_by_token, selective_of_transformers, selective_inputs),
    ],
)
Inputs = Callable[[torch.dtype, int], Values]


def with_gradients(function: Function, values: Values) -> Values:
    out = function(*values)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    return out.detach(), *torch.autograd.grad((out * weights).sum(), values)


@pytest.mark.parametrize("seq", [1, 40, DELTA_CHUNK, 2 * DELTA_CHUNK + 5])
def test_lightning_attention_in_chunks_is_the_recurrence(seq: int) -> None:
    """transformers has no function of it by itself: test_transformers.py compares whole models."""
    values = lightning_inputs(torch.float64, seq)
    found, expected = (with_gradients(one, values) for one in (lightning_in_chunks, lightning_token_by_token))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@EVERY
@pytest.mark.parametrize("seq", [1, 40, DELTA_CHUNK, 2 * DELTA_CHUNK + 5])
def test_chunks_are_the_recurrence(
    chunked: Function, by_token: Function, theirs: Function, inputs: Inputs, seq: int
) -> None:
    values = inputs(torch.float64, seq)
    for found, expected in zip(with_gradients(chunked, values), with_gradients(by_token, values), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


DOCUMENTS = ((70, 1, 2, 64, 23), (160,))
"""Lengths of the documents of two rows: borders within a chunk, at its ends, and chunks without one."""


@pytest.mark.parametrize(
    ("function", "inputs", "sequences"),
    [
        (partial(_delta_rule, by_channel=False), delta_inputs, 5),
        (partial(_delta_rule, by_channel=True), channel_inputs, 5),
        (partial(_delta_rule, by_channel=True, lower_bound=-5.0), channel_inputs, 5),
        (scan_in_chunks, scan_inputs, 4),
        (_selective, selective_inputs, 4),
        (lightning_in_chunks, lightning_inputs, 3),
        (partial(_convolved), conv_inputs, 1),
        (partial(_activated), conv_inputs, 1),
        (partial(_activated, dilation=3), conv_inputs, 1),
    ],
)
def test_documents_of_a_row_know_nothing_of_each_other(function: Function, inputs: Inputs, sequences: int) -> None:
    """Output and gradients are those of each document by itself."""
    values, seq = inputs(torch.float64, sum(DOCUMENTS[0])), sum(DOCUMENTS[0])
    starts = torch.zeros(BATCH, seq, dtype=torch.long)
    alone = torch.zeros(function(*values, starts=None).shape, dtype=torch.float64)
    for row, lengths in enumerate(DOCUMENTS):
        for begin, end in pairwise(accumulate(lengths, initial=0)):
            starts[row, begin:end] = begin
            own = (x[row : row + 1, begin:end] if place < sequences else x for place, x in enumerate(values))
            alone[row, begin:end] = function(*own, starts=None)[0]
    expected = torch.autograd.grad((alone * alone.detach().cos()).sum(), values)
    together = function(*values, starts=starts)
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12)
    found = torch.autograd.grad((together * together.detach().cos()).sum(), values)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def test_channels_that_fade_fast_and_slowly_are_as_exact_in_fp32() -> None:
    """Rates from exp(-8) to exp(8): where one token is forgotten at the next, no factor is infinite or lost."""
    exact = channel_inputs(torch.float64, 2 * DELTA_CHUNK + 5)
    with torch.no_grad():
        exact[4].copy_(torch.linspace(-30, 30, exact[4].numel(), dtype=torch.float64).view(exact[4].shape))
        exact[5].copy_(torch.tensor([-8.0, 0.0, 8.0], dtype=torch.float64))
    rounded = tuple(one.detach().float().requires_grad_() for one in exact)
    expected = with_gradients(channels_token_by_token, exact)
    for found, one in zip(with_gradients(partial(_delta_rule, by_channel=True), rounded), expected, strict=True):
        torch.testing.assert_close(found.double(), one, rtol=1e-3, atol=1e-4 * float(one.abs().max()))


@pytest.mark.parametrize(("heads_at_once", "sliced"), [(1, True), (2, True), (3, False)])
def test_channels_of_some_heads_at_a_time_are_the_same(
    heads_at_once: int, sliced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = replace(MODELS["kimi linear"], linear_attention=LinearAttention(3, 3, 8, 6, 4))
    program, step = program_of(model, "gated_delta_rule", 11)
    graph = program.graph
    shapes = [tuple(graph.sizes[dim] for dim in graph.tensors[name].dims) for name in step.operator.inputs]
    found: list[tuple[torch.Tensor | None, ...]] = []
    for at_once in (2 * 11 * 8 * heads_at_once, score_tiles.SCORES_AT_ONCE):
        monkeypatch.setattr(score_tiles, "SCORES_AT_ONCE", at_once)
        inputs = numbers(torch.float64, *shapes)
        out = gated_delta_rule(Context(program, None), step)(*inputs)
        made_by: Any = out.grad_fn
        assert (made_by.slices is not WHOLE) == (sliced and not found)
        out.backward(torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape))
        found.append((out.detach(), *(value.grad for value in inputs)))
    for some_heads, whole in zip(*found, strict=True):
        torch.testing.assert_close(some_heads, whole, rtol=1e-12, atol=1e-12)


@EVERY
def test_they_are_those_of_transformers_in_fp32(
    chunked: Function, by_token: Function, theirs: Function, inputs: Inputs
) -> None:
    values = inputs(torch.float32, 150)
    torch.testing.assert_close(chunked(*values), theirs(*values), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "recompute"),
    some(product(("granite hybrid", "olmo2", "granite", "nemotron"), ("none", "core_attention+mlp", "full")), step=4),
)
def test_what_is_kept_is_what_the_graph_counts(name: str, recompute: str) -> None:
    for row in measure(MODELS[name], name, recompute):
        if row.quantity != "flops":
            assert row.measured == pytest.approx(row.counted, abs=8192), row


def program_of(model: ModelSpec, kind: str, seq: int, batch: int = BATCH) -> tuple[Program, OperatorStep]:
    graph = stage_graph(model, dim_sizes(model, batch, seq), (0,), False, False)
    program = partition(graph, {}, {op.name: {} for op in graph.operators})
    [step] = [one for one in program.steps if isinstance(one, OperatorStep) and one.operator.kind == kind]
    return program, step


@pytest.mark.parametrize(
    ("groups", "heads_at_once", "tile"),
    [(1, 1, (1, 1)), (1, 3, (1, 3)), (1, 8, (1, 8)), (4, 1, (1, 1)), (4, 2, (1, 2)), (4, 6, (3, 2)), (4, 8, (4, 2))],
)
def test_a_scan_in_slices_is_the_same(
    groups: int, heads_at_once: int, tile: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one head, some heads, one group, and several groups, of 8 heads: B and C are those of all heads of a group,
    so their gradients are sums over slices."""
    mamba = Mamba(8, 6, 5, 4, 4, True, groups)
    model = replace(MODELS["granite hybrid"], mamba=mamba)
    program, step = program_of(model, "state_space_scan", 11)
    graph = program.graph
    shapes = [tuple(graph.sizes[dim] for dim in graph.tensors[name].dims) for name in step.operator.inputs]
    found = []
    for at_once in (11 * 4 * heads_at_once, score_tiles.SCORES_AT_ONCE):
        monkeypatch.setattr(score_tiles, "SCORES_AT_ONCE", at_once)
        inputs = numbers(torch.float64, *shapes)
        out = state_space_scan(Context(program, None), step)(*inputs)
        out.backward(torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape))
        found.append((out.detach(), *(value.grad for value in inputs)))
        tiles = score_tiles.scan_tile(groups, 8 // groups, 11 * 4)
        assert tiles == (tile if len(found) == 1 else (groups, 8 // groups))
    for sliced, whole in zip(*found, strict=True):
        torch.testing.assert_close(sliced, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("channels_at_once", [1, 5, 8])
def test_a_selective_scan_of_some_channels_at_a_time_is_the_same(
    channels_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B and C are those of all channels, so their gradients are sums over slices."""
    program, step = program_of(replace(MODELS["jamba"], mamba1=Mamba1(8, 4, 5, 4, True)), "selective_scan", 35)
    graph = program.graph
    shapes = [tuple(graph.sizes[dim] for dim in graph.tensors[name].dims) for name in step.operator.inputs]
    found: list[tuple[torch.Tensor | None, ...]] = []
    for at_once in (35 * 5 * channels_at_once, score_tiles.SCORES_AT_ONCE):
        monkeypatch.setattr(score_tiles, "SCORES_AT_ONCE", at_once)
        values = numbers(torch.float64, *shapes)
        out = selective_scan(Context(program, None), step)(*values)
        made_by: Any = out.grad_fn
        assert (made_by.slices is WHOLE) == (channels_at_once == 8 or bool(found))
        out.backward(torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape))
        found.append((out.detach(), *(value.grad for value in values)))
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


def test_channels_of_mamba_1_begin_with_the_rates_1_2_and_so_on() -> None:
    """As in transformers; logarithms that are padding are zero."""
    model = MODELS["jamba, 6 heads, 54 channels"]
    graph = stage_graph(model, dim_sizes(model, 1, 8, tp=4), (0,), False, False)
    [rates] = [one for one in graph.parameters() if one.name.endswith(".A_log")]
    found = initial_parameter(model, rates, graph.sizes, seed=0)
    assert found.shape == (56, 4)
    torch.testing.assert_close(found[:54].exp(), torch.arange(1.0, 5).repeat(54, 1))
    assert not found[54:].any()


def test_states_that_fade_fast_and_slowly_are_as_exact_in_fp32() -> None:
    """Rates from exp(-8) to exp(8), time steps up to 30: no factor is infinite or lost."""
    exact = selective_inputs(torch.float64, 300)
    with torch.no_grad():
        exact[1].copy_(torch.linspace(-30, 30, exact[1].numel(), dtype=torch.float64).view(exact[1].shape))
        exact[4].copy_(torch.linspace(-8, 8, exact[4].numel(), dtype=torch.float64).view(exact[4].shape))
    rounded = tuple(one.detach().float().requires_grad_() for one in exact)
    expected = with_gradients(selective_token_by_token, exact)
    for found, one in zip(with_gradients(_selective, rounded), expected, strict=True):
        torch.testing.assert_close(found.double(), one, rtol=1e-3, atol=1e-4 * float(one.abs().max()))


def test_lightning_attention_of_some_heads_at_a_time_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    program, step = program_of(MODELS["minimax text of 6 heads"], "lightning_attention", 11)
    shape = tuple(program.graph.sizes[dim] for dim in program.graph.tensors[step.operator.output].dims)
    found = []
    for heads_at_once in (4, 6):
        monkeypatch.setattr(score_tiles, "SCORES_AT_ONCE", heads_at_once * 11 * 6)
        values = numbers(torch.float64, shape, shape, shape)
        found.append(with_gradients(lightning_attention(Context(program, None), step), values))
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


MODEL_OF = {
    "gated_delta_rule": "qwen3-next-80b-a3b",
    "by channel": "kimi-linear-48b-a3b",
    "state_space_scan": "granite-4.0-h-micro",
    "selective_scan": "jamba-1.5-mini",
    "lightning_attention": "minimax-text-01",
}
FIELD_OF = {"state_space_scan": "mamba", "selective_scan": "mamba1", "lightning_attention": "lightning_attention"}
MAMBA, LINEAR = load_model("granite-4.0-h-micro").mamba, load_model("qwen3-next-80b-a3b").linear_attention
KIMI = load_model("kimi-linear-48b-a3b").linear_attention


@pytest.mark.parametrize(
    ("kind", "sizes", "close"),
    [
        *(("gated_delta_rule", LINEAR, 1e-3), ("by channel", KIMI, 0.01), ("state_space_scan", MAMBA, 0.04)),
        ("selective_scan", Mamba1(1024, 64, 16, 4, True), 3e-3),
        ("selective_scan", Mamba1(512, 64, 16, 4, True), 3e-3),
        ("lightning_attention", LightningAttention(256), 1e-3),
        ("lightning_attention", LightningAttention(64), 1e-3),
        *some(
            [
                ("state_space_scan", Mamba(32, 64, 128, 4, 128, True, 4), 0.05),
                ("gated_delta_rule", LinearAttention(8, 8, 64, 128, 4), 1e-3),
                ("by channel", LinearAttention(8, 16, 64, 128, 4), 0.02),
            ],
            1,
        ),
    ],
)
def test_backward_holds_what_is_planned(kind: str, sizes: Any, close: float) -> None:
    """Beside its inputs, its output and the gradient of that. 64 heads of a chunk of 256 are two tiles, as are Kimi's
    32 heads; those of a chunk of 64 are one; 1,024 channels are two, too. The delta
    rule has one sequence, of which it holds most."""
    model = replace(load_model(MODEL_OF[kind]), **{FIELD_OF.get(kind, "linear_attention"): sizes})
    kind, length = ("gated_delta_rule", 4096) if kind == "by channel" else (kind, 2048)
    program, step = program_of(model, kind, length, batch=BATCH if kind in FIELD_OF else 1)
    graph = program.graph
    shapes = [[graph.sizes[dim] for dim in graph.tensors[name].dims] for name in step.operator.inputs]
    with FakeTensorMode():
        inputs = [torch.empty(shape, dtype=torch.bfloat16, requires_grad=True) for shape in shapes]
        with Held(inputs) as held:
            out = kernel(Context(program, None), step)(*inputs)
            grad = torch.ones(out.shape, dtype=out.dtype)
            held.most = before = held.now
            out.backward(grad)
    planned = working_bytes(program, step) - grad.numel() * grad.element_size()
    assert held.most - before == pytest.approx(planned, rel=close)


def short_convolution(documents: bool) -> tuple[Function, OperatorStep, Program]:
    """LFM2's convolution of 2,048 tokens by 2,048 channels: (kernel, step, program)."""
    program, step = program_of(load_model("lfm2-1.2b"), "causal_conv", 2048, batch=1)
    attributes = {**step.operator.attributes, "documents": documents}
    step = replace(step, operator=replace(step.operator, attributes=attributes))
    return kernel(Context(program, None), step), step, program


def test_a_convolution_of_documents_holds_no_more_than_one_without() -> None:
    """Forward, and backward beside what forward kept."""
    held_bytes = []
    for documents in (False, True):
        convolve, step, program = short_convolution(documents)
        shapes = [[program.graph.sizes[dim] for dim in program.graph.tensors[name].dims] for name in step.inputs]
        with FakeTensorMode():
            inputs = [torch.empty(shape, dtype=torch.bfloat16, requires_grad=True) for shape in shapes]
            starts = [torch.zeros(shapes[0][:2], dtype=torch.long)] * documents
            with Held([*inputs, *starts]) as held:
                begin = held.now
                out = convolve(*inputs, *starts)
                forward, held.most = held.most - begin, held.now
                out.backward(torch.ones_like(out))
            held_bytes.append((forward, held.most - begin))
    (forward, backward), (of_documents, backward_of_documents) = held_bytes
    assert of_documents <= 1.01 * forward
    assert backward_of_documents <= backward


def test_a_convolution_works_off_documents_slice_by_slice() -> None:
    convolve, *_ = short_convolution(documents=True)
    x = torch.linspace(-2, 3, 2 * 64 * 50, dtype=torch.float64).view(2, 64, 50).sin().requires_grad_()
    weight = torch.linspace(-1, 1, 50 * 3, dtype=torch.float64).view(50, 3).requires_grad_()
    starts = torch.tensor([[0] * 7 + [7] * 57, [0] * 62 + [62] * 2])
    whole = _convolved(x, weight, starts=starts)
    found = convolve(x, weight, starts)
    torch.testing.assert_close(found, whole, rtol=1e-14, atol=1e-14)
    expected = torch.autograd.grad((whole * whole.detach().cos()).sum(), (x, weight))
    gradients = torch.autograd.grad((found * found.detach().cos()).sum(), (x, weight))
    torch.testing.assert_close(gradients, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("function", [_activated, _convolved])
def test_a_linear_layer_behind_a_convolution_keeps_no_copy_of_its_own(function: Function) -> None:
    """A Mamba-1 block reads what it convolved twice, in a linear layer and in the scan: it keeps it once, of several
    sequences, too."""
    x, weight, matrix = numbers(torch.float32, (BATCH, 7, 5), (5, 4), (3, 5))
    convolved, kept = function(x, weight, starts=None), set()

    def keep(value: torch.Tensor) -> torch.Tensor:
        kept.add(value.data_ptr())
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        F.linear(convolved, matrix)
    assert kept == {convolved.data_ptr(), matrix.data_ptr()}


def test_a_layer_norm_of_weight_one_plus_w_loses_nothing_in_bf16() -> None:
    """A weight of 2^-10 changes an output of its own rounding, though 1 + 2^-10 is 1 in BF16; as in FP64."""
    x = torch.linspace(-2, 3, 3 * 64, dtype=torch.float64).view(3, 64).bfloat16().requires_grad_()
    weight = torch.full((64,), 2.0**-10, dtype=torch.bfloat16).requires_grad_()
    bias = torch.linspace(-1, 1, 64, dtype=torch.float64).bfloat16().requires_grad_()
    exact = [one.detach().double().requires_grad_() for one in (x, weight, bias)]
    expected = F.layer_norm(exact[0], (64,), 1 + exact[1], exact[2], 1e-5)
    found = OffsetLayerNorm.apply(x, weight, bias, 1e-5)
    assert (found == expected.bfloat16()).double().mean() > 0.99
    without = F.layer_norm(x, (64,), 1 + weight, bias, 1e-5)
    assert (without - expected).abs().sum() > (found - expected).abs().sum()
    grad = torch.linspace(-1, 1, 3 * 64, dtype=torch.float64).view(3, 64)
    found.backward(grad.bfloat16())
    expected.backward(grad.bfloat16().double())
    for own, other in zip((x, weight, bias), exact, strict=True):
        assert own.grad is not None
        torch.testing.assert_close(own.grad.double(), other.grad, rtol=2**-8, atol=1e-6)
