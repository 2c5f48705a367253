"""Llama 4's text models: chunks, blocks without positions, what experts weigh."""

from dataclasses import replace
from typing import Any

import pytest

from autoshard.errors import AutoshardError
from autoshard.files.codec import from_json, to_json
from autoshard.graph.ir import Graph
from autoshard.graph.operators import KINDS
from autoshard.models.huggingface import from_config, to_config
from autoshard.models.registry import load_model
from autoshard.models.stage import dim_sizes, parameter_count, stage_graph
from autoshard.runtime.rehearse import _chunks
from autoshard.spec.chunked_attention import ChunkedAttention
from autoshard.spec.model import ModelSpec
from tests.multiprocess.models import LLAMA, MODELS

BARE: dict[str, Any] = {
    "model_type": "llama4_text",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "vocab_size": 96,
    "max_position_embeddings": 64,
}


def whole(model: ModelSpec, seq: int = 16) -> Graph:
    sizes = dim_sizes(model, 1, seq)
    return stage_graph(model, sizes, range(model.num_hidden_layers), first=True, last=True)


@pytest.mark.parametrize(("name", "count"), [("llama4-scout", 107_769_861_120), ("llama4-maverick", 400_711_848_960)])
def test_models_have_the_published_number_of_parameters(name: str, count: int) -> None:
    assert parameter_count(load_model(name)) == count


def test_what_a_config_leaves_out() -> None:
    model = from_config(BARE, "bare")
    assert model.layer_types == (*("chunked_attention",) * 3, "full_attention", "chunked_attention")
    assert model.chunked_attention == ChunkedAttention(8192, True, 8192, 0.1)
    assert (model.mlp_layer_types, model.dense_intermediate_size) == ((), 0)
    assert (model.num_local_experts, model.num_experts_per_tok, model.norm_topk_prob) == (16, 1, False)
    assert (model.shared_expert_intermediate_size, model.head_dim, model.num_key_value_heads) == (96, 128, 8)
    assert (model.rope_theta, model.norm_eps) == (500_000.0, 1e-5)
    every_other = from_config({**BARE, "interleave_moe_layer_step": 2}, "bare")
    assert every_other.mlp_layer_types == ("dense", "sparse", "dense", "sparse", "dense")
    assert every_other.dense_intermediate_size == 16384
    assert from_config({**BARE, "moe_layers": [1, 3], "intermediate_size_mlp": 16384}, "bare") == every_other
    assert from_config({**BARE, "no_rope_layers": [1, 0, 0, 1, 1, 1]}, "bare").chunk_of(2) is None


@pytest.mark.parametrize(
    "config",
    [
        BARE,
        {**BARE, "attn_temperature_tuning": False, "use_qk_norm": False},
        {**BARE, "interleave_moe_layer_step": 2, "no_rope_layers": [1] * 5, "attention_chunk_size": 7},
    ],
)
def test_a_config_and_a_plans_model_say_the_same_again(config: dict[str, Any]) -> None:
    model = from_config(config, "mine")
    assert from_config(to_config(model), "mine") == model
    assert from_json(ModelSpec, to_json(model), "model") == model


def test_blocks_with_chunks_have_positions_and_the_others_a_temperature() -> None:
    graph = whole(MODELS["llama4"])
    attention = [op for op in graph.operators if op.kind == "attention"]
    assert [op.attributes.get("chunk") for op in attention] == [6, 6, 6, None]
    by_block = [{op.kind for op in graph.operators if op.name.startswith(f"model.layers.{n}.")} for n in range(4)]
    assert [("rope" in kinds, "position_scale" in kinds) for kinds in by_block] == [(True, False)] * 3 + [(False, True)]
    assert all(op.attributes["interleaved"] for op in graph.operators if op.kind == "rope")
    norm = next(op for op in graph.operators if op.name.endswith(".0.self_attn.q_norm"))
    assert len(norm.inputs) == 1
    plain = whole(replace(MODELS["llama4"], chunked_attention=ChunkedAttention(6, False)))
    assert not [op for op in plain.operators if op.kind == "position_scale" or op.name.endswith("q_norm")]


def test_experts_weigh_what_they_get_and_not_what_they_answer() -> None:
    graph = whole(MODELS["llama4"])
    dispatch, combine = (next(op for op in graph.operators if op.kind == kind) for kind in ("dispatch", "combine"))
    assert [KINDS["dispatch"].passes_gradient(dispatch, index) for index in range(2)] == [True, True]
    assert [KINDS["combine"].passes_gradient(combine, index) for index in range(2)] == [True, False]
    assert KINDS["dispatch"].saved_inputs(dispatch, graph) == (0, 1)
    assert KINDS["combine"].saved_inputs(combine, graph) == ()
    others = whole(MODELS["mixtral"])
    dispatch, combine = (next(op for op in others.operators if op.kind == kind) for kind in ("dispatch", "combine"))
    assert [KINDS["dispatch"].passes_gradient(dispatch, index) for index in range(2)] == [True, False]
    assert [KINDS["combine"].passes_gradient(combine, index) for index in range(2)] == [True, True]


@pytest.mark.parametrize(
    ("how", "local", "keys"),
    [
        ("all_gather", 32.0, (4 * 32 + 0) / 32),  # whole chunks of 8: 4 keys in the middle
        ("all_gather", 16.0, 4.0),
        ("ulysses", 16.0, 4.0),
        ("zigzag_ring", 16.0, 4.0),
        ("ring", 4.0, 6.0),  # a half chunk: its later half sees 4 to 8 keys
        ("zigzag_ring", 8.0, 4.0),  # an earlier and a later half
    ],
)
def test_flops_of_chunks_count_the_keys_that_the_fullest_rank_sees(how: str, local: float, keys: float) -> None:
    graph = whole(replace(MODELS["llama4"], chunked_attention=ChunkedAttention(8, True)), seq=32)
    op = next(op for op in graph.operators if op.kind == "attention")
    op = replace(op, attributes={**op.attributes, "context_parallel": how})
    sizes = {dim: float(size) for dim, size in graph.sizes.items()} | {"seq": local}
    queries = 8 * 8 * local
    assert KINDS["attention"].flops(op, graph, sizes) == pytest.approx(4 * queries * keys)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            {"no_rope_layers": [1, 0]},
            "no_rope_layers=a list of 2 of mine must be a list of 0 or 1 for each of 5 blocks",
        ),
        (
            {"layer_types": ["chunked_attention"] * 5},
            "layer_types of mine has chunked_attention for block 3, whose no_rope_layers=0 goes with full_attention",
        ),
        ({"moe_layers": [5]}, "moe_layers=a list of 1 of mine must be a list of blocks from 0 to 4"),
        ({"attention_chunk_size": 0}, "attention_chunk_size=0 of mine must be a whole number from 1 to 1,000,000,000"),
        ({"use_qk_norm": "yes"}, "use_qk_norm='yes' of chunked_attention must be true or false"),
    ],
)
def test_what_a_config_cannot_say(config: dict[str, Any], text: str) -> None:
    with pytest.raises(AutoshardError) as raised:
        from_config({**BARE, **config}, "mine")
    assert str(raised.value) == text


def test_a_rehearsals_chunks_end_within_its_sequences() -> None:
    assert _chunks(ChunkedAttention(8192, True, 8192, 0.1), 64) == ChunkedAttention(64, True, 64, 0.1)
    assert _chunks(ChunkedAttention(8192, False), 64) == ChunkedAttention(64, False)
    assert _chunks(None, 64) is None


def test_chunks_go_with_the_model_type() -> None:
    with pytest.raises(AutoshardError) as raised:
        replace(LLAMA, chunked_attention=ChunkedAttention(8, True))
    assert str(raised.value) == (
        "chunked_attention of tiny-llama must be absent with model_type=llama; that is of llama4_text"
    )
    with pytest.raises(AutoshardError) as raised:
        replace(MODELS["llama4"], chunked_attention=None)
    assert str(raised.value) == "model_type=llama4_text of tiny-llama needs chunked_attention, which is absent"
    with pytest.raises(AutoshardError) as raised:
        ChunkedAttention(8, True, floor_scale=3)
    assert str(raised.value) == "floor_scale=3 and attn_scale=None of chunked_attention go together: both or neither"
