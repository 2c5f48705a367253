"""What is trained: the sizes of a decoder-only transformer, under the names of its Hugging Face config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from autoshard.errors import AutoshardError
from autoshard.files.codec import Absence, Form, NotNegative
from autoshard.files.fields import check_choice, check_flag, check_integer, check_positive, show
from autoshard.spec.dropout import NO_DROPOUT, Dropout
from autoshard.spec.traced import TracedGraph

TRACED = "traced"
"""model_type, and hidden_act, of a user's own module."""
ACTIVATIONS = {
    "llama": ("silu",),
    "mistral": ("silu",),
    "mixtral": ("silu",),
    "gpt2": ("gelu_new", "gelu_pytorch_tanh", "gelu"),
    "gpt_neox": ("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh"),
    "qwen2": ("silu",),
    "qwen2_moe": ("silu",),
    "qwen3": ("silu",),
    "qwen3_moe": ("silu",),
    TRACED: (TRACED,),
}
"""Per model_type, the values of hidden_act: silu stands in a gated MLP (three matrices), gelu in a plain one (two)."""
MODEL_TYPES = tuple(name for name in ACTIVATIONS if name != TRACED)
MOE_MODEL_TYPES = ("mixtral", "qwen2_moe", "qwen3_moe")
SHARED_EXPERT_MODEL_TYPES = ("qwen2_moe",)
ROPE_TYPES = ("linear", "llama3")
MOST_REPEATED = 10_000
"""Layers, heads or experts."""
LONGEST_NAME = 200
GRAPH_FORM = Form(TracedGraph.to_dict, TracedGraph.from_dict, {"$ref": "#/$defs/traced_graph"})


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the length of pre-training.

    linear: every frequency is divided by `factor`. llama3: the frequencies of long wavelengths are divided by `factor`,
    those of short ones kept; wavelengths from original_max_position_embeddings / high_freq_factor to
    original_max_position_embeddings / low_freq_factor get a blend of both.
    """

    rope_type: str
    factor: float
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_position_embeddings: int | None = None

    def __post_init__(self) -> None:
        check_choice("rope_scaling", "rope_type", self.rope_type, ROPE_TYPES)
        check_positive("rope_scaling", "factor", self.factor)
        low, high, original = self.low_freq_factor, self.high_freq_factor, self.original_max_position_embeddings
        if self.rope_type == "linear":
            if (low, high, original) != (None, None, None):
                raise AutoshardError("rope_scaling of rope_type='linear' has a factor and nothing else")
            return
        check_positive("rope_scaling", "low_freq_factor", low)
        check_positive("rope_scaling", "high_freq_factor", high)
        check_integer("rope_scaling", "original_max_position_embeddings", original)
        if low is not None and high is not None and low >= high:
            raise AutoshardError(f"low_freq_factor={low} of rope_scaling must be below high_freq_factor={high}")


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only transformer. Sizes are counts of elements.

    model_type: llama | mistral | mixtral | qwen2 | qwen2_moe | qwen3 | qwen3_moe (RMSNorm, rotary positions, gated MLP)
    | gpt2 (LayerNorm, learned positions) | gpt_neox (LayerNorm, rotary positions on part of each head).
    num_key_value_heads: equal to num_attention_heads without grouped-query attention.
    intermediate_size: of one expert where there are experts.
    rope_theta: None means learned absolute positions, max_position_embeddings of them.
    sliding_window: keys that a query sees, itself included; None means all before it.
    attention_bias: of all four projections, but of Qwen2's output projection, which never has one.
    shared_expert_intermediate_size: of the expert that every token goes to besides its own; 0 without.
    norm_topk_prob: whether the weights of a token's experts are made to add up to 1.
    router_aux_loss_coef: weight of the load-balancing loss of the experts' routers, the mean of the layers'; 0 without.
    partial_rotary_factor: the part of each head, from its start, that rotary positions turn.
    use_parallel_residual: attention and MLP both read the block's input, instead of one after the other.
    dropout: what training drops; nothing, whatever a config says, unless it was asked for.
    graph: of model_type traced, a user's own module: its operators; the other fields then are sizes alone.
    Raises AutoshardError where a field is not what the model_type can have.
    """

    name: str
    model_type: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    hidden_act: str
    norm_eps: float
    rope_theta: float | None
    rope_scaling: RopeScaling | None
    tie_word_embeddings: bool
    sliding_window: int | None
    attention_bias: bool
    mlp_bias: bool
    num_local_experts: int = 0
    num_experts_per_tok: int = 0
    shared_expert_intermediate_size: int = 0
    norm_topk_prob: bool = True
    router_aux_loss_coef: Annotated[NotNegative, Absence.READ] = 0.0
    partial_rotary_factor: float = 1.0
    use_parallel_residual: bool = False
    dropout: Annotated[Dropout, Absence.WRITTEN] = NO_DROPOUT
    graph: Annotated[TracedGraph | None, GRAPH_FORM, Absence.WRITTEN] = None

    def __post_init__(self) -> None:
        _check_fields(self)
        _check_attention(self)
        _check_experts(self)
        _check_graph(self)

    @property
    def inner_sizes(self) -> dict[str, int]:
        """By field or dim, the widths that tensor parallelism splits besides heads and vocabulary."""
        fields_too = ("intermediate_size", "shared_expert_intermediate_size")
        own = () if self.graph is None else self.graph.split_sizes
        return {**{field: getattr(self, field) for field in fields_too}, **dict(own)}

    @property
    def is_moe(self) -> bool:
        """Whether the MLP is a mixture of experts."""
        return self.num_local_experts > 0

    @property
    def output_projection_bias(self) -> bool:
        """Whether attention's output projection has a bias, as the others do where attention_bias is set."""
        return self.attention_bias and self.model_type not in ("qwen2", "qwen2_moe")

    @property
    def normalizes_heads(self) -> bool:
        """Whether each head's query and key have an RMSNorm of their own."""
        return self.model_type in ("qwen3", "qwen3_moe")

    @property
    def rotary_dim(self) -> int:
        """Numbers of each head that rotary positions turn."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def num_query_groups(self) -> int:
        """Query heads that share one key-value head; 1 without grouped-query attention."""
        return self.num_attention_heads // self.num_key_value_heads


def _check_fields(model: ModelSpec) -> None:
    """Each field by itself."""
    if not isinstance(model.name, str) or not model.name.isprintable() or not 1 <= len(model.name) <= LONGEST_NAME:
        raise AutoshardError(f"name={show(model.name)} of the model must be 1 to {LONGEST_NAME} printable characters")
    of = model.name
    check_choice(of, "model_type", model.model_type, MODEL_TYPES if model.graph is None else (TRACED,))
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
    for field in ("tie_word_embeddings", "attention_bias", "mlp_bias", "norm_topk_prob", "use_parallel_residual"):
        check_flag(of, field, getattr(model, field))
    check_positive(of, "norm_eps", model.norm_eps)
    if model.rope_theta is not None:
        check_positive(of, "rope_theta", model.rope_theta)
    if model.sliding_window is not None:
        check_integer(of, "sliding_window", model.sliding_window)
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
    if model.partial_rotary_factor > 1 or model.rotary_dim % 2 or model.rotary_dim == 0:
        part = "" if model.partial_rotary_factor == 1 else f" times partial_rotary_factor={model.partial_rotary_factor}"
        raise AutoshardError(
            f"head_dim={model.head_dim}{part} of {model.name} must be even: rotary positions turn pairs of numbers"
        )


def _check_experts(model: ModelSpec) -> None:
    """Experts exactly where the model_type has them."""
    experts, chosen = model.num_local_experts, model.num_experts_per_tok
    if model.shared_expert_intermediate_size and model.model_type not in SHARED_EXPERT_MODEL_TYPES:
        raise AutoshardError(
            f"shared_expert_intermediate_size={model.shared_expert_intermediate_size} of {model.name} must be 0: "
            f"model_type={model.model_type} has no shared expert; {', '.join(SHARED_EXPERT_MODEL_TYPES)} has"
        )
    if model.use_parallel_residual and model.model_type != "gpt_neox":
        raise AutoshardError(
            f"use_parallel_residual=True of {model.name} must be False: model_type={model.model_type} "
            "runs attention and MLP one after the other; gpt_neox can run them side by side"
        )
    if model.model_type in MOE_MODEL_TYPES or (model.model_type == TRACED and experts):
        if not 1 <= chosen <= experts:
            raise AutoshardError(
                f"num_experts_per_tok={chosen} of {model.name} must be from 1 to num_local_experts={experts}"
            )
    elif experts or chosen:
        raise AutoshardError(
            f"num_local_experts={experts} and num_experts_per_tok={chosen} of {model.name} must be 0: "
            f"model_type={model.model_type} has no experts; {', '.join(MOE_MODEL_TYPES)} has"
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
