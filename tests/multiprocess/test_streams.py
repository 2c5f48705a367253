"""The kernels of hyper-connections and of compressed attention: what plain functions of torch give, whatever the
tiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autoshard.graph import score_tiles
from autoshard.graph.partition import OperatorStep, Program, partition
from autoshard.graph.stream_kinds import STREAMS_AT_ONCE
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.runtime.torch_backend import streams
from autoshard.runtime.torch_backend.context import Context
from autoshard.runtime.torch_backend.kernels import kernel
from autoshard.runtime.torch_backend.parameters import INIT_STD, initial_parameter
from autoshard.runtime.trainer import loop
from autoshard.spec.hyper_connections import HyperConnections
from autoshard.spec.model import ModelSpec
from autoshard.spec.router import Router
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import plan_of, strategy

MODEL = MODELS["deepseek v4"]
UNMIXED = replace(MODEL, hyper_connections=HyperConnections(4, None, 0.01, hc_magnitude=1.5))
SLIDING, HEAVY, SPARSE = 0, 1, 2
"""Blocks of MODEL."""


def step_of(
    kind: str, layer: int = SLIDING, attention: str = "flash", seq: int = 16, model: ModelSpec = MODEL
) -> tuple[Program, OperatorStep]:
    graph = stage_graph(model, dim_sizes(model, 2, seq), (layer,), False, False, attention, element_bytes=8)
    program = partition(graph, {}, {op.name: {} for op in graph.operators})
    steps = (step for step in program.steps if isinstance(step, OperatorStep))
    return program, next(step for step in steps if step.operator.kind == kind)


def inputs_of(program: Program, step: OperatorStep) -> list[torch.Tensor]:
    graph, generator = program.graph, torch.Generator().manual_seed(0)
    found = []
    for name in step.operator.inputs:
        tensor = graph.tensors[name]
        shape = [graph.sizes[dim] for dim in tensor.dims]
        value = torch.randn(shape, generator=generator, dtype=torch.float64)
        found.append(value.requires_grad_() if tensor.differentiable else value > 0)
    return found


def check(program: Program, step: OperatorStep, plain: Callable[..., torch.Tensor]) -> None:
    """The kernel's value and its gradients are those of a plain function."""
    ours, theirs = inputs_of(program, step), inputs_of(program, step)
    found, expected = kernel(Context(program, None), step)(*ours), plain(*theirs)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    grad = torch.randn(found.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found.backward(grad)
    expected.backward(grad)
    for one, other in zip(ours, theirs, strict=True):
        if one.is_floating_point():
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-10, atol=1e-10)


def balanced(logits: torch.Tensor) -> torch.Tensor:
    hyper = MODEL.hyper_connections
    assert hyper is not None and hyper.hc_sinkhorn_iters is not None
    mix = logits.softmax(-1) + hyper.hc_eps
    mix = mix / (mix.sum(-2, keepdim=True) + hyper.hc_eps)
    for _ in range(hyper.hc_sinkhorn_iters - 1):
        mix = mix / (mix.sum(-1, keepdim=True) + hyper.hc_eps)
        mix = mix / (mix.sum(-2, keepdim=True) + hyper.hc_eps)
    return mix


@pytest.mark.parametrize("at_once", [STREAMS_AT_ONCE, 4 * 64 * 2 * 5, 1])
def test_weights_of_streams_are_those_of_a_plain_function(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tokens at once, five of each sequence, and one."""
    monkeypatch.setattr(streams, "STREAMS_AT_ONCE", at_once)

    def plain(x: torch.Tensor, fn: torch.Tensor, base: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(2)
        z = torch.nn.functional.rms_norm(flat, (flat.shape[-1],), eps=MODEL.norm_eps) @ fn.flatten(1).T
        pre, post, mix = z.split([4, 4, 16], -1)
        of_mix = (mix * scale[2] + base[8:]).unflatten(-1, (4, 4))
        weights = (pre * scale[0] + base[:4]).sigmoid() + 1e-6, 2 * (post * scale[1] + base[4:8]).sigmoid()
        return torch.cat((*weights, balanced(of_mix).flatten(-2)), -1)

    check(*step_of("stream_weights"), plain)


@pytest.mark.parametrize("at_once", [STREAMS_AT_ONCE, 1])
def test_weights_of_streams_that_nothing_mixes(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kinds are sigmoids; what is added has the magnitude."""
    monkeypatch.setattr(streams, "STREAMS_AT_ONCE", at_once)

    def plain(x: torch.Tensor, fn: torch.Tensor, base: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(2)
        z = torch.nn.functional.rms_norm(flat, (flat.shape[-1],), eps=MODEL.norm_eps) @ fn.flatten(1).T
        pre, post = z.split(4, -1)
        pre, post = (pre * scale[0] + base[:4]).sigmoid(), (post * scale[1] + base[4:]).sigmoid()
        return torch.cat((pre + 0.01, 1.5 * post + 0.01), -1)

    check(*step_of("stream_weights", model=UNMIXED), plain)


def test_streams_that_nothing_mixes_begin_as_their_mean() -> None:
    """As in transformers: a part reads a quarter of each of 4 streams, and adds its output to each once."""
    graph = stage_graph(UNMIXED, dim_sizes(UNMIXED, 1, 16), range(4), True, True)
    several = [op for op in graph.operators if op.kind == "stream_weights"]
    for op in several:
        base, scale = (initial_parameter(UNMIXED, graph.tensors[name], graph.sizes, seed=0) for name in op.inputs[2:])
        assert torch.equal(scale, torch.full_like(scale, 0.01))
        torch.testing.assert_close(base[:4].sigmoid(), torch.full((4,), 0.25))
        assert len(base) == 4 or not base[4:].any()
    assert len(several) == 2 * 4 + 1


def test_weights_of_streams_begin_with_scales_of_one_and_nothing_added() -> None:
    """As in transformers, in the blocks and in the head."""
    graph = stage_graph(MODEL, dim_sizes(MODEL, 1, 16), range(4), True, True)
    several = [op for op in graph.operators if op.kind == "stream_weights"]
    assert len(several) == 2 * 4 + 1
    for op in several:
        tensors = (graph.tensors[name] for name in op.inputs[1:])
        fn, base, scale = (initial_parameter(MODEL, tensor, graph.sizes, seed=0) for tensor in tensors)
        assert float(fn.std()) == pytest.approx(INIT_STD, rel=0.1)
        assert not base.any() and torch.equal(scale, torch.ones_like(scale))


def test_balanced_matrices_are_nearly_doubly_stochastic() -> None:
    logits = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(0))
    mix = streams._Balanced.apply(logits.softmax(-1), 1e-6, 20)
    for dim in (-1, -2):
        torch.testing.assert_close(mix.sum(dim), torch.ones(3, 4), rtol=0, atol=1e-4)


class Calls(TorchDispatchMode):
    """Counts operators by name."""

    def __init__(self) -> None:
        super().__init__()
        self.times = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.times[func._schema.name] += 1
        return func(*args, **kwargs or {})


def test_matrices_of_all_slices_are_balanced_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products are made of 12 tokens of each sequence at a time, of 16."""
    hyper = MODEL.hyper_connections
    assert hyper is not None and hyper.hc_sinkhorn_iters is not None
    monkeypatch.setattr(streams, "STREAMS_AT_ONCE", 4 * 64 * 2 * 12)
    program, step = step_of("stream_weights")
    with Calls() as calls:
        kernel(Context(program, None), step)(*inputs_of(program, step))
    assert calls.times["aten::div"] == 2 * hyper.hc_sinkhorn_iters - 1
    assert calls.times["aten::rsqrt"] == 2


def test_collapsed_streams_are_a_sum() -> None:
    check(*step_of("collapse_streams"), lambda x, weights: (weights[..., :4, None] * x).sum(2))


def test_the_mean_of_streams_weighs_all_alike() -> None:
    program, step = step_of("collapse_streams")
    alone = replace(step, operator=replace(step.operator, kind="mean_streams", inputs=step.operator.inputs[:1]))
    check(program, alone, lambda x: x.sum(2) / 4)


def test_the_next_streams_are_a_sum_over_rows() -> None:
    def plain(y: torch.Tensor, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        post, mix = weights[..., 4:8], weights[..., 8:].unflatten(-1, (4, 4))
        return post.unsqueeze(-1) * y.unsqueeze(2) + torch.einsum("btjk,btjd->btkd", mix, x)

    check(*step_of("expand_streams"), plain)


def test_where_nothing_mixes_streams_each_one_stays_and_something_is_added() -> None:
    program, step = step_of("expand_streams", model=UNMIXED)
    check(program, step, lambda y, x, weights: x + weights[..., 4:, None] * y.unsqueeze(2))
    y, x, weights = (value.detach() for value in inputs_of(program, step))
    narrow = kernel(Context(program, None), step)(y.bfloat16(), x.bfloat16(), weights.float())
    added = x.bfloat16().float() + weights[..., 4:, None].float() * y.bfloat16().float().unsqueeze(2)
    assert torch.equal(narrow, added.bfloat16())  # rounded once


@pytest.mark.parametrize(("layer", "seq"), [(HEAVY, 16), (SPARSE, 16), (SPARSE, 15), (HEAVY, 3)])
def test_entries_are_weighed_sums_of_pieces(layer: int, seq: int) -> None:
    """Of 3 tokens, or of 2 and of the first series of the 2 before; tokens behind the last piece are in none."""
    program, step = step_of("compress", layer, seq=seq)
    rate: Any = step.operator.attributes["rate"]

    def plain(values: torch.Tensor, gates: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        entries = []
        for first in range(0, seq // rate * rate, rate):
            piece = range(first, first + rate)
            if layer == HEAVY:
                seen = [(values[:, t], gates[:, t] + bias[t - first]) for t in piece]
            else:
                seen = [(values[:, t, 1], gates[:, t, 1] + bias[t - first, 1]) for t in piece]
                earlier = range(first - rate, first) if first else ()
                seen += [(values[:, t, 0], gates[:, t, 0] + bias[t - first + rate, 0]) for t in earlier]
            weights = torch.stack([gate for _, gate in seen]).softmax(0)
            entries.append((weights * torch.stack([value for value, _ in seen])).sum(0))
        return torch.stack(entries, 1)

    check(program, step, plain)


def attended(rate: int, window: int) -> Callable[..., torch.Tensor]:
    """Attention as a plain function: every query by itself."""

    def plain(q: torch.Tensor, keys: torch.Tensor, sinks: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        rows = []
        for place in range(q.shape[1]):
            seen = [keys[:, max(0, place + 1 - window) : place + 1]]
            hidden = torch.zeros(len(q), seen[0].shape[1], dtype=torch.bool)
            if more:
                count = (place + 1) // rate
                seen.append(more[0][:, :count])
                chosen = more[1][:, place, :count] if len(more) > 1 else torch.ones(len(q), count, dtype=torch.bool)
                hidden = torch.cat((hidden, ~chosen), 1)
            columns = torch.cat(seen, 1)
            scores = torch.einsum("bkgd,bcd->bkgc", q[:, place], columns) / q.shape[-1] ** 0.5
            scores = scores.masked_fill(hidden[:, None, None], float("-inf"))
            with_sink = torch.cat((scores, sinks.expand(len(q), -1, -1).unsqueeze(-1)), -1).softmax(-1)
            rows.append(torch.einsum("bkgc,bcd->bkgd", with_sink[..., :-1], columns))
        return torch.stack(rows, 1)

    return plain


@pytest.mark.parametrize("at_once", [2**24, 900, 1])
@pytest.mark.parametrize("attention", ["flash", "plain"])
@pytest.mark.parametrize("layer", [SLIDING, HEAVY, SPARSE])
def test_attention_is_that_of_a_plain_function(
    layer: int, attention: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the tiles: all queries, some, and one."""
    monkeypatch.setattr(score_tiles, "SCORES_AT_ONCE", at_once)
    program, step = step_of("compressed_attention", layer, attention)
    rate: Any = step.operator.attributes.get("rate", 1)
    check(program, step, attended(rate, window=5))


@pytest.mark.parametrize("layer", [SLIDING, HEAVY, SPARSE])
def test_columns_are_not_copied_for_each_head(layer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that broadcasts would expand them, and then copy them."""
    monkeypatch.setattr(score_tiles, "SCORES_AT_ONCE", 900)
    program, step = step_of("compressed_attention", layer)
    inputs = inputs_of(program, step)
    with Calls() as calls:
        out = kernel(Context(program, None), step)(*inputs)
        torch.autograd.grad(out, inputs[:2], torch.ones_like(out))
    assert calls.times["aten::bmm"] > 0 == calls.times["aten::expand"]


def test_a_query_sees_no_entry_whose_piece_has_not_ended() -> None:
    program, step = step_of("choose_entries", SPARSE)
    inputs = [
        x.detach() if x.is_floating_point() else torch.randn(x.shape, dtype=torch.float64)
        for x in inputs_of(program, step)
    ]
    seen = kernel(Context(program, None), step)(*inputs)
    assert seen.dtype == torch.bool and seen.shape == (2, 16, 8)
    assert seen.sum(-1).tolist() == [[min((place + 1) // 2, 2) for place in range(16)]] * 2
    assert not any(seen[:, place, (place + 1) // 2 :].any() for place in range(16))


@pytest.mark.parametrize("at_once", [16, 100, 700])
def test_tiles_choose_the_same_entries(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    program, step = step_of("choose_entries", SPARSE, seq=40)
    inputs = [torch.randn(x.shape, generator=torch.Generator().manual_seed(2)) for x in inputs_of(program, step)]
    whole = kernel(Context(program, None), step)(*inputs)
    monkeypatch.setattr(score_tiles, "SCORES_AT_ONCE", at_once)
    monkeypatch.setattr(score_tiles, "FEWEST_ROWS", 4)
    assert torch.equal(kernel(Context(program, None), step)(*inputs), whole)


def test_a_table_that_names_an_expert_twice_weighs_it_twice() -> None:
    """Scores are the roots of softplus(0): equal, so that an expert named twice of three has two thirds."""
    model = replace(MODEL, router=Router("sqrtsoftplus", "noaux_tc", routed_scaling_factor=3.0))
    graph = stage_graph(model, dim_sizes(model, 1, 2), (0,), False, False)
    program = partition(graph, {}, {op.name: {} for op in graph.operators})
    step = next(one for one in program.steps if isinstance(one, OperatorStep) and one.operator.kind == "top_k_gate")
    table = torch.tensor([[0, 1, 2], [5, 5, 7]], dtype=torch.float32)
    gates = kernel(Context(program, None), step)(torch.zeros(1, 2, 8), table, torch.tensor([[1, 0]]))
    torch.testing.assert_close(gates[0], torch.tensor([[0, 0, 0, 0, 0, 2, 0, 1.0], [1.0, 1, 1, 0, 0, 0, 0, 0]]))


def test_a_rehearsal_compares_models_of_streams_in_fp64() -> None:
    """In FP32 rounding alone moved a gradient of Hy4 by 1.2e-5, where 1e-5 is a failure."""
    dtypes = {
        name: loop._exact(plan_of(MODELS[name], strategy(), 1)).compute_dtype
        for name in ("deepseek v4", "hy4", "llama")
    }
    assert dtypes == {"deepseek v4": "float64", "hy4": "float64", "llama": "float32"}
