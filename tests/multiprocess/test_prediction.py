"""The module for multi-token prediction computes what the equations of DeepSeek-V3's report say, on transformers' own
blocks; transformers has no such module."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from autoshard.conversion.huggingface import huggingface_source
from autoshard.models.weights import checkpoint_parts, parameter_dims
from autoshard.runtime.data import NOT_LEARNED
from autoshard.runtime.torch_backend.optimizer_settings import optimizer_settings
from autoshard.runtime.torch_backend.session import Session
from autoshard.spec.prediction import LOSS_SCALING_FACTOR
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import FP64, plan_of, strategy
from tests.multiprocess.small_configs import CONFIGS
from tests.multiprocess.transformers_models import published
from tests.multiprocess.whole_module import whole_module
from tests.whole_weights import from_checkpoint, to_checkpoint

ROWS, TOKENS = 3, 24
PREDICTING: dict[str, dict[str, Any]] = {name: CONFIGS[name] for name in ("deepseek v3", "glm4 moe")}
PREDICTING["glm 5.2"] = {**CONFIGS["glm 5.2"], "mlp_layer_types": ["dense", "sparse", "sparse"]}
ONE_BLOCK = {"num_hidden_layers": 1, "first_k_dense_replace": 0}
LISTS_OF_ONE = {"mlp_layer_types": ["sparse"], "indexer_types": ["full"]}


def _published(config: dict[str, Any], folder: Path) -> Any:
    return published(config, folder)


class Reference:
    """A model of transformers and, behind it, the module of section 2.2 for one token further ahead."""

    def __init__(self, config: dict[str, Any], folder: Path):
        self.model = _published(config, folder)
        self.depth, width = self.model.config.num_hidden_layers, self.model.config.hidden_size
        # one sparse block and the norm behind it, of a model whose other parameters are not used
        lists = {name: LISTS_OF_ONE[name] for name in LISTS_OF_ONE.keys() & config.keys()}
        self.behind = _published({**config, **ONE_BLOCK, **lists}, folder)
        norm = type(self.model.model.norm)
        self.enorm: Any = norm(width, eps=self.model.config.rms_norm_eps)
        self.hnorm: Any = norm(width, eps=self.model.config.rms_norm_eps)
        self.eh_proj: Any = torch.nn.Linear(2 * width, width, bias=False)
        generator = torch.Generator().manual_seed(2)
        weights: list[Any] = [self.enorm.weight, self.hnorm.weight, self.eh_proj.weight]
        with torch.no_grad():
            for weight in weights:
                weight.add_(0.1 * torch.randn(weight.shape, generator=generator))

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        for one in (self.model, self.behind, self.enorm, self.hnorm, self.eh_proj):
            yield from one.parameters()

    def losses(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(loss of the model, loss of the module), of tokens [rows, T + 1]; both are sums over tokens divided by T."""
        ids, labels = tokens[:, :-1], tokens[:, 1:]
        hidden = self.model.model(ids).last_hidden_state
        following = self.model.model.embed_tokens(ids[:, 1:])
        x = self.eh_proj(torch.cat((self.enorm(following), self.hnorm(hidden[:, :-1])), -1))
        ahead = self.model.lm_head(self.behind.model(inputs_embeds=x).last_hidden_state)
        entropy = torch.nn.functional.cross_entropy
        own = entropy(self.model.lm_head(hidden).flatten(0, 1), labels.flatten())
        return own, entropy(ahead.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum") / labels.numel()

    def save(self, folder: Path) -> dict[str, torch.Tensor]:
        """The tensors as published checkpoints hold them, the two tables twice; they and the config are in `folder`."""
        self.behind.save_pretrained(folder)
        behind = load_file(folder / "model.safetensors")
        self.model.save_pretrained(folder)
        found, prefix = load_file(folder / "model.safetensors"), f"model.layers.{self.depth}"
        for name, value in behind.items():
            if name.startswith("model.layers.0."):
                found[name.replace("model.layers.0", prefix)] = value
        found[f"{prefix}.shared_head.norm.weight"] = behind["model.norm.weight"]
        for name in ("enorm", "hnorm", "eh_proj"):
            found[f"{prefix}.{name}.weight"] = getattr(self, name).weight.detach().clone()
        for name, table in (("embed_tokens", "model.embed_tokens"), ("shared_head.head", "lm_head")):
            found[f"{prefix}.{name}.weight"] = found[f"{table}.weight"].clone()
        save_file(found, folder / "model.safetensors", metadata={"format": "pt"})
        return found


@pytest.mark.parametrize("name", PREDICTING)
def test_loss_and_gradients_are_those_of_the_equations(name: str, tmp_path: Path) -> None:
    reference = Reference(PREDICTING[name], tmp_path)
    tensors = reference.save(tmp_path)
    model = huggingface_source(tmp_path).model
    assert model.multi_token_prediction is not None and model.num_hidden_layers == reference.depth
    dims, sizes = parameter_dims(model)
    parts = checkpoint_parts(model)
    loaded = from_checkpoint(parts, dims, sizes, tensors, lambda tensor: tensors[tensor].numpy())
    module: Any = whole_module(model, {name: torch.from_numpy(value.copy()) for name, value in loaded}, (ROWS, TOKENS))

    tokens = torch.randint(1, model.vocab_size, (ROWS, TOKENS + 1), generator=torch.Generator().manual_seed(1))
    values = {
        "input_ids": tokens[:, :-1],
        "labels": tokens[:, 1:],
        "next_ids": torch.cat((tokens[:, 1:-1], torch.zeros(ROWS, 1, dtype=torch.long)), 1),
        "next_labels": torch.cat((tokens[:, 2:], torch.full((ROWS, 1), NOT_LEARNED)), 1),
    }
    loss = module(*(values[name] for name in module.input_names))
    loss.backward()
    expected, ahead = reference.losses(tokens)
    total = expected + LOSS_SCALING_FACTOR * ahead
    assert ahead > 1
    torch.testing.assert_close(loss.detach(), total.detach(), rtol=1e-6, atol=0)
    total.backward()
    for parameter in reference.parameters():
        parameter.data.copy_(torch.zeros(()) if parameter.grad is None else parameter.grad)
    gradients = reference.save(tmp_path / "gradients")

    def gradient(parameter: str) -> Any:
        found = module.parameter(parameter)
        return (torch.zeros_like(found) if found.grad is None else found.grad).detach().numpy()

    most = max(float(value.abs().max()) for value in gradients.values())
    for tensor, value in to_checkpoint(parts, dims, sizes, gradient):
        if not tensor.endswith("e_score_correction_bias"):
            largest = max(float(gradients[tensor].abs().max()), 1e-2 * most)
            assert (torch.from_numpy(value) - gradients[tensor]).abs().max() <= 1e-5 * largest, tensor


def test_the_loss_on_held_out_text_is_the_models_alone() -> None:
    """Parameters begin as their names say, so both models have the same ones."""
    ids = np.random.default_rng(0).integers(0, 89, (2, 17))
    inputs, labels = ids[:, :-1].copy(), ids[:, 1:].copy()
    settings, found = optimizer_settings(FP64, 1e-3, zero=1, seed=0), []
    for name in ("deepseek v3", "deepseek v3, predicting"):
        session = Session(plan_of(MODELS[name], strategy(), 2), 0, torch.device("cpu"), settings, seed=0)
        found.append((session.evaluate(inputs, labels), session.step(inputs, labels, 1e-3).loss))
    (plain, first), (held_out, trained) = found
    assert held_out == pytest.approx(plain, rel=1e-12) and plain == pytest.approx(first, rel=1e-12)
    assert trained > first + 1  # 0.3 of a loss of about log(96)
