"""ModelSpec: what it accepts, what it says when it does not, and that JSON keeps it."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.errors import AutoshardError
from autoshard.files.codec import from_json, to_json
from autoshard.graph.ir import GraphBuilder
from autoshard.models.llama.graph import attention
from autoshard.models.stage import published_sizes
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import MODEL_TYPES, ROUTED, SHARED, with_trait
from autoshard.spec.rope import RopeScaling

SMALL = ModelSpec(
    name="small",
    model_type="llama",
    hidden_size=64,
    intermediate_size=160,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=8,
    vocab_size=256,
    max_position_embeddings=128,
    hidden_act="silu",
    norm_eps=1e-5,
    rope_theta=10_000.0,
    rope_scaling=None,
    tie_word_embeddings=False,
    sliding_window=None,
    attention_bias=False,
    mlp_bias=False,
)
LLAMA3 = RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)


FAMILIES = ", ".join(MODEL_TYPES)


def changed(**fields: Any) -> ModelSpec:
    return dataclasses.replace(SMALL, **fields)


def test_eight_query_heads_on_two_key_value_heads_are_groups_of_four() -> None:
    assert SMALL.num_query_groups == 4
    assert not SMALL.is_moe
    assert changed(model_type="mixtral", num_local_experts=4, num_experts_per_tok=2).is_moe


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"name": ""}, "name='' of the model must be 1 to 200 printable characters"),
        ({"name": "a\nb"}, "name='a\\nb' of the model must be 1 to 200 printable characters"),
        ({"model_type": "bert"}, f"model_type='bert' of small must be one of: {FAMILIES}"),
        ({"model_type": ["llama"]}, f"model_type=a list of 1 of small must be one of: {FAMILIES}"),
        (
            {"shared_expert_intermediate_size": 8},
            (
                "shared_expert_intermediate_size=8 of small must be 0 with model_type=llama; "
                f"that is of {with_trait(SHARED)}"
            ),
        ),
        (
            {"use_parallel_residual": True},
            ("use_parallel_residual=True of small must be False with model_type=llama; that is of gpt_neox, stablelm"),
        ),
        ({"hidden_act": "relu"}, "hidden_act='relu' of small must be one of: silu"),
        (
            {"hidden_size": "64"},
            "hidden_size='64' of small must be a whole number from 1 to 1,000,000,000, without quotes",
        ),
        (
            {"hidden_size": 64.0},
            "hidden_size=64.0 of small must be a whole number from 1 to 1,000,000,000",
        ),
        (
            {"vocab_size": True},
            "vocab_size=True of small must be a whole number from 1 to 1,000,000,000",
        ),
        (
            {"num_local_experts": 10**5000},
            "num_local_experts=a number of more than 60 digits of small must be a whole number from 0 to 10,000",
        ),
        (
            {"num_hidden_layers": 0},
            "num_hidden_layers=0 of small must be a whole number from 1 to 10,000",
        ),
        ({"norm_eps": float("nan")}, "norm_eps=nan of small must be a finite number above 0"),
        ({"rope_theta": "1e4"}, "rope_theta='1e4' of small must be a finite number above 0, without quotes"),
        (
            {"rope_theta": 10**400},
            "rope_theta=a number of more than 60 digits of small must be a finite number above 0",
        ),
        ({"rope_theta": None}, "model_type=llama of small needs a rope_theta, such as 10000.0"),
        (
            {"model_type": "gpt2", "hidden_act": "gelu_new"},
            "model_type=gpt2 of small learns its positions: rope_theta must be null",
        ),
        (
            {"rope_scaling": {"factor": 8.0}},
            "rope_scaling=an object of 1 of small must be null or an object with rope_type",
        ),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings=1 of small must be true or false"),
        ({"sliding_window": 0}, "sliding_window=0 of small must be a whole number from 1 to 1,000,000,000"),
        (
            {"num_key_value_heads": 3},
            "num_key_value_heads=3 must divide num_attention_heads=8 of small; what fits: 1, 2, 4, 8",
        ),
        ({"head_dim": 7}, "head_dim=7 of small must be even: rotary positions turn pairs of numbers"),
        (
            {"num_local_experts": 8, "num_experts_per_tok": 2},
            (
                "num_local_experts=8 and num_experts_per_tok=2 of small must be 0: "
                f"model_type=llama has no experts; {with_trait(ROUTED)} has"
            ),
        ),
        (
            {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5},
            "num_experts_per_tok=5 of small must be from 1 to num_local_experts=4",
        ),
    ],
)
def test_error_names_the_field_its_value_and_what_works(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(AutoshardError) as raised:
        changed(**fields)
    assert str(raised.value) == text


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            ("ntk", 8.0),
            "rope_type='ntk' of rope_scaling must be one of: linear, llama3, yarn, dynamic, longrope, proportional",
        ),
        (("yarn", 8.0), "original_max_position_embeddings of rope_scaling must be given with rope_type='yarn'"),
        (("yarn", 8.0, None, None, 4096), "beta_fast of rope_scaling must be given with rope_type='yarn'"),
        (
            ("yarn", 8.0, None, None, 4096, 1.0, 32.0),
            "beta_slow=32.0 of rope_scaling must be at most beta_fast=1.0",
        ),
        (
            ("yarn", 8.0, 1.0, None, 4096, 32.0, 1.0),
            "low_freq_factor of rope_scaling goes with rope_type=llama3, not yarn",
        ),
        (
            ("linear", 8.0, None, None, None, 32.0),
            "beta_fast of rope_scaling goes with rope_type=yarn, not linear",
        ),
        (("linear", 0.0), "factor=0.0 of rope_scaling must be a finite number above 0"),
        (("linear", 2.0, 1.0), "low_freq_factor of rope_scaling goes with rope_type=llama3, not linear"),
        (("dynamic", 2.0), "original_max_position_embeddings of rope_scaling must be given with rope_type='dynamic'"),
        (("dynamic", 2.0, 1.0, None, 64), "low_freq_factor of rope_scaling goes with rope_type=llama3, not dynamic"),
        (("longrope", 2.0, None, None, 64), "short_factor of rope_scaling must be given with rope_type='longrope'"),
        (
            ("longrope", 2.0, None, None, 1, None, None, None, None, None, None, None, (1.0,), (1.0,)),
            "original_max_position_embeddings=1 of rope_scaling must be a whole number from 2 to 1,000,000,000",
        ),
        (
            ("dynamic", 2.0, None, None, 64, None, None, None, 1.5),
            "attention_factor of rope_scaling goes with rope_type=yarn or longrope, not dynamic",
        ),
        (
            ("linear", 2.0, None, None, None, None, None, None, None, None, None, None, (1.0,)),
            "short_factor of rope_scaling goes with rope_type=longrope, not linear",
        ),
        (("llama3", 8.0), "low_freq_factor of rope_scaling must be given with rope_type='llama3'"),
        (("llama3", 8.0, 4.0, 1.0, 8192), "low_freq_factor=4.0 of rope_scaling must be at most high_freq_factor=1.0"),
    ],
)
def test_rope_scaling_error(values: tuple[Any, ...], text: str) -> None:
    with pytest.raises(AutoshardError) as raised:
        RopeScaling(*values)
    assert str(raised.value) == text


@given(
    kv_heads=st.integers(1, 64),
    groups=st.integers(1, 16),
    half_head_dim=st.integers(1, 128),
    layers=st.integers(1, 10_000),
    norm_eps=st.floats(min_value=1e-12, max_value=1e-2),
    rope_scaling=st.sampled_from(
        [None, LLAMA3, RopeScaling("linear", 2.0), RopeScaling("dynamic", 2.0, None, None, 64)]
    ),
    sliding_window=st.none() | st.integers(1, 10**6),
)
def test_json_gives_the_same_value_back(
    kv_heads: int,
    groups: int,
    half_head_dim: int,
    layers: int,
    norm_eps: float,
    rope_scaling: RopeScaling | None,
    sliding_window: int | None,
) -> None:
    model = changed(
        num_attention_heads=kv_heads * groups,
        num_key_value_heads=kv_heads,
        head_dim=2 * half_head_dim,
        num_hidden_layers=layers,
        norm_eps=norm_eps,
        rope_scaling=rope_scaling,
        sliding_window=sliding_window,
    )
    assert model.num_query_groups == groups
    assert from_json(ModelSpec, json.loads(json.dumps(to_json(model))), "model") == model


def test_from_dict_wants_every_field_and_no_other() -> None:
    fields = to_json(changed(rope_scaling=LLAMA3))
    with pytest.raises(AutoshardError, match=r"^plan\.json: model lacks head_dim$"):
        from_json(ModelSpec, {key: value for key, value in fields.items() if key != "head_dim"}, "plan.json: model")
    with pytest.raises(AutoshardError, match=r"^model has a field that is not known: 'colour'; known: name, "):
        from_json(ModelSpec, {**fields, "colour": 0.1}, "model")
    with pytest.raises(AutoshardError, match=r"^model\.rope_scaling lacks rope_type$"):
        from_json(ModelSpec, {**fields, "rope_scaling": {}}, "model")
    with pytest.raises(AutoshardError, match=r"^model must be an object with named fields, not "):
        from_json(ModelSpec, [], "model")


def test_a_family_that_learns_positions_turns_no_heads() -> None:
    learned = changed(model_type="gpt2", hidden_act="gelu_new", rope_theta=None)
    for model, kinds in ((SMALL, 2), (learned, 0)):
        b = GraphBuilder(published_sizes(model), 2)
        attention(b, model, b.hidden_input("hidden", "batch seq embed"), 0, "flash")
        assert [op.kind for op in b.build().operators].count("rope") == kinds
