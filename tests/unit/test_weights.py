"""Hugging Face checkpoints: names and shapes of each family, every element once, and back the same."""

from math import prod

import numpy as np
import pytest

from autoshard.models.stage import parameter_count, published_sizes, stage_graph
from autoshard.models.weight_names import Part
from autoshard.models.weights import checkpoint_parts, parameter_dims
from autoshard.spec.model import ModelSpec
from tests.multiprocess.models import MODELS
from tests.whole_weights import from_checkpoint, to_checkpoint


def numbered(model: ModelSpec) -> dict[str, np.ndarray]:
    """Parameters in which every element is another number."""
    dims, sizes = parameter_dims(model)
    found, first = {}, 0
    for name, own in dims.items():
        shape = [sizes[dim] for dim in own]
        found[name] = np.arange(first, first + prod(shape)).reshape(shape)
        first += prod(shape)
    return found


def checkpoint(model: ModelSpec) -> dict[str, np.ndarray]:
    dims, sizes = parameter_dims(model)
    return dict(to_checkpoint(checkpoint_parts(model), dims, sizes, numbered(model).__getitem__))


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if model.graph is None and model.lora is None])
def test_a_checkpoint_holds_every_element_once_and_comes_back_the_same(name: str) -> None:
    model = MODELS[name]
    parameters, tensors = numbered(model), checkpoint(model)
    elements = parameter_count(model)
    assert sum(tensor.size for tensor in tensors.values()) == elements
    counts = np.bincount(np.concatenate([tensor.ravel() for tensor in tensors.values()]))
    assert len(counts) == elements and (counts == 1).all()
    dims, sizes = parameter_dims(model)
    back = dict(from_checkpoint(checkpoint_parts(model), dims, sizes, tensors, tensors.__getitem__))
    assert back.keys() == parameters.keys()
    for parameter, value in parameters.items():
        np.testing.assert_array_equal(back[parameter], value)


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if model.graph is None and model.lora is None])
def test_matrices_are_what_has_two_dims_in_a_checkpoint_and_is_no_bias(name: str) -> None:
    """Weight decay is of these alone: not of a norm over all heads, whose weight has several dims of ours, nor of norms
    of each head, of which Command R+ publishes one tensor, of no rate of forgetting, which Kimi Linear publishes with
    dims of one, and of DeepSeek-V4's neither its table of tokens nor what it, and GLM-5.3's indexer, adds to gates by
    the place of a token."""
    model = MODELS[name]
    graph = stage_graph(model, published_sizes(model), range(model.num_hidden_layers), first=True, last=True)
    tensors = checkpoint(model)
    published = {part.parameter: part.tensor for part in checkpoint_parts(model)}
    others = ("bias", "A_log", "q_norm.weight", "k_norm.weight", "tid2eid", "ape")
    assert graph.matrices == {
        parameter for parameter, of in published.items() if tensors[of].ndim > 1 and not of.endswith(others)
    }


def test_names_and_shapes_of_a_llama() -> None:
    shapes = {name: tensor.shape for name, tensor in checkpoint(MODELS["llama"]).items()}
    assert shapes["model.layers.3.self_attn.q_proj.weight"] == (64, 64)
    assert shapes["model.layers.3.self_attn.k_proj.weight"] == (32, 64)
    assert shapes["model.layers.3.mlp.down_proj.weight"] == (64, 96)
    assert shapes["lm_head.weight"] == (96, 64)
    assert "lm_head.weight" not in checkpoint(MODELS["tied"])


def test_gpt2_holds_queries_keys_and_values_behind_one_another_and_transposed() -> None:
    model = MODELS["gpt2"]
    parameters, tensors = numbered(model), checkpoint(model)
    fused = tensors["transformer.h.0.attn.c_attn.weight"]
    assert fused.shape == (64, 3 * 64)
    key = parameters["transformer.h.0.attn.k_proj.weight"]  # kvhead headdim embed
    np.testing.assert_array_equal(fused[:, 64:128], key.reshape(64, 64).T)


def test_gpt_neox_holds_them_head_by_head() -> None:
    model = MODELS["gpt neox"]
    parameters, tensors = numbered(model), checkpoint(model)
    fused = tensors["gpt_neox.layers.0.attention.query_key_value.weight"]
    assert fused.shape == (3 * 64, 64)
    value = parameters["gpt_neox.layers.0.attention.v_proj.weight"]
    np.testing.assert_array_equal(fused[16:24], value[0])  # the first head: 8 of its queries, 8 keys, 8 values


def test_experts_have_a_tensor_each() -> None:
    model = MODELS["qwen3 moe"]
    parameters, tensors = numbered(model), checkpoint(model)
    stacked = parameters["model.layers.1.mlp.experts.down_proj.weight"]
    np.testing.assert_array_equal(tensors["model.layers.1.mlp.experts.5.down_proj.weight"], stacked[5])
    assert tensors["model.layers.1.mlp.gate.weight"].shape == (8, 64)
    assert checkpoint(MODELS["qwen2 moe"])["model.layers.1.mlp.shared_expert_gate.weight"].shape == (1, 64)


def test_gpt2_without_the_outermost_name_is_read_too() -> None:
    model = MODELS["gpt2"]
    dims, sizes = parameter_dims(model)
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in checkpoint(model).items()}
    back = dict(from_checkpoint(checkpoint_parts(model), dims, sizes, tensors, tensors.__getitem__))
    np.testing.assert_array_equal(back["transformer.wte.weight"], numbered(model)["transformer.wte.weight"])


def test_a_layout_names_the_dims_in_each_dim() -> None:
    assert Part.same("w", "embed (part kvhead headdim)").groups == (("embed",), ("part", "kvhead", "headdim"))
