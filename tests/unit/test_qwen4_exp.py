"""Qwen4-Exp: tables of n-grams, streams whose every number is weighed, and indexers that choose means of keys."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from autoshard.errors import AutoshardError
from autoshard.graph.count import operator_work, parameter_elements
from autoshard.graph.ir import Graph
from autoshard.graph.partition import OperatorStep, Program
from autoshard.layout.sharding import stage_program
from autoshard.models.huggingface import from_config, to_config
from autoshard.models.padding import padding_notes
from autoshard.models.registry import load_model
from autoshard.models.stage import active_count, dim_sizes, parameter_count, stage_graph
from autoshard.models.weights import not_learned
from autoshard.plans.plan_json import plan_to_dict
from autoshard.plans.validate import plan_from_dict
from autoshard.spec.gated_residual import GatedResidual
from autoshard.spec.indexer import Indexer
from autoshard.spec.linear_attention import LinearAttention
from autoshard.spec.model import ModelSpec
from autoshard.spec.ngram_embedding import NgramEmbedding
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import case
from tests.unit.family_configs import read

FLASH = load_model("qwen3.8-flash-next")
SMALL = MODELS["qwen4 exp"]
SEQ = 4096
SIZES = {"moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2, "eos_token_id": 7}
CHOICE = {
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 128,
    "indexer_budget": 2048,
    "indexer_compress_ratio": 4,
}


def bare(**fields: Any) -> ModelSpec:
    return read("qwen4_exp_text", **{**SIZES, **fields})


def graph_of(layer: int, model: ModelSpec = FLASH) -> Graph:
    return stage_graph(model, dim_sizes(model, 1, SEQ), (layer,), False, False)


def program(layer: int, tp: int = 1, sequence_parallel: bool = True) -> Program:
    graph = stage_graph(FLASH, dim_sizes(FLASH, 1, SEQ, tp), (layer,), False, False)
    return stage_program(graph, {"tp0": tp}, sequence_parallel=sequence_parallel)


def step_of(found: Program, kind: str) -> OperatorStep:
    return next(step for step in found.steps if isinstance(step, OperatorStep) and step.operator.kind == kind)


def test_what_a_config_leaves_out() -> None:
    model = bare()
    assert model.layer_types == (*("linear_attention",) * 3, "full_attention")
    assert (model.indexer, model.ngram_embedding, model.ngram_types) == (None, None, ())
    assert (model.gated_residual, model.shared_expert_intermediate_size) == (GatedResidual(4, 320), 512)
    assert model.linear_attention == LinearAttention(16, 32, 128, 128, 4, output_gate_type="silu")
    assert (model.num_key_value_heads, model.head_dim, model.rotary_dim, model.norm_eps) == (2, 256, 64, 1e-6)
    tables = bare(**CHOICE, ple_layer_ids=[3, 1, 3], output_gate_type="sigmoid", rms_norm_eps=1e-5)
    assert tables.ngram_types == ("table0", "none", "table1", "none")
    assert tables.ngram_embedding == NgramEmbedding(3, 8, 4096, 4, 20_000_000, 128, 1234, 512, 7)
    assert tables.indexer == Indexer(4, 128, 2048, index_kpool=4, key_norm_eps=1e-5)
    alone = bare(layer_types=["indexed_attention"] * 4, output_router_logits=True)
    assert (alone.linear_attention, alone.layer_types, alone.router_aux_loss_coef) == (None, (), 0.001)
    ends = bare(layer_types=["linear_attention"] * 4, ple_layer_ids=[4], eos_token_id=[9, 8])
    assert ends.ngram_embedding is not None
    assert (ends.ngram_embedding.eos_token_id, ends.indexer) == (9, None)
    for one in (model, tables, alone, ends, FLASH):
        assert from_config(to_config(one), one.name) == one


def test_of_a_model_that_sees_the_text_model_is_read() -> None:
    text = to_config(FLASH)
    whole = {"model_type": "qwen4_exp", "text_config": text, "vision_config": {"depth": 1}}
    assert from_config(whole, FLASH.name) == FLASH


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"attention_bias": True}, "attention_bias=True of m is not supported; False is"),
        ({"attn_output_gate": False}, "attn_output_gate=False of m is not supported; True is"),
        ({"hc_count": 1}, "hc_count=1 of gated_residual must be a whole number from 2 to 1,000,000,000"),
        ({"output_gate_type": "tanh"}, "output_gate_type='tanh' of linear_attention must be one of: silu, sigmoid"),
        ({"indexer_budget": 64}, "indexer_n_heads is missing from the config of m, which has another indexer key"),
        ({**CHOICE, "indexer_kv_heads": 2}, "indexer_kv_heads=2 of m is not supported; 1 is"),
        (
            {**CHOICE, "indexer_budget": 10},
            ("indexer_compress_ratio=4 of m must divide indexer_budget=10, the keys of all pools that a query chooses"),
        ),
        (
            {**CHOICE, "indexer_head_dim": 32},
            "index_head_dim=32 of m must be at least 64, the numbers of a head that positions turn",
        ),
        (
            {"ple_layer_ids": [4]},
            (
                "ple_layer_ids of m has 4, a block with full_attention; transformers has n-grams in blocks with "
                "linear_attention alone"
            ),
        ),
        ({"ple_layer_ids": [0]}, "ple_layer_ids of m must be a list of blocks, 1 to 4; it has 0"),
        ({"ple_layer_ids": [1], "eos_token_id": []}, "eos_token_id=[] of m must have a token: it ends n-grams"),
        (
            {"ple_layer_ids": [1], "eos_token_id": 128_256},
            "eos_token_id=128256 of m must be below vocab_size=128256",
        ),
        (
            {"ple_layer_ids": [1], "ngram_size": 1},
            "ngram_size=1 of ngram_embedding must be a whole number from 2 to 1,000,000,000",
        ),
        (
            {"ple_layer_ids": [1], "ple_embed_dim": 100},
            (
                "ple_embed_dim=100 of ngram_embedding must be a multiple of 16, the heads of n-grams of 2 to "
                "ngram_size=3 tokens"
            ),
        ),
        (
            {"ple_layer_ids": [1], "split_ngram_parts": 100},
            (
                "split_ngram_parts=100 of ngram_embedding must divide the 320,001,536 rows of table 0; a "
                "make_ngram_vocab_size_divisible_by that is a multiple of it would do"
            ),
        ),
    ],
)
def test_a_config_that_would_be_another_model_is_refused(fields: Mapping[str, Any], text: str) -> None:
    with pytest.raises(AutoshardError) as error:
        from_config({**to_config(bare()), "eos_token_id": 7, **fields}, "m")
    assert str(error.value) == text


@pytest.mark.parametrize(
    ("name", "fields", "text"),
    [
        (
            "llama",
            {"gated_residual": SMALL.gated_residual},
            "must be absent with model_type=llama; that is of qwen4_exp_text",
        ),
        ("qwen4 exp", {"gated_residual": None}, "needs gated_residual, which is absent"),
        ("qwen4 exp", {"gated_residual": 4}, "=4 of tiny-llama must be null or an object with hc_count"),
        (
            "llama",
            {"ngram_embedding": SMALL.ngram_embedding},
            "must be absent with model_type=llama; that is of qwen4_exp_text",
        ),
        (
            "qwen4 exp",
            {"ngram_embedding": 4},
            "=4 of tiny-llama must be null or an object with ngram_size",
        ),
        ("qwen4 exp", {"ngram_types": ()}, "both must be absent without tables"),
        (
            "qwen4 exp",
            {"ngram_types": ("table",) * 4},
            "ngram_types='table' of tiny-llama must be one of: none, table0",
        ),
        ("qwen4 exp", {"ngram_types": ("none",) * 3}, "ngram_types of tiny-llama has 3 entries; num_hidden_layers=4"),
        ("qwen4 exp", {"indexer": Indexer(4, 12, 4)}, "index_kpool=null of tiny-llama must be a number of tokens"),
        ("qwen4 exp", {"indexer": 3}, "indexer=3 of tiny-llama must be null or an object with index_n_heads"),
        (
            "qwen4 exp",
            {"indexer": Indexer(4, 12, 4, index_kpool=2, turns_end=True, key_norm_eps=1e-5)},
            "turns_end=True of tiny-llama is not supported with indexers of model_type=qwen4_exp_text; False is",
        ),
        (
            "qwen4 exp",
            {"indexer": Indexer(4, 12, 4, index_kpool=2)},
            "key_norm_eps=1e-06 of tiny-llama must be norm_eps=1e-05, as of other norms",
        ),
        (
            "qwen4 exp",
            {"layer_types": ("linear_attention",) * 4},
            "indexer of tiny-llama must be absent: no block is full_attention in layer_types",
        ),
    ],
)
def test_only_its_models_have_them(name: str, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(AutoshardError, match=text):
        replace(MODELS[name], **fields)


def test_hashes_of_the_published_model() -> None:
    """Factors, primes and rows that other projects' tests have of transformers' code."""
    assert FLASH.ngram_embedding is not None
    table = FLASH.ngram_embedding.table(0, FLASH.vocab_size)
    assert table.factors == (23703573157769, 20109073645365, 8052911324071)
    assert (table.rows[0], table.rows[1], table.rows[-1]) == (20_000_003, 20_000_023, 20_000_171)
    assert (sum(table.rows), table.padded_rows) == (320_001_446, 320_001_536)
    second = FLASH.ngram_embedding.table(1, FLASH.vocab_size)
    assert second.rows[0] > table.rows[-1] and second.factors != table.factors


def test_a_table_is_no_part_of_what_a_token_meets_but_for_its_rows() -> None:
    bare = replace(FLASH, ngram_embedding=None, ngram_types=())
    rows = 320_001_536 * 160
    added = 2560 * (4 * 2560 + 2560) + 3 * 4 * 2560 + 4 * 2560 * 4
    assert parameter_count(FLASH) - parameter_count(bare) == rows + added
    assert active_count(FLASH) - active_count(bare) == 2560 + added


def test_blocks_with_a_table_of_their_own_are_of_a_kind_of_their_own() -> None:
    assert FLASH.kinds == (0, 1, 3)
    assert SMALL.kinds == (0, 1, 2)
    assert [SMALL.ngram_table_of(layer) for layer in range(4)] == [0, None, 1, None]
    assert SMALL.some_blocks((2, 3)).ngram_types == ("table1", "none")


def test_ranks_share_a_table_by_its_parts_and_its_convolution_by_channels() -> None:
    whole, eight, padded = program(1), program(1, 8), program(1, 5, sequence_parallel=False)
    name, conv = "model.layers.1.ple.ple_embedding.ngram_embedding.weight", "model.layers.1.ple.conv1d.weight"
    assert parameter_elements(whole)[name] == 8 * parameter_elements(eight)[name] == 320_001_536 * 160
    assert parameter_elements(padded)[name] == 26 * 2_500_012 * 160
    assert parameter_elements(whole)[conv] == 8 * parameter_elements(eight)[conv]
    assert padding_notes(FLASH, 8) == ()
    assert padding_notes(FLASH, 5)[-1] == (
        "split_ngram_parts 128 padded to 130 for tp=5: 1.5% of each table of n-grams is padding"
    )


def test_flops_of_an_indexer_that_chooses_means() -> None:
    """Products with four queries and a key of 128 numbers; on average half of 1,024 pools, of each head a sum more."""
    work = operator_work(program(3), step_of(program(3), "choose_means"))
    assert work.flops == pytest.approx(2 * SEQ * (5 * 128 * 2560 + SEQ / 2 / 4 * 4 * 129), rel=1e-3)
    assert work.backward_flops_ratio == 0
    assert {one for one in not_learned(SMALL) if ".layers.1." in one} == {
        f"model.layers.1.self_attn.indexer.{part}.weight" for part in ("q_proj", "k_proj", "q_layernorm", "k_layernorm")
    }


def test_flops_of_n_grams() -> None:
    found = program(1)
    assert operator_work(found, step_of(found, "hash_ngrams")).flops == 2 * 16 * SEQ
    assert operator_work(found, step_of(found, "gate_streams")).flops == 3 * 4 * 2560 * SEQ


def test_made_small_it_keeps_its_form() -> None:
    assert FLASH.ngram_embedding is not None and FLASH.gated_residual is not None
    small = FLASH.ngram_embedding.shrunk(8, 2, 256)
    assert small == NgramEmbedding(3, 2, 32, 4, 64, 2, 1234, 2, 255)
    assert FLASH.gated_residual.shrunk(8) == GatedResidual(4, 8)


def test_a_plan_says_it() -> None:
    plan = case(2, "qwen4 exp, tp")
    assert plan_from_dict(plan_to_dict(plan)).model == plan.model
