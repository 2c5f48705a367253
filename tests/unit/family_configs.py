"""Configs of families with few keys, and the keys that their experts and mixers ask for."""

from __future__ import annotations

from typing import Any

from autoshard.models.huggingface import from_config
from autoshard.spec.model import ModelSpec

SIZES: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 1536,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "vocab_size": 128_256,
    "max_position_embeddings": 8192,
}
HYBRID_EXPERTS = {
    "moe_intermediate_size": 256,
    "moe_shared_expert_intermediate_size": 512,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
}
LAGUNA = {"moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2}
SARVAM = {"moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2}
STEP = {"moe_intermediate_size": 64, "n_routed_experts": 8, "num_experts_per_tok": 2}
KIMI = {"max_position_embeddings": None, "moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_token": 2}
DEEPSEEK = {"moe_intermediate_size": 64, "n_routed_experts": 8, "num_experts_per_tok": 2}
LONGCAT = {"num_layers": 2, "ffn_hidden_size": 1536, "expert_ffn_hidden_size": 64, "n_routed_experts": 8, "moe_topk": 2}
M3 = {"num_key_value_heads": 4, "head_dim": 128, "num_local_experts": 8, "num_experts_per_tok": 2}
"""And keys of sparse_attention_config."""
M3_CHOICE = {"sparse_attention_freq": [0, 0, 1, 1], "sparse_num_index_heads": 4}
SPARK = {"moe_intermediate_size": 64, "num_local_experts": 8, "num_experts_per_tok": 2}
COHERE_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2}


def read(model_type: str, **fields: Any) -> ModelSpec:
    return from_config({**SIZES, "model_type": model_type, **fields}, "m")
