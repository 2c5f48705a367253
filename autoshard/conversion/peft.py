"""Reads and writes adapters as PEFT saves them: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from autoshard.conversion.huggingface import ADAPTER_WEIGHTS, common_dtype, json_file, tensor_layouts
from autoshard.conversion.output_file import OutputFile, safetensors_file
from autoshard.models.adapter_weights import peft_layout
from autoshard.models.registry import repositories
from autoshard.spec.model import ModelSpec

ADAPTER_CONFIG = "adapter_config.json"


def peft_files(model: ModelSpec, dtypes: Mapping[str, str]) -> list[OutputFile]:
    """The files of a folder that PEFT loads over the model without adapters.

    dtypes: by parameter. Raises AutoshardError as `peft_layout`.
    """
    layout, lora = peft_layout(model, "to=hf writes the merged model"), model.lora
    assert lora is not None, model
    known = repositories(model.name)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": known[0] if len(known) == 1 else None,  # of several, which one is not known
        "r": lora.r,
        "lora_alpha": int(lora.lora_alpha) if lora.lora_alpha == int(lora.lora_alpha) else lora.lora_alpha,
        "lora_dropout": model.dropout.lora,
        "target_modules": layout.target_modules,
        "bias": "none",
        "fan_in_fan_out": layout.fan_in_fan_out,
        "inference_mode": True,
    }
    tensors = tensor_layouts(model, layout.parts)
    dtype_of = {one.name: common_dtype(one, dtypes) for one in tensors}
    weights = safetensors_file(Path(ADAPTER_WEIGHTS), tensors, dtype_of, metadata={"format": "pt"})
    return [weights, json_file(ADAPTER_CONFIG, config)]
