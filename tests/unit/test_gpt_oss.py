"""gpt-oss: what its config says, what its graph has, and what stays unquantised."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from autoshard.checkpoint.boxes import Box
from autoshard.conversion.convert import Conversion, convert
from autoshard.conversion.huggingface import huggingface_source
from autoshard.conversion.source import WeightReader
from autoshard.errors import AutoshardError
from autoshard.files.codec import from_json, to_json
from autoshard.graph.count import loop_sizes
from autoshard.graph.ir import OPERAND_BYTES, Graph
from autoshard.graph.operators import KINDS
from autoshard.graph.partition import OperatorStep, Program, partition
from autoshard.graph.quantize import with_quantized_products
from autoshard.models.huggingface import from_config, to_config
from autoshard.models.registry import load_model
from autoshard.models.stage import dim_sizes, parameter_count, stage_graph
from autoshard.spec.clamped_gate import ClampedGate
from autoshard.spec.model import ModelSpec
from autoshard.spec.rope import RopeScaling
from tests.multiprocess.models import MODELS
from tests.unit.weight_folders import huggingface_folder, weights

BARE: dict[str, Any] = {
    "model_type": "gpt_oss",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "vocab_size": 96,
    "max_position_embeddings": 64,
}
YARN = RopeScaling("yarn", 32.0, None, None, 4096, 32.0, 1.0, False)


def whole(model: ModelSpec, kernel: str = "flash", seq: int = 16) -> Graph:
    sizes = dim_sizes(model, 1, seq)
    return stage_graph(model, sizes, range(model.num_hidden_layers), first=True, last=True, attention_kernel=kernel)


@pytest.mark.parametrize(("name", "count"), [("gpt-oss-20b", 20_914_757_184), ("gpt-oss-120b", 116_829_156_672)])
def test_models_have_the_published_number_of_parameters(name: str, count: int) -> None:
    model = load_model(name)
    assert parameter_count(model) == count
    assert model.rope_scaling == YARN
    assert model.rope_scaling.rotation_factor == pytest.approx(1.3465735902799727, rel=1e-15)  # 0.1 ln 32 + 1


def test_an_empty_object_of_positions_stretches_nothing() -> None:
    """No object is YaRN, in which other positions of the pre-training go before its own."""
    assert from_config({**BARE, "rope_parameters": {}}, "bare").rope_scaling is None
    nothings: tuple[dict[str, Any], ...] = ({}, {"rope_scaling": {}}, {"rope_parameters": None})
    for nothing in nothings:
        assert from_config({**BARE, **nothing}, "bare").rope_scaling == YARN
    beside = from_config({**BARE, "original_max_position_embeddings": 64}, "bare").rope_scaling
    assert beside == replace(YARN, original_max_position_embeddings=64)


def test_what_a_config_leaves_out() -> None:
    model = from_config(BARE, "bare")
    assert model.layer_types == ("sliding_attention", "full_attention") * 2
    assert (model.sliding_window, model.head_dim, model.num_key_value_heads) == (128, 64, 8)
    assert (model.rope_theta, model.rope_scaling, model.norm_eps) == (150_000.0, YARN, 1e-5)
    assert (model.num_local_experts, model.num_experts_per_tok) == (128, 4)
    assert (model.attention_bias, model.mlp_bias, model.output_projection_bias) == (True, True, True)
    assert model.attention_scores.sinks
    assert model.clamped_gate == ClampedGate(7.0, 1.702)
    assert model.router_aux_loss_coef == 0
    assert from_config({**BARE, "output_router_logits": True}, "bare").router_aux_loss_coef == 0.001


@pytest.mark.parametrize(
    "config",
    [
        BARE,
        {**BARE, "sliding_window": None},
        {**BARE, "layer_types": ["sliding_attention"] * 4, "rope_parameters": {"rope_type": "default"}},
        {**BARE, "attention_bias": False, "swiglu_limit": 3, "output_router_logits": True},
    ],
)
def test_a_config_and_a_plans_model_say_the_same_again(config: dict[str, Any]) -> None:
    model = from_config(config, "mine")
    assert from_config(to_config(model), "mine") == model
    assert from_json(ModelSpec, to_json(model), "model") == model


def test_the_model_of_a_quantised_checkpoint_is_the_one_that_was_quantised() -> None:
    quantized = {**BARE, "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": []}}
    assert from_config(quantized, "bare") == from_config(BARE, "bare")
    with pytest.raises(AutoshardError, match=r"^quantization_config of bare is not supported"):
        from_config({**BARE, "quantization_config": {"quant_method": "fp8"}}, "bare")


def quantised_folder(folder: Path, model: ModelSpec) -> dict[str, np.ndarray[Any, Any]]:
    """A checkpoint whose experts are in MXFP4, with random bits and scales around 1; returns the tensors in it."""
    huggingface_folder(folder, model, "BF16")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": []}
    (folder / "config.json").write_text(json.dumps(config))
    tensors, random = weights(model, "BF16"), np.random.default_rng(3)
    found: dict[str, np.ndarray[Any, Any]] = {}
    for name, value in tensors.items():
        if name.endswith(("gate_up_proj", "experts.down_proj")):
            experts, columns, rows = value.shape
            found[f"{name}_blocks"] = random.integers(0, 256, (experts, rows, columns // 32, 16), dtype=np.uint8)
            found[f"{name}_scales"] = random.integers(120, 135, (experts, rows, columns // 32), dtype=np.uint8)
        else:
            found[name] = value
    save_mixed(folder / "model.safetensors", found)
    return found


def save_mixed(path: Path, tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    """Write uint16 as bits of bfloat16, uint8 as it is."""
    header: dict[str, Any] = {}
    end = 0
    for name, value in tensors.items():
        dtype = "U8" if value.dtype == np.uint8 else "BF16"
        header[name] = {"dtype": dtype, "shape": value.shape, "data_offsets": [end, end + value.nbytes]}
        end += value.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(one.tobytes() for one in tensors.values()))


EXPERTS = "model.layers.0.mlp.experts"
QUANTISED = replace(MODELS["gpt oss"], hidden_size=64, intermediate_size=96)


def test_a_block_of_mxfp4_by_hand(tmp_path: Path) -> None:
    """Low half first; 0.5 to 6 and their negatives; scales 2^(s - 127). Expert 1, column 3 of gate, rows 32 to 63."""
    tensors = quantised_folder(tmp_path / "hf", QUANTISED)
    blocks, scales = (tensors[f"{EXPERTS}.gate_up_proj_{name}"] for name in ("blocks", "scales"))
    blocks[1, 2 * 3, 1] = [0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE, 0x2A, *[0] * 7]
    scales[1, 2 * 3, 1] = 130
    save_mixed(tmp_path / "hf" / "model.safetensors", tensors)
    with WeightReader(huggingface_source(tmp_path / "hf")) as reader:
        found = reader.read(f"{EXPERTS}.gate_proj.weight", Box((1, 3, 32), (1, 1, 32)), "F32").view(np.float32)
        inside = reader.read(f"{EXPERTS}.gate_proj.weight", Box((1, 3, 37), (1, 1, 4)), "BF16")
    by_hand = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6, -1, 1, *[0] * 14]
    assert found.ravel().tolist() == [8 * value for value in by_hand]
    assert (inside.astype(np.uint32) << 16).view(np.float32).ravel().tolist() == [24, 32, 48, 0]


def test_every_number_of_a_quantised_checkpoint(tmp_path: Path) -> None:
    """Against OpenAI's way of reading it: unpack along the last dim, then exchange the last two."""
    tensors = quantised_folder(tmp_path / "hf", QUANTISED)
    convert(
        huggingface_source(tmp_path / "hf"), tmp_path / "out", Conversion("hf"), lambda size: None, lambda size: None
    )
    with safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as written:
        values = {name: written.get_tensor(name).float().numpy() for name in written.keys()}  # noqa: SIM118  it is no dict
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())
    digits = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    for name in ("gate_up_proj", "down_proj"):
        blocks, scales = (tensors[f"{EXPERTS}.{name}_{part}"] for part in ("blocks", "scales"))
        pairs = np.stack((digits[blocks % 16], digits[blocks // 16]), -1).reshape(*scales.shape, 32)
        whole = (pairs * 2.0 ** (scales.astype(int) - 127)[..., None]).reshape(*scales.shape[:2], -1)
        np.testing.assert_array_equal(values[f"{EXPERTS}.{name}"], whole.transpose(0, 2, 1))
    assert values.keys() == weights(QUANTISED, "BF16").keys()


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("gate_up_proj_scales", lambda x: None, "has no tensor {name}, and has"),
        ("down_proj_scales", lambda x: x[:, :, :1], "down_proj_scales is U8 [4, 64, 1]; MXFP4 of the model's is U8 "),
        ("down_proj_blocks", lambda x: x.astype(np.uint16), "down_proj_blocks is BF16 "),
        ("down_proj_scales", lambda x: np.full_like(x, 255), "down_proj_scales has a scale that is not a number"),
        ("down_proj_scales", lambda x: np.full_like(x, 254), "down_proj_scales has values beyond what bfloat16 holds"),
    ],
)
def test_broken_mxfp4_is_refused(name: str, change: Any, told: str, tmp_path: Path) -> None:
    tensors = quantised_folder(tmp_path / "hf", QUANTISED)
    key = f"{EXPERTS}.{name}"
    changed = change(tensors.pop(key))
    save_mixed(tmp_path / "hf" / "model.safetensors", tensors if changed is None else {**tensors, key: changed})
    with pytest.raises(AutoshardError) as raised, WeightReader(huggingface_source(tmp_path / "hf")) as reader:
        reader.read(f"{EXPERTS}.down_proj.weight", Box((0, 0, 0), (4, 64, 96)), "BF16")
    assert told.replace("{name}", key) in str(raised.value)


def test_the_graph_has_sinks_windows_and_biases() -> None:
    graph = whole(MODELS["gpt oss"])
    attention = [op for op in graph.operators if op.kind == "attention"]
    assert [op.attributes["sliding_window"] for op in attention] == [5, None, 5, None]
    assert all(op.attributes["sinks"] and op.inputs[3].endswith(".self_attn.sinks") for op in attention)
    assert graph.tensors["model.layers.0.self_attn.sinks"].dims == ("kvhead", "group")
    assert graph.tensors["model.layers.0.mlp.experts.down_proj.bias"].dims == ("expert", "embed")
    combine = next(op for op in graph.operators if op.kind == "combine")
    assert combine.inputs[2] == "model.layers.0.mlp.experts.down_proj.bias"


def test_routers_with_a_bias_are_not_quantised_either() -> None:
    graph = with_quantized_products(whole(MODELS["gpt oss"]), 1.0)
    marked = {op.name.removeprefix("model.layers.0.") for op in graph.operators if OPERAND_BYTES in op.attributes}
    assert "mlp.router.matmul" not in marked
    assert {"self_attn.q_proj.matmul", "mlp.experts.gate_proj.matmul", "mlp.experts.down_proj"} <= marked


def _attention(model: ModelSpec, kernel: str) -> tuple[Program, OperatorStep]:
    graph = whole(model, kernel)
    program = partition(graph, {}, {op.name: {} for op in graph.operators}, {}, {graph.operators[-1].output: None})
    steps = [step for step in program.steps if isinstance(step, OperatorStep) and step.operator.kind == "attention"]
    return program, steps[-1]


def test_written_out_attention_keeps_a_number_a_row_for_its_sink_and_capped_scores_besides() -> None:
    found = {}
    for name in ("gpt oss", "gemma2"):
        program, step = _attention(MODELS[name], "plain")
        sizes = loop_sizes(program, step)
        kept = KINDS["attention"].extra_saved(step.operator, program.graph, sizes)
        found[name] = {extra.name: extra.bytes for extra in kept}
    rows = 8 * 16
    assert found["gpt oss"] == {"probabilities": 2 * rows * 16, "weights_of_sinks": 4 * rows}
    assert found["gemma2"] == {"probabilities": 2 * rows * 16, "capped_scores": 2 * rows * 16}


def test_a_gate_that_is_nothing_is_refused() -> None:
    with pytest.raises(AutoshardError) as raised:
        from_config({**BARE, "swiglu_limit": 0}, "mine")
    assert str(raised.value) == "swiglu_limit=0 of mine must be a finite number above 0"
    with pytest.raises(AutoshardError) as raised:
        replace(MODELS["gpt oss"], clamped_gate=7.0)  # type: ignore[arg-type]
    assert str(raised.value) == "clamped_gate=7.0 of tiny-llama must be null or an object with swiglu_limit"
