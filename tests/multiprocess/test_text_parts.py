"""Text models taken out of models that see: what transformers saves of the whole is read, converted and written as the
text model alone, which gives the same logits for text, bit by bit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from autoshard.conversion.convert import Conversion, convert, open_source
from autoshard.models.huggingface import read_other_parts
from autoshard.models.text_part import OF_THE_SAME_FORM
from tests.multiprocess.small_configs import CONFIGS
from tests.multiprocess.transformers_models import read_by_transformers, seeing

SMALL = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
PIXELS = {"image_size": 28, "patch_size": 14}
QWEN = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 64}
LLAMA4 = dict.fromkeys(("projector_input_dim", "projector_output_dim", "vision_output_dim"), 8)
ROPE = {"rope_type": "default", "rope_theta": 1e6}
THREE, HALF = {**ROPE, "mrope_section": [2, 1, 1]}, {**ROPE, "mrope_section": [1, 1, 0], "partial_rotary_factor": 0.5}
NO_WINDOW = {"use_sliding_window": False}
WHOLES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "gemma3": ("gemma3", {}, {"model_type": "siglip_vision_model", **SMALL, **PIXELS}),
    "llama4": ("llama4, scout", {}, {**SMALL, **PIXELS, **LLAMA4, "pixel_shuffle_ratio": 1.0}),
    "mistral3": ("mistral", {}, {"model_type": "pixtral", **SMALL, **PIXELS, "head_dim": 8}),
    "llava": ("llama, tied", {}, {"model_type": "clip_vision_model", **SMALL, **PIXELS}),
    "qwen3_5": ("qwen3.5", {}, QWEN),
    "qwen3_5_moe": ("qwen3.5 moe", {}, QWEN),
    "qwen2_vl": ("qwen2", {"model_type": "qwen2_vl_text", "rope_parameters": THREE, **NO_WINDOW}, {"depth": 1}),
    "qwen2_5_vl": ("qwen2", {"model_type": "qwen2_5_vl_text", "rope_parameters": THREE, **NO_WINDOW}, QWEN),
    "qwen3_vl": ("qwen3", {"model_type": "qwen3_vl_text"}, {**QWEN, "deepstack_visual_indexes": [0]}),
    "qwen3_vl_moe": ("qwen3 moe", {"model_type": "qwen3_vl_moe_text"}, {**QWEN, "deepstack_visual_indexes": [0]}),
    "qwen2_5_omni_thinker": (
        "qwen2",
        {"model_type": "qwen2_5_omni_text", "rope_parameters": THREE, **NO_WINDOW},
        {**QWEN, "fullatt_block_indexes": [0]},
    ),
    "qwen3_omni_moe_thinker": (
        "qwen3 moe",
        {"model_type": "qwen3_omni_moe_text"},
        {**QWEN, "deepstack_visual_indexes": [0]},
    ),
    "qwen4_exp": ("qwen4 exp", {"rope_parameters": {**HALF, "mrope_section": [2, 1, 1]}}, QWEN),
    "step3p7": ("step", {}, {**SMALL, **PIXELS}),
    "glm5_next": ("glm 5.3", {}, {**QWEN, **PIXELS, "projection_intermediate_size": 16}),
    "minimax_m3_vl": ("minimax m3", {}, {**SMALL, **PIXELS, "temporal_patch_size": 1}),
    "muse_glimmer": ("muse glimmer", {}, {**SMALL, **PIXELS, "intermediate_size": 96}),
    "muse_spark": ("muse spark", {}, {**SMALL, **PIXELS, "intermediate_size": 96}),
    "mistral_large4": ("mistral large 4", {}, {"model_type": "pixtral", **SMALL, **PIXELS, "head_dim": 8}),
    "glm4v": (
        "glm4",
        {"model_type": "glm4v_text", "rope_parameters": THREE, "head_dim": 8},
        QWEN,
    ),
    "glm46v": (
        "glm4",
        {"model_type": "glm4v_text", "rope_parameters": HALF, "head_dim": 8},
        {**QWEN, "model_type": "glm4v_vision"},
    ),
    "glm4v_moe": ("glm4 moe", {"model_type": "glm4v_moe_text", "rope_parameters": HALF}, QWEN),
}
"""model_type of the whole -> (the config of CONFIGS that its text model has, what is other in it, what sees)."""
QWEN_HEARS = {
    "d_model": 16,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "output_dim": 64,
    "num_mel_bins": 16,
}
HEARS = {
    "muse_spark": {"hidden_sizes": [8, 8, 16, 64], "depths": [1] * 4, "out_hidden_size": 64},
    "qwen2_5_omni_thinker": QWEN_HEARS,
    "qwen3_omni_moe_thinker": {**QWEN_HEARS, "downsample_hidden_size": 8},
}
"""What hears, of wholes that do."""


@pytest.mark.parametrize("name", WHOLES)
def test_the_text_model_of_one_that_sees_is_read_and_written(name: str, tmp_path: Path) -> None:
    text, more, vision = WHOLES[name]
    inner = {**CONFIGS[text], **more}
    tied = inner.get("tie_word_embeddings", False)
    whole = {"model_type": name, "text_config": inner, "vision_config": vision, "tie_word_embeddings": tied}
    other_parts = ["vision_config"]
    if name in HEARS:
        whole["audio_config"] = HEARS[name]
        other_parts.append("audio_config")
    reference = seeing(whole, tmp_path / "seeing")
    assert sorted(read_other_parts(tmp_path / "seeing")) == sorted(other_parts)
    source = open_source(tmp_path / "seeing")
    convert(source, tmp_path / "text", Conversion("hf"), lambda count: None, lambda count: None)
    own = inner["model_type"]
    form = OF_THE_SAME_FORM[own].model_type if own in OF_THE_SAME_FORM else own
    assert json.loads((tmp_path / "text" / "config.json").read_text())["model_type"] == form
    again = read_by_transformers(tmp_path / "text")
    ids = torch.randint(1, source.model.vocab_size - 8, (2, 24), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(again(ids).logits, reference(ids).logits)
