"""Tables of each model_type: its activations, its experts; and the words for kinds of blocks."""

from __future__ import annotations

from typing import NamedTuple

from autoshard.plugins.table import Table

TRACED = "traced"
"""model_type, and hidden_act, of a user's own module."""
ROUTED, SHARED = "routed", "shared"


class _Family(NamedTuple):
    """activations: the values of hidden_act. experts: those that an MLP may have."""

    activations: tuple[str, ...]
    experts: tuple[str, ...] = ()


_SILU, _GELU_GATE = ("silu",), ("gelu_pytorch_tanh",)
_BUILT_IN = {
    "llama": _Family(_SILU),
    "mistral": _Family(_SILU),
    "mixtral": _Family(_SILU, (ROUTED,)),
    "gpt2": _Family(("gelu_new", "gelu_pytorch_tanh", "gelu")),
    "gpt_neox": _Family(("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh")),
    "qwen2": _Family(_SILU),
    "qwen2_moe": _Family(_SILU, (ROUTED, SHARED)),
    "qwen3": _Family(_SILU),
    "qwen3_moe": _Family(_SILU, (ROUTED,)),
    "deepseek_v2": _Family(_SILU, (ROUTED, SHARED)),
    "deepseek_v3": _Family(_SILU, (ROUTED, SHARED)),
    "kimi_k2": _Family(_SILU, (ROUTED, SHARED)),
    "gemma2": _Family(_GELU_GATE),
    "gemma3_text": _Family(_GELU_GATE),
    "glm4_moe": _Family(_SILU, (ROUTED, SHARED)),
    "gpt_oss": _Family(_SILU, (ROUTED,)),
    "llama4_text": _Family(_SILU, (ROUTED, SHARED)),
    "dbrx": _Family(_SILU, (ROUTED,)),
    "smollm3": _Family(_SILU),
    "phi3": _Family(_SILU),
    "olmo2": _Family(_SILU),
    "granite": _Family(_SILU),
    "qwen3_next": _Family(_SILU, (ROUTED, SHARED)),
    "granitemoehybrid": _Family(_SILU, (ROUTED, SHARED)),
    "seed_oss": _Family(_SILU),
    "glm4": _Family(_SILU),
    "ernie4_5": _Family(_SILU),
    "ernie4_5_moe": _Family(_SILU, (ROUTED, SHARED)),
    "dots1": _Family(_SILU, (ROUTED, SHARED)),
    "exaone4": _Family(_SILU),
    "glm4_moe_lite": _Family(_SILU, (ROUTED, SHARED)),
    "olmoe": _Family(_SILU, (ROUTED,)),
    "nemotron": _Family(("relu2",)),
    "olmo3": _Family(_SILU),
    "qwen3_5_text": _Family(_SILU),
    "qwen3_5_moe_text": _Family(_SILU, (ROUTED, SHARED)),
    "minimax_m2": _Family(_SILU, (ROUTED,)),
    "arcee": _Family(("relu2",)),
    TRACED: _Family((TRACED,)),
}
"""Per model_type. silu stands in a gated MLP (three matrices), gelu and relu2, the square of a ReLU, in a plain one
(two), but for Gemma, whose gate is a gelu."""
ACTIVATIONS = Table[tuple[str, ...]](
    "models",
    lambda family: isinstance(getattr(family, "activations", None), tuple),
    "a Family with its activations",
    {name: family.activations for name, family in _BUILT_IN.items()},
    of=lambda family: family.activations,
)
"""Per model_type, with the families of plug-ins."""
EXPERTS = Table[tuple[str, ...]](
    "models",
    lambda family: set(getattr(family, "experts", (None,))) in ({ROUTED, SHARED}, {ROUTED}, set()),
    'a Family whose experts are ("routed", "shared"), ("routed",) or ()',
    {name: family.experts for name, family in _BUILT_IN.items()},
    of=lambda family: family.experts,
)
"""Per model_type, with the families of plug-ins."""
MODEL_TYPES = tuple(name for name in ACTIVATIONS if name != TRACED)
MOE_MODEL_TYPES = tuple(name for name in EXPERTS if ROUTED in EXPERTS[name])
SHARED_EXPERT_MODEL_TYPES = tuple(name for name in EXPERTS if SHARED in EXPERTS[name])
GEMMA_MODEL_TYPES = ("gemma2", "gemma3_text")
QWEN_NEXT_MODEL_TYPES = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
LATENT_MODEL_TYPES = ("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite")
PREDICTING_MODEL_TYPES = ("deepseek_v3", "kimi_k2", "glm4_moe", "glm4_moe_lite")
"""Those that may have a module for multi-token prediction: published checkpoints of them have one, or others of the
same form."""
COUNTED_SHARED_EXPERTS = (*LATENT_MODEL_TYPES, "glm4_moe", "ernie4_5_moe", "dots1")
"""Those whose config gives a number of shared experts, each as wide as a routed one."""
MOST_REPEATED = 10_000
"""Layers, heads or experts."""
LONGEST_NAME = 200
FULL_ATTENTION, SLIDING_ATTENTION = "full_attention", "sliding_attention"
LINEAR_ATTENTION, MAMBA = "linear_attention", "mamba"
RECURRENT = (LINEAR_ATTENTION, MAMBA)
"""Words of layer_types for blocks that mix tokens by a recurrence: each needs the sizes in the field of its name."""
ATTENTION_TYPES = (FULL_ATTENTION, SLIDING_ATTENTION)
LAYER_TYPES = (*ATTENTION_TYPES, *RECURRENT)
CHUNKED_ATTENTION = "chunked_attention"
DENSE, SPARSE = "dense", "sparse"
MLP_LAYER_TYPES = (DENSE, SPARSE)
ROPE, NOPE = "rope", "nope"
POSITION_TYPES = (ROPE, NOPE)
