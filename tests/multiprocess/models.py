"""Small models for the parity tests, of every family. Imported by the processes too, so no test code here."""

from dataclasses import replace

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
from autoshard.spec.linear_attention import LightningAttention, LinearAttention, Mamba, Mamba1, ShortConv
from autoshard.spec.lora import Lora
from autoshard.spec.model import ModelSpec
from autoshard.spec.multipliers import Multipliers
from autoshard.spec.ngram_embedding import NgramEmbedding
from autoshard.spec.prediction import MultiTokenPrediction
from autoshard.spec.rope import RopeScaling
from autoshard.spec.router import Router
from autoshard.spec.weighted_residual import WeightedResidual
from tests.traced_models import ODD

LLAMA = ModelSpec(
    name="tiny-llama",
    model_type="llama",
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=8,
    vocab_size=96,
    max_position_embeddings=64,
    hidden_act="silu",
    norm_eps=1e-5,
    rope_theta=1e4,
    rope_scaling=None,
    tie_word_embeddings=False,
    sliding_window=None,
    attention_bias=False,
    mlp_bias=False,
)
MODELS = {
    "llama": LLAMA,
    "few kv heads": replace(LLAMA, num_key_value_heads=2),
    "one kv head": replace(LLAMA, num_key_value_heads=1),
    "tied": replace(LLAMA, tie_word_embeddings=True),
    "rope scaling": replace(LLAMA, rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 8)),
    "mistral": replace(LLAMA, model_type="mistral", sliding_window=9),
    "mixtral": replace(LLAMA, model_type="mixtral", num_local_experts=4, num_experts_per_tok=2),
    "balanced mixtral": replace(
        LLAMA, model_type="mixtral", num_local_experts=4, num_experts_per_tok=2, router_aux_loss_coef=0.5
    ),
    # 90 entries do not divide by tp: the vocabulary is padded
    "gpt2": replace(
        LLAMA,
        model_type="gpt2",
        num_key_value_heads=8,
        rope_theta=None,
        tie_word_embeddings=True,
        attention_bias=True,
        mlp_bias=True,
        hidden_act="gelu_new",
        vocab_size=91,
    ),
    "llama with biases": replace(LLAMA, attention_bias=True, mlp_bias=True),
    "gpt neox": replace(
        LLAMA,
        model_type="gpt_neox",
        num_key_value_heads=8,
        attention_bias=True,
        mlp_bias=True,
        hidden_act="gelu",
        partial_rotary_factor=0.25,
        use_parallel_residual=True,
    ),
    "qwen2": replace(LLAMA, model_type="qwen2", attention_bias=True),
    "qwen3": replace(LLAMA, model_type="qwen3", num_key_value_heads=2, head_dim=16),
    "qwen2 moe": replace(
        LLAMA,
        model_type="qwen2_moe",
        attention_bias=True,
        num_local_experts=4,
        num_experts_per_tok=2,
        shared_expert_intermediate_size=64,
        norm_topk_prob=False,
    ),
    "odd": ODD,
    "qwen3 moe": replace(LLAMA, model_type="qwen3_moe", num_local_experts=8, num_experts_per_tok=3),
    # tp=2 and tp=4 divide neither heads nor inner widths: both are padded
    "3 kv heads": replace(LLAMA, num_attention_heads=6, num_key_value_heads=3, intermediate_size=91),
    "3 heads share": replace(LLAMA, model_type="qwen3", num_attention_heads=6, num_key_value_heads=2, head_dim=16),
    "one kv head for 3": replace(LLAMA, num_attention_heads=3, num_key_value_heads=1),
}
MODELS["windows on later blocks"] = replace(
    MODELS["qwen2"], sliding_window=9, layer_types=("full_attention", *("sliding_attention",) * 3)
)
MODELS["a dense block"] = replace(
    MODELS["qwen3 moe"], mlp_layer_types=("dense", "sparse", "sparse", "sparse"), dense_intermediate_size=80
)
MODELS["dense and sparse"] = replace(
    MODELS["qwen2 moe"], mlp_layer_types=("dense", "sparse") * 2, dense_intermediate_size=80
)
MODELS["deepseek v3"] = replace(
    LLAMA,
    model_type="deepseek_v3",
    num_key_value_heads=8,
    head_dim=20,
    rope_scaling=RopeScaling("yarn", 4.0, None, None, 8, beta_fast=4.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=0.7),
    num_local_experts=8,
    num_experts_per_tok=3,
    shared_expert_intermediate_size=192,
    mlp_layer_types=("dense", "sparse", "sparse", "sparse"),
    dense_intermediate_size=80,
    latent_attention=LatentAttention(q_lora_rank=24, kv_lora_rank=12, qk_rope_head_dim=8, v_head_dim=10),
    router=Router("sigmoid", "noaux_tc", n_group=4, topk_group=2, routed_scaling_factor=1.5),
)
# 6 heads: tp=4 pads them
MODELS["deepseek v2 of 6 heads"] = replace(
    MODELS["deepseek v3"],
    model_type="deepseek_v2",
    num_attention_heads=6,
    num_key_value_heads=6,
    latent_attention=LatentAttention(q_lora_rank=None, kv_lora_rank=12, qk_rope_head_dim=8, v_head_dim=10),
    router=Router("softmax", "group_limited_greedy", n_group=4, topk_group=2),
    norm_topk_prob=False,
)
MODELS["a.x-k1"] = replace(
    MODELS["deepseek v3"],
    model_type="axk1",
    rope_scaling=None,
    shared_expert_intermediate_size=96,
    router=Router("sigmoid", "noaux_tc", n_group=2, topk_group=1, routed_scaling_factor=2.5),
)
MODELS["deepseek v3, predicting"] = replace(
    MODELS["deepseek v3"], multi_token_prediction=MultiTokenPrediction(mtp_loss_scaling_factor=0.3)
)
MODELS["glm4 moe"] = replace(
    MODELS["deepseek v3"],
    model_type="glm4_moe",
    num_key_value_heads=2,
    head_dim=8,
    partial_rotary_factor=0.5,
    rope_scaling=None,
    attention_bias=True,
    use_qk_norm=True,
    latent_attention=None,
)
MODELS["smollm3"] = replace(
    LLAMA, model_type="smollm3", tie_word_embeddings=True, position_types=("rope", "nope", "rope", "nope")
)
MODELS["phi3"] = replace(LLAMA, model_type="phi3", sliding_window=9, partial_rotary_factor=0.75)
MODELS["phi3, longrope"] = replace(
    LLAMA,
    model_type="phi3",
    num_key_value_heads=2,
    rope_scaling=RopeScaling(
        "longrope",
        4.0,
        original_max_position_embeddings=8,
        short_factor=(1.0, 1.1, 1.2, 1.3),
        long_factor=(1.0, 2.0, 4.0, 8.0),
    ),
)
MODELS["olmo2"] = replace(LLAMA, model_type="olmo2", num_key_value_heads=8)
MODELS["olmo2, shared heads"] = replace(LLAMA, model_type="olmo2", num_attention_heads=6, num_key_value_heads=2)
MODELS["seed oss"] = replace(LLAMA, model_type="seed_oss", attention_bias=True, mlp_bias=True)
MODELS["glm4"] = replace(
    LLAMA, model_type="glm4", num_key_value_heads=2, head_dim=16, partial_rotary_factor=0.5, attention_bias=True
)
MODELS["glm"] = replace(MODELS["glm4"], model_type="glm")
MODELS["ernie 4.5"] = replace(LLAMA, model_type="ernie4_5", num_key_value_heads=2, tie_word_embeddings=True)
MODELS["ernie 4.5 moe"] = replace(
    MODELS["ernie 4.5"],
    model_type="ernie4_5_moe",
    num_local_experts=8,
    num_experts_per_tok=3,
    shared_expert_intermediate_size=192,
    mlp_layer_types=("dense", "sparse", "sparse", "sparse"),
    dense_intermediate_size=80,
    router=Router("softmax", "noaux_tc"),
)
MODELS["dots.llm1"] = replace(
    MODELS["glm4 moe"], model_type="dots1", partial_rotary_factor=1.0, attention_bias=False, use_qk_norm=False
)
MODELS["solar open"] = replace(
    MODELS["dots.llm1"], model_type="solar_open", attention_bias=True, mlp_layer_types=(), dense_intermediate_size=0
)
MODELS["hy3"] = replace(MODELS["dots.llm1"], model_type="hy_v3", router=Router("sigmoid", "noaux_tc"))
MODELS["sarvam"] = replace(MODELS["dots.llm1"], model_type="sarvam_moe", use_qk_norm=True)
MODELS["sarvam, latent"] = replace(
    MODELS["deepseek v3"],
    model_type="sarvam_mla",
    latent_attention=LatentAttention(q_lora_rank=None, kv_lora_rank=12, qk_rope_head_dim=8, v_head_dim=10),
    router=Router("sigmoid", "noaux_tc", routed_scaling_factor=2.5),
)
MODELS["hunyuan"] = replace(LLAMA, model_type="hunyuan_v1_dense", num_key_value_heads=2, head_dim=16)
MODELS["hunyuan, biases"] = replace(
    MODELS["hunyuan"], attention_bias=True, num_attention_heads=6, tie_word_embeddings=True
)
MODELS["hunyuan moe"] = replace(
    MODELS["hunyuan"],
    model_type="hunyuan_v1_moe",
    num_local_experts=8,
    num_experts_per_tok=3,
    shared_expert_intermediate_size=96,
)
MODELS["afmoe"] = replace(
    MODELS["dots.llm1"],
    model_type="afmoe",
    head_dim=16,
    mlp_layer_types=("dense", "sparse", "sparse", "sparse"),
    router=Router("sigmoid", "noaux_tc", routed_scaling_factor=1.5),
    sliding_window=5,
    layer_types=(*("sliding_attention",) * 3, "full_attention"),
    position_types=(*("rope",) * 3, "nope"),
)
MODELS["afmoe of 6 heads"] = replace(MODELS["afmoe"], num_attention_heads=6, tie_word_embeddings=True)
MODELS["exaone moe"] = replace(
    MODELS["dots.llm1"],
    model_type="exaone_moe",
    sliding_window=5,
    layer_types=(*("sliding_attention",) * 3, "full_attention"),
    position_types=(*("rope",) * 3, "nope"),
)
MODELS["olmo hybrid"] = replace(
    LLAMA,
    model_type="olmo_hybrid",
    layer_types=("linear_attention",) * 2 + ("full_attention", "linear_attention"),
    position_types=("nope",) * 4,
    linear_attention=LinearAttention(4, 4, 6, 12, 4, linear_allow_neg_eigval=True),
)
MODELS["olmo hybrid, 3 heads, positions"] = replace(
    MODELS["olmo hybrid"],
    attention_bias=True,
    tie_word_embeddings=True,
    position_types=(),
    linear_attention=LinearAttention(3, 6, 8, 4, 3),
)
MODELS["mimo"] = replace(
    MODELS["dots.llm1"],
    model_type="mimo_v2_flash",
    head_dim=12,
    v_head_dim=8,
    partial_rotary_factor=0.34,
    num_key_value_heads=4,
    global_attention=GlobalAttention(2, 12),
    rope_local_base_freq=1e3,
    sliding_window=5,
    layer_types=("full_attention", *("sliding_attention",) * 2, "full_attention"),
    mlp_layer_types=("dense", *("sparse",) * 3),
    shared_expert_intermediate_size=0,
    router=Router("sigmoid", "noaux_tc"),
    attention_scores=AttentionScores(window_sinks=True, attention_value_scale=0.707),
)
MODELS["mimo of 6 heads"] = replace(
    MODELS["mimo"],
    num_attention_heads=6,
    num_key_value_heads=6,
    global_attention=GlobalAttention(3, 12),
    attention_bias=True,
    tie_word_embeddings=True,
)
MODELS["starcoder2"] = replace(
    LLAMA,
    model_type="starcoder2",
    hidden_act="gelu_pytorch_tanh",
    num_key_value_heads=2,
    attention_bias=True,
    mlp_bias=True,
    sliding_window=5,
    tie_word_embeddings=True,
)
MODELS["jais2"] = replace(LLAMA, model_type="jais2", hidden_act="relu2", attention_bias=True, mlp_bias=True)
MODELS["laguna"] = replace(
    MODELS["dots.llm1"],
    model_type="laguna",
    head_dim=16,
    num_key_value_heads=4,
    global_attention=GlobalAttention(4, 16, num_global_attention_heads=12, global_partial_rotary_factor=0.5),
    rope_local_base_freq=1e3,
    sliding_window=5,
    layer_types=("full_attention", *("sliding_attention",) * 2, "full_attention"),
    mlp_layer_types=("dense", *("sparse",) * 3),
    shared_expert_intermediate_size=40,
    router=Router("sigmoid", "noaux_tc", routed_scaling_factor=2.5),
)
MODELS["laguna of 6 heads"] = replace(
    MODELS["laguna"],
    num_attention_heads=6,
    num_key_value_heads=3,
    global_attention=GlobalAttention(3, 16, num_global_attention_heads=3),
    tie_word_embeddings=True,
)
MODELS |= {
    f"step{heads}": replace(
        MODELS[f"laguna{heads}"],
        model_type="step3p5",
        clamped_gate=ClampedGate(0.02, swiglu_limit_shared=0.01),
        gate_types=("shared", "routed", "free", "both"),
    )
    for heads in ("", " of 6 heads")
}
MODELS["cwm"] = replace(
    LLAMA,
    model_type="cwm",
    num_key_value_heads=2,
    sliding_window=5,
    layer_types=("full_attention", *("sliding_attention",) * 3),
)
MODELS["glm4 moe lite"] = replace(
    MODELS["deepseek v3"], model_type="glm4_moe_lite", rope_scaling=None, router=Router("sigmoid", "noaux_tc")
)
MODELS["nemotron"] = replace(
    LLAMA, model_type="nemotron", hidden_act="relu2", num_key_value_heads=2, head_dim=16, partial_rotary_factor=0.5
)
MODELS["nemotron, biases"] = replace(MODELS["nemotron"], attention_bias=True, mlp_bias=True, num_attention_heads=6)
MODELS["olmo"] = replace(
    LLAMA, model_type="olmo", num_key_value_heads=2, attention_scores=AttentionScores(clip_qkv=0.02)
)
MODELS["nanochat"] = replace(
    LLAMA,
    model_type="nanochat",
    hidden_act="relu2",
    num_key_value_heads=2,
    attention_bias=True,
    final_logit_softcapping=2.0,
)
MODELS["arcee"] = replace(LLAMA, model_type="arcee", hidden_act="relu2", num_key_value_heads=2, mlp_bias=True)
# tables apart, the gradients of its numbers are sums whose terms cancel: FP32 has 5 digits of them
MODELS["apertus"] = replace(
    LLAMA,
    model_type="apertus",
    hidden_act="xielu",
    num_key_value_heads=2,
    head_dim=16,
    tie_word_embeddings=True,
    rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 8),
)
MODELS["apertus, biases"] = replace(MODELS["apertus"], attention_bias=True, num_attention_heads=6, intermediate_size=91)
MODELS["exaone4"] = replace(
    LLAMA,
    model_type="exaone4",
    num_key_value_heads=2,
    sliding_window=5,
    layer_types=(*("sliding_attention",) * 3, "full_attention"),
    position_types=(*("rope",) * 3, "nope"),
)
MODELS["olmo3"] = replace(
    LLAMA,
    model_type="olmo3",
    sliding_window=5,
    layer_types=(*("sliding_attention",) * 3, "full_attention"),
    rope_scaling=RopeScaling(
        "yarn", 4.0, original_max_position_embeddings=8, beta_fast=4.0, beta_slow=1.0, attention_factor=1.2
    ),
    rope_local_base_freq=1e4,
)
MODELS["olmo3, shared heads"] = replace(MODELS["olmo3"], num_attention_heads=6, num_key_value_heads=2)
MODELS["minimax m2"] = replace(
    LLAMA,
    model_type="minimax_m2",
    head_dim=16,
    partial_rotary_factor=0.5,
    num_local_experts=8,
    num_experts_per_tok=3,
    router=Router("sigmoid", "noaux_tc"),
)
MODELS["olmoe"] = replace(LLAMA, model_type="olmoe", num_local_experts=8, num_experts_per_tok=3, norm_topk_prob=False)
MODELS["flex olmo"] = replace(MODELS["olmoe"], model_type="flex_olmo", num_experts_per_tok=8)
MODELS["minimax text"] = replace(
    LLAMA,
    model_type="minimax",
    head_dim=16,
    partial_rotary_factor=0.5,
    num_local_experts=4,
    num_experts_per_tok=2,
    layer_types=("lightning_attention", "full_attention", "lightning_attention", "lightning_attention"),
    lightning_attention=LightningAttention(6),
    weighted_residual=WeightedResidual(3.5, 1.0, 2.5, 0.5, 1.5, 1.0),
)
# 6 heads, 2 of keys: tp=4 pads those of lightning attention, and copies these
MODELS["minimax text of 6 heads"] = replace(
    MODELS["minimax text"],
    num_attention_heads=6,
    num_key_value_heads=2,
    tie_word_embeddings=True,
    sliding_window=5,
    layer_types=("lightning_attention", "sliding_attention") * 2,
    weighted_residual=WeightedResidual(1.0, 0.75, 1.0, 1.0, 1.0, 2.0),
)
MODELS["minimax m2, shared heads"] = replace(MODELS["minimax m2"], num_attention_heads=6, num_key_value_heads=2)
MODELS["granite"] = replace(
    LLAMA, model_type="granite", tie_word_embeddings=True, multipliers=Multipliers(12.0, 0.25, 0.22, 8.0)
)
MODELS["hyperclovax"] = replace(
    LLAMA, model_type="hyperclovax", attention_bias=True, multipliers=Multipliers(10.0, 0.25, 0.5, 4.0)
)
MODELS["mellum"] = replace(
    MODELS["qwen3 moe"],
    model_type="mellum",
    sliding_window=5,
    layer_types=(*("sliding_attention",) * 3, "full_attention"),
    rope_scaling=MODELS["olmo3"].rope_scaling,
    rope_local_base_freq=100.0,
    mlp_layer_types=("dense", "sparse", "sparse", "sparse"),
    dense_intermediate_size=80,
)
LINEAR = LinearAttention(4, 8, 8, 12, 4)
MODELS["qwen3 next"] = replace(
    MODELS["qwen2 moe"],
    model_type="qwen3_next",
    attention_bias=False,
    head_dim=16,
    partial_rotary_factor=0.25,
    layer_types=("linear_attention", "full_attention") * 2,
    linear_attention=LINEAR,
)
MODELS["linear attention, 3 heads"] = replace(MODELS["qwen3 next"], linear_attention=LinearAttention(3, 6, 8, 12, 4))
MODELS["qwen3.5"] = replace(
    LLAMA,
    model_type="qwen3_5_text",
    num_key_value_heads=2,
    head_dim=16,
    partial_rotary_factor=0.25,
    layer_types=("linear_attention", "full_attention") * 2,
    linear_attention=LINEAR,
)
MODELS["qwen3.5 moe"] = replace(MODELS["qwen3 next"], model_type="qwen3_5_moe_text", norm_topk_prob=True)
MODELS["granite hybrid"] = replace(
    MODELS["granite"],
    model_type="granitemoehybrid",
    layer_types=("mamba", "full_attention", "mamba", "mamba"),
    mamba=Mamba(16, 8, 12, 4, 8, True),
    position_types=("nope",) * 4,
)
MODELS["granite hybrid, experts"] = replace(
    MODELS["granite hybrid"],
    num_local_experts=4,
    num_experts_per_tok=2,
    shared_expert_intermediate_size=48,
    mamba=Mamba(3, 64, 12, 4, 256, False),
)
MODELS["granite moe, shared"] = replace(
    MODELS["granite"],
    model_type="granitemoeshared",
    num_local_experts=8,
    num_experts_per_tok=3,
    shared_expert_intermediate_size=48,
)
MODELS["granite moe"] = replace(
    MODELS["granite moe, shared"], model_type="granitemoe", shared_expert_intermediate_size=0
)
MODELS["granite swa"] = replace(
    MODELS["granite"],
    model_type="granite_swa",
    sliding_window=5,
    layer_types=("full_attention", *("sliding_attention",) * 3),
    position_types=(*("rope",) * 3, "nope"),
    rope_local_base_freq=100.0,
    attention_scores=AttentionScores(sinks=True),
)
MODELS["granite moe swa"] = replace(
    MODELS["granite swa"],
    model_type="granitemoe_swa",
    num_local_experts=8,
    num_experts_per_tok=3,
    shared_expert_intermediate_size=48,
)
MODELS["kolibri 1"] = replace(
    LLAMA,
    model_type="kolibri1",
    head_dim=16,
    intermediate_size=32,
    sliding_window=5,
    layer_types=(*("sliding_attention",) * 3, "full_attention"),
    position_types=(*("rope",) * 3, "nope"),
    num_local_experts=8,
    num_experts_per_tok=3,
    shared_expert_intermediate_size=48,
    norm_topk_prob=False,
    router=Router("sigmoid", "corrected_logits"),
)
MODELS["falcon h1"] = replace(
    LLAMA,
    model_type="falcon_h1",
    num_key_value_heads=2,
    layer_types=("hybrid",) * 4,
    mamba=Mamba(8, 8, 12, 4, 8, True, 4),
    branch_multipliers=BranchMultipliers(5.5, 1.5, 0.5, 0.75, 1.25, (0.5, 0.25, 0.375, 0.75, 1.5), 0.5, (0.875, 0.625)),
    logit_scale=0.25,
)
MODELS["falcon h1, 3 heads, no norm"] = replace(
    MODELS["falcon h1"],
    num_attention_heads=6,
    num_key_value_heads=3,
    head_dim=16,
    mamba=Mamba(3, 16, 12, 4, 256, False, mamba_rms_norm=False),
    tie_word_embeddings=True,
)
MODELS["helium"] = replace(LLAMA, model_type="helium", num_key_value_heads=8, attention_bias=True, mlp_bias=True)
MODELS["bamba"] = replace(
    LLAMA,
    model_type="bamba",
    num_key_value_heads=2,
    partial_rotary_factor=0.5,
    layer_types=("mamba", "full_attention", "mamba", "mamba"),
    mamba=Mamba(8, 16, 12, 4, 8, True, 4),
)
MODELS["bamba, 3 heads, biases"] = replace(
    MODELS["bamba"],
    num_attention_heads=6,
    num_key_value_heads=3,
    head_dim=16,
    mamba=Mamba(3, 64, 12, 4, 256, False),
    attention_bias=True,
    mlp_bias=True,
    tie_word_embeddings=True,
)
MODELS["jamba"] = replace(
    LLAMA,
    model_type="jamba",
    num_key_value_heads=2,
    layer_types=("mamba1", "full_attention", "mamba1", "mamba1"),
    mamba1=Mamba1(128, 12, 6, 4, True),
    position_types=("nope",) * 4,
    num_local_experts=4,
    num_experts_per_tok=2,
    norm_topk_prob=False,
    mlp_layer_types=("dense", "sparse") * 2,
    dense_intermediate_size=96,
)
MODELS["jamba, 6 heads, 54 channels"] = replace(
    MODELS["jamba"],
    hidden_size=54,
    num_attention_heads=6,
    num_key_value_heads=3,
    head_dim=16,
    mamba1=Mamba1(54, 5, 4, 3, False),
    num_local_experts=0,
    num_experts_per_tok=0,
    norm_topk_prob=True,
    mlp_layer_types=(),
    dense_intermediate_size=0,
    tie_word_embeddings=True,
)
MODELS["mamba"] = replace(
    LLAMA,
    model_type="mamba",
    num_attention_heads=1,
    num_key_value_heads=1,
    head_dim=1,
    layer_types=("mamba1",) * 4,
    mlp_layer_types=("none",) * 4,
    position_types=("nope",) * 4,
    mamba1=Mamba1(96, 12, 6, 4, True),
    tie_word_embeddings=True,
)
MODELS["falcon mamba, 54 channels"] = replace(
    MODELS["mamba"],
    model_type="falcon_mamba",
    intermediate_size=54,
    mamba1=Mamba1(54, 5, 4, 3, False, 1e-3),
    tie_word_embeddings=False,
)
MODELS["phi"] = replace(
    LLAMA, model_type="phi", hidden_act="gelu_new", attention_bias=True, mlp_bias=True, partial_rotary_factor=0.5
)
MODELS["phi of 6 heads"] = replace(
    MODELS["phi"], hidden_size=48, num_attention_heads=6, num_key_value_heads=3, vocab_size=93
)
MODELS["stablelm"] = replace(LLAMA, model_type="stablelm", attention_bias=True, partial_rotary_factor=0.25)
MODELS["stablelm, side by side"] = replace(MODELS["stablelm"], use_parallel_residual=True, attention_bias=False)
MODELS["stablelm, norms of heads"] = replace(MODELS["stablelm, side by side"], num_key_value_heads=2, use_qk_norm=True)
MODELS["stablelm of 6 heads"] = replace(
    MODELS["stablelm, norms of heads"], hidden_size=48, num_attention_heads=6, num_key_value_heads=3, vocab_size=93
)
MODELS["granite hybrid, groups"] = replace(MODELS["granite hybrid"], mamba=Mamba(16, 8, 12, 4, 8, True, 4))
MODELS["lfm2"] = replace(
    LLAMA,
    model_type="lfm2",
    num_key_value_heads=2,
    tie_word_embeddings=True,
    layer_types=("conv", "full_attention", "conv", "conv"),
    conv=ShortConv(3, False),
)
MODELS["lfm2, biases"] = replace(MODELS["lfm2"], tie_word_embeddings=False, conv=ShortConv(4, True))
MODELS["lfm2 moe"] = replace(
    MODELS["lfm2"],
    model_type="lfm2_moe",
    num_local_experts=8,
    num_experts_per_tok=3,
    mlp_layer_types=("dense", "sparse", "sparse", "sparse"),
    dense_intermediate_size=48,
    router=Router("sigmoid", "noaux_tc", routed_scaling_factor=1.5),
)
MODELS["lfm3"] = replace(
    LLAMA,
    model_type="lfm3",
    num_key_value_heads=2,
    tie_word_embeddings=True,
    layer_types=("conv", "full_attention", "sliding_attention", "conv"),
    sliding_window=5,
    conv=ShortConv(7, False),
    rope_scaling=RopeScaling("proportional", 1.0, partial_rotary_factor=0.5),
    rope_local_base_freq=100.0,
)
MODELS["kimi linear"] = replace(
    MODELS["deepseek v3"],
    model_type="kimi_linear",
    rope_scaling=None,
    layer_types=("linear_attention", "linear_attention", "full_attention", "linear_attention"),
    position_types=("nope",) * 4,
    latent_attention=LatentAttention(q_lora_rank=None, kv_lora_rank=12, qk_rope_head_dim=8, v_head_dim=10),
    linear_attention=LinearAttention(4, 4, 12, 12, 4),
)
MODELS["kimi linear, 3 heads"] = replace(
    MODELS["kimi linear"],
    latent_attention=MODELS["deepseek v3"].latent_attention,
    linear_attention=LinearAttention(3, 3, 8, 8, 3),
)
MODELS["ling 3"] = replace(
    MODELS["kimi linear"],
    model_type="bailing_hybrid",
    position_types=(),
    linear_attention=LinearAttention(4, 4, 12, 12, 4, kda_lower_bound=-2.0),
)
MODELS["cohere2"] = replace(
    LLAMA,
    model_type="cohere2",
    num_key_value_heads=2,
    tie_word_embeddings=True,
    sliding_window=5,
    layer_types=(*("sliding_attention",) * 3, "full_attention"),
    position_types=(*("rope",) * 3, "nope"),
    logit_scale=0.25,
)
MODELS["cohere"] = replace(
    LLAMA, model_type="cohere", num_key_value_heads=2, tie_word_embeddings=True, use_qk_norm=True, logit_scale=0.25
)
MODELS["cohere of 6 heads"] = replace(
    MODELS["cohere"], hidden_size=48, num_attention_heads=6, num_key_value_heads=3, vocab_size=93
)
MODELS["cohere2 moe"] = replace(
    MODELS["cohere2"],
    model_type="cohere2_moe",
    num_local_experts=8,
    num_experts_per_tok=3,
    shared_expert_intermediate_size=192,
    averages_shared_expert=True,
    mlp_layer_types=("dense", "sparse", "sparse", "sparse"),
    dense_intermediate_size=80,
    router=Router("sigmoid", "greedy"),
)
MODELS["cohere2 moe, RMS norms"] = replace(
    MODELS["cohere2 moe"],
    use_rms_norm=True,
    averages_shared_expert=False,
    mlp_layer_types=(),
    dense_intermediate_size=0,
    router=None,
)
MODELS["ministral3"] = replace(
    LLAMA,
    model_type="ministral3",
    num_key_value_heads=2,
    head_dim=16,
    tie_word_embeddings=True,
    rope_scaling=RopeScaling("yarn", 4.0, None, None, 3, beta_fast=4.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0),
    attention_scores=AttentionScores(llama_4_scaling_beta=0.7),
)
MODELS["mistral4"] = replace(
    MODELS["deepseek v3"],
    model_type="mistral4",
    router=Router("softmax", "greedy"),
    rope_scaling=MODELS["ministral3"].rope_scaling,
    attention_scores=MODELS["ministral3"].attention_scores,
)
MODELS["deepseek v3.2"] = replace(
    MODELS["deepseek v3"],
    model_type="deepseek_v32",
    indexer=Indexer(index_n_heads=6, index_head_dim=12, index_topk=5),
    rope_scaling=MODELS["ministral3"].rope_scaling,
)
MODELS["deepseek v3.2, predicting"] = replace(MODELS["deepseek v3.2"], multi_token_prediction=MultiTokenPrediction())
MODELS["glm 5"] = replace(
    MODELS["glm4 moe lite"],
    model_type="glm_moe_dsa",
    indexer=Indexer(index_n_heads=4, index_head_dim=8, index_topk=5, indexer_rope_interleave=True),
)
MODELS["glm 5.2"] = replace(MODELS["glm 5"], indexer_types=("full", "shared", "full", "shared"))
MODELS["mistral large 4"] = replace(
    MODELS["deepseek v3.2"],
    model_type="mistral_large4_text",
    latent_attention=LatentAttention(None, 12, 8, 10),
    indexer=Indexer(index_n_heads=6, index_head_dim=12, index_topk=5, indexer_rope_interleave=True),
    indexer_types=("full", "full", "shared", "full"),
    position_types=("nope", "rope", "nope", "rope"),
    router=Router("softmax", "greedy", routed_scaling_factor=1.5),
    final_logit_softcapping=0.7,
)
# block 2 takes the keys of block 0, and block 3 those of block 1
MODELS["mistral large 4, shared keys"] = replace(
    MODELS["mistral large 4"], indexer_types=(), kv_source_layers=(0, 1, 0, 1)
)
# 6 heads: tp=4 pads them
MODELS["mistral large 4 of 6 heads"] = replace(
    MODELS["mistral large 4"], hidden_size=96, num_attention_heads=6, num_key_value_heads=6, indexer_types=()
)
MODELS["deepseek v4"] = replace(
    LLAMA,
    model_type="deepseek_v4",
    num_key_value_heads=1,
    head_dim=16,
    partial_rotary_factor=0.5,
    rope_scaling=RopeScaling("yarn", 4.0, None, None, 8, beta_fast=4.0, beta_slow=1.0, attention_factor=1.0),
    rope_local_base_freq=1e3,
    sliding_window=5,
    num_local_experts=8,
    num_experts_per_tok=3,
    shared_expert_intermediate_size=96,
    layer_types=(
        *("sliding_attention", "heavily_compressed_attention"),
        *("compressed_sparse_attention", "compressed_sparse_attention"),
    ),
    mlp_layer_types=("hashed", "sparse", "hashed", "sparse"),
    gate_types=("both",) * 4,
    compressed_attention=CompressedAttention(
        q_lora_rank=24,
        o_groups=4,
        o_lora_rank=6,
        sparse_rate=2,
        heavy_rate=3,
        index_n_heads=6,
        index_head_dim=12,
        index_topk=2,
    ),
    hyper_connections=HyperConnections(hc_mult=4, hc_sinkhorn_iters=4, hc_eps=1e-6),
    router=Router("sqrtsoftplus", "noaux_tc", routed_scaling_factor=1.5),
    attention_scores=AttentionScores(sinks=True),
    clamped_gate=ClampedGate(0.1, swiglu_limit_shared=0.1, cuts_before_silu=True),
)
# 6 heads in 3 groups: tp=2 and tp=4 pad them
MODELS["deepseek v4 of 6 heads"] = replace(
    MODELS["deepseek v4"],
    num_attention_heads=6,
    hyper_connections=HyperConnections(hc_mult=2, hc_sinkhorn_iters=1, hc_eps=1e-6),
    layer_types=(
        *("compressed_sparse_attention", "compressed_sparse_attention"),
        *("sliding_attention", "heavily_compressed_attention"),
    ),
    mlp_layer_types=("sparse", "sparse", "sparse", "hashed"),
    compressed_attention=CompressedAttention(24, 3, 6, 3, 2, 4, 8, 100),
)
MODELS["glm 5.3"] = replace(
    MODELS["deepseek v3"],
    model_type="glm5_next_text",
    rope_scaling=None,
    latent_attention=LatentAttention(q_lora_rank=24, kv_lora_rank=12, qk_rope_head_dim=0, v_head_dim=10),
    position_types=("nope",) * 4,
    layer_types=("linear_attention", "full_attention", "linear_attention", "full_attention"),
    linear_attention=LinearAttention(4, 4, 8, 8, 3, kda_lower_bound=-5.0),
    gate_types=("both",) * 4,
    clamped_gate=ClampedGate(0.1, swiglu_limit_shared=0.1, cuts_before_silu=True),
    hyper_connections=HyperConnections(hc_mult=4, hc_sinkhorn_iters=4, hc_eps=1e-6),
    indexer=Indexer(index_n_heads=6, index_head_dim=12, index_topk=4, index_kpool=2),
)
MODELS["glm 5.3, one choice for two blocks"] = replace(
    MODELS["glm 5.3"],
    layer_types=("linear_attention", "full_attention", "full_attention", "linear_attention"),
    indexer_types=("full", "full", "shared", "full"),
)
# 6 heads, 3 of linear attention: tp=2 and tp=4 pad both; fading has no bound
MODELS["glm 5.3 of 6 heads"] = replace(
    MODELS["glm 5.3"],
    num_attention_heads=6,
    num_key_value_heads=6,
    layer_types=("full_attention", "linear_attention", "linear_attention", "linear_attention"),
    linear_attention=LinearAttention(3, 3, 8, 8, 4),
    hyper_connections=HyperConnections(hc_mult=2, hc_sinkhorn_iters=1, hc_eps=1e-6),
    indexer=Indexer(index_n_heads=4, index_head_dim=8, index_topk=6, index_kpool=3),
)
MODELS["hy4"] = replace(
    MODELS["deepseek v3.2"],
    model_type="hy_v4",
    latent_attention=LatentAttention(24, 12, 8, 10, rope_interleave=False),
    hyper_connections=HyperConnections(hc_mult=4, hc_sinkhorn_iters=None, hc_eps=1e-6, hc_magnitude=1.5),
    indexer=Indexer(6, 12, 5, turns_end=True, key_norm_eps=LLAMA.norm_eps),
    indexer_types=("full", "full", "shared", "shared"),
    attention_scores=AttentionScores(sinks=True),
    clamped_gate=ClampedGate(0.1, cuts_before_silu=True),
)
MODELS["hy4 of 6 heads"] = replace(
    MODELS["hy4"],
    num_attention_heads=6,
    num_key_value_heads=6,
    hyper_connections=HyperConnections(hc_mult=2, hc_sinkhorn_iters=None, hc_eps=1e-6),
    latent_attention=LatentAttention(24, 12, 8, 10),
    indexer=Indexer(4, 12, 5, True, turns_end=True, key_norm_eps=LLAMA.norm_eps),
    indexer_types=(),
    rope_scaling=None,
)
MODELS["longcat"] = replace(
    MODELS["deepseek v3"],
    model_type="longcat_flash",
    rope_scaling=None,
    shared_expert_intermediate_size=0,
    mlp_layer_types=(),
    zero_expert_num=4,
    norm_topk_prob=False,
    router=Router("softmax", "noaux_tc", routed_scaling_factor=1.5),
)
# 6 heads and tp=4 pad; dropping tells the branches apart
MODELS["longcat of 6 heads"] = replace(
    MODELS["longcat"],
    num_attention_heads=6,
    num_key_value_heads=6,
    zero_expert_num=0,
    tie_word_embeddings=True,
    rope_scaling=MODELS["deepseek v3"].rope_scaling,
)
MODELS["minimax m3"] = replace(
    LLAMA,
    model_type="minimax_m3_vl_text",
    partial_rotary_factor=0.5,
    num_local_experts=8,
    num_experts_per_tok=3,
    shared_expert_intermediate_size=48,
    mlp_layer_types=("dense", "sparse", "sparse", "sparse"),
    dense_intermediate_size=80,
    layer_types=("full_attention", *("block_sparse_attention",) * 3),
    block_indexer=BlockIndexer(index_head_dim=12, index_block_size=2, index_topk_blocks=3),
    gate_types=("both",) * 4,
    clamped_gate=ClampedGate(0.1, 1.702, swiglu_limit_shared=0.1),
    router=Router("sigmoid", "noaux_tc", routed_scaling_factor=2.0),
)
# 6 heads, 2 of keys: tp=4 copies these; blocks of 3 keys do not divide the sequence
MODELS["minimax m3 of 6 heads"] = replace(
    MODELS["minimax m3"],
    num_attention_heads=6,
    num_key_value_heads=2,
    tie_word_embeddings=True,
    layer_types=("block_sparse_attention", "full_attention", "block_sparse_attention", "full_attention"),
    mlp_layer_types=(),
    dense_intermediate_size=0,
    block_indexer=BlockIndexer(8, 3, 3, index_local_blocks=2),
)
MODELS["qwen4 exp"] = replace(
    LLAMA,
    model_type="qwen4_exp_text",
    partial_rotary_factor=0.5,
    num_local_experts=8,
    num_experts_per_tok=3,
    shared_expert_intermediate_size=48,
    layer_types=("linear_attention", "full_attention", "linear_attention", "full_attention"),
    linear_attention=LinearAttention(4, 8, 8, 12, 4, output_gate_type="sigmoid"),
    gated_residual=GatedResidual(3, 20),
    indexer=Indexer(4, 12, 4, index_kpool=2, key_norm_eps=LLAMA.norm_eps),
    ngram_embedding=NgramEmbedding(3, 2, 24, 3, 40, 8, 1234, 4, 5),
    ngram_types=("table0", "none", "table1", "none"),
)
# 6 heads, 2 of keys, a table in 3 parts: tp=2 and tp=4 pad; no indexer
MODELS["qwen4 exp of 6 heads"] = replace(
    MODELS["qwen4 exp"],
    num_attention_heads=6,
    num_key_value_heads=2,
    tie_word_embeddings=True,
    norm_topk_prob=False,
    linear_attention=LinearAttention(3, 6, 8, 8, 3, output_gate_type="silu"),
    gated_residual=GatedResidual(2, 8),
    indexer=None,
    ngram_embedding=NgramEmbedding(2, 2, 16, 4, 20, 6, 7, 3, 5),
    ngram_types=("none", "none", "table0", "none"),
)
MODELS["muse glimmer"] = replace(
    LLAMA,
    model_type="muse_glimmer_text",
    sliding_window=5,
    layer_types=("sliding_attention", "full_attention") * 2,
    position_types=("rope", "nope") * 2,
    attention_scores=AttentionScores(qk_scale_factor=1.5),
    branch_norms=BranchNorms(1e-3),
    logit_scale=0.5,
    final_logit_softcapping=2.0,
)
MODELS["muse spark"] = replace(
    MODELS["muse glimmer"],
    model_type="muse_spark_text",
    num_local_experts=8,
    num_experts_per_tok=3,
    mlp_layer_types=("dense", "sparse", "sparse", "sparse"),
    dense_intermediate_size=80,
    moe_latent_size=24,
    branch_norms=BranchNorms(1e-3, 0.3),
    router=Router("sigmoid", "noaux_tc", routed_scaling_factor=2.0),
)
# 6 heads, 2 of keys: tp=4 copies these
MODELS["muse spark of 6 heads"] = replace(
    MODELS["muse spark"],
    num_attention_heads=6,
    num_key_value_heads=2,
    mlp_layer_types=(),
    dense_intermediate_size=0,
)
MODELS["youtu"] = replace(
    LLAMA,
    model_type="youtu",
    num_key_value_heads=8,
    head_dim=20,
    tie_word_embeddings=True,
    latent_attention=MODELS["deepseek v3"].latent_attention,
)
MODELS["minicpm3"] = replace(
    MODELS["youtu"],
    model_type="minicpm3",
    latent_attention=LatentAttention(24, 12, 8, 10, rope_interleave=False),
    multipliers=Multipliers(12.0, 20**-0.5, 0.7, 4.0),
)
# 6 heads: tp=4 pads them
MODELS["minicpm3 of 6 heads"] = replace(
    MODELS["minicpm3"],
    hidden_size=96,
    num_attention_heads=6,
    num_key_value_heads=6,
    tie_word_embeddings=False,
    latent_attention=LatentAttention(None, 20, 8, 12, rope_interleave=False),
)
MODELS["nemotron h"] = replace(
    MODELS["nemotron"],
    model_type="nemotron_h",
    partial_rotary_factor=1.0,
    layer_types=("mamba", "none", "full_attention", "none"),
    mlp_layer_types=("none", "sparse", "none", "dense"),
    position_types=("nope",) * 4,
    mamba=Mamba(12, 8, 12, 4, 8, True, 2),
    num_local_experts=8,
    num_experts_per_tok=3,
    shared_expert_intermediate_size=48,
    dense_intermediate_size=80,
    router=Router("sigmoid", "noaux_tc", routed_scaling_factor=2.5),
)
MODELS["nemotron h, latent"] = replace(MODELS["nemotron h"], moe_latent_size=24, num_attention_heads=6)
MODELS["nemotron h, no experts"] = replace(
    MODELS["nemotron h"],
    mlp_layer_types=("none", "dense", "none", "dense"),
    mamba=Mamba(12, 8, 12, 4, 8, False, 1),
    num_local_experts=0,
    num_experts_per_tok=0,
    shared_expert_intermediate_size=0,
    dense_intermediate_size=0,
    router=None,
)
MODELS["gpt2, dropping"] = replace(MODELS["gpt2"], dropout=Dropout(0.1, 0.2, 0.3))
MODELS["mistral, dropping"] = replace(MODELS["mistral"], dropout=Dropout(embedding=0.1, residual=0.2))
MODELS["mixtral, dropping"] = replace(MODELS["mixtral"], num_key_value_heads=2, dropout=Dropout(0.1, 0.2, 0.3))
MODELS["gpt2 of 6 heads"] = replace(
    MODELS["gpt2"], hidden_size=48, num_attention_heads=6, num_key_value_heads=6, intermediate_size=98
)
MODELS["mixtral of 3 kv heads"] = replace(
    MODELS["mixtral"], num_attention_heads=6, num_key_value_heads=3, intermediate_size=91
)
MODELS["gemma"] = replace(
    LLAMA, model_type="gemma", hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True, num_key_value_heads=1
)
MODELS["gemma2"] = replace(
    LLAMA,
    model_type="gemma2",
    hidden_act="gelu_pytorch_tanh",
    tie_word_embeddings=True,
    sliding_window=5,
    layer_types=("sliding_attention", "full_attention") * 2,
    attention_scores=AttentionScores(query_pre_attn_scalar=6, attn_logit_softcapping=0.5),
    final_logit_softcapping=0.7,
)
MODELS["vaultgemma"] = replace(
    MODELS["gemma2"],
    model_type="vaultgemma",
    sliding_window=None,
    layer_types=(),
    attention_scores=AttentionScores(query_pre_attn_scalar=6),
    final_logit_softcapping=None,
)
MODELS["gemma3"] = replace(
    MODELS["gemma2"],
    model_type="gemma3_text",
    layer_types=(*("sliding_attention",) * 3, "full_attention"),
    attention_scores=AttentionScores(query_pre_attn_scalar=6),
    final_logit_softcapping=None,
    rope_scaling=RopeScaling("linear", 8.0),
    rope_local_base_freq=1e3,
)
MODELS["gemma4"] = replace(
    MODELS["gemma3"],
    model_type="gemma4_text",
    attention_scores=AttentionScores(query_pre_attn_scalar=1),
    global_attention=GlobalAttention(2, 16, attention_k_eq_v=True),
    final_logit_softcapping=0.7,
    rope_scaling=RopeScaling("proportional", 1.0, partial_rotary_factor=0.25),
)
MODELS["gemma4 of 6 heads"] = replace(
    MODELS["gemma4"],
    num_attention_heads=6,
    num_key_value_heads=3,
    global_attention=GlobalAttention(1, 16),
    attention_bias=True,
    tie_word_embeddings=False,
)
MODELS["gemma4 moe"] = replace(
    MODELS["gemma4"],
    intermediate_size=32,
    shared_expert_intermediate_size=96,
    num_local_experts=4,
    num_experts_per_tok=2,
)
MODELS["gemma4 e"] = replace(
    MODELS["gemma4"],
    layer_types=("sliding_attention", "full_attention") * 2,
    global_attention=GlobalAttention(1, 16),
    hidden_size_per_layer_input=6,
    num_kv_shared_layers=2,
    dense_intermediate_size=192,
)
MODELS["gemma4 e, experts"] = replace(
    MODELS["gemma4 moe"],
    layer_types=("sliding_attention", "full_attention") * 2,
    hidden_size_per_layer_input=6,
    num_kv_shared_layers=1,
)
MODELS["gemma2, one kv head"] = replace(MODELS["gemma2"], num_key_value_heads=1)
MODELS["gpt oss"] = replace(
    LLAMA,
    model_type="gpt_oss",
    sliding_window=5,
    layer_types=("sliding_attention", "full_attention") * 2,
    attention_bias=True,
    mlp_bias=True,
    num_local_experts=4,
    num_experts_per_tok=2,
    rope_scaling=RopeScaling("yarn", 4.0, original_max_position_embeddings=8, beta_fast=32.0, beta_slow=1.0),
    attention_scores=AttentionScores(sinks=True),
    clamped_gate=ClampedGate(0.02, 1.702),
)
MODELS["gpt oss of 3 kv heads"] = replace(
    MODELS["gpt oss"], num_attention_heads=6, num_key_value_heads=3, intermediate_size=91
)
MODELS["gpt oss, one kv head"] = replace(MODELS["gpt oss"], num_key_value_heads=1)
MODELS["gpt oss, one kv head for 3"] = replace(MODELS["gpt oss"], num_attention_heads=3, num_key_value_heads=1)
MODELS["llama4"] = replace(
    LLAMA,
    model_type="llama4_text",
    layer_types=(*("chunked_attention",) * 3, "full_attention"),
    mlp_layer_types=("dense", "sparse") * 2,
    dense_intermediate_size=80,
    shared_expert_intermediate_size=96,
    num_local_experts=4,
    num_experts_per_tok=2,
    norm_topk_prob=False,
    chunked_attention=ChunkedAttention(6, True, 3, 0.1),
)
MODELS["dbrx"] = replace(
    LLAMA,
    model_type="dbrx",
    num_local_experts=4,
    num_experts_per_tok=2,
    attention_scores=AttentionScores(clip_qkv=0.05),
)
MODELS["dbrx of 3 kv heads"] = replace(
    MODELS["dbrx"], hidden_size=48, num_attention_heads=6, num_key_value_heads=3, intermediate_size=91
)
MODELS["llama, adapters"] = replace(LLAMA, lora=Lora(4, 8.0, ("down_proj", "o_proj", "q_proj", "v_proj")))
MODELS["llama, adapters, dropping"] = replace(MODELS["llama, adapters"], dropout=Dropout(lora=0.25))
MODELS["qwen2 moe, adapters"] = replace(MODELS["qwen2 moe"], lora=Lora(4, 2.0, ("k_proj", "o_proj", "up_proj")))
