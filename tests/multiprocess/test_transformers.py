"""The same weights give the same logits as Hugging Face's own modules, for every family."""

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from autoshard.models import builtin_models
from autoshard.models.huggingface import read_config, to_config
from autoshard.models.registry import FOLDER
from autoshard.models.stage import parameter_count
from autoshard.models.weights import checkpoint_parts, parameter_dims
from autoshard.spec.model import ModelSpec
from tests.cases import ALL
from tests.multiprocess.small_configs import CONFIGS
from tests.multiprocess.transformers_models import (
    built,
    config_of_transformers,
    published,
    read_by_transformers,
    save,
    zero_experts,
)
from tests.multiprocess.whole_module import whole_module
from tests.whole_weights import from_checkpoint, to_checkpoint

CONSTANTS = (
    *("slope_rate", "query_decay", "key_decay", "diagonal_decay"),
    *("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"),
)
"""Tensors that transformers saves with lightning attention and tables of n-grams, and makes itself where it does not
find them."""


class Published:
    """CONFIGS as `published` saves them, each once for all tests: nobody changes the model or its folder."""

    def __init__(self, root: Path) -> None:
        self.root, self.made = root, dict[str, torch.nn.Module]()

    def __call__(self, name: str) -> tuple[torch.nn.Module, Path]:
        folder = self.root / name
        if name not in self.made:
            self.made[name] = published(CONFIGS[name], folder)
        return self.made[name], folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Published:
    return Published(tmp_path_factory.mktemp("published"))


def held(model: torch.nn.Module) -> int:
    """The number of a model's parameters and of what most families have as buffers: correction biases of routers,
    tables of their experts, numbers of xIELU that are not learned, those that scale Gemma 4's blocks, and those that
    scale Mistral Large 4's frequencies."""
    names = ("e_score_correction_bias", "expert_bias", "act_fn.beta", "act_fn.eps", "layer_scalar", "tid2eid")
    buffers = (one for name, one in model.named_buffers() if name.endswith((*names, "rotary_emb.alpha")))
    unread = sum(one.numel() for one in zero_experts(model))
    return sum(one.numel() for one in (*model.parameters(), *buffers)) - unread


def logits(model: ModelSpec, parameters: dict[str, torch.Tensor], ids: torch.Tensor) -> torch.Tensor:
    module = whole_module(model, parameters, tuple(ids.shape), with_loss=False)
    by_name = {"input_ids": ids, "labels": torch.zeros_like(ids)}
    with torch.no_grad():
        return module(*(by_name[name] for name in module.input_names))


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_those_of_transformers(name: str, saved: Published) -> None:
    reference, folder = saved(name)
    model = read_config(folder)
    tensors = load_file(folder / "model.safetensors")
    dims, sizes = parameter_dims(model)
    loaded = from_checkpoint(checkpoint_parts(model), dims, sizes, tensors, lambda tensor: tensors[tensor].numpy())
    parameters = {parameter: torch.from_numpy(value.copy()) for parameter, value in loaded}
    ids = torch.randint(model.vocab_size, (3, 24), generator=torch.Generator().manual_seed(1))
    expected = reference(ids).logits.detach()
    torch.testing.assert_close(logits(model, parameters, ids), expected, rtol=1e-5, atol=1e-5)


ROUNDED_MOST = [name for name, config in CONFIGS.items() if config["model_type"] == "olmo_hybrid"]
"""Models of which FP32 rounds gradients by up to 9e-6 here and in transformers alike, by the machine: FP64 tells."""


@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_equal_those_of_transformers(name: str, saved: Published, tmp_path: Path) -> None:
    unchanged, folder = saved(name)
    dtype = torch.float64 if name in ROUNDED_MOST else torch.float32
    reference = deepcopy(unchanged).to(dtype)
    model = read_config(folder)
    tensors = load_file(folder / "model.safetensors")
    dims, sizes = parameter_dims(model)
    parts = checkpoint_parts(model)
    loaded = from_checkpoint(parts, dims, sizes, tensors, lambda tensor: tensors[tensor].numpy())
    parameters = {parameter: torch.from_numpy(value.copy()).to(dtype) for parameter, value in loaded}
    module: Any = whole_module(model, parameters, (3, 24))
    # not token 0: where it pads, transformers gives its embedding no gradient
    ids, labels = torch.randint(1, model.vocab_size, (2, 3, 24), generator=torch.Generator().manual_seed(1))
    loss: Any = torch.nn.functional.cross_entropy(reference(ids).logits.flatten(0, 1), labels.flatten())
    loss.backward()
    module(*({"input_ids": ids, "labels": labels}[name] for name in module.input_names)).backward()
    for parameter in reference.parameters():
        parameter.data.copy_(parameter.grad if parameter.grad is not None else torch.zeros(()))
    save(reference, tmp_path / "gradients")  # under the names and in the forms of the checkpoint
    expected = load_file(tmp_path / "gradients" / "model.safetensors")

    def gradient(parameter: str) -> np.ndarray:
        found = module.parameter(parameter)
        value: np.ndarray = (torch.zeros_like(found) if found.grad is None else found.grad).detach().numpy()
        return value

    learned = {part.tensor for part in parts if module.parameter(part.parameter).grad is not None}
    correction = ("e_score_correction_bias", "router_bias", "expert_bias", "ffn.gate.bias")
    kept = (*correction, "gate.tid2eid", "act_fn.beta", "act_fn.eps", "layer_scalar", "lerope.alpha", *CONSTANTS)
    assert all(
        tensor.endswith(kept) or ".indexer." in tensor or ".index_" in tensor for tensor in tensors.keys() - learned
    )
    # keys hardly feel their bias, those without positions not at all: its gradient is 0 but for rounding
    most = max(float(value.abs().max()) for value in expected.values())
    for tensor, value in to_checkpoint(parts, dims, sizes, gradient):
        if tensor in learned:
            # rates of forgetting: a sum over all tokens of terms that cancel
            least = most if tensor.endswith((".A_log", ".dt_bias")) else 1e-2 * most
            largest = max(float(expected[tensor].abs().max()), least)
            assert (torch.from_numpy(value) - expected[tensor]).abs().max() <= 1e-5 * largest, tensor


def test_the_routers_loss_is_that_of_transformers(tmp_path: Path) -> None:
    # transformers takes the means over the tokens of all layers, we those of each: one layer is the same
    routed = {"num_hidden_layers": 1, "output_router_logits": True, "router_aux_loss_coef": 0.5}
    reference = published({**CONFIGS["mixtral"], **routed}, tmp_path)
    model = read_config(tmp_path)
    assert model.router_aux_loss_coef == 0.5
    tensors = load_file(tmp_path / "model.safetensors")
    dims, sizes = parameter_dims(model)
    loaded = from_checkpoint(checkpoint_parts(model), dims, sizes, tensors, lambda tensor: tensors[tensor].numpy())
    module: Any = whole_module(model, {name: torch.from_numpy(value.copy()) for name, value in loaded}, (3, 24))
    ids, labels = torch.randint(model.vocab_size, (2, 3, 24), generator=torch.Generator().manual_seed(1))
    found = reference(ids)
    expected = torch.nn.functional.cross_entropy(found.logits.flatten(0, 1), labels.flatten()) + 0.5 * found.aux_loss
    expected.backward()
    loss = module(*({"input_ids": ids, "labels": labels}[name] for name in module.input_names))
    loss.backward()
    (routing,) = module.router_losses.take()
    torch.testing.assert_close((loss + routing).detach(), expected.detach(), rtol=1e-6, atol=0)
    gradients = {name: parameter.grad for name, parameter in reference.named_parameters()}
    gate = next(name for name in gradients if name.endswith("gate.weight"))
    for ours, theirs in (("model.layers.0.block_sparse_moe.gate.weight", gate), ("model.embed_tokens.weight",) * 2):
        torch.testing.assert_close(module.parameter(ours).grad, gradients[theirs], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", CONFIGS)
def test_what_we_write_is_what_transformers_reads(name: str, saved: Published, tmp_path: Path) -> None:
    reference, folder = saved(name)
    model = read_config(folder)
    tensors = load_file(folder / "model.safetensors")
    dims, sizes = parameter_dims(model)
    parts = checkpoint_parts(model)
    loaded = dict(from_checkpoint(parts, dims, sizes, tensors, lambda tensor: tensors[tensor].numpy()))
    written = {
        tensor: torch.from_numpy(value) for tensor, value in to_checkpoint(parts, dims, sizes, loaded.__getitem__)
    }
    assert written.keys() == {tensor for tensor in tensors if not tensor.endswith(CONSTANTS)}
    copytree(folder, tmp_path, ignore=ignore_patterns("*.safetensors"), dirs_exist_ok=True)
    save_file(written, tmp_path / "model.safetensors", metadata={"format": "pt"})
    again = read_by_transformers(tmp_path)
    for parameter, value in reference.state_dict().items():
        torch.testing.assert_close(again.state_dict()[parameter], value, rtol=0, atol=0)


@pytest.mark.parametrize("name", CONFIGS)
def test_transformers_builds_the_model_of_a_config_that_is_written(name: str, saved: Published) -> None:
    """By its classes' own values for what is left out: the pad token of phi3 and smollm3 is beyond this vocabulary."""
    _, folder = saved(name)
    written = to_config(read_config(folder))
    with torch.device("meta"):
        reference = built(written)
    assert parameter_count(read_config(folder)) == held(reference)


BUILTIN = {name: json.loads(next(FOLDER.glob(f"*/configs/{name}.json")).read_text()) for name in builtin_models()}
FIRST_OF_A_TYPE = {config["model_type"]: name for name, config in reversed(BUILTIN.items())}


@pytest.mark.parametrize("name", [name for name in BUILTIN if ALL or name in FIRST_OF_A_TYPE.values()])
def test_parameters_of_built_in_models_are_as_many_as_those_of_transformers(name: str) -> None:
    (file,) = FOLDER.glob(f"*/configs/{name}.json")
    config = json.loads(file.read_text())
    values = {key: value for key, value in config.items() if key != "architectures"}
    values["model_type"] = {"kimi_k2": "deepseek_v3"}.get(
        config["model_type"], config["model_type"]
    )  # of the same form
    with torch.device("meta"):
        reference = built(values)
    assert parameter_count(read_config(file)) == held(reference)


@pytest.mark.parametrize("name", [name for name in BUILTIN if BUILTIN[name]["model_type"] not in ("kimi_k2", "dbrx")])
def test_a_published_config_that_transformers_saves_is_the_same_model(name: str, tmp_path: Path) -> None:
    """But for Kimi-K2, which transformers does not know by this name, and DBRX, whose positions it loses."""
    config_of_transformers(BUILTIN[name]).save_pretrained(tmp_path)
    (file,) = FOLDER.glob(f"*/configs/{name}.json")
    saved = read_config(tmp_path / "config.json")
    assert replace(saved, name=name) == replace(read_config(file), name=name)
