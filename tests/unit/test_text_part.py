"""Configs of models that see or hear as well: their text model is read, and what is left out of it is said."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autoshard
from autoshard.cli import main
from autoshard.conversion.convert import Conversion, convert, open_source
from autoshard.conversion.huggingface import huggingface_source
from autoshard.errors import AutoshardError
from autoshard.models.huggingface import from_config, read_dropout, read_other_parts, to_config
from autoshard.models.registry import FOLDER, load_model
from autoshard.models.text_part import OF_THE_SAME_FORM, is_part, other_parts, text_part
from autoshard.models.weights import checkpoint_parts
from autoshard.spec.model import ModelSpec
from tests.unit.weight_folders import bytes_of, huggingface_folder, weights, write_safetensors

TEXT: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 96,
    "max_position_embeddings": 128,
    "attention_dropout": 0.25,
}
SIGHT = {"model_type": "siglip_vision_model", "hidden_size": 16}
WHOLE = {"model_type": "llava", "text_config": TEXT, "vision_config": SIGHT, "torch_dtype": "bfloat16"}


def written(config: dict[str, Any], folder: Path) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_the_text_model_of_a_whole_is_that_of_its_text_config(tmp_path: Path) -> None:
    assert from_config(WHOLE, "m") == from_config(TEXT, "m")
    assert (is_part(WHOLE), is_part(TEXT)) == (True, False)
    assert other_parts(WHOLE) == ("vision_config",)
    hearing = {**WHOLE, "audio_config": {"hidden_size": 8}, "quantization_config": {"quant_method": "fp8"}}
    assert other_parts(hearing) == ("vision_config", "audio_config")
    assert read_other_parts(written(WHOLE, tmp_path)) == ("vision_config",)
    assert read_dropout(tmp_path).attention == 0.25


def test_a_published_config_that_gives_no_size_of_gemma_3_is_read() -> None:
    """google/gemma-3-4b-it: the text_config gives what is not that of every Gemma 3."""
    scaling = {"factor": 8.0, "rope_type": "linear"}
    sizes = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    text = {**sizes, "model_type": "gemma3_text", "rope_scaling": scaling}
    whole = {"model_type": "gemma3", "mm_tokens_per_image": 256, "text_config": text, "vision_config": SIGHT}
    assert from_config(whole, "gemma3-4b") == load_model("google/gemma-3-4b-it")


def test_the_published_config_of_llava_gives_no_size_of_its_llama() -> None:
    """llava-hf/llava-1.5-7b-hf: Vicuna, which is Llama 2 7B with 64 tokens more."""
    text = {"model_type": "llama", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "vocab_size": 32064}
    whole = {"model_type": "llava", "tie_word_embeddings": False, "text_config": text, "vision_config": SIGHT}
    assert from_config(whole, "llava") == replace(load_model("llama2-7b"), name="llava", vocab_size=32064)
    mistral = {**text, "model_type": "mistral", "num_key_value_heads": 8, "sliding_window": None, "rope_theta": 1e6}
    found = from_config({**whole, "text_config": mistral}, "llava")
    assert (found.intermediate_size, found.num_hidden_layers, found.head_dim) == (14_336, 32, 128)
    with pytest.raises(AutoshardError, match="num_attention_heads is missing from the config of m"):
        from_config(text, "m")  # alone it would be a model of nobody


@pytest.mark.parametrize(
    ("outer", "inner", "tied"),
    [
        (False, True, False),
        (True, True, True),
        (True, False, False),  # transformers' config of Mistral Small 3.1 says so, whose checkpoint has both tables
        (None, True, True),
        (None, False, False),
        (True, None, True),
        (None, None, False),
    ],
)
def test_tables_are_tied_where_nobody_says_that_they_are_not(
    outer: bool | None, inner: bool | None, tied: bool
) -> None:
    whole = {**WHOLE, "tie_word_embeddings": outer, "text_config": {**TEXT, "tie_word_embeddings": inner}}
    assert from_config(whole, "m").tie_word_embeddings is tied


def test_weights_that_the_whole_says_are_quantised_are_refused() -> None:
    with pytest.raises(AutoshardError) as error:
        from_config({**WHOLE, "quantization_config": {"quant_method": "fp8"}}, "m")
    assert str(error.value) == (
        "quantization_config of m is not supported: delete the key for the unquantised model, or give the name of a "
        "built-in one"
    )

    with pytest.raises(AutoshardError, match=r"^quantization_config in text_config of m is not supported: delete the"):
        from_config({**WHOLE, "text_config": {**TEXT, "quantization_config": {"quant_method": "fp8"}}}, "m")


QWEN = {**TEXT, "num_key_value_heads": 2, "rope_scaling": {"type": "mrope", "mrope_section": [4, 2, 2]}}
QWEN2_VL = {"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ministral": ({"num_key_value_heads": 2}, {}),
    "iquestcoder": ({"num_key_value_heads": 2}, {"num_key_value_heads": 8, "rms_norm_eps": 1e-5}),
    "internlm3": ({}, {"num_key_value_heads": 2, "head_dim": 128, "rms_norm_eps": 1e-5}),
    "qwen2_vl": (QWEN, QWEN2_VL),
    "qwen2_vl_text": (QWEN, QWEN2_VL),
    "qwen2_5_vl": (QWEN, QWEN2_VL),
    "qwen2_5_vl_text": (QWEN, QWEN2_VL),
    "qwen3_vl_text": (QWEN, {"rope_theta": 5e5}),
    "qwen3_vl_moe_text": ({**QWEN, **MOE}, {"rope_theta": 5e5, "norm_topk_prob": True}),
    "qwen2_5_omni_text": (
        {"rope_scaling": QWEN["rope_scaling"]},
        {"num_key_value_heads": 4, "rope_theta": 1e6, "sliding_window": 32_768},
    ),
    "qwen3_omni_moe_text": ({**QWEN, **MOE}, {"rope_theta": 1e6, "norm_topk_prob": True}),
    "glm4v_text": (
        {"num_key_value_heads": 2},
        {"rms_norm_eps": 1e-5, "partial_rotary_factor": 1.0, "head_dim": None},
    ),
    "glm4v_moe_text": (
        {
            **MOE,
            "num_experts": None,
            "n_routed_experts": 4,
            "first_k_dense_replace": 0,
            "n_shared_experts": 1,
            "num_key_value_heads": 2,
        },
        {"attention_bias": True},
    ),
    "gemma4_unified_text": (
        {"num_hidden_layers": 6, "head_dim": 16, "global_head_dim": 16},
        {"hidden_size_per_layer_input": 0, "sliding_window": 1024, "max_position_embeddings": 262_144},
    ),
    "glm5_next": ({"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}, {}),
    "granite4_vision_text": (
        dict.fromkeys(("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"), 1.0),
        {},
    ),
}
"""Every name in OF_THE_SAME_FORM: keys of a config, and what transformers takes where a key is absent."""


@pytest.mark.parametrize("name", OF_THE_SAME_FORM)
def test_a_config_by_another_name_is_that_of_the_form(name: str) -> None:
    keys, defaults = OTHERS[name]
    config = {**TEXT, **keys, "model_type": name}
    form = OF_THE_SAME_FORM[name]
    assert from_config(config, "m") == from_config({**defaults, **config, "model_type": form.model_type}, "m")
    assert form.defaults == defaults
    assert is_part(config) is form.sees
    assert from_config(to_config(from_config(config, "m")), "m") == from_config(config, "m")


@pytest.mark.parametrize("name", ["iquestcoder", "qwen2_vl", "qwen2_5_vl_text"])
def test_key_value_heads_that_are_absent_are_eight_and_null_is_one_a_head(name: str) -> None:
    config = {**TEXT, "model_type": name, "num_attention_heads": 16}
    config.pop("num_key_value_heads", None)
    assert from_config(config, "m").num_key_value_heads == 8
    assert from_config({**config, "num_key_value_heads": None}, "m").num_key_value_heads == 16


def test_internlm3_calls_biases_by_other_names() -> None:
    config = {**TEXT, "model_type": "internlm3"}
    biased = from_config({**config, "qkv_bias": True, "bias": True}, "m")
    assert (biased.model_type, biased.attention_bias, biased.mlp_bias) == ("llama", True, True)
    assert from_config({**config, "attention_bias": True, "mlp_bias": True}, "m") == biased
    assert from_config({**config, "qkv_bias": True, "attention_bias": False, "bias": True}, "m") == biased
    plain = from_config({**config, "qkv_bias": False, "bias": None}, "m")
    assert (plain.attention_bias, plain.mlp_bias) == (False, False)
    nulls = from_config({**config, "num_key_value_heads": None, "head_dim": None}, "m")
    heads = TEXT["num_attention_heads"]
    assert (nulls.num_key_value_heads, nulls.head_dim) == (heads, TEXT["hidden_size"] // heads)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"qkv_bias": True}, "qkv_bias=True of m is not supported with mlp_bias=False; both alike are"),
        ({"bias": True}, "attention_bias=False of m is not supported with bias=True; both alike are"),
        (
            {"qkv_bias": True, "bias": False},
            "qkv_bias=True of m is not supported with bias=False; both alike are",
        ),
    ],
)
def test_internlm3_with_biases_in_attention_alone_is_refused(flags: dict[str, bool], text: str) -> None:
    """InternLM3's own code has none at the output projection then, where Llama has."""
    whole = {"model_type": "internvl", "text_config": {**TEXT, **flags, "model_type": "internlm3"}}
    for config in ({**TEXT, **flags, "model_type": "internlm3"}, whole):
        with pytest.raises(AutoshardError) as error:
            from_config(config, "m")
        assert str(error.value) == text


@pytest.mark.parametrize("name", ["qwen3_vl_text", "qwen3_vl_moe_text", "qwen3_omni_moe_text"])
def test_windows_that_the_classes_of_qwen_3_have_not_are_refused(name: str) -> None:
    config = {**TEXT, **OTHERS[name][0], "model_type": name, "sliding_window": 16}
    assert from_config({**config, "use_sliding_window": False}, "m").sliding_window is None
    with pytest.raises(AutoshardError) as error:
        from_config({**config, "use_sliding_window": True}, "m")
    assert str(error.value) == "use_sliding_window=True of m is not supported; False is"


def test_what_the_class_of_glm_4_1v_fixes() -> None:
    """transformers' class has biases, and shares the hidden size out over the heads, whatever its config says."""
    text = {**TEXT, "model_type": "glm4v_text", "num_key_value_heads": 2}
    model = from_config({"model_type": "glm4v", "text_config": text}, "m")
    assert (model.model_type, model.attention_bias, model.head_dim, model.norm_eps) == ("glm4", True, 16, 1e-5)
    for key, value, known in (
        ("attention_bias", False, "True"),
        ("head_dim", 32, "hidden_size / num_attention_heads=16"),
    ):
        with pytest.raises(AutoshardError) as error:
            from_config({"model_type": "glm46v", "text_config": {**text, key: value}}, "m")
        assert str(error.value) == f"{key}={value} of m is not supported; {known} is"


def test_a_whole_in_one_object_is_read() -> None:
    """Qwen2.5-VL as it was published first: the keys of the text model beside vision_config."""
    flat = {**QWEN, "model_type": "qwen2_5_vl", "vision_config": {"depth": 32}}
    nested = {"model_type": "qwen2_5_vl", "text_config": {**QWEN, "model_type": "qwen2_5_vl_text"}}
    assert from_config(flat, "m") == from_config(nested, "m")
    assert (other_parts(flat), other_parts(nested)) == (("vision_config",), ())


def test_of_a_model_that_speaks_the_part_that_reads_is_read() -> None:
    """Qwen2.5-Omni: thinker_config has the text model, and says whether tables are tied; the class of its text_config
    says True of itself, which transformers leaves aside."""
    text = {**QWEN, "model_type": "qwen2_5_omni_text", "tie_word_embeddings": True}
    thinker = {"model_type": "qwen2_5_omni_thinker", "audio_config": {}, "text_config": text, "vision_config": {}}
    whole = {"model_type": "qwen2_5_omni", "thinker_config": thinker, "talker_config": {}, "token2wav_config": {}}
    alone = from_config({**text, "tie_word_embeddings": False}, "m")
    assert from_config(whole, "m") == from_config({**thinker, "tie_word_embeddings": False}, "m") == alone
    tied = {**whole, "thinker_config": {**thinker, "tie_word_embeddings": True}}
    assert from_config(tied, "m") == replace(alone, tie_word_embeddings=True)
    assert other_parts(whole) == ("audio_config", "vision_config", "talker_config", "token2wav_config")
    with pytest.raises(AutoshardError, match=r"^quantization_config of m is not supported: "):
        from_config({**whole, "quantization_config": {"quant_method": "awq"}}, "m")
    with pytest.raises(AutoshardError, match=r"^model_type='qwen2_5_omni' of m is not supported; the nearest "):
        from_config({**whole, "thinker_config": {**thinker, "text_config": {**text, "model_type": "other"}}}, "m")


def test_glm_5_3_is_read_with_its_text_model_inside_or_in_one_object() -> None:
    (file,) = FOLDER.glob("*/configs/glm-5.3-flash.json")
    text = {**json.loads(file.read_text()), "index_share_for_mtp_iteration": True, "moe_router_dtype": "float32"}
    del text["architectures"]
    whole = {"architectures": ["Glm5NextForConditionalGeneration"], "model_type": "glm5_next", "vision_config": SIGHT}
    for config in ({**whole, "text_config": text}, {**text, **whole}):
        assert from_config(config, "glm-5.3-flash") == load_model("zai-org/GLM-5.3-Flash")
        assert other_parts(config) == ("vision_config",)


def test_a_config_that_is_a_familys_own_is_not_looked_into() -> None:
    assert text_part({**TEXT, "text_config": {**TEXT, "hidden_size": 32}})["hidden_size"] == 64


@pytest.mark.parametrize("model_type", ["whatever", None, 5, ["llama"], {}])
def test_a_text_config_of_no_known_family_is_refused(model_type: object) -> None:
    with pytest.raises(AutoshardError, match=r"model_type='llava' of m is not supported; nor is its text_config, of "):
        from_config({"model_type": "llava", "text_config": {**TEXT, "model_type": model_type}}, "m")


def test_a_wrong_key_of_the_text_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(AutoshardError) as error:
        read_other_parts(written({**WHOLE, "text_config": {**TEXT, "hidden_size": 0}}, tmp_path))
    named = f"model config {tmp_path / 'config.json'}: hidden_size=0 of {tmp_path.name}"
    assert str(error.value) == f"{named} must be a whole number from 1 to 1,000,000,000"


def test_a_plan_says_what_it_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "seeing.json"
    file.write_text(json.dumps({**WHOLE, "audio_config": {}}))
    options = ["--nodes", "1", "--global-batch", "32", "--out", str(tmp_path / "plan.json"), "--verbose"]
    main(["plan", "--model", str(file), *options])
    told = " ".join(capsys.readouterr().out.split())
    assert f"{file}: the text model alone is planned; vision_config and audio_config left out" in told


MODEL = from_config(TEXT, "m")


def whole_folder(folder: Path, model: ModelSpec, form: str) -> Path:
    """A checkpoint of WHOLE. form: how its text model's names begin."""
    huggingface_folder(folder, model)
    (folder / "config.json").write_text(json.dumps({**WHOLE, "text_config": {**TEXT, **to_config(model)}}))
    named = {form.format(name=name, rest=name.removeprefix("model.")): it for name, it in weights(model, "F32").items()}
    others = ("vision_tower.encoder.norm.weight", "multi_modal_projector.linear.weight", "model.vision.weight")
    write_safetensors(folder / "model.safetensors", {**named, **{name: np.zeros(4, "f4") for name in others}}, "F32")
    return folder


@pytest.mark.parametrize("form", ["language_model.{name}", "model.language_model.{rest}", "thinker.{name}"])
def test_the_checkpoint_of_a_whole_comes_back_as_the_text_model(form: str, tmp_path: Path) -> None:
    plain = huggingface_folder(tmp_path / "plain", MODEL)
    source = open_source(whole_folder(tmp_path / "whole", MODEL, form))
    convert(source, tmp_path / "text", Conversion("hf"), lambda count: None, lambda count: None)
    assert bytes_of(tmp_path / "text") == bytes_of(plain)


def test_a_tensor_that_the_text_model_does_not_have_is_refused(tmp_path: Path) -> None:
    folder = whole_folder(tmp_path / "whole", MODEL, "language_model.{name}")
    tensors = {f"language_model.{name}": it for name, it in weights(MODEL, "F32").items()}
    more = {"language_model.model.layers.2.mlp.up_proj.weight": np.zeros(4, "f4")}
    write_safetensors(folder / "model.safetensors", {**tensors, **more}, "F32")
    with pytest.raises(
        AutoshardError, match=r"has tensor language_model\.model\.layers\.2\.mlp\.up_proj\.weight, which"
    ):
        huggingface_source(folder)


@pytest.mark.parametrize(
    ("form", "head"),
    [
        ("language_model.{name}", "language_model.lm_head.weight"),
        ("model.language_model.{rest}", "lm_head.weight"),
        ("thinker.{name}", "thinker.lm_head.weight"),
    ],
)
def test_a_head_that_is_not_the_embedding_of_a_whole_that_ties_them_is_refused(
    form: str, head: str, tmp_path: Path
) -> None:
    model = replace(MODEL, tie_word_embeddings=True)
    folder = whole_folder(tmp_path / "whole", model, form)
    named = {form.format(name=name, rest=name.removeprefix("model.")): it for name, it in weights(model, "F32").items()}
    table = form.format(name="model.embed_tokens.weight", rest="embed_tokens.weight")
    write_safetensors(folder / "model.safetensors", {**named, head: named[table]}, "F32")
    assert open_source(folder).model.tie_word_embeddings
    write_safetensors(folder / "model.safetensors", {**named, head: named[table] + 1}, "F32")
    with pytest.raises(AutoshardError) as error:
        open_source(folder)
    assert f"{head} is not {table}, and {folder / 'config.json'} ties them" in str(error.value)


def test_experts_that_lie_the_other_way_round_are_read(tmp_path: Path) -> None:
    """As Qwen publishes Qwen3-VL's mixtures: experts x columns x rows, where transformers saves them by rows."""
    model = from_config({**TEXT, **MOE, "model_type": "qwen3_moe"}, "m")
    plain = huggingface_folder(tmp_path / "plain", model)
    tensors = weights(model, "F32")
    for layer in range(2):
        experts = f"model.layers.{layer}.mlp.experts"
        gates, raises, falls = (
            np.stack([tensors.pop(f"{experts}.{expert}.{part}_proj.weight").T for expert in range(4)])
            for part in ("gate", "up", "down")
        )
        tensors[f"{experts}.gate_up_proj"] = np.ascontiguousarray(np.concatenate([gates, raises], axis=2))
        tensors[f"{experts}.down_proj"] = np.ascontiguousarray(falls)
    fused = huggingface_folder(tmp_path / "fused", model)
    write_safetensors(fused / "model.safetensors", tensors, "F32")
    convert(open_source(fused), tmp_path / "again", Conversion("hf"), lambda count: None, lambda count: None)
    assert bytes_of(tmp_path / "again") == bytes_of(plain)


def test_a_part_turned_twice_is_itself() -> None:
    parts = checkpoint_parts(from_config({**TEXT, **MOE, "model_type": "qwen3_moe"}, "m"), fused=True)
    assert {part.turned.layout for part in parts if part.tensor.endswith("_proj") and "experts" in part.tensor} == {
        "expert embed (part ffn)",
        "expert ffn embed",
    }
    assert all(part.turned.turned == part for part in parts if len(part.groups) > 1)


def test_a_plan_of_a_parsed_config_says_what_it_leaves_out() -> None:
    plan = autoshard.plan({**WHOLE, "_name_or_path": "seeing"}, nodes=1, global_batch=32)
    assert "seeing: the text model alone is planned; vision_config left out" in plan.notes
    again = autoshard.replan(plan, 2)
    assert "seeing: the text model alone is planned; vision_config left out" in again.notes
    alone = autoshard.plan({**TEXT, "_name_or_path": "seeing"}, nodes=1, global_batch=32)
    assert alone.model == plan.model and not any("left out" in note for note in alone.notes)


@pytest.mark.parametrize("config", [None, 5, "text", [], {}, {"model_type": []}, {"text_config": 5}])
def test_of_what_is_no_config_of_a_whole_nothing_is_left_out(config: object) -> None:
    assert other_parts(config) == ()
