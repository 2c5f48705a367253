"""The table of model families, a row for each model_type; and the words for kinds of blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields

from autoshard.errors import AutoshardError
from autoshard.files.fields import check_choice, check_flag, show
from autoshard.plugins.table import Table

XIELU = "xielu"
"""hidden_act of an MLP whose activation has numbers that are learned."""
TRACED = "traced"
"""model_type, and hidden_act, of a user's own module."""
ROUTED, SHARED = "routed", "shared"
RMS_NORM, LAYER_NORM = "rmsnorm", "layernorm"
SIGMOID, SOFTPLUS = "sigmoid", "softplus"
FINAL_NORM = "model.norm"
"""Name of the norm before the head, of most families."""
EACH_HEAD, ALL_HEADS, EACH_NUMBER = "each_head", "all_heads", "each_number"
NEEDED_FIELDS = (
    *("latent_attention", "indexer", "chunked_attention", "branch_multipliers"),
    *("compressed_attention", "hyper_connections", "branch_norms", "moe_latent_size"),
    *("weighted_residual", "gated_residual"),
)
OPTIONAL_FIELDS = (
    "multi_token_prediction",
    "use_parallel_residual",
    "use_qk_norm",
    "use_rms_norm",
    "averages_shared_expert",
    "moe_latent_size",
    "clamped_gate",
    "global_attention",
    "v_head_dim",
    "indexer_types",
    "zero_expert_num",
    "block_indexer",
    "indexer",
    "ngram_embedding",
    "hidden_size_per_layer_input",
    "num_kv_shared_layers",
    "kv_source_layers",
)


@dataclass(frozen=True)
class Family:
    """The traits that all models of a model_type have, beside the modules of its folder. Code asks `model.family` for
    one, and compares no names.

    folder: the name of the family's folder, with the modules of `autoshard/models/families.py`. Empty: the package is
        one module with all that graph and config have, and no weights.
    package: where the folder is; of a plug-in its own.
    is_published: whether there are Hugging Face configs of it, and the folder has a `config.py`.
    activations: the values of hidden_act that the graph stands for.
    has_gate: whether the MLP multiplies an activated product by another one (three matrices, else two).
    experts: of a family whose MLP is a mixture, "routed", and "shared" where it may have a shared expert too.
    has_optional_experts: whether some of its models have no experts at all.
    has_one_branch: whether each block has a mixer of tokens or an MLP, not both: layer_types or mlp_layer_types says
        none of it.
    has_attention: whether some of its blocks may have attention; without it each has Mamba-1's state space alone.
    has_two_mixers: whether attention and a state space stand side by side in each block: layer_types says hybrid of
        all of them.
    has_two_attentions: whether each block has attention and an MLP of dense_intermediate_size twice, one pair after
        the other, and its experts beside the first MLP.
    normalizes_selection: whether time steps, B and C of Mamba-1's state space have norms without a weight, and
        mamba1 an eps of these.
    hashes_tokens: whether a table of tokens may choose the experts of a block, for which mlp_layer_types has hashed.
    counts_shared_experts: whether the config gives a number of shared experts, each as wide as a routed one.
    normalization: "rmsnorm" | "layernorm", which a config may change where may_have has use_rms_norm.
    has_norm_bias: whether a LayerNorm adds a bias.
    has_norm_weight: whether norms multiply by a weight, and add a bias if they have one: of no family without a weight.
    has_unit_offset: whether norms multiply by 1 plus their weight.
    offsets_final_norm: whether with has_unit_offset the norm before the head does, too.
    qk_norm: a norm of queries and of keys: "each_head" by itself | "all_heads" together; None: no such norm, or
        may_have has use_qk_norm, by which a config gives each head one.
    has_qk_norm_weight: whether that norm has a weight, where others have one.
    weighs_each_head: whether that norm is a LayerNorm without a bias, with a weight of its own for each head, not an
        RMSNorm with one weight for all heads.
    normalizes_turned_heads: whether that norm is behind rotary positions, not before them.
    normalizes_values: whether each head's value has an RMSNorm too, one without a weight.
    normalizes_outputs: whether each head's output of attention has an RMSNorm, one without a weight, before its gate.
    gates_attention: attention's output is multiplied by a function of a gate: "each_number" of it by one of its own |
        "each_head" by one; None: there is no gate.
    gate_function: of that gate: "sigmoid" | "softplus".
    has_output_bias: whether attention's output projection has a bias where attention_bias is set.
    scales_queries: whether latent attention multiplies each head's queries by s log(place + 1) + b, where places count
        from 0, of two learned numbers of the head; those of an indexer too.
    scales_frequencies: whether the rotary frequencies of latent attention, and of an indexer, are multiplied by exp of
        a tensor that is loaded and not learned.
    has_whole_nope_keys: whether heads of latent attention have a whole key each in blocks without positions, and the
        compressed vector has no part that positions would turn, where in others they share that part.
    indexes_hidden_state: whether an indexer makes its queries of the hidden state, behind a LayerNorm, where others
        make them of compressed queries.
    learns_positions: whether its graph adds a table of positions to the embeddings; rope_theta is then null.
    turns_neighbours: whether rotary positions turn pairs of neighbours, not a number of a head's first half with one of
        its second.
    turns_backwards: whether rotary positions turn by the negative of the usual angles.
    scales_embedding: whether embeddings are multiplied by the root of their width.
    gates_residual: whether branch_norms has a temperature of gates behind attention and MLP.
    needs: those of NEEDED_FIELDS, of ModelSpec, that its models have; others must not have them.
    may_have: those of OPTIONAL_FIELDS, of ModelSpec, that its models may have; others must not have them.

    Raises AutoshardError where a field is none of these.
    """

    folder: str
    _: KW_ONLY
    package: str = "autoshard.models"
    is_published: bool = True
    activations: tuple[str, ...] = ("silu",)
    has_gate: bool = True
    experts: tuple[str, ...] = ()
    has_optional_experts: bool = False
    has_one_branch: bool = False
    has_attention: bool = True
    has_two_mixers: bool = False
    has_two_attentions: bool = False
    normalizes_selection: bool = False
    hashes_tokens: bool = False
    counts_shared_experts: bool = False
    normalization: str = RMS_NORM
    has_norm_bias: bool = True
    has_norm_weight: bool = True
    has_unit_offset: bool = False
    offsets_final_norm: bool = True
    qk_norm: str | None = None
    has_qk_norm_weight: bool = True
    weighs_each_head: bool = False
    normalizes_turned_heads: bool = False
    normalizes_values: bool = False
    normalizes_outputs: bool = False
    gates_attention: str | None = None
    gate_function: str = SIGMOID
    has_output_bias: bool = True
    scales_queries: bool = False
    scales_frequencies: bool = False
    has_whole_nope_keys: bool = False
    indexes_hidden_state: bool = False
    learns_positions: bool = False
    turns_neighbours: bool = False
    turns_backwards: bool = False
    scales_embedding: bool = False
    gates_residual: bool = False
    needs: tuple[str, ...] = ()
    may_have: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        of = f"family {self.folder or self.package}"
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "bool":
                check_flag(of, field.name, value)
            elif field.type == "tuple[str, ...]" and not isinstance(value, tuple):
                raise AutoshardError(f"{field.name}={show(value)} of {of} must be a tuple of words")
        if {*self.experts} not in ({ROUTED, SHARED}, {ROUTED}, set()):
            raise AutoshardError(f"experts={show(self.experts)} of {of} must be routed and shared, routed, or none")
        check_choice(of, "normalization", self.normalization, (RMS_NORM, LAYER_NORM))
        if self.qk_norm is not None:
            check_choice(of, "qk_norm", self.qk_norm, (EACH_HEAD, ALL_HEADS))
        if self.gates_attention is not None:
            check_choice(of, "gates_attention", self.gates_attention, (EACH_NUMBER, EACH_HEAD))
        check_choice(of, "gate_function", self.gate_function, (SIGMOID, SOFTPLUS))
        if not self.has_norm_weight and (self.has_unit_offset or self.qk_norm == ALL_HEADS):
            other = f"qk_norm={ALL_HEADS}" if self.qk_norm == ALL_HEADS else "has_unit_offset=True"
            raise AutoshardError(f"has_norm_weight=False of {of} has no kernel with {other}; True has")
        if self.weighs_each_head:
            if self.qk_norm != EACH_HEAD and "use_qk_norm" not in self.may_have:
                raise AutoshardError(
                    f"weighs_each_head=True of {of} needs qk_norm={EACH_HEAD}, or use_qk_norm in may_have"
                )
            if self.has_unit_offset or not self.has_norm_weight:
                other = "has_unit_offset=True; False" if self.has_unit_offset else "has_norm_weight=False; True"
                raise AutoshardError(f"weighs_each_head=True of {of} has no kernel with {other} has")
        if self.qk_norm == ALL_HEADS and self.has_unit_offset:
            raise AutoshardError(f"has_unit_offset=True of {of} has no kernel with qk_norm={ALL_HEADS}; False has")
        if not self.has_qk_norm_weight and (self.qk_norm != EACH_HEAD or self.weighs_each_head):
            other = f"qk_norm={self.qk_norm}; {EACH_HEAD}"
            if self.qk_norm == EACH_HEAD:
                other = "weighs_each_head=True; False"
            raise AutoshardError(f"has_qk_norm_weight=False of {of} has no kernel with {other} has")
        if self.normalizes_turned_heads and self.qk_norm is None:
            raise AutoshardError(f"normalizes_turned_heads=True of {of} needs a qk_norm: {EACH_HEAD} or {ALL_HEADS}")
        for name in self.needs:
            check_choice(of, "needs", name, NEEDED_FIELDS)
        for name in self.may_have:
            check_choice(of, "may_have", name, OPTIONAL_FIELDS)


_MIXTURE, _SHARED = (ROUTED,), (ROUTED, SHARED)
_LATENT, _PREDICTS = ("latent_attention",), ("multi_token_prediction",)
_CHOOSES = (*_LATENT, "indexer")
_BUILT_IN = {
    "llama": Family("llama"),
    "mistral": Family("llama"),
    "mixtral": Family("mixtral", experts=_MIXTURE),
    "gpt2": Family(
        "gpt2",
        activations=("gelu_new", "gelu_pytorch_tanh", "gelu"),
        has_gate=False,
        normalization=LAYER_NORM,
        learns_positions=True,
    ),
    "gpt_neox": Family(
        "gpt_neox",
        activations=("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh"),
        has_gate=False,
        normalization=LAYER_NORM,
        may_have=("use_parallel_residual",),
    ),
    "qwen2": Family("llama", has_output_bias=False),
    "qwen2_moe": Family("qwen", experts=_SHARED, has_output_bias=False),
    "qwen3": Family("llama", qk_norm=EACH_HEAD),
    "qwen3_moe": Family("qwen", experts=_MIXTURE, qk_norm=EACH_HEAD),
    "deepseek_v2": Family("deepseek", experts=_SHARED, counts_shared_experts=True, needs=_LATENT),
    "deepseek_v3": Family("deepseek", experts=_SHARED, counts_shared_experts=True, needs=_LATENT, may_have=_PREDICTS),
    "kimi_k2": Family("deepseek", experts=_SHARED, counts_shared_experts=True, needs=_LATENT, may_have=_PREDICTS),
    "gemma": Family("gemma", activations=("gelu_pytorch_tanh",), has_unit_offset=True, scales_embedding=True),
    "gemma2": Family("gemma", activations=("gelu_pytorch_tanh",), has_unit_offset=True, scales_embedding=True),
    "gemma3_text": Family(
        "gemma", activations=("gelu_pytorch_tanh",), has_unit_offset=True, scales_embedding=True, qk_norm=EACH_HEAD
    ),
    "vaultgemma": Family("gemma", activations=("gelu_pytorch_tanh",), has_unit_offset=True, scales_embedding=True),
    "glm4_moe": Family(
        "glm4_moe",
        experts=_SHARED,
        counts_shared_experts=True,
        has_output_bias=False,
        may_have=("use_qk_norm", *_PREDICTS),
    ),
    "gpt_oss": Family("gpt_oss", experts=_MIXTURE, may_have=("clamped_gate",)),
    "llama4_text": Family("llama4", experts=_SHARED, turns_neighbours=True, needs=("chunked_attention",)),
    "dbrx": Family("dbrx", experts=_MIXTURE, normalization=LAYER_NORM, has_norm_bias=False),
    "smollm3": Family("llama"),
    "phi3": Family("phi3"),
    "olmo2": Family("olmo2", qk_norm=ALL_HEADS),
    "granite": Family("llama"),
    "qwen3_next": Family(
        "qwen3_next", experts=_SHARED, has_unit_offset=True, qk_norm=EACH_HEAD, gates_attention=EACH_NUMBER
    ),
    "granitemoe": Family("granite_hybrid", experts=_MIXTURE),
    "granitemoeshared": Family("granite_hybrid", experts=_SHARED),
    "granitemoehybrid": Family("granite_hybrid", experts=_SHARED, has_optional_experts=True),
    "granite_swa": Family("granite_swa"),
    "granitemoe_swa": Family("granite_swa", experts=_SHARED),
    "seed_oss": Family("seed_oss", has_output_bias=False),
    "glm": Family("glm", has_output_bias=False, turns_neighbours=True),
    "glm4": Family("glm4", has_output_bias=False, turns_neighbours=True),
    "ernie4_5": Family("ernie4_5", turns_neighbours=True),
    "ernie4_5_moe": Family("ernie4_5", experts=_SHARED, counts_shared_experts=True, turns_neighbours=True),
    "dots1": Family("glm4_moe", experts=_SHARED, counts_shared_experts=True, qk_norm=EACH_HEAD),
    "exaone4": Family("olmo2", qk_norm=EACH_HEAD),
    "axk1": Family("axk1", experts=_SHARED, counts_shared_experts=True, needs=_LATENT),
    "glm4_moe_lite": Family("deepseek", experts=_SHARED, counts_shared_experts=True, needs=_LATENT, may_have=_PREDICTS),
    "olmoe": Family("olmoe", experts=_MIXTURE, qk_norm=ALL_HEADS),
    "nemotron": Family(
        "nemotron", activations=("relu2",), has_gate=False, normalization=LAYER_NORM, has_unit_offset=True
    ),
    "olmo3": Family("olmo2", qk_norm=ALL_HEADS),
    "flex_olmo": Family("olmo2", experts=_MIXTURE, qk_norm=ALL_HEADS),
    "qwen3_5_text": Family("qwen3_next", has_unit_offset=True, qk_norm=EACH_HEAD, gates_attention=EACH_NUMBER),
    "qwen3_5_moe_text": Family(
        "qwen3_next", experts=_SHARED, has_unit_offset=True, qk_norm=EACH_HEAD, gates_attention=EACH_NUMBER
    ),
    "minimax_m2": Family("minimax_m2", experts=_MIXTURE, qk_norm=ALL_HEADS),
    "solar_open": Family("glm4_moe", experts=_SHARED, counts_shared_experts=True, has_output_bias=False),
    "exaone_moe": Family("exaone_moe", experts=_SHARED, counts_shared_experts=True, qk_norm=EACH_HEAD),
    "mistral4": Family("mistral4", experts=_SHARED, counts_shared_experts=True, needs=_LATENT),
    "youtu": Family("youtu", needs=_LATENT),
    "minicpm3": Family("youtu", needs=_LATENT),
    "cwm": Family("llama"),
    "helium": Family("llama", has_output_bias=False, turns_neighbours=True),
    "kolibri1": Family("kolibri1", experts=_SHARED, qk_norm=EACH_HEAD),
    "hy_v3": Family("hy_v3", experts=_SHARED, counts_shared_experts=True, qk_norm=EACH_HEAD),
    "apertus": Family("apertus", activations=(XIELU,), has_gate=False, qk_norm=EACH_HEAD),
    "afmoe": Family(
        "afmoe",
        experts=_SHARED,
        counts_shared_experts=True,
        qk_norm=EACH_HEAD,
        gates_attention=EACH_NUMBER,
        scales_embedding=True,
    ),
    "gemma4_text": Family(
        "gemma4",
        activations=("gelu_pytorch_tanh",),
        experts=_SHARED,
        has_optional_experts=True,
        qk_norm=EACH_HEAD,
        normalizes_values=True,
        scales_embedding=True,
        may_have=("global_attention", "hidden_size_per_layer_input", "num_kv_shared_layers"),
    ),
    "hunyuan_v1_dense": Family("hunyuan", qk_norm=EACH_HEAD, normalizes_turned_heads=True),
    "hunyuan_v1_moe": Family(
        "hunyuan", experts=_SHARED, counts_shared_experts=True, qk_norm=EACH_HEAD, normalizes_turned_heads=True
    ),
    "cohere": Family(
        "cohere2",
        normalization=LAYER_NORM,
        has_norm_bias=False,
        weighs_each_head=True,
        turns_neighbours=True,
        may_have=("use_qk_norm",),
    ),
    "cohere2": Family("cohere2", normalization=LAYER_NORM, has_norm_bias=False, turns_neighbours=True),
    "cohere2_moe": Family(
        "cohere2",
        experts=_SHARED,
        counts_shared_experts=True,
        normalization=LAYER_NORM,
        has_norm_bias=False,
        turns_neighbours=True,
        may_have=("use_rms_norm", "averages_shared_expert"),
    ),
    "ministral3": Family("ministral3"),
    "nemotron_h": Family(
        "nemotron_h",
        activations=("relu2",),
        has_gate=False,
        experts=_SHARED,
        has_optional_experts=True,
        has_one_branch=True,
        may_have=("moe_latent_size",),
    ),
    "deepseek_v32": Family("deepseek", experts=_SHARED, counts_shared_experts=True, needs=_CHOOSES, may_have=_PREDICTS),
    "glm_moe_dsa": Family(
        "deepseek",
        experts=_SHARED,
        counts_shared_experts=True,
        needs=_CHOOSES,
        may_have=("indexer_types", *_PREDICTS),
    ),
    "lfm2": Family("lfm2", qk_norm=EACH_HEAD),
    "lfm2_moe": Family("lfm2", experts=_MIXTURE, qk_norm=EACH_HEAD),
    "lfm3": Family("lfm3", qk_norm=EACH_HEAD, gates_attention=EACH_HEAD),
    "kimi_linear": Family("kimi_linear", experts=_SHARED, counts_shared_experts=True, needs=_LATENT),
    "bailing_hybrid": Family(
        "bailing_hybrid", experts=_SHARED, counts_shared_experts=True, gates_attention=EACH_HEAD, needs=_LATENT
    ),
    "mimo_v2_flash": Family(
        "mimo", experts=_MIXTURE, has_output_bias=False, may_have=("global_attention", "v_head_dim")
    ),
    "olmo_hybrid": Family("olmo_hybrid", qk_norm=ALL_HEADS),
    "jais2": Family("nemotron", activations=("relu2",), has_gate=False, normalization=LAYER_NORM),
    "stablelm": Family(
        "stablelm",
        normalization=LAYER_NORM,
        has_output_bias=False,
        weighs_each_head=True,
        may_have=("use_parallel_residual", "use_qk_norm"),
    ),
    "phi": Family(
        "phi",
        activations=("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu"),
        has_gate=False,
        normalization=LAYER_NORM,
    ),
    "falcon_h1": Family("falcon_h1", has_two_mixers=True, needs=("branch_multipliers",)),
    "bamba": Family("bamba"),
    "starcoder2": Family("nemotron", activations=("gelu_pytorch_tanh",), has_gate=False, normalization=LAYER_NORM),
    "mellum": Family("qwen", experts=_MIXTURE, qk_norm=EACH_HEAD),
    "hyperclovax": Family("hyperclovax"),
    "laguna": Family(
        "laguna",
        experts=_SHARED,
        qk_norm=EACH_HEAD,
        gates_attention=EACH_HEAD,
        gate_function=SOFTPLUS,
        may_have=("global_attention",),
    ),
    "step3p5": Family(
        "step3p5",
        experts=_SHARED,
        has_unit_offset=True,
        qk_norm=EACH_HEAD,
        gates_attention=EACH_HEAD,
        may_have=("global_attention", "clamped_gate"),
    ),
    "arcee": Family("nemotron", activations=("relu2",), has_gate=False),
    "olmo": Family("olmo", normalization=LAYER_NORM, has_norm_weight=False),
    "nanochat": Family(
        "nanochat",
        activations=("relu2",),
        has_gate=False,
        has_norm_weight=False,
        qk_norm=EACH_HEAD,
        normalizes_turned_heads=True,
        turns_backwards=True,
    ),
    "deepseek_v4": Family(
        "deepseek_v4",
        experts=_SHARED,
        hashes_tokens=True,
        counts_shared_experts=True,
        turns_neighbours=True,
        needs=("compressed_attention", "hyper_connections"),
        may_have=("clamped_gate",),
    ),
    "glm5_next_text": Family(
        "glm5_next",
        experts=_SHARED,
        counts_shared_experts=True,
        needs=(*_CHOOSES, "hyper_connections"),
        may_have=("clamped_gate", "indexer_types"),
    ),
    "hy_v4": Family(
        "hy_v4",
        experts=_SHARED,
        counts_shared_experts=True,
        gates_attention=EACH_NUMBER,
        needs=(*_CHOOSES, "hyper_connections"),
        may_have=("clamped_gate", "indexer_types"),
    ),
    "longcat_flash": Family(
        "longcat_flash", experts=_MIXTURE, has_two_attentions=True, needs=_LATENT, may_have=("zero_expert_num",)
    ),
    "minimax_m3_vl_text": Family(
        "minimax_m3",
        experts=_SHARED,
        has_unit_offset=True,
        qk_norm=EACH_HEAD,
        may_have=("clamped_gate", "block_indexer"),
    ),
    "muse_glimmer_text": Family(
        "muse",
        has_unit_offset=True,
        offsets_final_norm=False,
        qk_norm=EACH_HEAD,
        has_qk_norm_weight=False,
        gates_attention=EACH_NUMBER,
        needs=("branch_norms",),
    ),
    "muse_spark_text": Family(
        "muse",
        experts=_MIXTURE,
        has_unit_offset=True,
        offsets_final_norm=False,
        qk_norm=EACH_HEAD,
        has_qk_norm_weight=False,
        normalizes_outputs=True,
        gates_attention=EACH_NUMBER,
        gates_residual=True,
        needs=("branch_norms", "moe_latent_size"),
    ),
    "mistral_large4_text": Family(
        "mistral_large4",
        experts=_SHARED,
        counts_shared_experts=True,
        scales_queries=True,
        scales_frequencies=True,
        has_whole_nope_keys=True,
        indexes_hidden_state=True,
        needs=_CHOOSES,
        may_have=("indexer_types", "kv_source_layers"),
    ),
    "minimax": Family("minimax", experts=_MIXTURE, needs=("weighted_residual",)),
    "qwen4_exp_text": Family(
        "qwen4_exp",
        experts=_SHARED,
        has_unit_offset=True,
        qk_norm=EACH_HEAD,
        gates_attention=EACH_NUMBER,
        needs=("gated_residual",),
        may_have=("indexer", "ngram_embedding"),
    ),
    "sarvam_moe": Family(
        "sarvam", experts=_SHARED, counts_shared_experts=True, has_output_bias=False, may_have=("use_qk_norm",)
    ),
    "sarvam_mla": Family("sarvam", experts=_SHARED, counts_shared_experts=True, needs=_LATENT),
    "jamba": Family("jamba", experts=_MIXTURE, has_optional_experts=True),
    "mamba": Family("mamba", has_one_branch=True, has_attention=False),
    "falcon_mamba": Family("mamba", has_one_branch=True, has_attention=False, normalizes_selection=True),
    TRACED: Family("traced", is_published=False, activations=(TRACED,), experts=_MIXTURE, has_optional_experts=True),
}
FAMILIES = Table[Family]("models", lambda value: isinstance(value, Family), "a Family", _BUILT_IN)
"""By model_type, those of plug-ins too."""
MODEL_TYPES = tuple(name for name in FAMILIES if name != TRACED)


def with_trait(word: str) -> str:
    """The model_types that have a word in experts, needs or may_have, for an error: 'mixtral, gpt_oss'."""
    families = ((name, FAMILIES[name]) for name in MODEL_TYPES)
    return ", ".join(name for name, one in families if word in (*one.experts, *one.needs, *one.may_have))


MOST_REPEATED = 10_000
"""Layers, heads or experts."""
LONGEST_NAME = 200
FULL_ATTENTION, SLIDING_ATTENTION = "full_attention", "sliding_attention"
LINEAR_ATTENTION, MAMBA, MAMBA1, CONV = "linear_attention", "mamba", "mamba1", "conv"
LIGHTNING = "lightning_attention"
HYBRID = "hybrid"
"""Word of layer_types of families with has_two_mixers, for blocks with full attention and a state space."""
RECURRENT: Mapping[str, str] = {
    **{word: word for word in (LINEAR_ATTENTION, LIGHTNING, MAMBA, MAMBA1, CONV)},
    HYBRID: MAMBA,
}
"""Words of layer_types for blocks that mix tokens by a recurrence or a convolution, perhaps beside attention -> the
field that has its sizes."""
ATTENTION_TYPES = (FULL_ATTENTION, SLIDING_ATTENTION)
LAYER_TYPES = (*ATTENTION_TYPES, LINEAR_ATTENTION, LIGHTNING, MAMBA, MAMBA1, CONV)
CHUNKED_ATTENTION = "chunked_attention"
BLOCK_SPARSE = "block_sparse_attention"
"""Word of layer_types for attention to blocks of keys, of families that may have a block_indexer."""
COMPRESSED_SPARSE, HEAVILY_COMPRESSED = "compressed_sparse_attention", "heavily_compressed_attention"
COMPRESSED_TYPES = (SLIDING_ATTENTION, COMPRESSED_SPARSE, HEAVILY_COMPRESSED)
"""Words of layer_types of families with compressed_attention."""
DENSE, SPARSE = "dense", "sparse"
MLP_LAYER_TYPES = (DENSE, SPARSE)
HASHED = "hashed"
"""Word of mlp_layer_types of families with hashes_tokens, for experts that a table of tokens chooses."""
NONE = "none"
"""Word of layer_types and mlp_layer_types of families with has_one_branch, for blocks that have the other branch."""
ROPE, NOPE = "rope", "nope"
POSITION_TYPES = (ROPE, NOPE)
FREE, BOTH = "free", "both"
GATE_TYPES = (FREE, ROUTED, SHARED, BOTH)
"""Words of gate_types: which MLPs of a block have the activation of clamped_gate."""
OWN_INDEXER, SHARED_INDEXER = "full", "shared"
INDEXER_TYPES = (OWN_INDEXER, SHARED_INDEXER)
"""Words of indexer_types: whether a block chooses keys, or sees those that the last one before it that does chose."""
NGRAM_TABLE = "table"
"""What a word of ngram_types begins with, before the number of the table."""


def ngram_word(table: int) -> str:
    """The word of ngram_types for a block with the table of n-grams of this number, from 0 on."""
    return f"{NGRAM_TABLE}{table}"


def ngram_table(word: str) -> int | None:
    """The number of a table of n-grams by its word of ngram_types; None for none."""
    return None if word == NONE else int(word.removeprefix(NGRAM_TABLE))
