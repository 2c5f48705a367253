"""Tables of each model_type: its activations, its experts; and the words for kinds of blocks."""

from __future__ import annotations

from autoshard.plugins.table import Table

TRACED = "traced"
"""model_type, and hidden_act, of a user's own module."""
_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "llama": ("silu",),
    "mistral": ("silu",),
    "mixtral": ("silu",),
    "gpt2": ("gelu_new", "gelu_pytorch_tanh", "gelu"),
    "gpt_neox": ("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh"),
    "qwen2": ("silu",),
    "qwen2_moe": ("silu",),
    "qwen3": ("silu",),
    "qwen3_moe": ("silu",),
    "deepseek_v2": ("silu",),
    "deepseek_v3": ("silu",),
    "kimi_k2": ("silu",),
    "gemma2": ("gelu_pytorch_tanh",),
    "gemma3_text": ("gelu_pytorch_tanh",),
    "glm4_moe": ("silu",),
    "gpt_oss": ("silu",),
    "llama4_text": ("silu",),
    "dbrx": ("silu",),
    "smollm3": ("silu",),
    "phi3": ("silu",),
    "olmo2": ("silu",),
    "granite": ("silu",),
    "qwen3_next": ("silu",),
    "granitemoehybrid": ("silu",),
    TRACED: (TRACED,),
}
"""Per model_type, the values of hidden_act: silu stands in a gated MLP (three matrices), gelu in a plain one (two),
but for Gemma, whose gate is a gelu."""
ACTIVATIONS = Table[tuple[str, ...]](
    "models",
    lambda family: isinstance(getattr(family, "activations", None), tuple),
    "a Family with its activations",
    _ACTIVATIONS,
    of=lambda family: family.activations,
)
"""As above, with the families of plug-ins."""
GEMMA_MODEL_TYPES = ("gemma2", "gemma3_text")
MODEL_TYPES = tuple(name for name in ACTIVATIONS if name != TRACED)
LATENT_MODEL_TYPES = ("deepseek_v2", "deepseek_v3", "kimi_k2")
MOE_MODEL_TYPES = (
    *("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "llama4_text", "glm4_moe", "dbrx"),
    *("qwen3_next", "granitemoehybrid", *LATENT_MODEL_TYPES),
)
SHARED_EXPERT_MODEL_TYPES = (
    *("qwen2_moe", "llama4_text", *LATENT_MODEL_TYPES, "glm4_moe", "qwen3_next", "granitemoehybrid"),
)
ROUTED, SHARED = "routed", "shared"
EXPERTS = Table[tuple[str, ...]](
    "models",
    lambda family: set(getattr(family, "experts", (None,))) in ({ROUTED, SHARED}, {ROUTED}, set()),
    'a Family whose experts are ("routed", "shared"), ("routed",) or ()',
    {
        name: (ROUTED,) * (name in MOE_MODEL_TYPES) + (SHARED,) * (name in SHARED_EXPERT_MODEL_TYPES)
        for name in _ACTIVATIONS
    },
    of=lambda family: family.experts,
)
"""Per model_type, the experts that an MLP has, with the families of plug-ins."""
PREDICTING_MODEL_TYPES = ("deepseek_v3", "kimi_k2", "glm4_moe")
"""Those that may have a module for multi-token prediction: published checkpoints of them have one, or others of the
same form."""
COUNTED_SHARED_EXPERTS = (*LATENT_MODEL_TYPES, "glm4_moe")
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
