"""Models of transformers, which is imported with the first of them: that takes 2 s, and few processes have one."""

import json
import re
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file


@cache
def _transformers() -> Any:
    import transformers
    from transformers import modeling_outputs
    from transformers.models.auto import modeling_auto

    transformers.logging.disable_progress_bar()
    # transformers 5.24's Llama 4 that sees asks what its text model gives for it
    modeling_outputs.MoeCausalLMOutputWithPast.image_outputs = None
    # transformers 5.24 finds it with images alone
    modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["mistral4"] = "Mistral4ForCausalLM"
    _name_as_published("minimax_m3_vl", "MiniMaxM3VLForCausalLM")
    _add_step(transformers)
    _add_glm(transformers)
    for name in ("glimmer", "spark"):
        _add_muse(transformers, name)
    _add_mistral_large(transformers)
    return transformers


def _name_as_published(whole: str, text: str) -> None:
    """Let a class of text alone have the names that checkpoints of the whole model_type have, but for what stands
    before them."""
    from transformers import conversion_mapping

    known: Any = conversion_mapping.get_checkpoint_conversion_mapping(whole)
    inner = [one for one in known if not any(pattern.startswith("^") for pattern in one.source_patterns)]
    conversion_mapping.register_checkpoint_conversion_mapping(text, inner)


def _add_step(transformers: Any) -> None:
    """Step's text model by itself, which transformers 5.24 has inside of the one that sees alone: with its modules, and
    the names that its checkpoint has."""
    from transformers.models.step3p7 import modeling_step3p7

    text_config: Any = transformers.AutoConfig.for_model("step3p5").__class__

    class Step3p5ForCausalLM(modeling_step3p7.Step3p7PreTrainedModel, transformers.GenerationMixin):  # type: ignore[misc]
        config_class = text_config
        _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.model = modeling_step3p7.Step3p7TextModel(config)
            self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            self.post_init()

        def forward(self, input_ids: torch.Tensor | None = None, **given: Any) -> Any:
            hidden = self.model(input_ids, **given)[0]
            return transformers.modeling_outputs.CausalLMOutput(logits=self.lm_head(hidden))

    _name_as_published("step3p7", "Step3p5ForCausalLM")
    transformers.AutoModelForCausalLM.register(text_config, Step3p5ForCausalLM, exist_ok=True)


def _add_glm(transformers: Any) -> None:
    """GLM-5.3's text model by itself, which transformers 5.24 has inside of the one that sees alone."""
    from transformers.models.glm5_next import modeling_glm5_next

    text_config: Any = transformers.AutoConfig.for_model("glm5_next_text").__class__

    class Glm5NextForCausalLM(modeling_glm5_next.Glm5NextPreTrainedModel, transformers.GenerationMixin):  # type: ignore[misc]
        __module__ = modeling_glm5_next.__name__  # where transformers looks whether its experts may be grouped
        config_class = text_config
        _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.model = modeling_glm5_next.Glm5NextTextModel(config)
            self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            self.post_init()

        def forward(self, input_ids: torch.Tensor | None = None, **given: Any) -> Any:
            hidden = self.model(input_ids, **given)[0]
            return transformers.modeling_outputs.CausalLMOutput(logits=self.lm_head(hidden))

    transformers.AutoModelForCausalLM.register(text_config, Glm5NextForCausalLM, exist_ok=True)


def _with_head(
    transformers: Any,
    modeling: Any,
    text_config: Any,
    inner: Any,
    outer: Any,
    name: str,
    capped: Callable[[Any, torch.Tensor], torch.Tensor],
) -> Any:
    """A class of a text model with a head. inner, outer: the model without one, and the class of all of its kind.
    capped: makes the logits of a config and of what the head gives."""

    class ForCausalLM(outer, transformers.GenerationMixin):  # type: ignore[misc]
        __module__ = modeling.__name__  # where transformers looks whether its experts may be grouped
        config_class = text_config
        _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.model = inner(config)
            self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            self.post_init()

        def forward(self, input_ids: torch.Tensor | None = None, **given: Any) -> Any:
            logits = self.lm_head(self.model(input_ids, **given)[0])
            return transformers.modeling_outputs.CausalLMOutput(logits=capped(self.config, logits))

    ForCausalLM.__name__ = ForCausalLM.__qualname__ = name  # which a config that is saved names
    return ForCausalLM


def _add_muse(transformers: Any, which: str) -> None:
    """A text model of Muse by itself, which transformers 5.24 has inside of the one that sees alone, with the head of
    that one. which: glimmer or spark."""
    modeling: Any = import_module(f"transformers.models.muse_{which}.modeling_muse_{which}")
    text_config: Any = transformers.AutoConfig.for_model(f"muse_{which}_text").__class__
    inner, outer = (getattr(modeling, f"Muse{which.title()}{part}") for part in ("TextModel", "PreTrainedModel"))

    def capped(config: Any, logits: torch.Tensor) -> torch.Tensor:
        cap = config.final_logit_softcapping
        return torch.tanh(logits * config.output_multiplier / cap) * cap

    made = _with_head(transformers, modeling, text_config, inner, outer, "MuseForCausalLM", capped)
    transformers.AutoModelForCausalLM.register(text_config, made, exist_ok=True)


def _add_mistral_large(transformers: Any) -> None:
    """Mistral Large 4's text model by itself, which transformers 5.24 has inside of the one that sees alone: with the
    head of that one, and the names that its checkpoint has."""
    from transformers import conversion_mapping
    from transformers.core_model_loading import WeightRenaming
    from transformers.models.mistral_large4 import modeling_mistral_large4

    text_config: Any = transformers.AutoConfig.for_model("mistral_large4_text").__class__

    modeling: Any = modeling_mistral_large4
    outer, inner = modeling.MistralLarge4PreTrainedModel, modeling.MistralLarge4TextModel

    def capped(config: Any, logits: torch.Tensor) -> torch.Tensor:
        cap = config.final_logit_softcapping
        return torch.tanh(logits / cap) * cap

    made = _with_head(transformers, modeling, text_config, inner, outer, "MistralLarge4ForCausalLM", capped)
    whole: Any = conversion_mapping.get_checkpoint_conversion_mapping("mistral_large4")
    ends = {"tok_embeddings": "embed_tokens", "layers": "layers", "norm": "norm"}
    own = [WeightRenaming(rf"^{theirs}\.", f"model.{ours}.") for theirs, ours in ends.items()]
    own += [WeightRenaming(r"^lerope\.alpha", "model.rotary_emb.alpha"), WeightRenaming(r"^output\.", "lm_head.")]
    shared = [one for one in whole if one.source_patterns[0].startswith((r"\.wo", r"\.(feed"))]
    conversion_mapping.register_checkpoint_conversion_mapping("MistralLarge4ForCausalLM", [*own, *shared])
    transformers.AutoModelForCausalLM.register(text_config, made, exist_ok=True)


def config_of_transformers(config: dict[str, Any]) -> Any:
    return _transformers().AutoConfig.for_model(**deepcopy(config))  # it writes into dicts that configs share


def built(config: dict[str, Any]) -> torch.nn.Module:
    """The model of a config, ready to be asked."""
    model: torch.nn.Module = _transformers().AutoModelForCausalLM.from_config(config_of_transformers(config))
    return model.eval()


def read_by_transformers(folder: Path) -> torch.nn.Module:
    """The model that a folder holds, ready to be asked."""
    _add_zero_experts(folder)
    model: torch.nn.Module = _transformers().AutoModelForCausalLM.from_pretrained(folder)
    return model.eval()


def _add_zero_experts(folder: Path) -> None:
    """Give LongCat-Flash's experts without matrices zeros, which transformers 5.23 wants and no published file has."""
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] != "longcat_flash":
        return
    first, count = config["n_routed_experts"], config["zero_expert_num"]
    tensors = load_file(folder / "model.safetensors")
    for name, one in list(tensors.items()):
        if found := re.fullmatch(r"(.*\.experts\.)0(\.(?:gate|up)_proj\.weight)", name):
            before, behind = found.groups()
            tensors |= {f"{before}{first + place}{behind}": torch.zeros_like(one) for place in range(count)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def published(config: dict[str, Any], folder: Path) -> torch.nn.Module:
    """A model as Hugging Face saves it, with biases and norms that are not at their initial zeros and ones."""
    model = built(config)
    _fill(model)
    save(model, folder)
    return model


def seeing(config: dict[str, Any], folder: Path) -> torch.nn.Module:
    """A model that sees images, as Hugging Face saves it, with values as those of `published`."""
    made = _transformers().AutoModelForImageTextToText.from_config(config_of_transformers(config))
    model: torch.nn.Module = made.eval()
    _fill(model)
    save(model, folder)
    return model


def _fill(model: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * 0.1 + (parameter if parameter.dim() == 1 else 0))
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.2)
            if name.endswith("tid2eid"):
                buffer.copy_(torch.randint(model.config.n_routed_experts, buffer.shape, generator=generator))
            if name.endswith("rotary_emb.alpha"):
                buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.3)
            if name.endswith("layer_scalar"):
                buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)
        for one in zero_experts(model):
            one.zero_()


def zero_experts(model: Any) -> list[torch.Tensor]:
    """The parts of parameters for LongCat-Flash's experts without matrices, which its class has and does not read."""
    if model.config.model_type != "longcat_flash":
        return []
    first = model.config.n_routed_experts
    return [value[first:] for name, value in model.named_parameters() if name.endswith("experts.gate_up_proj")]


def save(model: Any, folder: Path) -> None:
    """As published, which transformers reads, but does not write: the MLP of Kimi Linear's blocks without experts has a
    name of its own, and so has OLMo Hybrid's norm behind attention, whose convolutions are as wide as what they see;
    Hy4's weights of streams lie in another order of modules, and its MLPs have no linear_gate; LongCat-Flash has
    nothing of experts without matrices."""
    model.save_pretrained(folder)
    file = folder / "model.safetensors"
    if model.config.model_type == "kimi_linear":
        tensors = {
            re.sub(r"block_sparse_moe\.(\w+_proj)\b", r"mlp.\1", name): one for name, one in load_file(file).items()
        }
    elif model.config.model_type == "longcat_flash":
        experts = {f".experts.{place}." for place in range(model.config.n_routed_experts)}
        tensors = {
            name: one
            for name, one in load_file(file).items()
            if ".experts." not in name or any(expert in name for expert in experts)
        }
    elif model.config.model_type == "hy_v4":
        tensors = {
            re.sub(r"hc_pre\.hc_(attn|mlp)_layer", r"hc_\1_layer.hc_pre", name)
            .replace("hc_pre.hc_head.", "hc_head.")
            .replace("mlp.linear_gate", "mlp.gate_proj")
            .replace("shared_experts.linear_gate", "shared_experts.gate_proj"): one
            for name, one in load_file(file).items()
        }
    elif model.config.model_type == "olmo_hybrid":
        tensors = dict(load_file(file))
        for layer, word in enumerate(model.config.layer_types):
            prefix = f"model.layers.{layer}"
            if word == "full_attention":
                norm = tensors.pop(f"{prefix}.feedforward_layer_norm.weight")
                tensors[f"{prefix}.post_attention_layernorm.weight"] = norm
                continue
            names = [f"{prefix}.linear_attn.{part}" for part in ("q", "k", "v")]
            whole = torch.cat([tensors[f"{name}_conv1d.weight"] for name in names])
            rows = [len(tensors[f"{name}_proj.weight"]) for name in names]
            for name, piece in zip(names, whole.split(rows), strict=True):
                tensors[f"{name}_conv1d.weight"] = piece.clone()
    else:
        return
    save_file(tensors, file, metadata={"format": "pt"})
