"""Checks of a model: each raises one error that names the field, its value and what would do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoshard.errors import AutoshardError
from autoshard.files.fields import check_choice, check_flag, check_integer, check_positive, is_count, show
from autoshard.spec.attention_heads import GlobalAttention
from autoshard.spec.attention_scores import AttentionScores
from autoshard.spec.block_indexer import BlockIndexer
from autoshard.spec.branch_multipliers import BranchMultipliers
from autoshard.spec.branch_norms import BranchNorms
from autoshard.spec.chunked_attention import ChunkedAttention
from autoshard.spec.clamped_gate import ClampedGate
from autoshard.spec.compressed_attention import CompressedAttention
from autoshard.spec.dropout import Dropout
from autoshard.spec.gated_residual import GatedResidual
from autoshard.spec.hyper_connections import HyperConnections
from autoshard.spec.indexer import Indexer
from autoshard.spec.latent_attention import LatentAttention
from autoshard.spec.linear_attention import LightningAttention, LinearAttention, Mamba, ShortConv
from autoshard.spec.model_types import (
    BLOCK_SPARSE,
    BOTH,
    CHUNKED_ATTENTION,
    COMPRESSED_TYPES,
    DENSE,
    FAMILIES,
    FULL_ATTENTION,
    GATE_TYPES,
    HASHED,
    HYBRID,
    INDEXER_TYPES,
    LAYER_TYPES,
    LONGEST_NAME,
    MLP_LAYER_TYPES,
    MOST_REPEATED,
    NGRAM_TABLE,
    NONE,
    NOPE,
    OWN_INDEXER,
    POSITION_TYPES,
    RECURRENT,
    ROUTED,
    SHARED,
    SLIDING_ATTENTION,
    SPARSE,
    TRACED,
    ngram_table,
    ngram_word,
    with_trait,
)
from autoshard.spec.multipliers import Multipliers
from autoshard.spec.ngram_embedding import NgramEmbedding
from autoshard.spec.prediction import MultiTokenPrediction
from autoshard.spec.rope import RopeScaling
from autoshard.spec.router import Router
from autoshard.spec.traced import TracedGraph
from autoshard.spec.weighted_residual import WeightedResidual
from autoshard.units import counted

if TYPE_CHECKING:
    from autoshard.spec.model import ModelSpec


def check_model(model: ModelSpec) -> None:
    """Raises AutoshardError with the first thing that is wrong with a model."""
    _check_fields(model)
    _check_needed(model, "hyper_connections", HyperConnections, "an hc_mult")
    _check_needed(model, "gated_residual", GatedResidual, "an hc_count")
    _check_needed(model, "weighted_residual", WeightedResidual, "factors")
    _check_compressed_attention(model)
    _check_attention(model)
    _check_latent_attention(model)
    _check_indexer(model)
    _check_block_indexer(model)
    _check_experts(model)
    _check_shared_keys(model)
    _check_kinds(model)
    _check_key_sources(model)
    _check_turned_part(model)
    _check_shared_indexers(model)
    _check_branch_multipliers(model)
    _check_branch_norms(model)
    _check_gates(model)
    _check_own_inputs(model)
    _check_ngrams(model)
    _check_prediction(model)
    _check_graph(model)


def _check_fields(model: ModelSpec) -> None:
    """Each field by itself."""
    if not isinstance(model.name, str) or not model.name.isprintable() or not 1 <= len(model.name) <= LONGEST_NAME:
        raise AutoshardError(f"name={show(model.name)} of the model must be 1 to {LONGEST_NAME} printable characters")
    of = model.name
    known = [name for name in FAMILIES.known(model.model_type) if name != TRACED]
    check_choice(of, "model_type", model.model_type, known if model.graph is None else (TRACED,))
    check_choice(of, "hidden_act", model.hidden_act, model.family.activations)
    for field in ("hidden_size", "intermediate_size", "head_dim", "vocab_size", "max_position_embeddings"):
        check_integer(of, field, getattr(model, field))
    for field in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads"):
        check_integer(of, field, getattr(model, field), at_most=MOST_REPEATED)
    for field in ("num_local_experts", "num_experts_per_tok"):
        check_integer(of, field, getattr(model, field), at_least=0, at_most=MOST_REPEATED)
    check_integer(of, "shared_expert_intermediate_size", model.shared_expert_intermediate_size, at_least=0)
    check_positive(of, "partial_rotary_factor", model.partial_rotary_factor)
    if model.partial_rotary_factor > 1:
        raise AutoshardError(
            f"partial_rotary_factor={model.partial_rotary_factor} of {of} must be at most 1, all of a head"
        )
    if model.router_aux_loss_coef != 0:
        check_positive(of, "router_aux_loss_coef", model.router_aux_loss_coef)
    flags = ("tie_word_embeddings", "attention_bias", "mlp_bias", "norm_topk_prob", "use_parallel_residual")
    for field in (*flags, "use_qk_norm", "use_rms_norm", "averages_shared_expert"):
        check_flag(of, field, getattr(model, field))
    check_positive(of, "norm_eps", model.norm_eps)
    if model.rope_theta is not None:
        check_positive(of, "rope_theta", model.rope_theta)
    if model.sliding_window is not None:
        check_integer(of, "sliding_window", model.sliding_window)
    for field in ("final_logit_softcapping", "logit_scale", "rope_local_base_freq"):
        if getattr(model, field) is not None:
            check_positive(of, field, getattr(model, field))
    if not isinstance(model.attention_scores, AttentionScores):
        raise AutoshardError(f"attention_scores={show(model.attention_scores)} of {of} must be an object")
    if not isinstance(model.rope_scaling, (RopeScaling, type(None))):
        raise AutoshardError(
            f"rope_scaling={show(model.rope_scaling)} of {of} must be null or an object with a rope_type"
        )
    if model.rope_scaling is not None:
        for field in ("short_factor", "long_factor"):
            count = len(getattr(model.rope_scaling, field))
            if count and count != model.rotary_dim // 2:
                needed = f"the {model.rotary_dim} numbers of a head that turn need {model.rotary_dim // 2}"
                raise AutoshardError(f"{field} of rope_scaling of {of} has {counted(count, 'number')}; {needed}")


def _check_attention(model: ModelSpec) -> None:
    """Heads in whole groups, and the positions that the model_type has."""
    if (beta := model.attention_scores.llama_4_scaling_beta) is not None and model.original_positions is None:
        raise AutoshardError(
            f"llama_4_scaling_beta={beta} of {model.name} needs a rope_scaling with original_max_position_embeddings"
        )
    heads, kv_heads = model.num_attention_heads, model.num_key_value_heads
    if heads % kv_heads:
        raise AutoshardError(
            f"num_key_value_heads={kv_heads} must divide num_attention_heads={heads} of {model.name}; "
            f"what fits: {', '.join(str(count) for count in range(1, heads + 1) if heads % count == 0)}"
        )
    if model.family.learns_positions:
        if model.rope_theta is not None or model.rope_scaling is not None:
            raise AutoshardError(
                f"model_type={model.model_type} of {model.name} learns its positions: rope_theta must be null"
            )
        return
    if model.graph is not None:
        return
    if model.rope_theta is None:
        raise AutoshardError(f"model_type={model.model_type} of {model.name} needs a rope_theta, such as 10000.0")
    if model.latent_attention is not None:
        return
    _check_value_heads(model)
    _check_global_attention(model)
    for own in model.heads:
        if own.rotary_dim % 2 or own.rotary_dim == 0:
            factor = model.partial_rotary_factor
            if own.kind and (wide := model.global_attention) is not None:
                factor = wide.global_partial_rotary_factor or factor
            part = "" if factor == 1 else f" times partial_rotary_factor={factor}"
            raise AutoshardError(
                f"{own.kind}head_dim={own.head_dim}{part} of {model.name} must be even: rotary positions turn pairs of "
                "numbers"
            )


def _check_value_heads(model: ModelSpec) -> None:
    """Values of another width than keys only where the model_type can have them."""
    if model.v_head_dim is None:
        return
    check_integer(model.name, "v_head_dim", model.v_head_dim)
    if "v_head_dim" not in model.family.may_have:
        raise AutoshardError(
            f"v_head_dim={model.v_head_dim} of {model.name} must be absent: values of model_type={model.model_type} "
            f"are as wide as keys; {with_trait('v_head_dim')} may have others"
        )


def _check_global_attention(model: ModelSpec) -> None:
    """Other heads in blocks without a window only where the model_type can have them, no more than the others have."""
    wide, of = model.global_attention, model.name
    if wide is None:
        return
    if not isinstance(wide, GlobalAttention):
        raise AutoshardError(f"global_attention={show(wide)} of {of} must be an object with a global_head_dim")
    if "global_attention" not in model.family.may_have:
        raise AutoshardError(
            f"global_head_dim={wide.global_head_dim} of {of} must be absent: model_type={model.model_type} has the "
            f"same heads in all blocks; {with_trait('global_attention')} may have others"
        )
    count, heads = wide.num_global_key_value_heads, wide.num_global_attention_heads or model.num_attention_heads
    fitting = [number for number in range(1, model.num_key_value_heads + 1) if heads % number == 0]
    if count not in fitting:
        field = "num_attention_heads" if wide.num_global_attention_heads is None else "num_global_attention_heads"
        raise AutoshardError(
            f"num_global_key_value_heads={count} of {of} must divide {field}={heads} and be at most "
            f"num_key_value_heads={model.num_key_value_heads}; what fits: {', '.join(map(str, fitting))}"
        )


def _check_latent_attention(model: ModelSpec) -> None:
    """Latent attention exactly where the model_type has it, with heads of its own for all keys."""
    latent, of = model.latent_attention, model.name
    _check_needed(model, "latent_attention", LatentAttention, "a kv_lora_rank")
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


def _check_compressed_attention(model: ModelSpec) -> None:
    """Compressed attention exactly where the model_type has it, with one key for all heads."""
    compressed, of = model.compressed_attention, model.name
    _check_needed(model, "compressed_attention", CompressedAttention, "an o_lora_rank")
    if compressed is None:
        return
    if model.num_key_value_heads != 1:
        raise AutoshardError(
            f"num_key_value_heads={model.num_key_value_heads} of {of} must be 1: with compressed attention all heads "
            "share one key"
        )
    if model.num_attention_heads % compressed.o_groups:
        raise AutoshardError(
            f"o_groups={compressed.o_groups} must divide num_attention_heads={model.num_attention_heads} of {of}"
        )
    if compressed.index_head_dim < model.rotary_dim:
        raise AutoshardError(
            f"index_head_dim={compressed.index_head_dim} of {of} must be at least the {model.rotary_dim} numbers of a "
            "head that positions turn"
        )
    if model.sliding_window is None or not model.layer_types:
        missing = "layer_types" if model.sliding_window is not None else "sliding_window"
        raise AutoshardError(f"{missing} of {of} must be given with compressed attention")
    if model.attention_bias:
        raise AutoshardError(f"attention_bias=True of {of} is not supported with compressed attention; False is")
    if isinstance(model.dropout, Dropout) and model.dropout.attention:
        raise AutoshardError(
            f"dropout.attention={model.dropout.attention:g} of {of} must be 0: no kernel drops probabilities of "
            "compressed attention"
        )


def _check_indexer(model: ModelSpec) -> None:
    """An indexer exactly where the model_type has it, with heads that positions turn, of what its queries are made
    of."""
    indexer, latent, of = model.indexer, model.latent_attention, model.name
    if "indexer" in model.family.may_have:
        _check_pooled_keys(model)
        return
    _check_needed(model, "indexer", Indexer, "an index_topk")
    if indexer is None or latent is None:
        return
    if latent.q_lora_rank is None and not model.family.indexes_hidden_state:
        raise AutoshardError(f"q_lora_rank=null of {of} is not supported: its indexer reads compressed queries")
    if (indexer.index_kpool is None) != (latent.qk_rope_head_dim > 0):
        raise AutoshardError(
            f"index_kpool={show(indexer.index_kpool)} of {of} must be a number of tokens where qk_rope_head_dim=0, and "
            f"absent where positions turn a part of each head; it is {latent.qk_rope_head_dim}"
        )
    if indexer.index_head_dim < latent.qk_rope_head_dim:
        raise AutoshardError(
            f"index_head_dim={indexer.index_head_dim} of {of} must be at least qk_rope_head_dim="
            f"{latent.qk_rope_head_dim}, the numbers that positions turn"
        )
    _check_kept_probabilities(model)


def _check_pooled_keys(model: ModelSpec) -> None:
    """An indexer of pools in blocks with full attention, whose heads positions turn."""
    indexer, of = model.indexer, model.name
    if not isinstance(indexer, (Indexer, type(None))):
        raise AutoshardError(f"indexer={show(indexer)} of {of} must be an object with an index_topk")
    if indexer is None:
        return
    if isinstance(model.layer_types, tuple) and model.layer_types and FULL_ATTENTION not in model.layer_types:
        raise AutoshardError(f"indexer of {of} must be absent: no block is {FULL_ATTENTION} in layer_types")
    if indexer.index_kpool is None:
        raise AutoshardError(
            f"index_kpool=null of {of} must be a number of tokens: indexers of model_type={model.model_type} choose "
            "pools"
        )
    if indexer.index_head_dim < model.rotary_dim:
        raise AutoshardError(
            f"index_head_dim={indexer.index_head_dim} of {of} must be at least {model.rotary_dim}, the numbers of a "
            "head that positions turn"
        )
    for field in ("turns_end", "indexer_rope_interleave"):
        if getattr(indexer, field):
            raise AutoshardError(
                f"{field}=True of {of} is not supported with indexers of model_type={model.model_type}; False is"
            )
    if indexer.key_norm_eps != model.norm_eps:
        raise AutoshardError(
            f"key_norm_eps={indexer.key_norm_eps:g} of {of} must be norm_eps={model.norm_eps:g}, as of other norms"
        )
    _check_kept_probabilities(model)


def _check_block_indexer(model: ModelSpec) -> None:
    """An indexer of blocks of keys exactly where some blocks have such attention, with heads that positions turn."""
    indexer, of = model.block_indexer, model.name
    if not isinstance(indexer, (BlockIndexer, type(None))):
        raise AutoshardError(f"block_indexer={show(indexer)} of {of} must be an object with an index_block_size")
    if indexer is not None and "block_indexer" not in model.family.may_have:
        raise AutoshardError(
            f"block_indexer of {of} must be absent: no block of model_type={model.model_type} sees blocks of keys; "
            f"those of {with_trait('block_indexer')} may"
        )
    if (indexer is not None) != (isinstance(model.layer_types, tuple) and BLOCK_SPARSE in model.layer_types):
        raise AutoshardError(
            f"block_indexer of {of} must be the sizes of the blocks that are {BLOCK_SPARSE} in layer_types, and absent "
            "without such blocks"
        )
    if indexer is None:
        return
    if indexer.index_head_dim < model.rotary_dim:
        raise AutoshardError(
            f"index_head_dim={indexer.index_head_dim} of {of} must be at least {model.rotary_dim}, the numbers of a "
            "head that positions turn"
        )
    if model.position_types:
        raise AutoshardError(f"position_types of {of} must be absent: positions turn the heads of each indexer")
    _check_kept_probabilities(model)


def _check_kept_probabilities(model: ModelSpec) -> None:
    """No dropout of attention beside an indexer."""
    if isinstance(model.dropout, Dropout) and model.dropout.attention:
        raise AutoshardError(
            f"dropout.attention={model.dropout.attention:g} of {model.name} must be 0: no kernel drops probabilities "
            "of the keys that an indexer chose"
        )


def _check_needed(model: ModelSpec, field: str, kind: type, holding: str) -> None:
    """An object in this field exactly where the model_type has it. holding: what the object must have, for an error."""
    value, of = getattr(model, field), f"model_type={model.model_type} of {model.name}"
    if not isinstance(value, (kind, type(None))):
        raise AutoshardError(f"{field}={show(value)} of {model.name} must be an object with {holding}")
    if value is not None and field not in model.family.needs:
        raise AutoshardError(f"{of} has no {field}; that is of {with_trait(field)}")
    if value is None and field in model.family.needs:
        raise AutoshardError(f"{of} needs {field}, which is absent")


def _check_experts(model: ModelSpec) -> None:
    """Experts exactly where the model_type has them."""
    experts, chosen = model.num_local_experts, model.num_experts_per_tok
    family = model.family
    if model.shared_expert_intermediate_size and SHARED not in family.experts:
        raise AutoshardError(
            f"shared_expert_intermediate_size={model.shared_expert_intermediate_size} of {model.name} must be 0: "
            f"model_type={model.model_type} has no shared expert; {with_trait(SHARED)} has"
        )
    if family.counts_shared_experts and model.shared_expert_intermediate_size % model.intermediate_size:
        raise AutoshardError(
            f"shared_expert_intermediate_size={model.shared_expert_intermediate_size} of {model.name} must be a "
            f"multiple of intermediate_size={model.intermediate_size}: model_type={model.model_type} counts shared "
            "experts"
        )
    for flag, said in (("use_qk_norm", "whether heads have norms"), ("use_rms_norm", "which norms it has")):
        if getattr(model, flag) and flag not in family.may_have:
            raise AutoshardError(
                f"{flag}=True of {model.name} must be False: model_type={model.model_type} says itself {said}; "
                f"the config says it of {with_trait(flag)}"
            )
    if model.averages_shared_expert and not (
        model.shared_expert_intermediate_size and "averages_shared_expert" in family.may_have
    ):
        raise AutoshardError(
            f"averages_shared_expert=True of {model.name} must be False: it adds its shared expert, if any; "
            f"{with_trait('averages_shared_expert')} may take the mean"
        )
    if model.moe_latent_size is not None:
        check_integer(model.name, "moe_latent_size", model.moe_latent_size)
        if "moe_latent_size" not in (*family.may_have, *family.needs) or not experts:
            raise AutoshardError(
                f"moe_latent_size={model.moe_latent_size} of {model.name} must be absent: its experts, if any, take "
                f"the hidden state; {with_trait('moe_latent_size')} may have others"
            )
    elif "moe_latent_size" in family.needs:
        raise AutoshardError(f"model_type={model.model_type} of {model.name} needs moe_latent_size, which is absent")
    check_integer(model.name, "zero_expert_num", model.zero_expert_num, at_least=0, at_most=MOST_REPEATED)
    if model.zero_expert_num and "zero_expert_num" not in family.may_have:
        raise AutoshardError(
            f"zero_expert_num={model.zero_expert_num} of {model.name} must be 0: all experts of model_type="
            f"{model.model_type} have matrices; {with_trait('zero_expert_num')} may have others"
        )
    if model.use_parallel_residual and "use_parallel_residual" not in family.may_have:
        raise AutoshardError(
            f"use_parallel_residual=True of {model.name} must be False: model_type={model.model_type} runs attention "
            f"and MLP one after the other; {with_trait('use_parallel_residual')} can run them side by side"
        )
    if ROUTED in family.experts and (experts or not family.has_optional_experts):
        if not 1 <= chosen <= experts:
            raise AutoshardError(
                f"num_experts_per_tok={chosen} of {model.name} must be from 1 to num_local_experts={experts}"
            )
        if not isinstance(model.router, (Router, type(None))):
            raise AutoshardError(f"router={show(model.router)} of {model.name} must be an object with a scoring_func")
        if (
            model.router is not None
            and (wrong := model.router.experts_objection(model.num_candidates, chosen)) is not None
        ):
            raise AutoshardError(f"{wrong} of {model.name}")
    elif experts or chosen:
        raise AutoshardError(
            f"num_local_experts={experts} and num_experts_per_tok={chosen} of {model.name} must be 0: "
            f"model_type={model.model_type} has no experts; {with_trait(ROUTED)} has"
        )


def _check_kinds(model: ModelSpec) -> None:
    """A word for each block, where blocks differ."""
    _check_needed(model, "chunked_attention", ChunkedAttention, "an attention_chunk_size")
    none = (NONE,) if model.family.has_one_branch else ()
    words = {
        "layer_types": (*_mixers(model), *none),
        "mlp_layer_types": (*MLP_LAYER_TYPES, *((HASHED,) if model.family.hashes_tokens else ()), *none),
        "position_types": POSITION_TYPES,
        "gate_types": GATE_TYPES,
        "indexer_types": INDEXER_TYPES,
        "ngram_types": _ngram_words(model),
    }
    for field, known in words.items():
        types = getattr(model, field)
        if not isinstance(types, tuple):
            raise AutoshardError(f"{field}={show(types)} of {model.name} must be a word for each block")
        if not types:
            continue
        if wrong := [word for word in types if word not in known]:
            check_choice(model.name, field, wrong[0], known)
        if len(types) != model.num_hidden_layers:
            raise AutoshardError(
                f"{field} of {model.name} has {len(types)} entries; num_hidden_layers={model.num_hidden_layers} "
                "needs one for each block"
            )
    if none:
        _check_branches(model)
    if model.family.has_two_mixers and not model.layer_types:
        raise AutoshardError(
            f"layer_types of {model.name} must say {HYBRID} of each block: model_type={model.model_type} has attention "
            "and a state space in all of them"
        )
    if SLIDING_ATTENTION in model.layer_types and model.sliding_window is None:
        raise AutoshardError(f"layer_types of {model.name} has {SLIDING_ATTENTION}: sliding_window must be given")
    if SPARSE in model.mlp_layer_types and not model.is_moe:
        raise AutoshardError(f"mlp_layer_types of {model.name} has {SPARSE}, but num_local_experts=0")
    used = {RECURRENT.get(word) for word in model.layer_types}
    sizes: dict[str, type] = {"linear_attention": LinearAttention, "lightning_attention": LightningAttention}
    sizes |= {"mamba": Mamba, "conv": ShortConv}
    for field, kind in sizes.items():
        value = getattr(model, field)
        if not isinstance(value, (kind, type(None))):
            raise AutoshardError(f"{field}={show(value)} of {model.name} must be an object with sizes")
        if (field in used) != (value is not None):
            word = HYBRID if model.family.has_two_mixers and field == RECURRENT[HYBRID] else field
            raise AutoshardError(
                f"{field} of {model.name} must be the sizes of the blocks that are {word} in layer_types, and absent "
                "without such blocks"
            )
    if model.mamba is not None and not (model.mamba.mamba_rms_norm or model.family.has_two_mixers):
        raise AutoshardError(
            f"mamba_rms_norm=False of {model.name} must be True: model_type={model.model_type} has a norm behind the "
            "gate"
        )
    if not isinstance(model.multipliers, (Multipliers, type(None))):
        raise AutoshardError(f"multipliers={show(model.multipliers)} of {model.name} must be an object with constants")
    check_integer(model.name, "dense_intermediate_size", model.dense_intermediate_size, at_least=0)
    if model.family.has_two_attentions and model.mlp_layer_types:
        raise AutoshardError(
            f"mlp_layer_types of {model.name} must be absent: each block of model_type={model.model_type} has experts"
        )
    if model.family.has_two_attentions and not model.dense_intermediate_size:
        raise AutoshardError(
            f"dense_intermediate_size=0 of {model.name} must be the width of both MLPs of a block, which model_type="
            f"{model.model_type} has beside its experts"
        )
    has_widths = model.family.has_two_attentions or (DENSE in model.mlp_layer_types and (model.is_moe or not none))
    of_shared_keys = model.num_kv_shared_layers > 0 and not model.is_moe  # which _check_shared_keys has looked at
    if has_widths != (model.dense_intermediate_size > 0) and not of_shared_keys:
        raise AutoshardError(
            f"dense_intermediate_size={model.dense_intermediate_size} of {model.name} must be the width of the blocks "
            f"that are {DENSE} in mlp_layer_types, and 0 without such blocks"
        )


def _check_turned_part(model: ModelSpec) -> None:
    """Heads of latent attention that nothing turns only where no block has positions."""
    latent = model.latent_attention
    if latent is None or latent.qk_rope_head_dim or not any(map(model.has_rope, range(model.num_hidden_layers))):
        return
    raise AutoshardError(
        f"qk_rope_head_dim=0 of {model.name} leaves positions nothing to turn: position_types must say {NOPE} of all "
        "blocks"
    )


def _check_shared_indexers(model: ModelSpec) -> None:
    """Blocks that see the keys that another one chose only where the model_type can have them, behind such a block."""
    types, of = model.indexer_types, model.name
    if not types:
        return
    if "indexer_types" not in model.family.may_have:
        raise AutoshardError(
            f"indexer_types of {of} must be absent: no block of model_type={model.model_type} sees the keys that "
            f"another one's indexer chose; blocks of {with_trait('indexer_types')} may"
        )
    if types[0] != OWN_INDEXER:
        raise AutoshardError(
            f"indexer_types of {of} begins with {types[0]}, but must with {OWN_INDEXER}: no block before the first one "
            "chooses keys"
        )
    for layer in (place for place, word in enumerate(types) if word != OWN_INDEXER):
        for place in (layer, model.chooser_of(layer)):
            if (word := model.mixer_of(place)) != FULL_ATTENTION:
                raise AutoshardError(
                    f"indexer_types of {of} says {types[layer]} of block {layer}, which sees the keys that block "
                    f"{model.chooser_of(layer)} chose; but layer_types says {word} of block {place}, not "
                    f"{FULL_ATTENTION}"
                )


def _check_shared_keys(model: ModelSpec) -> None:
    """Blocks that take keys and values of another one only where the model_type can have them, behind such a block of
    each of their mixers."""
    count, of = model.num_kv_shared_layers, model.name
    check_integer(of, "num_kv_shared_layers", count, at_least=0, at_most=MOST_REPEATED)
    if not count:
        return
    if "num_kv_shared_layers" not in model.family.may_have:
        raise AutoshardError(
            f"num_kv_shared_layers={count} of {of} must be 0: each block of model_type={model.model_type} has keys and "
            f"values of its own; blocks of {with_trait('num_kv_shared_layers')} may take those of another one"
        )
    if count >= model.num_hidden_layers:
        raise AutoshardError(
            f"num_kv_shared_layers={count} of {of} must be below num_hidden_layers={model.num_hidden_layers}: the "
            "others' keys and values are taken"
        )
    if not model.is_moe and model.dense_intermediate_size not in (0, 2 * model.intermediate_size):
        raise AutoshardError(
            f"dense_intermediate_size={show(model.dense_intermediate_size)} of {of} must be twice intermediate_size="
            f"{model.intermediate_size}, the width of the MLPs of its last {counted(count, 'block')}, or 0 where these "
            "are as wide as the others"
        )
    if not isinstance(model.layer_types, tuple) or len(model.layer_types) not in (0, model.num_hidden_layers):
        return  # which has an error of its own
    shared = filter(model.shares_keys, range(model.num_hidden_layers))
    own = {model.mixer_of(layer) for layer in range(model.num_hidden_layers - count)}
    for layer in shared:
        if (word := model.mixer_of(layer)) not in own:
            raise AutoshardError(
                f"num_kv_shared_layers={count} of {of}: layer_types says {word} of block {layer}, but of none of "
                "the blocks whose keys and values it could take"
            )


def _check_key_sources(model: ModelSpec) -> None:
    """Blocks that take the compressed keys of an earlier one only where the model_type can have them, of a block that
    makes its own and has positions as they have."""
    sources, of = model.kv_source_layers, model.name
    layers = model.num_hidden_layers
    if not isinstance(sources, tuple) or any(type(one) is not int for one in sources):
        raise AutoshardError(f"kv_source_layers={show(sources)} of {of} must have the number of a block for each")
    if not sources:
        return
    if "kv_source_layers" not in model.family.may_have:
        raise AutoshardError(
            f"kv_source_layers of {of} must be absent: each block of model_type={model.model_type} makes keys and "
            f"values of its own; blocks of {with_trait('kv_source_layers')} may take those of another one"
        )
    if len(sources) != layers:
        raise AutoshardError(
            f"kv_source_layers of {of} has {len(sources)} entries; num_hidden_layers={layers} needs one for each block"
        )
    if sources == tuple(range(layers)):
        raise AutoshardError(f"kv_source_layers of {of} must be absent where each block makes keys of its own")
    for layer, source in enumerate(sources):
        said = f"kv_source_layers of {of} says block {source} for block {layer}"
        if not 0 <= source <= layer or sources[source] != source:
            raise AutoshardError(f"{said}; it must be itself, or an earlier block that makes keys of its own")
        if model.has_rope(source) != model.has_rope(layer):
            raise AutoshardError(f"{said}; both must have positions, or neither of them")


def _check_own_inputs(model: ModelSpec) -> None:
    """A width of blocks' own inputs only where the model_type can have one."""
    width = model.hidden_size_per_layer_input
    if width is None:
        return
    check_integer(model.name, "hidden_size_per_layer_input", width)
    if "hidden_size_per_layer_input" not in model.family.may_have:
        raise AutoshardError(
            f"hidden_size_per_layer_input={width} of {model.name} must be absent: blocks of model_type="
            f"{model.model_type} see the residual stream alone; those of {with_trait('hidden_size_per_layer_input')} "
            "may have an input of their own"
        )


def _check_ngrams(model: ModelSpec) -> None:
    """Tables of n-grams only where the model_type can have them, and which block has which."""
    ngrams, of = model.ngram_embedding, model.name
    if not isinstance(ngrams, (NgramEmbedding, type(None))):
        raise AutoshardError(f"ngram_embedding={show(ngrams)} of {of} must be an object with an ngram_size")
    if ngrams is not None and "ngram_embedding" not in model.family.may_have:
        raise AutoshardError(
            f"ngram_embedding of {of} must be absent: no block of model_type={model.model_type} has a table of "
            f"n-grams; those of {with_trait('ngram_embedding')} may"
        )
    if (ngrams is not None) != bool(model.ngram_types):
        raise AutoshardError(
            f"ngram_types of {of} must say which table of ngram_embedding each block has, and both must be absent "
            "without tables"
        )
    if ngrams is None:
        return
    if ngrams.eos_token_id >= model.vocab_size:
        raise AutoshardError(f"eos_token_id={ngrams.eos_token_id} of {of} must be below vocab_size={model.vocab_size}")
    for word in {*model.ngram_types} - {NONE}:
        table = ngram_table(word)
        assert table is not None, word
        ngrams.part_rows(table, model.vocab_size)


def _ngram_words(model: ModelSpec) -> tuple[str, ...]:
    """The words that ngram_types may have, of tables the first one and those that it names."""
    said = model.ngram_types if isinstance(model.ngram_types, tuple) else ()
    numbers = (word.removeprefix(NGRAM_TABLE) for word in said if isinstance(word, str))
    tables = {int(number) for number in numbers if is_count(number)} | {0}
    return NONE, *(ngram_word(table) for table in sorted(tables) if table < MOST_REPEATED)


def _mixers(model: ModelSpec) -> tuple[str, ...]:
    """The words of layer_types for blocks that mix their tokens, of the model's family."""
    if model.family.has_two_mixers:
        return (HYBRID,)
    if model.compressed_attention is not None:
        return COMPRESSED_TYPES
    if "block_indexer" in model.family.may_have:
        return (FULL_ATTENTION, BLOCK_SPARSE)
    return LAYER_TYPES if model.chunked_attention is None else (FULL_ATTENTION, CHUNKED_ATTENTION)


def _check_branch_multipliers(model: ModelSpec) -> None:
    """Constants of branches exactly where the model_type has them, and there no biases, which they would scale too."""
    constants, of = model.branch_multipliers, model.name
    _check_needed(model, "branch_multipliers", BranchMultipliers, "constants")
    for field in ("attention_bias", "mlp_bias"):
        if constants is not None and getattr(model, field):
            raise AutoshardError(f"{field}=True of {of} is not supported with branch_multipliers; False is")


def _check_branch_norms(model: ModelSpec) -> None:
    """Norms behind branches exactly where the model_type has them, and gates behind these where it has gates."""
    norms, of = model.branch_norms, f"model_type={model.model_type} of {model.name}"
    _check_needed(model, "branch_norms", BranchNorms, "a post_norm_eps")
    if norms is None or (norms.residual_gate_temperature is not None) == model.family.gates_residual:
        return
    if model.family.gates_residual:
        raise AutoshardError(f"{of} needs a residual_gate_temperature, such as 0.3, which branch_norms has not")
    raise AutoshardError(
        f"residual_gate_temperature={norms.residual_gate_temperature} of {model.name} must be absent: "
        f"model_type={model.model_type} adds what attention and MLP give as it is"
    )


def _check_gates(model: ModelSpec) -> None:
    """Gates that are cut off only where the model_type can have them, and a limit wherever they are."""
    gate, of = model.clamped_gate, model.name
    if not isinstance(gate, (ClampedGate, type(None))):
        raise AutoshardError(f"clamped_gate={show(gate)} of {of} must be null or an object")
    if gate is None:
        if model.gate_types:
            raise AutoshardError(f"gate_types of {of} must be absent without a clamped_gate, which says the limits")
        return
    if "clamped_gate" not in model.family.may_have:
        raise AutoshardError(
            f"clamped_gate of {of} must be absent: model_type={model.model_type} cuts off no gates; "
            f"{with_trait('clamped_gate')} may"
        )
    shared = {SHARED, BOTH} & {*model.gate_types}
    if bool(shared) != (gate.swiglu_limit_shared is not None):
        raise AutoshardError(
            f"swiglu_limit_shared={show(gate.swiglu_limit_shared)} of {of} must be a limit where gate_types has "
            f"{SHARED} or {BOTH}, and absent where it has neither"
        )
    if shared and SHARED not in model.family.experts:
        raise AutoshardError(
            f"gate_types of {of} has {min(shared)}: model_type={model.model_type} has no shared expert; "
            f"{with_trait(SHARED)} has"
        )


def _check_branches(model: ModelSpec) -> None:
    """Raises AutoshardError where a block has a mixer and an MLP, or neither, in a family of blocks with one branch."""
    mixers, mlps, of = model.layer_types, model.mlp_layer_types, f"model_type={model.model_type} of {model.name}"
    for layer in range(model.num_hidden_layers):
        words = tuple(types[layer] if types else "nothing" for types in (mixers, mlps))
        if words.count(NONE) != 1 or "nothing" in words:
            raise AutoshardError(
                f"layer_types and mlp_layer_types of {model.name} have {words[0]} and {words[1]} for block {layer}: "
                f"{of} has one branch in each block, so that one of both must be {NONE}"
            )


def _check_prediction(model: ModelSpec) -> None:
    """A prediction module only where the model_type can have one."""
    module = model.multi_token_prediction
    if not isinstance(module, (MultiTokenPrediction, type(None))):
        raise AutoshardError(f"multi_token_prediction={show(module)} of {model.name} must be an object")
    if module is not None and "multi_token_prediction" not in model.family.may_have:
        raise AutoshardError(
            f"mtp_num_layers={module.mtp_num_layers} of {model.name} must be absent: model_type={model.model_type} has "
            f"no prediction module; {with_trait('multi_token_prediction')} have"
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
