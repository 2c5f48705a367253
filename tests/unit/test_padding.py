"""Heads and inner widths that tensor parallelism does not divide."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.backends.rules import check_strategy
from autoshard.checkpoint.layout import rank_shards
from autoshard.cost.local_shape import LocalShape
from autoshard.cost.stage_program import stage_work
from autoshard.errors import AutoshardError
from autoshard.interop.export import export
from autoshard.models.padding import Heads, padded_heads, padding_notes
from autoshard.models.registry import load_model
from autoshard.models.stage import dim_sizes
from autoshard.planner.search import search
from autoshard.plans.plan_json import plan_to_json
from autoshard.plans.search_result import Pins
from autoshard.plans.validate import plan_from_dict
from autoshard.runtime.rehearse import rehearse
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision
from tests.multiprocess.models import LLAMA
from tests.multiprocess.plans import plan_of, strategy

GPT2 = replace(
    load_model("gpt3-175b"),
    name="gpt2",
    hidden_size=768,
    intermediate_size=3072,
    num_hidden_layers=12,
    num_attention_heads=12,
    num_key_value_heads=12,
    head_dim=64,
)
QWEN2_7B = load_model("qwen2-7b")


@pytest.mark.parametrize(
    ("heads", "key_value", "tp", "expected"),
    [
        (12, 12, 8, Heads(16, 1)),
        (25, 25, 8, Heads(32, 1)),  # gpt2-xl
        (6, 6, 4, Heads(8, 1)),
        (28, 4, 8, Heads(4, 8)),  # Qwen2-7B: one empty query head for each key-value head
        (96, 12, 32, Heads(16, 8)),  # 4 empty key-value heads
        (48, 8, 32, Heads(8, 8)),  # the example in NxD's parallel_layers/pad.py
        (64, 8, 32, Heads(8, 8)),
    ],
)
def test_the_fewest_empty_heads_are_added(heads: int, key_value: int, tp: int, expected: Heads) -> None:
    assert padded_heads(replace(LLAMA, num_attention_heads=heads, num_key_value_heads=key_value), tp) == expected


@given(st.integers(1, 24), st.integers(1, 12), st.integers(1, 64))
def test_padded_heads_split_over_tp(key_value: int, groups: int, tp: int) -> None:
    model = replace(LLAMA, num_attention_heads=key_value * groups, num_key_value_heads=key_value)
    found = padded_heads(model, tp)
    assert found.key_value % tp == 0 or (tp % found.key_value == 0 and found.groups % (tp // found.key_value) == 0)
    assert found.key_value >= key_value and found.groups >= groups
    fits = key_value % tp == 0 or (tp % key_value == 0 and groups % (tp // key_value) == 0)
    assert (found == Heads(key_value, groups)) == fits


def test_the_work_of_empty_heads_is_priced() -> None:
    """A rank of 12 heads on tp=8 does the attention of one of 16: the same operators and parameters."""
    shape = LocalShape(8, 1, 1, 1, True, "flash")
    whole = replace(GPT2, num_attention_heads=16, num_key_value_heads=16)
    priced = [stage_work(model, 1024, 1.0, "bfloat16", shape, True, (0,), False, False) for model in (GPT2, whole)]
    assert priced[0].parameters == priced[1].parameters
    sizes = [dim_sizes(model, 1, 1024, 8) for model in (GPT2, whole)]
    assert sizes[0] == sizes[1]


def test_the_plan_says_what_is_padding() -> None:
    plan = plan_of(
        replace(LLAMA, num_attention_heads=6, num_key_value_heads=2, intermediate_size=90), strategy(tp=4), 2
    )
    text = plan_to_json(plan)
    parameters = json.loads(text)["parameters"]
    query = parameters["model.layers.*.self_attn.q_proj.weight"]
    assert (query["shape"], query["published_shape"]) == ([2, 4, 8, 64], [2, 3, 8, 64])
    assert parameters["model.layers.*.mlp.down_proj.weight"]["published_shape"] == [64, 90]
    assert "published_shape" not in parameters["model.layers.*.self_attn.k_proj.weight"]
    assert plan_from_dict(json.loads(text)).model == plan.model
    assert padding_notes(plan.model, 4) == (
        "6 attention heads padded to 8 for tp=4: 25.0% of attention's work is padding",
        "intermediate_size 90 padded to 92 for tp=4: 2.2% of its work is padding",
    )
    with pytest.raises(AutoshardError, match=r"^megatron has no form for padding: 6 attention heads padded to 8 for "):
        export(plan, "megatron")


def test_the_note_names_key_value_heads_too() -> None:
    model = replace(LLAMA, num_attention_heads=96, num_key_value_heads=12)
    assert padding_notes(model, 32) == (
        "96 attention heads padded to 128 (key-value heads 12 to 16) for tp=32: 25.0% of attention's work is padding",
    )


def test_checkpoints_hold_no_padding() -> None:
    """The output projection [embed, kvhead, group, headdim] of the ranks that have padding: 3 of 4 heads, or 1 of 2."""
    plan = plan_of(replace(LLAMA, num_attention_heads=6, num_key_value_heads=2), strategy(tp=4), 2)
    pieces = {}
    for rank in range(4):
        (shard,) = rank_shards(plan, rank)[:1]
        (piece,) = (one for one in shard.pieces if one.name == "model.layers.0.self_attn.o_proj.weight")
        pieces[rank] = piece.box.offsets, piece.box.sizes, piece.held
    assert pieces == {
        0: ((0, 0, 0, 0), (64, 1, 2, 8), None),
        1: ((0, 1, 0, 0), (64, 1, 2, 8), None),
        2: ((0, 0, 2, 0), (64, 1, 1, 8), (64, 1, 2, 8)),
        3: ((0, 1, 2, 0), (64, 1, 1, 8), (64, 1, 2, 8)),
    }


@pytest.mark.parametrize(("heads", "key_value", "small"), [(6, 6, (3, 3)), (6, 3, (6, 3)), (6, 2, (3, 1))])
def test_a_rehearsal_pads_too(heads: int, key_value: int, small: tuple[int, int]) -> None:
    plan = plan_of(replace(LLAMA, num_attention_heads=heads, num_key_value_heads=key_value), strategy(tp=4), 2)
    model = rehearse(plan, 2, 256).plan.model
    assert (model.num_attention_heads, model.num_key_value_heads) == small
    assert padded_heads(model, 2).queries > model.num_attention_heads


def test_torch_pads_where_it_pays_and_nxd_refuses() -> None:
    """A model of 28 query heads with tp pinned to 8."""
    training = TrainingSpec(4096, 64, load_precision("mixed_precision"))
    cluster = load_cluster("trn1.32xlarge", 1)
    with pytest.raises(AutoshardError, match=r"tp=8 must divide num_attention_heads=28 of qwen2-7b; degrees that fit"):
        search(QWEN2_7B, training, cluster, Pins(tp=8), "nxd")
    found = search(QWEN2_7B, training, cluster, Pins(tp=8), "torch").best
    check_strategy(QWEN2_7B, training, cluster, "torch", found.strategy)
    assert found.strategy.tp == 8


def test_degrees_that_a_file_has_by_mistake_are_padded_at_once() -> None:
    """A layout of other devices is refused, but its heads are looked at first; all below tp were tried here."""
    tp = 10**11
    assert padded_heads(load_model("llama3-8b"), tp).queries == tp
