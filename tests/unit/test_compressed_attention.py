"""Attention to a window and to entries: hand-computed numbers, how ranks share its work, and exact refusals."""

from dataclasses import replace
from typing import Any

import pytest

from autoshard.errors import AutoshardError
from autoshard.explanation.catalogue import _built_of
from autoshard.explanation.describe import _facts
from autoshard.files.codec import from_json, to_json
from autoshard.graph.count import forward_collectives, operator_work, total_flops
from autoshard.graph.partition import OperatorStep, Program, RedistributeStep
from autoshard.graph.recompute import kept_activations
from autoshard.interop.export import FORMS, export
from autoshard.layout.sharding import stage_program
from autoshard.models.huggingface import from_config, to_config
from autoshard.models.registry import load_model
from autoshard.models.stage import dim_sizes, learned_count, parameter_count, stage_graph
from autoshard.models.weights import parameter_dtypes
from autoshard.planner.inputs import inputs_of
from autoshard.planner.request import PlanRequest
from autoshard.runtime.options import RunOptions
from autoshard.runtime.rehearse import rehearse
from autoshard.runtime.run import _backend
from autoshard.spec.compressed_attention import CompressedAttention
from autoshard.spec.dropout import Dropout
from autoshard.spec.model import ModelSpec
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import plan_of, strategy
from tests.unit.plan_examples import plan_70b

FLASH, PRO = load_model("deepseek-v4-flash"), load_model("deepseek-v4-pro")
TINY = MODELS["deepseek v4"]
SLIDING, HEAVY, SPARSE = 0, 1, 2
"""Blocks of TINY."""
SEQ = 48


def block_program(
    layer: int, axes: dict[str, int], sp: bool = True, kernel: str = "flash", model: ModelSpec = TINY
) -> Program:
    sizes = dim_sizes(model, 1, SEQ, axes.get("tp0", 1))
    return stage_program(stage_graph(model, sizes, (layer,), False, False, kernel), axes, sequence_parallel=sp)


def step_of(program: Program, kind: str) -> OperatorStep:
    operators = (step for step in program.steps if isinstance(step, OperatorStep))
    (found,) = (step for step in operators if step.operator.kind == kind)
    return found


def test_parameters_of_published_models() -> None:
    """Of the indexers, of the routers' biases and of the tables of tokens, none are learned."""
    assert parameter_count(FLASH) == 284_334_567_511
    entries = 2 * 2 * 128 * 4096 + 4 * 2 * 128 + 128  # values and gates in two series, places, norm
    indexer = 1024 * 64 * 128 + 64 * 4096 + entries
    tables = 3 * 129_280 * 6
    assert parameter_count(FLASH) - learned_count(FLASH) == 21 * indexer + 40 * 256 + tables
    assert parameter_count(PRO) == 1_572_999_528_803


def test_a_table_of_tokens_is_held_exactly() -> None:
    """Experts up to 383 have no place in bfloat16."""
    dtypes = parameter_dtypes(TINY, "BF16")
    assert dtypes["model.layers.0.mlp.gate.tid2eid"] == "F32"
    assert dtypes["model.layers.2.self_attn.compressor.indexer.q_b_proj.weight"] == "BF16"


@pytest.mark.parametrize(("layer", "rate"), [(SLIDING, None), (HEAVY, 3), (SPARSE, 2)])
def test_flops_by_hand(layer: int, rate: int | None) -> None:
    """A window of 5 tokens, of which the first 5 queries see 1 to 5; and half of the entries on average."""
    program = block_program(layer, {})
    work = operator_work(program, step_of(program, "compressed_attention"))
    window = (5 * 5 / 2 + 5 * (SEQ - 5)) / SEQ  # as mean_keys has it: a query sees itself by half
    keys = window + (0 if rate is None else SEQ / 2 / rate)
    assert work.flops == pytest.approx(4 * SEQ * 8 * 16 * keys)
    assert work.backward_flops_ratio == 2.5


def test_flops_of_an_indexer_by_hand() -> None:
    program = block_program(SPARSE, {})
    work = operator_work(program, step_of(program, "choose_entries"))
    projections = 24 * 6 * 12 + 6 * 64 + 2 * (2 * 12 * 64)
    assert work.flops == 2 * SEQ * (projections + SEQ / 2 / 2 * 6 * (12 + 1))
    assert work.backward_flops_ratio == 0


def test_mfu_counts_attention_and_leaves_the_indexer_out() -> None:
    graphs = [stage_graph(TINY, dim_sizes(TINY, 1, SEQ), (layer,), False, False) for layer in (SLIDING, SPARSE)]
    sparse = block_program(SPARSE, {})
    of_entries = operator_work(sparse, step_of(sparse, "compressed_attention")).flops
    sliding = block_program(SLIDING, {})
    of_window = operator_work(sliding, step_of(sliding, "compressed_attention")).flops
    compressor = 2 * SEQ * 64 * 2 * (2 * 16)  # two products of two series
    counts = [total_flops(graph) for graph in graphs]
    assert counts[1] - counts[0] == pytest.approx(of_entries - of_window + compressor)


def test_what_attention_keeps_by_hand() -> None:
    core = "model.layers.2.self_attn.core_attention"
    flash = kept_activations(block_program(SPARSE, {}), "none")
    assert flash[f"{core}:log_sum_exp"] == 4 * 8 * SEQ
    assert flash[f"{core}:mask"] == SEQ * SEQ / 2
    assert flash["model.layers.2.self_attn.k_rope"] == 2 * 16 * SEQ  # one key for all heads
    assert flash["model.layers.2.self_attn.compressor.rope"] == 2 * 16 * SEQ / 2
    assert flash[core] == 2 * 8 * 16 * SEQ
    plain = kept_activations(block_program(SPARSE, {}, kernel="plain"), "none")
    assert plain[f"{core}:probabilities"] == 2 * 8 * SEQ * (SEQ + SEQ / 2)
    assert f"{core}:mask" not in plain


@pytest.mark.parametrize("sp", [True, False])
def test_ranks_of_tp_share_heads_and_make_what_all_heads_share_together(sp: bool) -> None:
    """Entries are made of the whole sequence by each rank; what they are made of is gathered, and so is the mask."""
    program = block_program(SPARSE, {"tp0": 2}, sp)
    assert step_of(program, "compressed_attention").choice["tp0"] == "kvhead"
    assert step_of(program, "compress").choice["tp0"] == "R"
    chooser = step_of(program, "choose_entries")
    assert chooser.choice["tp0"] == ("seq" if sp else "I")
    gathered = 2 * 2 * 2 * 12 * SEQ  # values and gates in two series of 12 numbers of 2 bytes
    assert list(forward_collectives(program, chooser)) == ([("all_gather", ("tp0",), gathered)] if sp else [])
    moved = [one.source for one in program.steps if isinstance(one, RedistributeStep) and one.transitions[0].axes]
    made = {f"model.layers.2.self_attn.compressor.{part}_proj" for part in ("kv", "gate")}
    assert made <= {*moved}


@pytest.mark.parametrize("name", ["deepseek v4", "deepseek v4 of 6 heads"])
def test_configs_and_plans_give_the_same_model_back(name: str) -> None:
    model = MODELS[name]
    assert from_config(to_config(model), model.name) == model
    assert from_json(ModelSpec, to_json(model), "model") == model


@pytest.mark.parametrize("one", [FLASH, PRO], ids=lambda model: model.name)
def test_published_configs_are_read_as_they_are_written(one: ModelSpec) -> None:
    assert from_config(to_config(one), one.name) == one


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"num_key_value_heads": 2},
            "num_key_value_heads=2 of tiny-llama must be 1: with compressed attention all heads share one key",
        ),
        ({"num_attention_heads": 6}, "o_groups=4 must divide num_attention_heads=6 of tiny-llama"),
        (
            {"partial_rotary_factor": 1.0},
            "index_head_dim=12 of tiny-llama must be at least the 16 numbers of a head that positions turn",
        ),
        ({"sliding_window": None}, "sliding_window of tiny-llama must be given with compressed attention"),
        ({"layer_types": ()}, "layer_types of tiny-llama must be given with compressed attention"),
        (
            {"attention_bias": True},
            "attention_bias=True of tiny-llama is not supported with compressed attention; False is",
        ),
        (
            {"dropout": Dropout(attention=0.1)},
            "dropout.attention=0.1 of tiny-llama must be 0: no kernel drops probabilities of compressed attention",
        ),
        (
            {"layer_types": ("full_attention",) * 4},
            "layer_types='full_attention' of tiny-llama must be one of: sliding_",
        ),
        (
            {"compressed_attention": None},
            "model_type=deepseek_v4 of tiny-llama needs compressed_attention, which is absent",
        ),
        (
            {"compressed_attention": 1},
            "compressed_attention=1 of tiny-llama must be null or an object with q_lora_rank",
        ),
    ],
)
def test_models_that_do_not_fit_are_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(AutoshardError) as error:
        replace(TINY, **fields)
    assert str(error.value).startswith(text)


def test_it_goes_with_its_families_alone() -> None:
    with pytest.raises(
        AutoshardError,
        match=r"^compressed_attention of tiny-llama must be absent with model_type=llama; that is of deepseek_v4$",
    ):
        replace(MODELS["llama"], compressed_attention=TINY.compressed_attention)
    with pytest.raises(AutoshardError, match=r"^mlp_layer_types='hashed' of tiny-llama must be one of: dense, sparse$"):
        replace(MODELS["mixtral"], mlp_layer_types=("hashed",) * 4)
    with pytest.raises(AutoshardError, match=r"^o_groups=0 of compressed_attention must be a whole number from 1 to "):
        CompressedAttention(24, 0, 6, 2, 3, 6, 12, 2)


@pytest.mark.parametrize("form", FORMS)
def test_no_framework_gets_a_file_that_leaves_it_out(form: str) -> None:
    plan = replace(plan_70b(), model=FLASH, operators={})
    with pytest.raises(AutoshardError, match=f"^compressed_attention of deepseek-v4-flash has no form .* for {form}$"):
        export(plan, form)


def test_documents_are_refused() -> None:
    plan = plan_of(TINY, strategy(), 1)
    with pytest.raises(AutoshardError) as error:
        _backend(plan, RunOptions(document_mask=True), in_cluster=False)
    assert str(error.value) == (
        "document_mask: entries of tiny-llama stand for pieces of whole rows; leave it out, or give each document a row"
    )


def test_a_plan_says_what_it_does_not_do() -> None:
    *_, notes = inputs_of(PlanRequest(model="deepseek-v4-flash", nodes=32, instance="h800-80gb"))
    assert (
        "deepseek-v4-flash: a query sees 512 entries at most in blocks with an indexer; indexers are loaded, not "
        "learned; attention computes the scores of all entries, and MFU counts them"
    ) in notes


@pytest.mark.parametrize(
    ("length", "said"),
    [
        (4096, []),
        (5000, ["seq-len 5,000: the last 8 tokens are in no entry that stands for 128; use a multiple of 128"]),
        (
            4097,
            [
                "seq-len 4,097: the last token is in no entry that stands for 4; use a multiple of 4",
                "seq-len 4,097: the last token is in no entry that stands for 128; use a multiple of 128",
            ],
        ),
    ],
)
def test_tokens_in_no_entry_are_told(length: int, said: list[str]) -> None:
    *_, notes = inputs_of(PlanRequest(model="deepseek-v4-flash", nodes=32, instance="h800-80gb", seq_len=length))
    assert [note for note in notes if "entry" in note and note.startswith("seq-len")] == said


def test_a_plan_says_how_attention_is_computed() -> None:
    found = dict(_facts(plan_of(TINY, strategy(cp=2, ep=2), 2), ("attention",)))
    assert found["attention"] == (
        "flash kernel: scores are never stored; keys and values are gathered over cp; a query sees a window of 5 "
        "tokens, and of entries of 2 tokens 2 at most, of those of 3 all before it"
    )


def test_a_list_of_models_says_what_it_is_built_of() -> None:
    assert _built_of(FLASH) == [
        "2 x sliding_attention, 21 x compressed_sparse_attention, 20 x heavily_compressed_attention",
        "6 of 256 experts and a shared one",
        "a residual of 4 streams",
    ]


def test_a_rehearsal_keeps_the_form() -> None:
    assert FLASH.compressed_attention is not None
    assert FLASH.compressed_attention.shrunk(2, 8, 16) == CompressedAttention(24, 2, 16, 4, 8, 4, 8, 16)
    original = replace(plan_of(TINY, strategy(tp=2), 2), model=TINY)
    small = rehearse(original, 2, 96).plan
    assert small.model.compressed_attention is not None
    assert small.model.compressed_attention.heavy_rate < small.training.sequence_length
