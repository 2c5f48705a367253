"""Hugging Face configs: what each family's config means, what transformers assumes, and every way to be wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.errors import AutoshardError
from autoshard.files.codec import from_json, to_json
from autoshard.models import builtin_models, load_model
from autoshard.models.huggingface import from_config, read_config, to_config
from autoshard.models.registry import FOLDER
from autoshard.models.stage import learned_count
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import MODEL_TYPES
from autoshard.spec.rope import RopeScaling

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}


FAMILIES = ", ".join(MODEL_TYPES)
TRACED = "a module of your own is traced: FILE.py:CLASS"


def latent_parameters(model: ModelSpec) -> int:
    """The same of a model with latent attention."""
    latent, hidden, heads = model.latent_attention, model.hidden_size, model.num_attention_heads
    assert latent is not None
    queries = heads * model.head_dim
    rank = latent.q_lora_rank
    up = hidden * queries if rank is None else hidden * rank + rank + rank * queries
    down = hidden * (latent.kv_lora_rank + latent.qk_rope_head_dim) + latent.kv_lora_rank
    pairs = latent.kv_lora_rank * heads * (model.head_dim - latent.qk_rope_head_dim + latent.v_head_dim)
    gate = heads * hidden if model.model_type == "bailing_hybrid" else 0
    if model.model_type == "hy_v4":  # a gate of each number, and sinks
        gate = heads * latent.v_head_dim * hidden + heads
    block = up + down + pairs + heads * latent.v_head_dim * hidden + gate
    mlps = mlp_parameters(model) if model.is_moe else model.num_hidden_layers * 3 * hidden * model.intermediate_size
    tables = (1 if model.tie_word_embeddings else 2) * model.vocab_size * hidden
    mixers = sum(
        recurrence(model) if model.mixer_of(layer) == "linear_attention" else block
        for layer in range(model.num_hidden_layers)
    )
    behind = model.num_sparse_layers * hidden if model.model_type == "axk1" else 0  # a norm behind experts
    mixers += model.num_hidden_layers * stream_parameters(model)
    if model.model_type == "mistral_large4_text":  # two numbers of each head; whole keys
        mixers += model.num_hidden_layers * 2 * heads
        mixers += model.position_types.count("nope") * latent.qk_rope_head_dim * (latent.kv_lora_rank * heads - hidden)
    if model.model_type == "hy_v4":  # the head weighs four streams
        mixers += 4 * (4 * hidden + 1) + 1
    times = 2 if model.family.has_two_attentions else 1
    return tables + times * (mixers + model.num_hidden_layers * 2 * hidden) + mlps + behind + hidden


def stream_parameters(model: ModelSpec) -> int:
    """Those of both parts of a block that weigh the streams of a residual, if there are several."""
    if (hyper := model.hyper_connections) is None:
        return 0
    mixes = hyper.hc_sinkhorn_iters is not None
    weights = hyper.hc_mult * (hyper.hc_mult + 2) if mixes else 2 * hyper.hc_mult
    return 2 * (weights * hyper.hc_mult * model.hidden_size + weights + (3 if mixes else 2))


def compressed_parameters(model: ModelSpec) -> int:
    """The same of a model with compressed attention and a residual of several streams."""
    compressed, hyper, hidden = model.compressed_attention, model.hyper_connections, model.hidden_size
    assert compressed is not None and hyper is not None
    width, queries = model.head_dim, model.num_attention_heads * model.head_dim
    rank, grouped = compressed.q_lora_rank, compressed.o_groups * compressed.o_lora_rank
    attention = hidden * rank + rank + rank * queries + hidden * width + width
    attention += grouped * queries // compressed.o_groups + hidden * grouped + model.num_attention_heads  # sinks
    entries = {
        "sliding_attention": 0,
        "compressed_sparse_attention": 2 * 2 * width * hidden + compressed.sparse_rate * 2 * width + width,
        "heavily_compressed_attention": 2 * width * hidden + compressed.heavy_rate * width + width,
    }
    streams = stream_parameters(model)
    blocks = sum(attention + entries[word] + streams + 2 * hidden for word in model.layer_types)
    ends = 2 * model.vocab_size * hidden + hidden + hyper.hc_mult * (hyper.hc_mult * hidden + 1) + 1
    return blocks + mlp_parameters(model) + ends


def mlp_parameters(model: ModelSpec) -> int:
    """The MLPs and experts of all blocks, of which the first are dense; shared experts have no gate."""
    hidden, sparse = model.hidden_size, model.num_sparse_layers
    width = model.num_local_experts * model.intermediate_size + model.shared_expert_intermediate_size
    mlps = sparse * (hidden * model.num_candidates + 3 * hidden * width)
    dense = 2 * sparse if model.family.has_two_attentions else model.num_hidden_layers - sparse
    return mlps + dense * 3 * hidden * model.dense_intermediate_size


def narrow_experts(model: ModelSpec) -> int:
    """The MLPs of Muse Spark's blocks: a router, products to narrower tokens and back, norms of these and of experts'
    answers; or a dense one."""
    hidden, seen, sparse = model.hidden_size, model.moe_latent_size or 0, model.num_sparse_layers
    experts = model.num_local_experts * (hidden + 3 * seen * model.intermediate_size)
    dense = (model.num_hidden_layers - sparse) * 3 * hidden * model.dense_intermediate_size
    return sparse * (experts + 2 * hidden * seen + 2 * seen) + dense


def gemma4_block(model: ModelSpec, layer: int) -> int:
    """Four norms, a norm of a head's queries and one of its keys; in blocks without a window keys may be values.
    Experts have three norms more, a router with a weight of its norm, and a factor each. The last blocks may have
    neither keys nor values, and then MLPs twice as wide. For an input of its own a block has a table, three matrices
    and a norm."""
    hidden, heads, wide = model.hidden_size, model.num_attention_heads, model.global_attention
    assert wide is not None
    shares = layer >= model.num_hidden_layers - model.num_kv_shared_layers
    keys, width, each = model.num_key_value_heads, model.head_dim, 2
    if model.layer_types[layer] != "sliding_attention":
        keys, width, each = wide.num_global_key_value_heads, wide.global_head_dim, 1 if wide.attention_k_eq_v else 2
    attention = hidden * (2 * heads + (0 if shares else each * keys)) * width + (1 if shares else 2) * width
    if (own := model.hidden_size_per_layer_input) is not None:
        attention += model.vocab_size * own + 3 * hidden * own + hidden
    if not model.is_moe:
        widths = 2 if shares and model.dense_intermediate_size else 1
        return attention + 3 * hidden * model.intermediate_size * widths + 4 * hidden
    mlp = 3 * hidden * model.shared_expert_intermediate_size
    experts = model.num_local_experts * (3 * hidden * model.intermediate_size + hidden + 1) + hidden
    return attention + mlp + experts + 7 * hidden


def mimo_mixer(model: ModelSpec, layer: int) -> int:
    """Narrower values, in blocks with a window of more heads, and there a number of each head besides."""
    heads, wide, width = model.num_attention_heads, model.global_attention, model.head_dim
    assert wide is not None and model.v_head_dim is not None
    has_window = model.layer_types[layer] == "sliding_attention"
    keys = model.num_key_value_heads if has_window else wide.num_global_key_value_heads
    return model.hidden_size * (heads + keys) * (width + model.v_head_dim) + (heads if has_window else 0)


def parameters(model: ModelSpec) -> int:
    """Closed formula, independent of the graph."""
    if model.latent_attention is not None:
        return latent_parameters(model)
    if model.compressed_attention is not None:
        return compressed_parameters(model)
    hidden, ffn, layers = model.hidden_size, model.intermediate_size, model.num_hidden_layers
    vocabulary = model.vocab_size * hidden * (1 if model.tie_word_embeddings else 2)
    if model.model_type == "gpt2":
        # qkv and projection with biases, two matrices with biases, two LayerNorms of weight and bias
        block = (4 * hidden**2 + 4 * hidden) + (2 * hidden * ffn + ffn + hidden) + 4 * hidden
        return vocabulary + model.max_position_embeddings * hidden + layers * block + 2 * hidden
    queries, keys = model.num_attention_heads * model.head_dim, model.num_key_value_heads * model.head_dim
    attention = 2 * hidden * queries + 2 * hidden * keys
    if model.model_type == "gemma4_text":
        norms = hidden + (model.hidden_size_per_layer_input or 0)  # the last one, and that of all blocks' own inputs
        return vocabulary + norms + sum(gemma4_block(model, layer) for layer in range(layers))
    if model.model_type == "mimo_v2_flash":
        mixers = sum(mimo_mixer(model, layer) for layer in range(layers))
        return vocabulary + mixers + layers * 2 * hidden + mlp_parameters(model) + hidden
    if model.model_type in ("laguna", "step3p5"):  # queries, output, keys, values, a gate of each head, norms of a head
        counts = [model.heads_of(layer).num_attention_heads for layer in range(layers)]
        mixers = sum(count * hidden * (2 * model.head_dim + 1) for count in counts)
        mixers += layers * (2 * hidden * keys + 2 * model.head_dim)
        return vocabulary + mixers + layers * 2 * hidden + mlp_parameters(model) + hidden
    if model.model_type == "qwen4_exp_text":
        return vocabulary + qwen4_parameters(model, attention)
    if model.model_type == "minimax_m3_vl_text":  # norms of a head, dense blocks
        mixers = layers * (attention + 2 * model.head_dim)
        return vocabulary + mixers + layers * 2 * hidden + mlp_parameters(model) + hidden
    if model.family.folder == "muse":  # a gate of each number; norms behind branches too, or behind one and two gates
        norms, gates = (3, 2) if model.family.gates_residual else (4, 0)
        mixers = layers * (attention + hidden * queries + (norms + gates) * hidden)
        return vocabulary + mixers + (narrow_experts(model) if model.is_moe else layers * 3 * hidden * ffn) + hidden
    if model.model_type == "nemotron":  # two matrices, norms of weight and bias, no other biases
        return vocabulary + layers * (attention + 2 * hidden * ffn + 4 * hidden) + 2 * hidden
    if model.family.has_one_branch:
        return vocabulary + hidden + sum(hidden + one_branch(model, layer) for layer in range(layers))
    if model.model_type in ("cohere", "cohere2"):  # three matrices, one norm without a bias, perhaps those of heads
        heads = (queries + keys) * model.use_qk_norm
        return vocabulary + layers * (attention + 3 * hidden * ffn + hidden + heads) + hidden
    if model.model_type == "apertus":  # two matrices and two numbers, RMS norms, those of a head too
        return vocabulary + layers * (attention + 2 * hidden * ffn + 2 + 2 * hidden + 2 * model.head_dim) + hidden
    if model.model_type in ("jais2", "starcoder2"):  # the same with biases
        biases = queries + 2 * keys + hidden + ffn + hidden
        block = attention + 2 * hidden * ffn + 4 * hidden + biases
        return vocabulary + layers * block + 2 * hidden
    if model.model_type == "phi":  # the same with one norm in a block, and a bias of each logit
        block = attention + 2 * hidden * ffn + 2 * hidden + queries + 2 * keys + hidden + ffn + hidden
        return vocabulary + model.vocab_size + layers * block + 2 * hidden
    if model.family.has_two_mixers:
        return vocabulary + layers * (attention + recurrence(model) + 3 * hidden * ffn + 2 * hidden) + hidden
    if model.model_type == "bamba":  # one mixer in each block, three matrices
        attended = layers - model.layer_types.count("mamba")
        mixers = attended * attention + (layers - attended) * recurrence(model)
        return vocabulary + mixers + layers * (3 * hidden * ffn + 2 * hidden) + hidden
    if model.model_type == "jamba":  # one mixer in each block, three matrices or experts
        attended = layers - model.layer_types.count("mamba1")
        mixers = attended * attention + (layers - attended) * recurrence(model)
        mlps = mlp_parameters(model) if model.is_moe else layers * 3 * hidden * ffn
        return vocabulary + mixers + mlps + layers * 2 * hidden + hidden
    if model.model_type == "stablelm":  # three matrices, norms of weight and bias
        biases = (queries + 2 * keys) * model.attention_bias
        norms = (2 if model.use_parallel_residual else 4) * hidden + (queries + keys) * model.use_qk_norm
        return vocabulary + layers * (attention + 3 * hidden * ffn + norms + biases) + 2 * hidden
    if model.model_type == "arcee":  # two matrices, RMS norms, no biases
        return vocabulary + layers * (attention + 2 * hidden * ffn + 2 * hidden) + hidden
    if model.model_type == "olmo":  # no norm has parameters
        return vocabulary + layers * (attention + 3 * hidden * ffn)
    if model.model_type == "nanochat":  # nor here; two matrices
        return vocabulary + layers * (attention + 2 * hidden * ffn)
    if model.model_type == "gpt_neox":  # as GPT-2, without positions and with a head of its own
        block = (attention + 4 * hidden) + (2 * hidden * ffn + ffn + hidden) + 4 * hidden
        return vocabulary + layers * block + 2 * hidden
    if model.model_type in ("qwen2", "qwen2_moe") or (
        model.model_type in ("seed_oss", "glm", "glm4") and model.attention_bias
    ):
        attention += queries + 2 * keys  # biases of q, k and v
    if model.attention_scores.sinks and model.multipliers is not None:  # Granite's: a number of each head
        attention += model.num_attention_heads
    if model.model_type == "kolibri1":  # as Qwen 3, and norms behind attention and MLP
        attention += 2 * model.head_dim + 2 * hidden
        return vocabulary + layers * (attention + 2 * hidden) + mlp_parameters(model) + hidden
    if model.model_type in ("glm4", "hyperclovax"):  # norms behind attention and MLP, too
        attention += 2 * hidden
    if model.conv is not None:  # as Qwen 3, or a convolution
        convolved = model.layer_types.count("conv")
        mixers = (layers - convolved) * (attention + 2 * model.head_dim) + convolved * recurrence(model)
        mlps = mlp_parameters(model) if model.is_moe else layers * 3 * hidden * ffn
        norms = 2
        if model.model_type == "lfm3":  # norms behind both branches, too, and a gate of each head
            norms, mixers = 4, mixers + (layers - convolved) * hidden * model.num_attention_heads
        return vocabulary + mixers + mlps + layers * norms * hidden + hidden
    as_qwen_3 = ("dots1", "exaone4", "exaone_moe", "hy_v3", "sarvam_moe")
    if model.model_type in as_qwen_3 or model.normalizes_turned_heads:
        attention += 2 * model.head_dim
    if model.model_type == "afmoe":  # as Qwen 3, and norms behind attention and MLP, and a gate beside each query
        attention += 2 * model.head_dim + 2 * hidden + hidden * queries
    deepseeks_experts = ("ernie4_5_moe", "dots1", "solar_open", "exaone_moe", "hy_v3", "hunyuan_v1_moe", "afmoe")
    if model.model_type in (*deepseeks_experts, "sarvam_moe"):
        return vocabulary + layers * (attention + 2 * hidden) + mlp_parameters(model) + hidden
    if model.model_type == "glm4_moe":
        attention += queries + 2 * keys + (2 * model.head_dim if model.use_qk_norm else 0)
        return vocabulary + layers * (attention + 2 * hidden) + mlp_parameters(model) + hidden
    if model.model_type in ("qwen3", "qwen3_moe", "mellum"):  # a norm of a head's queries and one of its keys
        attention += 2 * model.head_dim
    if model.model_type in (
        "olmo2",
        "olmo3",
        "minimax_m2",
        "olmoe",
        "flex_olmo",
        "olmo_hybrid",
    ):  # a norm of all heads' queries and one of their keys
        attention += queries + keys
    if model.model_type in (
        "qwen3_next",
        "qwen3_5_text",
        "qwen3_5_moe_text",
    ):  # a gate beside each query, and the norms of a head
        attention += hidden * queries + 2 * model.head_dim
    experts = max(1, model.num_local_experts)
    router = hidden * model.num_local_experts
    shared = 3 * hidden * model.shared_expert_intermediate_size
    shared_gate = hidden if shared and model.multipliers is None else 0  # Granite has none
    mixture = router + experts * 3 * hidden * ffn + shared + shared_gate
    recurrent = sum(word in ("linear_attention", "lightning_attention", "mamba") for word in model.layer_types)
    mixers = (layers - recurrent) * attention + recurrent * recurrence(model)
    return vocabulary + mixers + layers * (mixture + 2 * hidden) + hidden


def qwen4_parameters(model: ModelSpec, attention: int) -> int:
    """Parameters of Qwen4-Exp that are learned, without both tables of tokens. attention: of a block's four
    matrices."""
    gated, hidden = model.gated_residual, model.hidden_size
    assert gated is not None
    wide = gated.hc_count * hidden
    reads = wide * (2 * gated.hc_lowrank + 1)  # two matrices and a norm
    full, linear = (model.layer_types.count(word) for word in ("full_attention", "linear_attention"))
    attention += hidden * model.num_attention_heads * model.head_dim + 2 * model.head_dim  # a gate; norms of a head
    experts = 3 * hidden * (model.num_local_experts * model.intermediate_size + model.shared_expert_intermediate_size)
    block = experts + hidden * (model.num_local_experts + 1) + 2 * (reads + gated.hc_count * wide)
    table = 320_001_536 * 160 + 2560 * (wide + hidden) + (3 + 4) * wide  # norms, taps
    return full * attention + linear * recurrence(model) + model.num_hidden_layers * block + reads + table


def one_branch(model: ModelSpec, layer: int) -> int:
    """Parameters of the only branch of a block of Nemotron-H or Mamba, without its norm; by the closed formula, too."""
    hidden, mixer = model.hidden_size, model.layer_types[layer]
    if mixer in ("mamba", "mamba1"):
        return recurrence(model)
    if mixer == "full_attention":
        return 2 * hidden * model.head_dim * (model.num_attention_heads + model.num_key_value_heads)
    if model.mlp_layer_types[layer] == "dense":  # two matrices
        return 2 * hidden * (model.dense_intermediate_size or model.intermediate_size)
    seen = model.moe_latent_size or hidden
    latent = 2 * hidden * seen if model.moe_latent_size else 0
    experts = model.num_local_experts * (2 * seen * model.intermediate_size + hidden)  # with the router's row
    return latent + experts + 2 * hidden * model.shared_expert_intermediate_size


def recurrence(model: ModelSpec) -> int:
    """Parameters that a block has in place of attention; by the closed formula, too."""
    if model.conv is not None:  # B, C and x, output; taps
        return 4 * model.hidden_size**2 + model.conv.conv_L_cache * model.hidden_size
    if (linear := model.linear_attention) is not None:
        keys = linear.linear_num_key_heads * linear.linear_key_head_dim
        values = linear.linear_num_value_heads * linear.linear_value_head_dim
        if model.model_type in ("kimi_linear", "glm5_next_text"):
            # q, k, v, output; a number of each head; two gates through a head's width; taps; A_log, dt_bias, a norm
            heads, width = linear.linear_num_key_heads, linear.linear_key_head_dim
            products = model.hidden_size * (4 * keys + heads) + 2 * width * (model.hidden_size + keys)
            return products + linear.linear_conv_kernel_dim * 3 * keys + heads + keys + width
        if model.model_type == "bailing_hybrid":  # the same, with gates of a matrix each
            heads, width = linear.linear_num_key_heads, linear.linear_key_head_dim
            products = model.hidden_size * (6 * keys + heads)
            return products + linear.linear_conv_kernel_dim * 3 * keys + heads + keys + width
        # q, k, v and gate; two numbers of each value head; output; taps; A_log and dt_bias; a norm
        products = model.hidden_size * (2 * keys + 2 * values + 2 * linear.linear_num_value_heads + values)
        taps = linear.linear_conv_kernel_dim * (2 * keys + values)
        return products + taps + 2 * linear.linear_num_value_heads + linear.linear_value_head_dim
    if model.lightning_attention is not None:  # q, k, v, a gate and output; a norm of all heads
        inner = model.num_attention_heads * model.head_dim
        return 5 * model.hidden_size * inner + inner
    if (mamba := model.mamba) is not None:
        inner, state = mamba.mamba_n_heads * mamba.mamba_d_head, mamba.mamba_n_groups * mamba.mamba_d_state
        # gate, x, B, C, a step of each head; output; taps and their bias; A_log, D and dt_bias; perhaps a norm
        products = model.hidden_size * (2 * inner + 2 * state + mamba.mamba_n_heads + inner)
        norm = inner * mamba.mamba_rms_norm
        return products + (mamba.mamba_d_conv + 1) * (inner + 2 * state) + 3 * mamba.mamba_n_heads + norm
    if (selective := model.mamba1) is not None:
        inner, state, rank = selective.mamba_d_inner, selective.mamba_d_state, selective.mamba_dt_rank
        # x and gate, output; time steps, B and C; time steps of channels; taps and their bias; A_log; D and a bias
        products = inner * (3 * model.hidden_size + (rank + 2 * state) + rank)
        norms = rank + 2 * state if model.model_type == "jamba" else 0
        return products + inner * (selective.mamba_d_conv + 1 + state + 2) + norms
    return 0


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("gpt3-175b", 174_604_259_328),
        ("llama2-7b", 6_738_415_616),
        ("llama2-13b", 13_015_864_320),
        ("llama2-70b", 68_976_648_192),
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("llama3.1-8b", 8_030_261_248),
        ("llama3.1-70b", 70_553_706_496),
        ("llama3.1-405b", 405_853_388_800),
        ("mistral-7b", 7_241_732_096),
        ("mixtral-8x7b", 46_702_792_704),
        ("mixtral-8x22b", 140_620_634_112),
        ("gpt-neox-20b", 20_554_567_680),
        ("qwen2-7b", 7_615_616_512),
        ("qwen2-57b-a14b", 57_408_658_944),
        ("qwen2.5-72b", 72_706_203_648),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-32b", 32_762_123_264),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("llama3.2-1b", 1_235_814_400),
        ("llama3.2-3b", 3_212_749_824),
        ("tinyllama-1.1b", 1_100_048_384),
        ("smollm2-135m", 134_515_008),
        ("smollm2-360m", 361_821_120),
        ("smollm2-1.7b", 1_711_376_384),
        ("mistral-7b-v0.3", 7_248_023_552),
        ("mistral-nemo-12b", 12_247_782_400),
        ("mistral-small-24b", 23_572_403_200),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-1.5b", 1_543_714_304),
        ("qwen2.5-3b", 3_085_938_688),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen2.5-14b", 14_770_033_664),
        ("qwen2.5-32b", 32_763_876_352),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-1.7b", 1_720_574_976),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-14b", 14_768_307_200),
        ("qwen3-235b-a22b", 235_093_634_560),
        ("deepseek-v2-lite", 15_706_484_224),
        ("deepseek-v2", 235_741_434_880),
        ("deepseek-v3", 671_026_404_352),
        ("kimi-k2", 1_026_408_209_408),
        ("deepseek-v3.2", 671_026_404_352),
        ("glm-5", 743_180_190_720),
        ("glm-5.2", 743_180_190_720),
        ("glm-5.3-flash", 313_244_609_278),
        ("longcat-flash", 560_664_958_976),
        ("minimax-m3", 425_950_417_920),
        ("muse-glimmer-30b", 27_854_780_928),
        ("muse-spark-open", 819_990_536_192),
        ("deepseek-v4-flash", 284_106_500_055),
        ("deepseek-v4-pro", 1_572_495_794_531),
        ("a.x-k1", 518_983_052_288),
        ("glm-4.5-air", 106_852_245_504),
        ("glm-4.5", 352_797_814_784),
        ("smollm3-3b", 3_075_098_624),
        ("granite-3.1-2b", 2_533_531_648),
        ("granite-3.1-8b", 8_170_848_256),
        ("granite-3.1-1b-a400m", 1_334_628_352),
        ("granite-3.1-3b-a800m", 3_298_793_472),
        ("phi3-mini-4k", 3_821_079_552),
        ("phi3-medium-4k", 13_960_238_080),
        ("phi4", 14_659_507_200),
        ("phi4-mini", 3_836_021_760),
        ("olmo2-1b", 1_484_916_736),
        ("olmo2-7b", 7_298_617_344),
        ("olmo2-13b", 13_716_198_400),
        ("olmo2-32b", 32_234_279_936),
        ("qwen3-next-80b-a3b", 79_674_391_296),
        ("granite-swash-3b-a600m", 3_020_382_000),
        ("stablelm-3b-4e1t", 2_795_443_200),
        ("stablelm-2-1.6b", 1_644_515_328),
        ("stablelm-2-12b", 12_143_185_920),
        ("kolibri-1", 78_103_055_360),
        ("granite-4.0-h-micro", 3_191_396_096),
        ("granite-4.0-h-tiny", 6_939_037_248),
        ("granite-4.0-h-small", 32_207_337_984),
        ("seed-oss-36b", 36_151_104_512),
        ("lfm2-350m", 354_483_968),
        ("lfm2-700m", 742_489_344),
        ("lfm2-1.2b", 1_170_340_608),
        ("lfm2-8b-a1b", 8_339_929_856),
        ("lfm3-1.7b", 1_728_801_536),
        ("ling-3.0-flash", 124_414_191_072),
        ("sarvam-30b", 32_152_648_064),
        ("sarvam-105b", 106_031_763_456),
        ("mellum2-12b-a2.5b", 12_149_923_072),
        ("starcoder2-3b", 3_030_371_328),
        ("starcoder2-7b", 7_173_923_840),
        ("starcoder2-15b", 15_957_889_024),
        ("jais2-8b", 8_090_401_280),
        ("laguna-xs.2", 33_442_607_104),
        ("step-3.7-flash", 196_956_118_272),
        ("falcon-h1-0.5b", 521_411_104),
        ("falcon-h1-1.5b-deep", 1_554_874_768),
        ("falcon-h1-7b", 7_585_654_880),
        ("falcon-h1-34b", 33_642_516_224),
        ("helium-1-preview-2b", 2_172_643_840),
        ("bamba-9b", 9_780_235_392),
        ("jamba-1.5-mini", 51_570_323_328),
        ("jamba-1.5-large", 398_555_145_696),
        ("jamba-reasoning-3b", 3_029_337_472),
        ("falcon-mamba-7b", 7_272_665_088),
        ("mamba-2.8b", 2_768_345_600),
        ("phi-1.5", 1_418_270_720),
        ("phi-2", 2_779_683_840),
        ("hyperclovax-seed-think-14b", 14_748_112_896),
        ("internlm3-8b", 8_804_241_408),
        ("iquest-coder-v1-40b", 39_794_283_520),
        ("kimi-linear-48b-a3b", 49_122_675_072),
        ("glm-4-9b", 9_399_951_360),
        ("glm-4-9b-0414", 9_400_279_040),
        ("glm-4-32b-0414", 32_566_081_536),
        ("ernie-4.5-0.3b", 360_748_032),
        ("ernie-4.5-21b-a3b", 21_825_436_160),
        ("dots.llm1", 142_774_373_888),
        ("exaone-4.0-1.2b", 1_279_391_488),
        ("exaone-4.0-32b", 32_003_216_384),
        ("glm-4.7-flash", 29_943_390_976),
        ("olmoe-1b-7b", 6_919_161_856),
        ("flexolmo-7x7b", 33_270_665_216),
        ("minitron-4b", 4_190_509_056),
        ("nemotron4-340b", 341_029_195_776),
        ("solar-open-100b", 102_651_793_408),
        ("k-exaone-236b-a23b", 236_571_150_336),
        ("hy3-295b-a21b", 295_033_528_320),
        ("mimo-v2-flash", 308_778_768_832),
        ("mistral-small-4-119b-a6.5b", 118_972_826_624),
        ("ministral-8b", 8_019_808_256),
        ("youtu-llm-2b", 1_961_560_064),
        ("mistral-large-4-1t-a52b", 1_048_234_576_896),
        ("minicpm3-4b", 4_073_875_968),
        ("cwm-32b", 32_581_097_472),
        ("hunyuan-0.5b", 539_010_048),
        ("hunyuan-1.8b", 1_791_080_448),
        ("hunyuan-4b", 4_221_757_440),
        ("hunyuan-7b", 7_504_568_320),
        ("hunyuan-a13b", 80_393_183_232),
        ("apertus-8b", 8_053_338_176),
        ("apertus-70b", 70_599_864_480),
        ("gemma4-31b", 30_697_345_280),
        ("gemma4-26b-a4b", 25_233_141_760),
        ("gemma4-e2b", 4_628_569_344),
        ("gemma4-e4b", 7_463_013_376),
        ("trinity-nano", 6_119_996_416),
        ("trinity-mini", 26_123_970_560),
        ("trinity-large", 398_635_272_192),
        ("command-r7b", 8_028_033_024),
        ("command-a", 111_057_580_032),
        ("aya-23-8b", 8_028_033_024),
        ("command-r", 34_980_831_232),
        ("command-r-08-2024", 32_296_476_672),
        ("command-r-plus", 103_810_674_688),
        ("command-r-plus-08-2024", 103_810_674_688),
        ("ministral-3-3b", 3_429_006_336),
        ("ministral-3-8b", 8_489_553_920),
        ("ministral-3-14b", 13_506_073_600),
        ("nemotron-h-8b", 8_100_852_736),
        ("nemotron-h-56b", 56_324_350_464),
        ("nemotron-nano-9b-v2", 8_888_227_328),
        ("nemotron-3-nano-30b-a3b", 31_577_937_344),
        ("nemotron-3-super-120b-a12b", 120_668_687_360),
        ("nemotron-3-ultra-550b-a55b", 549_308_968_960),
        ("afm-4.5b", 4_619_184_640),
        ("olmo-hybrid-7b", 7_430_870_688),
        ("olmo3-7b", 7_298_011_136),
        ("olmo3-32b", 32_233_522_176),
        ("minimax-m2", 228_689_748_992),
        ("minimax-text-01", 456_089_655_296),
        ("qwen3.8-flash-next", 176_924_235_648),
        ("qwen3.5-27b", 26_895_998_464),
        ("qwen3.5-35b-a3b", 34_660_610_688),
        ("qwen3.5-397b-a17b", 396_346_350_336),
    ],
)
def test_builtin_model_has_the_published_number_of_parameters(name: str, count: int) -> None:
    """Those that are learned: biases of routers' choices come on top of what most publish."""
    assert parameters(load_model(name)) == learned_count(load_model(name)) == count


def test_every_builtin_model_loads_under_its_own_name() -> None:
    assert [load_model(name).name for name in builtin_models()] == sorted(builtin_models())


def test_what_a_llama_config_leaves_out() -> None:
    model = from_config(LLAMA, "bare")
    assert (model.num_key_value_heads, model.head_dim, model.hidden_act) == (32, 128, "silu")
    assert (model.norm_eps, model.rope_theta, model.rope_scaling) == (1e-6, 10_000.0, None)
    assert (model.tie_word_embeddings, model.attention_bias, model.mlp_bias) == (False, False, False)
    nulls = {"num_key_value_heads": None, "head_dim": None, "rope_scaling": None, "rope_theta": None}
    assert from_config({**LLAMA, **nulls}, "bare") == model


def test_what_a_mistral_and_a_mixtral_config_leave_out() -> None:
    mistral = from_config({**LLAMA, "model_type": "mistral"}, "bare")
    assert (mistral.num_key_value_heads, mistral.sliding_window, mistral.rope_theta) == (8, 4096, 10_000.0)
    assert from_config({**LLAMA, "model_type": "mistral", "sliding_window": None}, "v0.3").sliding_window is None
    mixed = ["full_attention", "sliding_attention"] * 16
    ministral = from_config({**LLAMA, "model_type": "mistral", "layer_types": mixed}, "ministral")
    assert (ministral.sliding_window, ministral.layer_types) == (4096, tuple(mixed))
    assert from_config({**LLAMA, "model_type": "ministral", "layer_types": mixed}, "ministral") == ministral
    assert from_config(to_config(ministral), "ministral") == ministral
    left_out = {"num_key_value_heads": 8, "rms_norm_eps": 1e-5}
    assert from_config({**LLAMA, "model_type": "iquestcoder"}, "m") == from_config({**LLAMA, **left_out}, "m")
    alike = ["sliding_attention"] * 32
    assert from_config({**LLAMA, "model_type": "mistral", "layer_types": alike}, "bare") == mistral
    experts = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    mixtral = from_config({**LLAMA, **experts}, "bare")
    assert (mixtral.num_key_value_heads, mixtral.sliding_window, mixtral.rope_theta) == (8, None, 1_000_000.0)
    assert (mixtral.num_local_experts, mixtral.num_experts_per_tok) == (8, 2)


def test_gpt2_has_biases_learned_positions_and_a_tied_head() -> None:
    model = from_config(GPT2, "gpt2")
    assert parameters(model) == 124_439_808  # as published for the smallest GPT-2
    assert (model.intermediate_size, model.head_dim, model.num_key_value_heads) == (3072, 64, 12)
    assert (model.hidden_act, model.norm_eps, model.rope_theta) == ("gelu_new", 1e-5, None)
    assert model.tie_word_embeddings
    assert model.attention_bias
    assert model.mlp_bias
    assert from_config({**GPT2, "n_inner": 1024}, "narrow").intermediate_size == 1024


QWEN2_MOE: dict[str, Any] = {
    **LLAMA,
    "model_type": "qwen2_moe",
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
}
GPT_NEOX: dict[str, Any] = {**LLAMA, "model_type": "gpt_neox"}


def test_what_qwen_configs_leave_out() -> None:
    qwen2 = from_config({**LLAMA, "model_type": "qwen2"}, "bare")
    assert (qwen2.attention_bias, qwen2.output_projection_bias, qwen2.normalizes_heads) == (True, False, False)
    assert (qwen2.sliding_window, qwen2.num_key_value_heads, qwen2.head_dim) == (None, 32, 128)
    qwen3 = from_config({**LLAMA, "model_type": "qwen3", "num_attention_heads": 64}, "bare")
    assert (qwen3.attention_bias, qwen3.normalizes_heads, qwen3.head_dim) == (False, True, 128)
    moe = from_config(QWEN2_MOE, "bare")
    assert (moe.num_local_experts, moe.intermediate_size, moe.shared_expert_intermediate_size) == (60, 1408, 5632)
    assert (moe.norm_topk_prob, moe.num_key_value_heads, moe.is_moe) == (False, 16, True)
    renamed = {**QWEN2_MOE, "num_experts": None, "num_local_experts": 60}
    assert from_config(renamed, "bare") == moe
    moe = from_config({**QWEN2_MOE, "model_type": "qwen3_moe", "norm_topk_prob": True}, "bare")
    assert (moe.norm_topk_prob, moe.shared_expert_intermediate_size, moe.num_key_value_heads) == (True, 0, 4)


def test_qwen_has_a_window_only_where_it_says_so() -> None:
    windowed = {**LLAMA, "model_type": "qwen2", "sliding_window": 128, "use_sliding_window": True}
    assert from_config({**windowed, "max_window_layers": 0}, "m").sliding_window == 128
    assert from_config({**windowed, "max_window_layers": 32}, "m").sliding_window is None
    assert from_config({**windowed, "use_sliding_window": False}, "m").sliding_window is None
    mixture = {**windowed, **QWEN2_MOE, "model_type": "qwen3_moe"}
    for ignored in ({}, {"layer_types": ["full_attention", "sliding_attention"] * 16}, {"max_window_layers": 32}):
        found = from_config({**mixture, **ignored}, "m")
        assert (found.sliding_window, found.layer_types) == (128, ())


def test_what_a_gpt_neox_config_leaves_out() -> None:
    model = from_config(GPT_NEOX, "bare")
    assert (model.partial_rotary_factor, model.rotary_dim, model.use_parallel_residual) == (0.25, 32, True)
    assert (model.hidden_act, model.norm_eps, model.rope_theta) == ("gelu", 1e-5, 10_000.0)
    assert (model.attention_bias, model.mlp_bias, model.tie_word_embeddings) == (True, True, False)
    newer = {"rope_parameters": {"rope_type": "default", "rope_theta": 5e4, "partial_rotary_factor": 0.5}}
    model = from_config({**GPT_NEOX, **newer, "use_parallel_residual": False}, "pythia")
    assert (model.rotary_dim, model.rope_theta, model.use_parallel_residual) == (64, 5e4, False)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {**QWEN2_MOE, "decoder_sparse_step": 0},
            "decoder_sparse_step=0 of m must be a whole number from 1 to 1,000,000,000",
        ),
        (
            {**QWEN2_MOE, "mlp_only_layers": [64]},
            "mlp_only_layers=a list of 1 of m must be a list of blocks from 0 to 31",
        ),
        (
            {**QWEN2_MOE, "use_sliding_window": True},
            "use_sliding_window=True of m is not supported for qwen2_moe; False is",
        ),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "layer_types": ["full_attention"]},
            "layer_types=a list of 1 of m must be a list of 32 words, one a block",
        ),
        (
            {"model_type": "smollm3", "sliding_window": 9, "layer_types": ["sliding_attention"] * 32},
            "use_sliding_window=False of m is not supported with sliding_attention in layer_types; True is",
        ),
        ({**GPT_NEOX, "attention_bias": False}, "attention_bias=False of m is not supported; True is"),
        (
            {**GPT_NEOX, "rotary_pct": 0.2578125},
            (
                "head_dim=128 times partial_rotary_factor=0.2578125 of m must be even: "
                "rotary positions turn pairs of numbers"
            ),
        ),
    ],
)
def test_what_a_family_cannot_have_is_named(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(AutoshardError) as raised:
        from_config({**LLAMA, **fields}, "m")
    assert str(raised.value) == text


def test_a_head_dim_of_its_own_need_not_fill_the_hidden_size() -> None:
    # Mistral-Nemo: 32 heads of 128 in a hidden size of 5120
    model = from_config({**LLAMA, "model_type": "mistral", "hidden_size": 5120, "head_dim": 128}, "nemo")
    assert model.head_dim * model.num_attention_heads == 4096


LLAMA3_ROPE = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 500_000.0, "rope_scaling": {**LLAMA3_ROPE, "rope_type": "llama3"}},
        {"rope_theta": 500_000, "rope_scaling": {**LLAMA3_ROPE, "type": "llama3", "factor": 8}},
        {"rope_parameters": {**LLAMA3_ROPE, "rope_type": "llama3", "rope_theta": 500_000.0}},
    ],
)
def test_every_way_to_write_llama3_rope_scaling(fields: dict[str, Any]) -> None:
    model = from_config({**LLAMA, **fields}, "llama3.1")
    assert (model.rope_theta, model.rope_scaling) == (500_000.0, RopeScaling("llama3", 8.0, 1.0, 4.0, 8192))
    assert json.dumps(to_json(model)["rope_scaling"]["factor"]) == "8.0"


def test_rope_scaling_goes_before_rope_parameters() -> None:
    """As transformers has it, and positions of the pre-training beside the mapping before those in it."""
    newer = {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6}}
    model = from_config({**LLAMA, **newer, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "both")
    assert (model.rope_theta, model.rope_scaling) == (10_000.0, RopeScaling("linear", 2.0))
    nothings: tuple[object, ...] = (None, {})
    for nothing in nothings:
        model = from_config({**LLAMA, **newer, "rope_scaling": nothing}, "newer")
        assert (model.rope_theta, model.rope_scaling) == (1e6, RopeScaling("linear", 4.0))
    beside = {"rope_scaling": {**LLAMA3_ROPE, "rope_type": "llama3"}, "original_max_position_embeddings": 2048}
    assert from_config({**LLAMA, **beside}, "beside").rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 2048)
    yarn = {"rope_parameters": {"rope_type": "yarn"}, "original_max_position_embeddings": 2048}
    stretched = from_config({**LLAMA, **yarn, "max_position_embeddings": 8192}, "beside").rope_scaling
    assert stretched == RopeScaling("yarn", 4.0, None, None, 2048, 32.0, 1.0)
    whole = {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "truncate": None}}
    found = from_config({**LLAMA, **whole}, "null is no").rope_scaling
    assert found is not None and found.truncate is False


def test_heads_of_their_own_width_and_number() -> None:
    """null is as many key-value heads as heads where no key is fewer, and GPT-2, GPT-NeoX and DBRX share out the hidden
    size."""
    for model_type, few in (("smollm3", 4), ("qwen3", 32), ("mistral", 8)):
        config = {**LLAMA, "model_type": model_type, "num_attention_heads": 64}
        assert from_config(config, "m").num_key_value_heads == few
        assert from_config({**config, "num_key_value_heads": None}, "m").num_key_value_heads == 64
    for config, heads, even in ((GPT2, "n_embd / n_head", 64), (GPT_NEOX, "hidden_size / num_attention_heads", 128)):
        assert from_config({**config, "head_dim": even}, "m") == from_config(config, "m")
        with pytest.raises(AutoshardError) as raised:
            from_config({**config, "head_dim": 24}, "m")
        assert str(raised.value) == f"head_dim=24 of m is not supported; {heads}={even} is"


def test_other_rope() -> None:
    linear = from_config({**LLAMA, "rope_scaling": {"type": "linear", "factor": 2.0}}, "long")
    assert linear.rope_scaling == RopeScaling("linear", 2.0)
    plain = from_config({**LLAMA, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, "plain")
    assert (plain.rope_theta, plain.rope_scaling) == (1e6, None)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"model_type": "t5"},
            f"model_type='t5' of m is not supported; the nearest that is: llama; {TRACED}; supported: {FAMILIES}",
        ),
        ({"model_type": None}, f"model_type is missing from the config of m; supported: {FAMILIES}"),
        (
            {"model_type": "qwen3_5_moe", "num_experts": 4, "linear_num_key_heads": 4, "mtp_layers": 1},
            (
                "model_type='qwen3_5_moe' of m is not supported; the nearest that is: qwen3_next, which does not know "
                f"mtp_layers; {TRACED}; supported: {FAMILIES}"
            ),
        ),
        (
            {
                "model_type": "falcon",
                "hidden_act": "relu2",
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
                "chunk_size_feed_forward": 0,
                "id2label": {"0": "LABEL_0"},
            },
            (
                f"model_type='falcon' of m is not supported; the nearest that is: falcon_h1; {TRACED}; "
                f"supported: {FAMILIES}"
            ),
        ),
        (
            {"model_type": "mllama", "text_config": {"model_type": "mllama_text_model"}},
            (
                "model_type='mllama' of m is not supported; nor is its text_config, of model_type='mllama_text_model'; "
                f"supported: {FAMILIES}"
            ),
        ),
        (
            {"model_type": "qwen3_vl", "text_config": {"hidden_size": 2048}},
            (
                "model_type='qwen3_vl' of m is not supported; nor is its text_config, of model_type=None; "
                f"supported: {FAMILIES}"
            ),
        ),
        (
            {"mamba_n_heads": 8},
            (
                "mamba_n_heads=8 of m is not a key of model_type=llama, which would be another model without it; "
                "granitemoehybrid or falcon_h1 or bamba has it"
            ),
        ),
        (
            {"model_type": "phi3", "rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}},
            "short_factor of rope_scaling of m has 1 number; the 128 numbers of a head that turn need 64",
        ),
        (
            {"model_type": "phi3", "rope_scaling": {"type": "longrope", "short_factor": 1.0}},
            "short_factor=1.0 of m must be a list of numbers",
        ),
        (
            {"model_type": "phi3", "rope_scaling": {"type": "longrope", "short_factor": [0], "long_factor": [1]}},
            "a number of short_factor=0.0 of rope_scaling must be a finite number above 0",
        ),
        (
            {"model_type": "phi3", "rope_scaling": {"type": "linear", "factor": 2.0}},
            "rope_type='linear' of m is not supported; supported: default, longrope",
        ),
        (
            {"rope_scaling": {"type": "dynamic"}},
            "factor=None of rope_scaling must be a finite number above 0",
        ),
        (
            {"model_type": "smollm3", "no_rope_layers": [1, 0]},
            (
                "no_rope_layers=a list of 2 of m must be a list of 32 numbers, one a block: 1 with rotary positions, 0 "
                "without"
            ),
        ),
        (
            {"model_type": "granite", "residual_multiplier": 0},
            "residual_multiplier=0 of m must be a finite number above 0",
        ),
        (
            {"model_type": "granitemoehybrid", "mamba_n_heads": 128, "mamba_n_groups": 3},
            "mamba_n_groups=3 of m must divide mamba_n_heads=128",
        ),
        (
            {"model_type": "granitemoehybrid", "shared_intermediate_size": 0},
            "shared_intermediate_size=0 of m must be a whole number from 1 to 1,000,000,000",
        ),
        (
            {"model_type": "granitemoehybrid", "mamba_n_heads": 100},
            "mamba_n_heads=100 x mamba_d_head=81 of m must be mamba_expand x hidden_size=8192",
        ),
        (
            {"model_type": "granitemoehybrid", "time_step_limit": [0.0, 1.0]},
            "time_step_limit=a list of 2 of m is not supported; 0 to infinity is",
        ),
        ({"hidden_size": None}, "hidden_size is missing from the config of m"),
        (
            {"hidden_size": "4096"},
            "hidden_size='4096' of m must be a whole number from 1 to 1,000,000,000, without quotes",
        ),
        (
            {"num_attention_heads": 30},
            "num_attention_heads=30 must divide hidden_size=4096 of m; near it fit: 4, 8, 16, 32",
        ),
        ({"head_dim": 0}, "head_dim=0 of m must be a whole number from 1 to 1,000,000,000"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps='1e-5' of m must be a finite number above 0, without quotes"),
        ({"rope_theta": float("inf")}, "rope_theta=inf of m must be a finite number above 0"),
        ({"rope_scaling": "linear"}, "rope_scaling='linear' of m must be null or one object for all layers"),
        (
            {"rope_scaling": {"type": "ntk", "factor": 4.0}},
            "rope_type='ntk' of m is not supported; supported: default, linear, llama3, yarn, dynamic, longrope",
        ),
        (
            {"rope_scaling": {"type": "linear"}},
            "factor=None of rope_scaling must be a finite number above 0",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 of m is not supported; 1.0 is"),
        ({"hidden_act": ["silu"]}, "hidden_act=a list of 1 of m must be one of: silu"),
        (
            {"quantization_config": {"bits": 4}},
            (
                "quantization_config of m is not supported: delete the key for the unquantised model, or give the name "
                "of a built-in one"
            ),
        ),
        ({"model_type": "mixtral"}, "num_local_experts is missing from the config of m"),
        ({"is_causal": False}, "is_causal=False of m is not supported; True is"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(AutoshardError) as raised:
        from_config({**LLAMA, **fields}, "m")
    assert str(raised.value) == text


def test_a_wrong_field_of_gpt2_is_named_as_its_config_names_it() -> None:
    with pytest.raises(AutoshardError, match=r"^n_head=11 must divide n_embd=768 of m; near it fit: 6, 8, 12, 16$"):
        from_config({**GPT2, "n_head": 11}, "m")
    with pytest.raises(AutoshardError, match=r"^scale_attn_weights=False of m is not supported; True is$"):
        from_config({**GPT2, "scale_attn_weights": False}, "m")


def test_a_directory_gives_its_config_and_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "My-Llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (folder / "other.json").write_text(json.dumps(LLAMA))
    assert load_model(str(folder)) == from_config(LLAMA, "My-Llama")
    assert read_config(folder / "config.json").name == "My-Llama"
    assert read_config(folder / "other.json").name == "other"


@pytest.mark.parametrize(
    ("repository", "name"),
    [
        ("meta-llama/Meta-Llama-3-70B", "llama3-70b"),
        ("meta-llama/meta-llama-3-70b", "llama3-70b"),
        ("meta-llama/Meta-Llama-3.1-405B", "llama3.1-405b"),
        ("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
    ],
)
def test_a_repository_of_hugging_face_is_its_config(repository: str, name: str) -> None:
    assert load_model(repository) == load_model(name)


def test_a_built_in_model_is_read_once_and_a_users_file_each_time(tmp_path: Path) -> None:
    assert load_model("meta-llama/Meta-Llama-3-70B") is load_model("llama3-70b")
    own = tmp_path / "llama3-70b.json"
    for layers in (4, 8):
        own.write_text(json.dumps({**LLAMA, "num_hidden_layers": layers}))
        assert load_model(str(own)).num_hidden_layers == layers


def test_every_repository_names_a_model_and_every_model_of_a_repository_has_one() -> None:
    repositories = json.loads((FOLDER / "repositories.json").read_text())
    assert {*repositories, "gpt3-175b", "nemotron4-340b"} == set(builtin_models())  # tables of papers
    every = [repository.lower() for some in repositories.values() for repository in some]
    assert len(set(every)) == len(every)


def test_a_folder_comes_before_a_repository_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "meta-llama" / "Meta-Llama-3-70B"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert load_model("meta-llama/Meta-Llama-3-70B") == from_config(LLAMA, "Meta-Llama-3-70B")


def test_an_unknown_repository_suggests_close_ones() -> None:
    with pytest.raises(AutoshardError) as raised:
        load_model("meta-llama/Llama-3-70B")
    assert str(raised.value).startswith(
        "model='meta-llama/Llama-3-70B' is not known; did you mean meta-llama/Llama-3.1-70B or "
        "meta-llama/Meta-Llama-3-70B or "
    )


def test_an_unknown_name_suggests_close_ones() -> None:
    with pytest.raises(AutoshardError) as raised:
        load_model("lama3-70b")
    assert str(raised.value) == (
        "model='lama3-70b' is not known; did you mean llama3-70b or llama3.1-70b or llama2-70b? (autoshard models "
        f"lists the {len(builtin_models())} that are; or a path to a Hugging Face config.json; or my_file.py:MyModel)"
    )


def test_an_unknown_name_that_is_like_no_other_lists_all() -> None:
    with pytest.raises(AutoshardError) as raised:
        load_model("\0")
    assert str(raised.value) == (
        f"model='\\x00' is not known (known: {', '.join(builtin_models())}; or a path to a Hugging Face config.json; "
        "or my_file.py:MyModel)"
    )


def test_a_wrong_field_in_a_file_is_named_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    file.write_text(json.dumps({**LLAMA, "vocab_size": None}))
    with pytest.raises(AutoshardError) as raised:
        read_config(file)
    assert str(raised.value) == f"model config {file}: vocab_size is missing from the config of bad"


def test_infinity_is_a_number_in_a_config_alone(tmp_path: Path) -> None:
    """Published configs have it as time_step_limit: another model_type is what is wrong with one, not that word."""
    file = tmp_path / "hybrid.json"
    mamba = {**LLAMA, "model_type": "granitemoehybrid", "mamba_n_heads": 128}
    file.write_text(json.dumps({**mamba, "time_step_limit": [0.0, float("inf")]}))
    assert "Infinity" in file.read_text()
    assert read_config(file) == from_config(mamba, "hybrid")
    file.write_text(json.dumps({**LLAMA, "rope_theta": float("inf")}))
    with pytest.raises(AutoshardError) as raised:
        read_config(file)
    assert str(raised.value) == f"model config {file}: rope_theta=inf of hybrid must be a finite number above 0"
    file.write_text('{"a": Infinity,\n "b": -Infinity}')
    with pytest.raises(AutoshardError) as raised:
        read_config(file)
    assert str(raised.value).endswith("line 2, column 7: -Infinity is not a finite number of a usable size")
    file.write_text(json.dumps({**LLAMA, "model_type": "zamba2", "time_step_limit": [0.0, float("inf")]}))
    with pytest.raises(AutoshardError, match=r": model_type='zamba2' of hybrid is not supported; the nearest "):
        read_config(file)


def value_or_error(make: Callable[[], Any]) -> tuple[Any, str | None]:
    try:
        return make(), None
    except AutoshardError as error:
        return None, str(error)


ANY_VALUE: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just([]), st.just({"factor": 2})
)


@given(key=st.sampled_from([*LLAMA, "head_dim", "num_key_value_heads", "rope_scaling", "rope_theta"]), value=ANY_VALUE)
def test_any_value_of_any_field_is_a_model_or_one_line(key: str, value: Any) -> None:
    model, error = value_or_error(lambda: from_config({**LLAMA, key: value}, "m"))
    if error is None:
        assert from_json(ModelSpec, json.loads(json.dumps(to_json(model))), "model") == model
    else:
        assert error.isprintable()


def test_a_python_file_needs_the_name_of_a_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("class Net: pass\n")
    with pytest.raises(AutoshardError) as raised:
        load_model("mine.py")
    assert str(raised.value) == (
        "model='mine.py' is a Python file without the name of a class in it, or of a function that makes a module; "
        "mine.py:CLASS has one"
    )
