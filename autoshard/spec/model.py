"""The model that is trained: sizes of a decoder-only transformer, under the names of its Hugging Face config."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log
from typing import Annotated, Any

from autoshard.errors import AutoshardError
from autoshard.files.codec import Absence, Count, Limit, NotNegative, Positive, Whole
from autoshard.files.fields import check_choice, check_flag, check_integer, check_not_negative, check_positive, show
from autoshard.plugins.table import Table
from autoshard.spec.attention_scores import USUAL_SCORES, AttentionScores
from autoshard.spec.chunked_attention import ChunkedAttention
from autoshard.spec.clamped_gate import ClampedGate
from autoshard.spec.dropout import NO_DROPOUT, Dropout
from autoshard.spec.latent_attention import LatentAttention
from autoshard.spec.linear_attention import LinearAttention, Mamba
from autoshard.spec.multipliers import Multipliers
from autoshard.spec.prediction import MultiTokenPrediction
from autoshard.spec.router import Router
from autoshard.spec.traced import TracedGraph

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
ROPE_TYPES = ("linear", "llama3", "yarn")
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


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the length of pre-training.

    rope_type: linear, llama3 or yarn.
    factor: By how much.
    low_freq_factor: llama3: wavelengths above original_max_position_embeddings over this are stretched in full.
    high_freq_factor: llama3: wavelengths below original_max_position_embeddings over this are kept.
    original_max_position_embeddings: llama3, yarn: positions, tokens, of the pre-training.
    beta_fast: yarn: frequencies that turn at least so often over the pre-training's positions are kept.
    beta_slow: yarn: frequencies that turn at most so often are divided by the factor.
    truncate: yarn: whether the range of frequencies between the two ends at whole ones; absent is yes.
    attention_factor: yarn: by which rotated queries and keys are multiplied; absent where it follows from the factor,
        or from both numbers below.
    mscale: yarn: weight of the factor's logarithm in what rotated queries and keys are multiplied by.
    mscale_all_dim: yarn: weight of the factor's logarithm in what they are divided by; latent attention multiplies its
        scores by the square of that.
    """

    rope_type: str
    factor: Positive
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_position_embeddings: Count | None = None
    beta_fast: Annotated[float | None, Absence.WRITTEN] = None
    beta_slow: Annotated[float | None, Absence.WRITTEN] = None
    truncate: Annotated[bool | None, Absence.WRITTEN] = None
    attention_factor: Annotated[float | None, Absence.WRITTEN] = None
    mscale: Annotated[float | None, Absence.WRITTEN] = None
    mscale_all_dim: Annotated[float | None, Absence.WRITTEN] = None

    def __post_init__(self) -> None:
        check_choice("rope_scaling", "rope_type", self.rope_type, ROPE_TYPES)
        check_positive("rope_scaling", "factor", self.factor)
        self._check_yarn()
        if self.rope_type == "yarn":
            return
        low, high, original = self.low_freq_factor, self.high_freq_factor, self.original_max_position_embeddings
        if self.rope_type == "linear":
            if (low, high, original) != (None, None, None):
                raise AutoshardError("rope_scaling of rope_type='linear' has a factor and nothing else")
            return
        check_positive("rope_scaling", "low_freq_factor", low)
        check_positive("rope_scaling", "high_freq_factor", high)
        check_integer("rope_scaling", "original_max_position_embeddings", original)
        if low is not None and high is not None and low > high:
            raise AutoshardError(f"low_freq_factor={low} of rope_scaling must be at most high_freq_factor={high}")

    def _check_yarn(self) -> None:
        """The fields that yarn needs, that it may have, and that others have not."""
        more = ("beta_fast", "beta_slow", "truncate", "attention_factor", "mscale", "mscale_all_dim")
        if self.rope_type != "yarn":
            for field in more:
                if getattr(self, field) is not None:
                    raise AutoshardError(f"{field} of rope_scaling goes with rope_type='yarn', not {self.rope_type!r}")
            return
        check_integer("rope_scaling", "original_max_position_embeddings", self.original_max_position_embeddings)
        for field in ("beta_fast", "beta_slow"):
            check_positive("rope_scaling", field, getattr(self, field))
        for field in ("attention_factor", "mscale", "mscale_all_dim"):
            if getattr(self, field) is not None:
                check_not_negative("rope_scaling", field, getattr(self, field))
        if self.truncate is not None:
            check_flag("rope_scaling", "truncate", self.truncate)
        if (self.low_freq_factor, self.high_freq_factor) != (None, None):
            raise AutoshardError("low_freq_factor and high_freq_factor of rope_scaling go with rope_type='llama3'")
        if self.beta_fast < self.beta_slow:  # type: ignore[operator]  # both are numbers
            raise AutoshardError(
                f"beta_slow={self.beta_slow} of rope_scaling must be at most beta_fast={self.beta_fast}"
            )

    @property
    def rotation_factor(self) -> float:
        """By which rotated queries and keys are multiplied: 1 without yarn."""
        if self.rope_type != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._weighed(self.mscale) / self._weighed(self.mscale_all_dim)
        return self._weighed(1.0)

    @property
    def latent_scores_factor(self) -> float:
        """By which latent attention multiplies its scores besides 1/sqrt(head_dim): 1 without mscale_all_dim."""
        return self._weighed(self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0

    def _weighed(self, weight: float) -> float:
        return 0.1 * weight * log(self.factor) + 1.0 if self.factor > 1 else 1.0


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only transformer. Sizes are counts of elements.

    name: What plans call it.
    model_type: llama | mistral | mixtral | qwen2 | qwen2_moe | qwen3 | qwen3_moe | smollm3 | phi3 | granite (RMSNorm,
        rotary positions, gated MLP) | olmo2 (the same with norms behind attention and MLP) | deepseek_v2 | deepseek_v3
        | kimi_k2 (latent attention) | glm4_moe | gpt2 (LayerNorm, learned positions) | gpt_neox (LayerNorm, rotary
        positions on part of each head) | gemma2 | gemma3_text (RMSNorm around attention and MLP, scaled embeddings) |
        gpt_oss (a mixture with sinks) | llama4_text (chunks, blocks without positions, a shared expert) | dbrx (a
        mixture with LayerNorm) | qwen3_next (gated delta rule) | granitemoehybrid (Mamba-2) | traced (a user's own
        module).
    hidden_size: Width of the residual stream.
    intermediate_size: Width of the MLP; of one expert where there are experts.
    num_hidden_layers: Transformer blocks.
    num_attention_heads: Query heads.
    num_key_value_heads: Key-value heads; each serves num_attention_heads / num_key_value_heads query heads.
    head_dim: Width of one head.
    vocab_size: Tokens of the vocabulary, before padding.
    max_position_embeddings: Positions, tokens, that the model was made for.
    hidden_act: Activation of the MLP; silu stands in a gated one.
    norm_eps: Added to the variance in each norm.
    rope_theta: Base of the rotary positions; null where positions are learned.
    rope_scaling: How rotary frequencies are stretched; null where they are not.
    tie_word_embeddings: Whether embedding and head share one table.
    sliding_window: Keys that a query sees, itself included; null means all before it.
    attention_bias: Whether the projections of attention have biases; Qwen2's output projection never has one.
    mlp_bias: Whether the matrices of the MLP, or of the router and the experts, have biases.
    num_local_experts: Experts of a block; 0 without.
    num_experts_per_tok: Experts that each token goes to; 0 without.
    shared_expert_intermediate_size: Width of the expert that every token goes to besides; 0 without.
    norm_topk_prob: Whether the weights of a token's experts are made to add up to 1.
    router_aux_loss_coef: Weight of the routers' load-balancing loss, the mean of the layers'; 0 without.
    partial_rotary_factor: Part of each head, from its start, that rotary positions turn.
    use_parallel_residual: Whether attention and MLP both read the block's input.
    layer_types: Of each block, what mixes its tokens: full_attention | sliding_attention | chunked_attention |
        linear_attention | mamba; absent where all blocks have the same attention.
    mlp_layer_types: Of each block of a mixture, dense (an MLP of dense_intermediate_size) | sparse (experts); absent
        where all blocks are alike.
    dense_intermediate_size: Width of the MLP of a mixture's blocks without experts; absent without such blocks.
    position_types: Of each block, rope (rotary positions) | nope (no positions); absent where all blocks have them.
    linear_attention: Sizes of the blocks that are linear_attention in layer_types; absent without such blocks.
    mamba: Sizes of the blocks that are mamba in layer_types; absent without such blocks.
    multipliers: Constants by which embeddings, scores, residuals and logits are scaled; absent where none is.
    latent_attention: Widths of multi-head latent attention; absent where a block has none.
    use_qk_norm: Of glm4_moe: whether each head's query and key have an RMSNorm of their own; absent where not.
    router: How the experts of a token are chosen; absent where they are the largest of a softmax.
    attention_scores: What attention does otherwise than softmax(q k^T / sqrt(head_dim)); absent where that is nothing.
    final_logit_softcapping: A logit z becomes c * tanh(z / c), where c is this; absent where it stays.
    rope_local_base_freq: Base of the rotary positions of blocks with a sliding window, which are not stretched; absent
        where they are as in the others.
    chunked_attention: Chunks of Llama 4; absent in other models.
    clamped_gate: Activation of the experts with a gate that is cut off; absent where it is hidden_act's.
    multi_token_prediction: The module behind the last block that predicts the token after the next one; absent where
        training leaves it out, which it does unless it was asked to have it.
    dropout: What training drops; absent where it drops nothing, which it does, whatever a config says, unless it
        was asked to.
    graph: Of model_type traced alone: the operators of a user's own module over named dims, read as data; the other
        fields then are sizes alone.

    Raises AutoshardError where a field is not what the model_type can have.
    """

    name: str
    model_type: str
    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    num_key_value_heads: Count
    head_dim: Count
    vocab_size: Count
    max_position_embeddings: Count
    hidden_act: str
    norm_eps: Positive
    rope_theta: float | None
    rope_scaling: RopeScaling | None
    tie_word_embeddings: bool
    sliding_window: Count | None
    attention_bias: bool
    mlp_bias: bool
    num_local_experts: Whole = 0
    num_experts_per_tok: Whole = 0
    shared_expert_intermediate_size: Whole = 0
    norm_topk_prob: bool = True
    router_aux_loss_coef: Annotated[NotNegative, Absence.READ] = 0.0
    partial_rotary_factor: Annotated[float, Limit(above=0, at_most=1)] = 1.0
    use_parallel_residual: bool = False
    layer_types: Annotated[tuple[str, ...], Absence.WRITTEN, Limit(most_items=MOST_REPEATED)] = ()
    mlp_layer_types: Annotated[tuple[str, ...], Absence.WRITTEN, Limit(most_items=MOST_REPEATED)] = ()
    dense_intermediate_size: Annotated[Whole, Absence.WRITTEN] = 0
    position_types: Annotated[tuple[str, ...], Absence.WRITTEN, Limit(most_items=MOST_REPEATED)] = ()
    linear_attention: Annotated[LinearAttention | None, Absence.WRITTEN] = None
    mamba: Annotated[Mamba | None, Absence.WRITTEN] = None
    multipliers: Annotated[Multipliers | None, Absence.WRITTEN] = None
    latent_attention: Annotated[LatentAttention | None, Absence.WRITTEN] = None
    use_qk_norm: Annotated[bool, Absence.WRITTEN] = False
    router: Annotated[Router | None, Absence.WRITTEN] = None
    attention_scores: Annotated[AttentionScores, Absence.WRITTEN] = USUAL_SCORES
    final_logit_softcapping: Annotated[Positive | None, Absence.WRITTEN] = None
    rope_local_base_freq: Annotated[Positive | None, Absence.WRITTEN] = None
    chunked_attention: Annotated[ChunkedAttention | None, Absence.WRITTEN] = None
    clamped_gate: Annotated[ClampedGate | None, Absence.WRITTEN] = None
    multi_token_prediction: Annotated[MultiTokenPrediction | None, Absence.WRITTEN] = None
    dropout: Annotated[Dropout, Absence.WRITTEN] = NO_DROPOUT
    graph: Annotated[TracedGraph | None, Absence.WRITTEN] = None

    def __post_init__(self) -> None:
        _check_fields(self)
        _check_attention(self)
        _check_latent_attention(self)
        _check_experts(self)
        _check_kinds(self)
        _check_prediction(self)
        _check_graph(self)

    @cached_property
    def _hash(self) -> int:
        return hash((self.num_hidden_layers, self.hidden_size, self.vocab_size, self.num_local_experts))

    def __hash__(self) -> int:
        """Computed once, of a few numbers, which are the same in every process: models are keys of many caches."""
        return self._hash

    @cached_property
    def block_kinds(self) -> tuple[int, ...]:
        """For each block, the first one that is of its kind: 0 everywhere where blocks are alike."""
        said = [types for types in self._types.values() if types]
        if not said:
            return (0,) * self.num_hidden_layers
        firsts: dict[tuple[str, ...], int] = {}
        return tuple(firsts.setdefault(kind, layer) for layer, kind in enumerate(zip(*said, strict=True)))

    @cached_property
    def kinds(self) -> tuple[int, ...]:
        """The first block of each kind, in the model's order: (0,) where blocks are alike."""
        return tuple(dict.fromkeys(self.block_kinds))

    def kind_counts(self, first: int, stop: int) -> tuple[tuple[int, int], ...]:
        """(kind, how many of the blocks from `first` to before `stop` are of it) of each kind among them, in the order
        of `kinds`."""
        counts = Counter(self.block_kinds[first:stop])
        return tuple((kind, counts[kind]) for kind in self.kinds if kind in counts)

    def kinds_behind(self, first: int, stop: int) -> tuple[tuple[int, tuple[tuple[int, int], ...]], ...]:
        """(kind, `kind_counts` of the blocks behind the last one of that kind) of each kind among the blocks from
        `first` to before `stop`, in the order of `kinds`."""
        last = {kind: layer for layer, kind in enumerate(self.block_kinds[first:stop], first)}
        return tuple((kind, self.kind_counts(last[kind] + 1, stop)) for kind in self.kinds if kind in last)

    def some_blocks(self, places: Sequence[int]) -> ModelSpec:
        """The model with these of its blocks alone, in this order."""
        picked: dict[str, Any] = {
            name: tuple(types[place] for place in places) for name, types in self._types.items() if types
        }
        return replace(self, num_hidden_layers=len(places), **picked)

    @cached_property
    def with_prediction_block(self) -> ModelSpec:
        """The model with the block of its prediction module behind the others, like the last one of these."""
        return self.some_blocks((*range(self.num_hidden_layers), self.num_hidden_layers - 1))

    @property
    def shares_embedding(self) -> bool:
        """Whether the last stage needs the table of the embedding, for the head or for a prediction module."""
        return self.tie_word_embeddings or self.multi_token_prediction is not None

    @property
    def _types(self) -> dict[str, tuple[str, ...]]:
        """By field, a word for each block; empty where all blocks are alike."""
        return {field: getattr(self, field) for field in ("layer_types", "mlp_layer_types", "position_types")}

    def mixer_of(self, layer: int) -> str:
        """The word of LAYER_TYPES for what mixes the tokens of a block."""
        if self.layer_types:
            return self.layer_types[layer]
        return FULL_ATTENTION if self.sliding_window is None else SLIDING_ATTENTION

    @property
    def is_recurrent(self) -> bool:
        """Whether some blocks mix their tokens by a recurrence over the sequence."""
        return any(word in RECURRENT for word in self.layer_types)

    def window_of(self, layer: int) -> int | None:
        """Keys that a query of a block sees, itself included; None is all before it."""
        return None if self.layer_types and self.layer_types[layer] != SLIDING_ATTENTION else self.sliding_window

    def chunk_of(self, layer: int) -> int | None:
        """Tokens of the chunk that a query of a block sees; None where it sees more than its chunk."""
        chunked = self.layer_types and self.layer_types[layer] == CHUNKED_ATTENTION
        return self.chunked_attention.attention_chunk_size if chunked and self.chunked_attention else None

    def has_rope(self, layer: int) -> bool:
        """Whether rotary positions turn the queries and keys of a block."""
        return not self.position_types or self.position_types[layer] == ROPE

    def has_experts(self, layer: int) -> bool:
        """Whether the MLP of a block is a mixture of experts."""
        return self.mlp_layer_types[layer] == SPARSE if self.mlp_layer_types else self.is_moe

    @property
    def num_sparse_layers(self) -> int:
        """Blocks whose MLP is a mixture of experts."""
        return self.mlp_layer_types.count(SPARSE) if self.mlp_layer_types else self.num_hidden_layers * self.is_moe

    @property
    def inner_sizes(self) -> dict[str, int]:
        """By field or dim, the widths that tensor parallelism splits besides heads and vocabulary."""
        fields_too = ("intermediate_size", "shared_expert_intermediate_size", "dense_intermediate_size")
        own = () if self.graph is None else self.graph.split_sizes
        return {**{field: getattr(self, field) for field in fields_too}, **dict(own)}

    @property
    def is_moe(self) -> bool:
        """Whether the MLP, of some blocks at least, is a mixture of experts."""
        return self.num_local_experts > 0

    @property
    def output_projection_bias(self) -> bool:
        """Whether attention's output projection has a bias, as the others do where attention_bias is set."""
        return self.attention_bias and self.model_type not in ("qwen2", "qwen2_moe", "glm4_moe")

    @property
    def normalizes_heads(self) -> bool:
        """Whether each head's query and key have an RMSNorm of their own."""
        return self.model_type in ("qwen3", "qwen3_moe", "qwen3_next", "gemma3_text") or self.use_qk_norm

    @property
    def has_unit_offset(self) -> bool:
        """Whether RMS norms multiply by 1 plus their weight."""
        return self.model_type == "qwen3_next" or self.is_gemma

    @property
    def normalizes_all_heads(self) -> bool:
        """Whether the queries of all heads have one RMSNorm together, and so have their keys."""
        return self.model_type == "olmo2"

    @property
    def is_gemma(self) -> bool:
        """Whether norms stand around attention and MLP, and embeddings are scaled by the root of their width."""
        return self.model_type in GEMMA_MODEL_TYPES

    def rope_of(self, layer: int) -> tuple[float | None, RopeScaling | None]:
        """(base of the rotary positions of a block, how they are stretched)."""
        if self.rope_local_base_freq is not None and self.window_of(layer) is not None:
            return self.rope_local_base_freq, None
        return self.rope_theta, self.rope_scaling

    @property
    def rotary_dim(self) -> int:
        """Numbers of each head that rotary positions turn."""
        if self.latent_attention is not None:
            return self.latent_attention.qk_rope_head_dim
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def scores_scale(self) -> float | None:
        """By which attention multiplies its scores; None is 1/sqrt(head_dim)."""
        if self.multipliers is not None:
            return self.multipliers.attention_multiplier
        scaling = self.rope_scaling
        factor = 1.0 if scaling is None or self.latent_attention is None else scaling.latent_scores_factor
        return None if factor == 1 else float(factor * self.head_dim**-0.5)

    @property
    def num_query_groups(self) -> int:
        """Query heads that share one key-value head; 1 without grouped-query attention."""
        return self.num_attention_heads // self.num_key_value_heads


def _check_fields(model: ModelSpec) -> None:
    """Each field by itself."""
    if not isinstance(model.name, str) or not model.name.isprintable() or not 1 <= len(model.name) <= LONGEST_NAME:
        raise AutoshardError(f"name={show(model.name)} of the model must be 1 to {LONGEST_NAME} printable characters")
    of = model.name
    known = [name for name in ACTIVATIONS.known(model.model_type) if name != TRACED]
    check_choice(of, "model_type", model.model_type, known if model.graph is None else (TRACED,))
    check_choice(of, "hidden_act", model.hidden_act, ACTIVATIONS[model.model_type])
    for field in ("hidden_size", "intermediate_size", "head_dim", "vocab_size", "max_position_embeddings"):
        check_integer(of, field, getattr(model, field))
    for field in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads"):
        check_integer(of, field, getattr(model, field), at_most=MOST_REPEATED)
    for field in ("num_local_experts", "num_experts_per_tok"):
        check_integer(of, field, getattr(model, field), at_least=0, at_most=MOST_REPEATED)
    check_integer(of, "shared_expert_intermediate_size", model.shared_expert_intermediate_size, at_least=0)
    check_positive(of, "partial_rotary_factor", model.partial_rotary_factor)
    if model.router_aux_loss_coef != 0:
        check_positive(of, "router_aux_loss_coef", model.router_aux_loss_coef)
    flags = ("tie_word_embeddings", "attention_bias", "mlp_bias", "norm_topk_prob", "use_parallel_residual")
    for field in (*flags, "use_qk_norm"):
        check_flag(of, field, getattr(model, field))
    check_positive(of, "norm_eps", model.norm_eps)
    if model.rope_theta is not None:
        check_positive(of, "rope_theta", model.rope_theta)
    if model.sliding_window is not None:
        check_integer(of, "sliding_window", model.sliding_window)
    for field in ("final_logit_softcapping", "rope_local_base_freq"):
        if getattr(model, field) is not None:
            check_positive(of, field, getattr(model, field))
    if not isinstance(model.clamped_gate, (ClampedGate, type(None))):
        raise AutoshardError(f"clamped_gate={show(model.clamped_gate)} of {of} must be null or an object")
    if not isinstance(model.attention_scores, AttentionScores):
        raise AutoshardError(f"attention_scores={show(model.attention_scores)} of {of} must be an object")
    if not isinstance(model.rope_scaling, (RopeScaling, type(None))):
        raise AutoshardError(
            f"rope_scaling={show(model.rope_scaling)} of {of} must be null or an object with a rope_type"
        )


def _check_attention(model: ModelSpec) -> None:
    """Heads in whole groups, and the positions that the model_type has."""
    heads, kv_heads = model.num_attention_heads, model.num_key_value_heads
    if heads % kv_heads:
        raise AutoshardError(
            f"num_key_value_heads={kv_heads} must divide num_attention_heads={heads} of {model.name}; "
            f"what fits: {', '.join(str(count) for count in range(1, heads + 1) if heads % count == 0)}"
        )
    if model.model_type == "gpt2":
        if model.rope_theta is not None or model.rope_scaling is not None:
            raise AutoshardError(f"model_type=gpt2 of {model.name} learns its positions: rope_theta must be null")
        return
    if model.model_type == TRACED:
        return
    if model.rope_theta is None:
        raise AutoshardError(f"model_type={model.model_type} of {model.name} needs a rope_theta, such as 10000.0")
    if model.latent_attention is not None:
        return
    if model.partial_rotary_factor > 1 or model.rotary_dim % 2 or model.rotary_dim == 0:
        part = "" if model.partial_rotary_factor == 1 else f" times partial_rotary_factor={model.partial_rotary_factor}"
        raise AutoshardError(
            f"head_dim={model.head_dim}{part} of {model.name} must be even: rotary positions turn pairs of numbers"
        )


def _check_latent_attention(model: ModelSpec) -> None:
    """Latent attention exactly where the model_type has it, with heads of its own for all keys."""
    latent, of = model.latent_attention, model.name
    if not isinstance(latent, (LatentAttention, type(None))):
        raise AutoshardError(f"latent_attention={show(latent)} of {of} must be an object with a kv_lora_rank")
    if (latent is not None) != (model.model_type in LATENT_MODEL_TYPES):
        needs = "needs" if latent is None else "has no"
        raise AutoshardError(
            f"model_type={model.model_type} of {of} {needs} latent_attention; {', '.join(LATENT_MODEL_TYPES)} have it"
        )
    if latent is None:
        return
    if model.num_query_groups > 1:
        raise AutoshardError(
            f"num_key_value_heads={model.num_key_value_heads} of {of} must be num_attention_heads="
            f"{model.num_attention_heads}: latent attention makes keys of every head"
        )
    if latent.qk_rope_head_dim % 2 or latent.qk_rope_head_dim >= model.head_dim:
        raise AutoshardError(
            f"qk_rope_head_dim={latent.qk_rope_head_dim} of {of} must be even and below head_dim={model.head_dim}, "
            "the width of queries and keys"
        )
    for field, right in (("sliding_window", None), ("attention_bias", False), ("partial_rotary_factor", 1.0)):
        if (value := getattr(model, field)) != right:
            raise AutoshardError(f"{field}={show(value)} of {of} is not supported with latent attention; {right} is")


def _check_experts(model: ModelSpec) -> None:
    """Experts exactly where the model_type has them."""
    experts, chosen = model.num_local_experts, model.num_experts_per_tok
    kinds = EXPERTS[model.model_type]
    if model.shared_expert_intermediate_size and SHARED not in kinds:
        raise AutoshardError(
            f"shared_expert_intermediate_size={model.shared_expert_intermediate_size} of {model.name} must be 0: "
            f"model_type={model.model_type} has no shared expert; {', '.join(SHARED_EXPERT_MODEL_TYPES)} has"
        )
    if model.model_type in COUNTED_SHARED_EXPERTS and model.shared_expert_intermediate_size % model.intermediate_size:
        raise AutoshardError(
            f"shared_expert_intermediate_size={model.shared_expert_intermediate_size} of {model.name} must be a "
            f"multiple of intermediate_size={model.intermediate_size}: model_type={model.model_type} counts shared "
            "experts"
        )
    if model.use_qk_norm and model.model_type != "glm4_moe":
        raise AutoshardError(
            f"use_qk_norm=True of {model.name} must be False: model_type={model.model_type} says itself whether heads "
            "have norms; glm4_moe does not"
        )
    if model.use_parallel_residual and model.model_type != "gpt_neox":
        raise AutoshardError(
            f"use_parallel_residual=True of {model.name} must be False: model_type={model.model_type} "
            "runs attention and MLP one after the other; gpt_neox can run them side by side"
        )
    optional = model.model_type in (TRACED, "granitemoehybrid")
    if (ROUTED in kinds and not optional) or (optional and experts):
        if not 1 <= chosen <= experts:
            raise AutoshardError(
                f"num_experts_per_tok={chosen} of {model.name} must be from 1 to num_local_experts={experts}"
            )
        if not isinstance(model.router, (Router, type(None))):
            raise AutoshardError(f"router={show(model.router)} of {model.name} must be an object with a scoring_func")
        if model.router is not None and (wrong := model.router.experts_objection(experts, chosen)) is not None:
            raise AutoshardError(f"{wrong} of {model.name}")
    elif experts or chosen:
        raise AutoshardError(
            f"num_local_experts={experts} and num_experts_per_tok={chosen} of {model.name} must be 0: "
            f"model_type={model.model_type} has no experts; {', '.join(MOE_MODEL_TYPES)} has"
        )


def _check_kinds(model: ModelSpec) -> None:
    """A word for each block, where blocks differ."""
    if (model.chunked_attention is None) == (model.model_type == "llama4_text"):
        needs = "needs" if model.chunked_attention is None else "has no"
        raise AutoshardError(f"model_type={model.model_type} of {model.name} {needs} chunked_attention")
    layer_types = LAYER_TYPES if model.chunked_attention is None else (FULL_ATTENTION, CHUNKED_ATTENTION)
    words = {"layer_types": layer_types, "mlp_layer_types": MLP_LAYER_TYPES, "position_types": POSITION_TYPES}
    for field, known in words.items():
        types = getattr(model, field)
        if not types:
            continue
        for word in dict.fromkeys(types):
            check_choice(model.name, field, word, known)
        if len(types) != model.num_hidden_layers:
            raise AutoshardError(
                f"{field} of {model.name} has {len(types)} entries; num_hidden_layers={model.num_hidden_layers} "
                "needs one for each block"
            )
    if SLIDING_ATTENTION in model.layer_types and model.sliding_window is None:
        raise AutoshardError(f"layer_types of {model.name} has {SLIDING_ATTENTION}: sliding_window must be given")
    if SPARSE in model.mlp_layer_types and not model.is_moe:
        raise AutoshardError(f"mlp_layer_types of {model.name} has {SPARSE}, but num_local_experts=0")
    for field, kind in (("linear_attention", LinearAttention), ("mamba", Mamba)):
        value = getattr(model, field)
        if not isinstance(value, (kind, type(None))):
            raise AutoshardError(f"{field}={show(value)} of {model.name} must be an object with sizes")
        if (field in model.layer_types) != (value is not None):
            raise AutoshardError(
                f"{field} of {model.name} must be the sizes of the blocks that are {field} in layer_types, and absent "
                "without such blocks"
            )
    if not isinstance(model.multipliers, (Multipliers, type(None))):
        raise AutoshardError(f"multipliers={show(model.multipliers)} of {model.name} must be an object with constants")
    check_integer(model.name, "dense_intermediate_size", model.dense_intermediate_size, at_least=0)
    if (DENSE in model.mlp_layer_types) != (model.dense_intermediate_size > 0):
        raise AutoshardError(
            f"dense_intermediate_size={model.dense_intermediate_size} of {model.name} must be the width of the blocks "
            f"that are {DENSE} in mlp_layer_types, and 0 without such blocks"
        )


def _check_prediction(model: ModelSpec) -> None:
    """A prediction module only where the model_type can have one."""
    module = model.multi_token_prediction
    if not isinstance(module, (MultiTokenPrediction, type(None))):
        raise AutoshardError(f"multi_token_prediction={show(module)} of {model.name} must be an object")
    if module is not None and model.model_type not in PREDICTING_MODEL_TYPES:
        raise AutoshardError(
            f"mtp_num_layers={module.mtp_num_layers} of {model.name} must be absent: model_type={model.model_type} has "
            f"no prediction module; {', '.join(PREDICTING_MODEL_TYPES)} have"
        )


def _check_graph(model: ModelSpec) -> None:
    """The dims of a traced model's graph are those that its sizes give."""
    if not isinstance(model.dropout, Dropout):
        raise AutoshardError(f"dropout={show(model.dropout)} of {model.name} must be an object with probabilities")
    if model.graph is None:
        return
    if model.dropout:
        raise AutoshardError(f"dropout={model.dropout} of {model.name} must be 0: a traced module is trained without")
    if not isinstance(model.graph, TracedGraph):
        raise AutoshardError(f"graph={show(model.graph)} of {model.name} must be an object with operators")
    used = {dim for op in model.graph.operators for dim in op.dims}
    used |= {dim for parameter in model.graph.parameters for dim in parameter.dims}
    if used & {"expert", "capacity"} and not model.is_moe:
        raise AutoshardError(f"num_local_experts=0 of {model.name}, but its graph has experts")
    if "position" in used and model.rope_theta is not None:
        raise AutoshardError(f"rope_theta of {model.name} must be null: its graph learns positions")
