"""Configs of the families whose blocks are made of others': what they leave out, and what is refused in words."""

from __future__ import annotations

from typing import Any

import pytest

from autoshard.errors import AutoshardError
from autoshard.models.huggingface import from_config, to_config
from autoshard.spec.model import ModelSpec
from autoshard.spec.router import Router

SIZES: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 1536,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "vocab_size": 128_256,
    "max_position_embeddings": 8192,
}


def read(model_type: str, **fields: Any) -> ModelSpec:
    return from_config({**SIZES, "model_type": model_type, **fields}, "m")


def test_what_a_minimax_config_leaves_out() -> None:
    model = read("minimax_m2")
    assert (model.num_local_experts, model.num_experts_per_tok, model.num_key_value_heads) == (256, 8, 8)
    assert (model.head_dim, model.rotary_dim, model.rope_theta, model.norm_eps) == (128, 128, 5e6, 1e-6)
    assert model.router == Router("sigmoid", "noaux_tc")
    assert (model.normalizes_all_heads, model.normalizes_heads, model.norm_topk_prob) == (True, False, True)
    turned = read("minimax_m2", rotary_dim=64, attn_type_list=[1] * 4)
    assert turned.rotary_dim == 64
    assert from_config(to_config(turned), "m") == turned
    parameters = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
    newer = read("minimax_m2", rotary_dim=64, rope_parameters=parameters)
    assert (newer.rotary_dim, newer.rope_theta) == (32, 1e4)


@pytest.mark.parametrize(
    ("model_type", "fields", "text"),
    [
        (
            "minimax_m2",
            {"attn_type_list": [0, 0, 0, 1]},
            "attn_type_list=a list of 4 of m is not supported; a list of 1 alone is: attention in every block",
        ),
        ("minimax_m2", {"qk_norm_type": "per_head"}, "qk_norm_type='per_head' of m is not supported; per_layer is"),
        ("minimax_m2", {"scoring_func": "softmax"}, "scoring_func='softmax' of m is not supported; sigmoid is"),
        ("minimax_m2", {"shared_intermediate_size": 8}, "shared_intermediate_size=8 of m is not supported; 0 is"),
        ("minimax_m2", {"router_jitter_noise": 0.1}, "router_jitter_noise=0.1 of m is not supported; 0.0 is"),
        ("minimax_m2", {"sliding_window": 9}, "sliding_window=9 of m is not supported; null is"),
        ("minimax_m2", {"use_qk_norm": False}, "use_qk_norm=False of m is not supported; True is"),
        ("minimax_m2", {"output_router_logits": True}, "output_router_logits=True of m is not supported; False is"),
    ],
)
def test_what_a_family_does_not_have_is_refused(model_type: str, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(AutoshardError) as error:
        read(model_type, **fields)
    assert str(error.value) == text
