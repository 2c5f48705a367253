"""Qwen4-Exp against transformers' own modules in FP64, and its operators by themselves."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch._subclasses.fake_tensor import FakeTensorMode

from autoshard.graph import score_tiles
from autoshard.graph.operators import KINDS
from autoshard.graph.partition import OperatorStep, Program, partition
from autoshard.models.huggingface import read_config
from autoshard.models.registry import load_model
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.models.weights import checkpoint_parts, parameter_dims
from autoshard.runtime.torch_backend import ngrams
from autoshard.runtime.torch_backend.context import Context
from autoshard.runtime.torch_backend.kernels import kernel
from tests.multiprocess.held import Held
from tests.multiprocess.models import MODELS
from tests.multiprocess.small_configs import CONFIGS
from tests.multiprocess.transformers_models import published, save
from tests.multiprocess.whole_module import whole_module
from tests.whole_weights import from_checkpoint, to_checkpoint


class WideTorch:
    """torch, but what it calls float32 is float64."""

    float = float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def in_float64(model: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A model of transformers that computes everything in FP64: also what it computes in FP32 whatever its dtype."""
    monkeypatch.setattr(import_module(type(model).__module__), "torch", WideTorch())
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    wide = model.double()
    wide.set_experts_implementation("eager")
    rotary, config = wide.model.rotary_emb, wide.config
    turned = 2 * rotary.inv_freq.numel()
    places = torch.arange(0, turned, 2, dtype=torch.float64) / turned
    rotary.inv_freq = config.rope_parameters["rope_theta"] ** -places
    return wide


@pytest.mark.parametrize("name", [name for name, config in CONFIGS.items() if config["model_type"] == "qwen4_exp_text"])
def test_loss_logits_and_gradients_equal_those_of_transformers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = published(CONFIGS[name], tmp_path)
    model, tensors = read_config(tmp_path), load_file(tmp_path / "model.safetensors")
    dims, sizes = parameter_dims(model)
    parts = checkpoint_parts(model)
    loaded = from_checkpoint(parts, dims, sizes, tensors, lambda tensor: tensors[tensor].numpy())
    parameters = {parameter: torch.from_numpy(value.copy()).double() for parameter, value in loaded}
    ids, labels = torch.randint(1, model.vocab_size, (2, 3, 24), generator=torch.Generator().manual_seed(1))
    given = {"input_ids": ids, "labels": labels}
    module, told = whole_module(model, parameters, (3, 24)), whole_module(model, parameters, (3, 24), with_loss=False)
    loss: Any = module(*map(given.__getitem__, module.input_names))
    loss.backward()
    with torch.no_grad():
        logits = told(*map(given.__getitem__, told.input_names))
    with monkeypatch.context() as patch:
        wide = in_float64(reference, patch)
        expected = wide(ids).logits
        expected_loss: Any = torch.nn.functional.cross_entropy(expected.flatten(0, 1), labels.flatten())
        expected_loss.backward()
    torch.testing.assert_close(logits, expected.detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(loss.detach(), expected_loss.detach(), rtol=1e-13, atol=0)
    for parameter in wide.parameters():
        parameter.data.copy_(parameter.grad if parameter.grad is not None else torch.zeros(()))
    save(wide, tmp_path / "gradients")
    gradients = load_file(tmp_path / "gradients" / "model.safetensors")
    learned = {parameter for parameter in dims if module.parameter(parameter).grad is not None}
    assert dims.keys() - learned == {name for name in dims if ".indexer." in name}

    def gradient(parameter: str) -> Any:
        found = module.parameter(parameter).grad
        return (torch.zeros_like(module.parameter(parameter)) if found is None else found).detach().numpy()

    most = max(float(value.abs().max()) for value in gradients.values())
    for tensor, value in to_checkpoint(parts, dims, sizes, gradient):
        if ".indexer." not in tensor:
            torch.testing.assert_close(torch.from_numpy(value), gradients[tensor], rtol=0, atol=1e-11 * most)


MODEL = MODELS["qwen4 exp"]
EOS = 5
"""The token at which documents end, of this model."""


def program_of(layer: int, kind: str, seq: int) -> tuple[Program, OperatorStep]:
    graph = stage_graph(MODEL, dim_sizes(MODEL, 2, seq), (layer,), False, False, element_bytes=8)
    one = partition(graph, {}, {op.name: {} for op in graph.operators})
    steps = (step for step in one.steps if isinstance(step, OperatorStep))
    return one, next(step for step in steps if step.operator.kind == kind)


def inputs_of(program: Program, step: OperatorStep) -> list[torch.Tensor]:
    generator, graph = torch.Generator().manual_seed(3), program.graph
    shapes = ([graph.sizes[dim] for dim in graph.tensors[name].dims] for name in step.operator.inputs)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def rows_of(tokens: Sequence[int], starts: Sequence[int]) -> list[list[int]]:
    """The rows of the first table that each token has, by hand."""
    assert MODEL.ngram_embedding is not None
    factors, rows, _ = MODEL.ngram_embedding.table(0, MODEL.vocab_size)
    found = []
    for place, start in enumerate(starts):
        seen = [tokens[place]]
        for apart in (1, 2):
            over = place - apart < start or EOS in tokens[place - apart : place]
            seen.append(EOS if over else tokens[place - apart])
        two = seen[0] * factors[0] ^ seen[1] * factors[1]
        numbers = (two, two, two ^ seen[2] * factors[2], two ^ seen[2] * factors[2])
        found.append([number % rows[head] + sum(rows[:head]) for head, number in enumerate(numbers)])
    return found


def test_an_n_gram_ends_at_the_start_of_a_row_and_behind_its_end_of_a_document() -> None:
    program, step = program_of(0, "hash_ngrams", 8)
    ids = torch.tensor([[7, 9, EOS, 7, 9, 95, 0, EOS], [EOS, EOS, 1, 2, 3, EOS, 4, 7]])
    found = kernel(Context(program, None), step)(ids)
    assert found.dtype == torch.int64
    assert found.tolist() == [rows_of(row, [0] * 8) for row in ids.tolist()]


def test_an_n_gram_ends_where_its_document_begins() -> None:
    program, step = program_of(0, "hash_ngrams", 8)
    ids, starts = torch.tensor([[7, 9, 1, 7, 9, 95, 0, 3]] * 2), torch.tensor([[0, 0, 0, 3, 3, 5, 5, 5], [0] * 8])
    found = kernel(Context(program, None), step)(ids, starts)
    assert found.tolist() == [rows_of(ids[0].tolist(), row) for row in starts.tolist()]


@pytest.mark.parametrize("at_once", [2**24, 3 * 64 * 2 * 5])
def test_a_gate_is_the_root_of_a_product(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a product of 0 its root is none, and has no slope; in slices of 5 tokens it is the same."""
    monkeypatch.setattr(ngrams, "STREAMS_AT_ONCE", at_once)
    program, step = program_of(0, "gate_streams", 12)
    value, keys, queries = inputs_of(program, step)
    keys[0, 0] = 0
    inputs = tuple(one.requires_grad_() for one in (value, keys, queries))
    found = kernel(Context(program, None), step)(*inputs)
    product = (keys * queries).sum(-1) / 8
    gate = (product.abs().clamp(min=1e-6).sqrt() * product.sign()).sigmoid()
    expected = gate.unsqueeze(-1) * value.unsqueeze(2)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    grad = torch.randn(found.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    torch.testing.assert_close(
        torch.autograd.grad(found, inputs, grad), torch.autograd.grad(expected, inputs, grad), rtol=1e-11, atol=1e-11
    )


@pytest.mark.parametrize(("seq", "batch"), [(512, 1), (8192, 1), (4096, 4)])
def test_a_gate_holds_in_backward_what_is_planned(seq: int, batch: int) -> None:
    """Beside what it keeps, the gradient of its output and those of its inputs; some of the tokens at a time."""
    model = load_model("qwen3.8-flash-next")
    graph = stage_graph(model, dim_sizes(model, batch, seq), (1,), False, False)
    program = partition(graph, {}, {op.name: {} for op in graph.operators})
    steps = (step for step in program.steps if isinstance(step, OperatorStep))
    step = next(step for step in steps if step.operator.kind == "gate_streams")
    shapes = ([graph.sizes[dim] for dim in graph.tensors[name].dims] for name in step.operator.inputs)
    with FakeTensorMode():
        inputs = [torch.empty(shape, dtype=torch.bfloat16, requires_grad=True) for shape in shapes]
        with Held(inputs) as held:
            out = kernel(Context(program, None), step)(*inputs)
            grad = torch.ones(out.shape, dtype=out.dtype)
            held.most = before = held.now
            out.backward(grad)
    gradients = sum(one.numel() * one.element_size() for one in inputs)
    sizes = {dim: float(size) for dim, size in graph.sizes.items()}
    planned = KINDS["gate_streams"].tile_bytes(step.operator, graph, sizes)
    assert held.most - before - gradients == pytest.approx(planned, rel=0.01)


def test_a_query_sees_the_best_means_of_pools_before_it_and_its_own_pool_up_to_itself() -> None:
    """Two pools of 2 tokens of as many as have ended, of a sequence of 11."""
    program, step = program_of(1, "choose_means", 11)
    h, q_proj, k_proj, q_norm, k_norm = inputs = inputs_of(program, step)
    seen = kernel(Context(program, None), step)(*inputs)

    def made(x: torch.Tensor, weight: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        normal = x / (x.square().mean(-1, keepdim=True) + MODEL.norm_eps).sqrt() * (1 + weight)
        angles = places.double().unsqueeze(1) / 1e4 ** (torch.arange(0, 4, 2).double() / 4)  # 4 of 12 turn
        cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)
        first, second, rest = normal.split((2, 2, 8), -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1)

    q = made(torch.einsum("bse,hde->bshd", h, q_proj), q_norm, torch.arange(11))
    means = (h @ k_proj.T)[:, :10].unflatten(1, (5, 2)).mean(2)
    pools = made(means.unsqueeze(2), k_norm, 2 * torch.arange(5)).squeeze(2)
    scores = torch.einsum("bqhd,bpd->bqhp", q, pools).relu().sum(2)
    for row in range(2):
        for place in range(11):
            ended = range((place + 1) // 2)
            chosen = sorted(ended, key=lambda pool: (-float(scores[row, place, pool]), pool))[:2]
            expected = [key // 2 in chosen or 2 * len(ended) <= key <= place for key in range(11)]
            assert seen[row, place].tolist() == expected, (row, place)


@pytest.mark.parametrize("at_once", [16, 100, 700])
def test_tiles_choose_the_same_means(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    program, step = program_of(1, "choose_means", 41)
    inputs = inputs_of(program, step)
    whole = kernel(Context(program, None), step)(*inputs)
    monkeypatch.setattr(score_tiles, "SCORES_AT_ONCE", at_once)
    monkeypatch.setattr(score_tiles, "FEWEST_ROWS", 4)
    assert torch.equal(kernel(Context(program, None), step)(*inputs), whole)
