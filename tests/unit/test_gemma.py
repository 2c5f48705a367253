"""Gemma 2 and 3: what their configs say, and which blocks have a window, a rotary base and a cap."""

from dataclasses import replace
from typing import Any

import pytest

from autoshard.cost.working_bytes import tile_bytes
from autoshard.errors import AutoshardError
from autoshard.files.codec import from_json, to_json
from autoshard.graph.ir import Graph
from autoshard.graph.partition import OperatorStep
from autoshard.graph.recompute import kept_activations
from autoshard.layout.sharding import stage_program
from autoshard.models.huggingface import from_config, to_config
from autoshard.models.registry import load_model
from autoshard.models.stage import dim_sizes, parameter_count, stage_graph
from autoshard.spec.attention_scores import AttentionScores
from autoshard.spec.model import ModelSpec
from autoshard.spec.rope import RopeScaling
from tests.multiprocess.models import LLAMA, MODELS

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 7,
    "num_attention_heads": 8,
    "vocab_size": 96,
    "max_position_embeddings": 64,
}
GEMMA2, GEMMA3 = {**SIZES, "model_type": "gemma2"}, {**SIZES, "model_type": "gemma3_text"}


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("gemma-2b", 2_506_172_416),
        ("gemma-7b", 8_537_680_896),
        ("gemma2-2b", 2_614_341_888),
        ("gemma2-9b", 9_241_705_984),
        ("gemma2-27b", 27_227_128_320),
        ("vaultgemma-1b", 1_038_741_120),
        ("gemma3-1b", 999_885_952),
        ("gemma3-4b", 3_880_263_168),
        ("gemma3-12b", 11_766_034_176),
        ("gemma3-27b", 27_009_346_304),
    ],
)
def test_models_have_the_published_number_of_parameters(name: str, count: int) -> None:
    assert parameter_count(load_model(name)) == count


def whole(model: ModelSpec, kernel: str = "flash") -> Graph:
    sizes = dim_sizes(model, 1, 16)
    return stage_graph(model, sizes, range(model.num_hidden_layers), first=True, last=True, attention_kernel=kernel)


def test_what_is_scaled_keeps_its_result_alone() -> None:
    """The gradient of 8 x is 8 times that of the result: the embedding's output itself is not read again."""
    program = stage_program(whole(from_config({**SIZES, "model_type": "gemma"}, "m")), {}, False)
    kept = kept_activations(program, "none")
    assert "model.embed_scale" in kept and "model.embed_tokens" not in kept


def test_what_a_config_of_the_first_gemma_leaves_out() -> None:
    model = from_config({**SIZES, "model_type": "gemma"}, "bare")
    assert (model.hidden_act, model.tie_word_embeddings, model.attention_bias) == ("gelu_pytorch_tanh", True, False)
    assert (model.head_dim, model.num_key_value_heads, model.rope_theta) == (256, 8, 10_000.0)
    assert (model.attention_scores, model.final_logit_softcapping, model.sliding_window) == (
        AttentionScores(),
        None,
        None,
    )
    # published ones say gelu, by which transformers means the approximate one
    assert from_config({**SIZES, "model_type": "gemma", "hidden_act": "gelu"}, "bare") == model
    assert from_config(to_config(model), "bare") == model
    with pytest.raises(AutoshardError, match="hidden_act='silu' of bare must be one of: gelu_pytorch_tanh"):
        from_config({**SIZES, "model_type": "gemma", "hidden_act": "silu"}, "bare")


def test_what_a_gemma_2_config_leaves_out() -> None:
    model = from_config(GEMMA2, "bare")
    assert model.attention_scores == AttentionScores(query_pre_attn_scalar=256, attn_logit_softcapping=50.0)
    assert (model.final_logit_softcapping, model.sliding_window, model.head_dim) == (30.0, 4096, 256)
    assert model.layer_types == (*("sliding_attention", "full_attention") * 3, "sliding_attention")
    assert (model.hidden_act, model.tie_word_embeddings, model.num_key_value_heads) == ("gelu_pytorch_tanh", True, 4)
    assert (model.rope_theta, model.rope_local_base_freq, model.normalizes_heads) == (10_000.0, None, False)
    assert from_config({**GEMMA2, "sliding_window_pattern": 3}, "bare") == from_config(GEMMA2, "bare")
    uncapped = from_config({**GEMMA2, "attn_logit_softcapping": None, "final_logit_softcapping": None}, "bare")
    assert uncapped.attention_scores.attn_logit_softcapping is None
    assert uncapped.final_logit_softcapping is None
    assert from_config({**GEMMA2, "sliding_window": None}, "bare").layer_types == ()


def test_a_vaultgemma_is_a_gemma_2_without_the_norms_behind() -> None:
    model = from_config({**GEMMA2, "model_type": "vaultgemma"}, "bare")
    assert replace(model, model_type="gemma2") == from_config(GEMMA2, "bare")
    norms = {
        op.name for op in whole(replace(model, num_hidden_layers=1, layer_types=())).operators if op.kind == "norm"
    }
    block = {f"model.layers.0.{name}" for name in ("input_layernorm", "pre_feedforward_layernorm")}
    assert norms == {*block, "model.norm"}
    published = load_model("vaultgemma-1b")
    assert (published.sliding_window, published.layer_types, published.final_logit_softcapping) == (None, (), None)
    for one in (model, published):
        assert from_config(to_config(one), one.name) == one


def test_what_a_gemma_3_config_leaves_out() -> None:
    model = from_config(GEMMA3, "bare")
    assert model.layer_types == (*("sliding_attention",) * 5, "full_attention", "sliding_attention")
    assert (model.rope_theta, model.rope_local_base_freq) == (1_000_000.0, 10_000.0)
    assert model.final_logit_softcapping is None
    assert model.normalizes_heads
    assert from_config({**GEMMA3, "sliding_window_pattern": 2}, "bare").layer_types[1] == "full_attention"
    assert from_config({**GEMMA3, "attn_logit_softcapping": 0.4}, "bare") == from_config(GEMMA3, "bare")


def test_the_text_config_of_a_published_gemma_3_leaves_sizes_out() -> None:
    """It has those alone that are not transformers' own."""
    published = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    assert from_config(published, "gemma3-4b") == load_model("gemma3-4b")
    with pytest.raises(AutoshardError, match=r"^hidden_size is missing from the config of bare$"):
        from_config({**published, "hidden_size": None}, "bare")
    with pytest.raises(AutoshardError, match=r"^num_attention_heads is missing from the config of bare$"):
        from_config({**published, "model_type": "gemma2"}, "bare")


def test_rope_scaling_of_gemma_3_goes_before_what_blocks_without_a_window_have() -> None:
    wide = {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e5}}}
    model = from_config({**GEMMA3, **wide}, "bare")
    assert model.rope_of(5) == (1e5, RopeScaling("linear", 4.0))
    model = from_config({**GEMMA3, **wide, "rope_scaling": {"factor": 8.0}}, "bare")
    assert model.rope_of(5) == (1e5, RopeScaling("linear", 8.0))
    model = from_config({**GEMMA3, "rope_scaling": {"rope_type": "linear", "factor": 8.0, "rope_theta": 55}}, "bare")
    assert model.rope_of(5) == (55.0, RopeScaling("linear", 8.0))


def test_only_blocks_without_a_window_have_stretched_positions() -> None:
    model = load_model("gemma3-4b")
    assert model.rope_of(0) == (10_000.0, None)
    assert model.rope_of(5) == (1_000_000.0, RopeScaling("linear", 8.0))
    ropes = [op for op in whole(replace(MODELS["gemma3"], vocab_size=96)).operators if op.kind == "rope"]
    assert [op.attributes["theta"] for op in ropes[::2]] == [1e3, 1e3, 1e3, 1e4]
    assert [op.attributes["scaling"] is None for op in ropes[::2]] == [True, True, True, False]


def test_the_graph_has_windows_caps_and_a_norm_behind_each_branch() -> None:
    graph = whole(MODELS["gemma2"])
    attention = [op for op in graph.operators if op.kind == "attention"]
    assert [op.attributes["sliding_window"] for op in attention] == [5, None, 5, None]
    assert {(op.attributes["softcap"], op.attributes["scale"]) for op in attention} == {(0.5, 6**-0.5)}
    norms = [op for op in graph.operators if op.kind == "norm"]
    assert len(norms) == 4 * 4 + 1
    assert all(op.attributes["unit_offset"] for op in norms)
    assert graph.operators[1].attributes["expression"] == "(mul 8.0 x0)"
    assert graph.operators[-2].attributes["expression"] == "(mul 0.7 (tanh (div x0 0.7)))"


@pytest.mark.parametrize("name", ["gemma2-9b", "gemma2-27b", "gemma3-1b", "gemma3-27b"])
def test_a_config_and_a_plans_model_say_the_same_again(name: str) -> None:
    model = load_model(name)
    assert from_config(to_config(model), name) == model
    assert isinstance(to_config(model)["query_pre_attn_scalar"], int), "transformers refuses 256.0"
    assert from_json(ModelSpec, to_json(model), "model") == model


def test_other_models_say_nothing_of_scores() -> None:
    written = to_json(LLAMA)
    assert not {"attention_scores", "final_logit_softcapping", "rope_local_base_freq"} & set(written)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            {"use_bidirectional_attention": True},
            "use_bidirectional_attention=True of mine is not supported; False is",
        ),
        ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar=0 of mine must be a finite number above 0"),
        (
            {"rope_parameters": {"full_attention": 1e6}},
            (
                "rope_parameters=an object of 1 of mine must be an object with an object for each of: "
                "full_attention, sliding_attention"
            ),
        ),
        (
            {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2}}},
            "rope_type='linear' of sliding_attention of mine is not supported; default is",
        ),
        ({"hidden_activation": "relu"}, "hidden_act='relu' of mine must be one of: gelu_pytorch_tanh"),
        ({"layer_types": ["full_attention"]}, "layer_types=a list of 1 of mine must be a list of 7 words, one a block"),
    ],
)
def test_what_a_config_cannot_say(config: dict[str, Any], text: str) -> None:
    with pytest.raises(AutoshardError) as raised:
        from_config({**GEMMA3, **config}, "mine")
    assert str(raised.value) == text


def test_a_window_as_long_as_the_sequence_takes_the_tiles_of_none() -> None:
    """All keys are in one piece, so each tile is partly hidden: 128 rows of each head by 512 keys. Probabilities, the
    slopes of the softcap and gradients of scores are in FP32, these besides in bf16."""
    model = replace(MODELS["gemma2"], sliding_window=4096)
    graph = stage_graph(model, dim_sizes(model, 1, 512), range(2), first=False, last=False, element_bytes=2)
    program = stage_program(graph, {}, False)
    steps = [one for one in program.steps if isinstance(one, OperatorStep) and one.operator.kind == "attention"]
    assert [one.operator.attributes["sliding_window"] for one in steps] == [4096, None]
    assert [tile_bytes(program, one) for one in steps] == [(3 * 4 + 2) * model.num_attention_heads * 128 * 512] * 2
