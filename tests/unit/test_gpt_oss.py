"""gpt-oss: what its config says, what its graph has, and what stays unquantised."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from autoshard.conversion.huggingface import huggingface_source
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
from autoshard.spec.model import ModelSpec, RopeScaling
from tests.multiprocess.plans import MODELS

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


def test_quantised_weights_are_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(BARE))
    name = "model.layers.0.mlp.experts.gate_up_proj"
    tensors: dict[str, Any] = {f"{name}_blocks": np.zeros((128, 192, 2, 16), np.uint8)}
    tensors |= {"model.embed_tokens.weight": np.zeros((96, 64)), "model.norm.weight": np.zeros(64)}
    tensors |= {"lm_head.weight": np.zeros((96, 64))}
    model = from_config(BARE, "mine")
    prefix = "model.layers.0"
    for part, rows in (("q", 8), ("k", 8), ("v", 8)):
        tensors[f"{prefix}.self_attn.{part}_proj.weight"] = np.zeros((rows * model.head_dim, 64))
        tensors[f"{prefix}.self_attn.{part}_proj.bias"] = np.zeros(rows * model.head_dim)
    tensors[f"{prefix}.self_attn.o_proj.weight"] = np.zeros((64, 8 * model.head_dim))
    tensors[f"{prefix}.self_attn.o_proj.bias"] = np.zeros(64)
    tensors[f"{prefix}.self_attn.sinks"] = np.zeros(8)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"{prefix}.{norm}.weight"] = np.zeros(64)
    tensors |= {f"{prefix}.mlp.router.weight": np.zeros((128, 64)), f"{prefix}.mlp.router.bias": np.zeros(128)}
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(AutoshardError) as raised:
        huggingface_source(tmp_path)
    assert str(raised.value) == (
        f"{tmp_path} has {name} quantised, as {name}_blocks: save the model dequantised first, in transformers with "
        "from_pretrained(..., quantization_config=Mxfp4Config(dequantize=True))"
    )


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
    assert str(raised.value) == "clamped_gate=7.0 of tiny-llama must be null or an object"
