"""Plans of four blocks of Llama-3-8B (or of another family) at full width, small enough to be audited in seconds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autoshard.cost.estimate import estimate
from autoshard.layout.strategy import Strategy, even_stage_layers
from autoshard.models.registry import load_model
from autoshard.plans.plan import Plan, make_plan
from autoshard.plans.prices import priced
from autoshard.runtime.rehearse import local_cluster, telling_blocks
from autoshard.spec.prediction import MultiTokenPrediction
from autoshard.spec.training import TrainingSpec, load_precision
from tests.cases import ALL

NUM_LAYERS, FEW_LAYERS = 4, 2
"""Blocks; by default the second where all are on one stage and no weights of the next one are gathered ahead."""
SEQUENCE_LENGTH = 4096
PLANS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "one device": ("llama3-8b", 4, {}),
    "tp x dp": ("llama3-8b", 4, {"tp": 4, "dp": 2}),
    "kv replicated": ("llama3-8b", 3, {"tp": 16, "dp": 2}),
    "1f1b": ("llama3-8b", 12, {"tp": 2, "pp": 4, "dp": 2, "recompute": "full"}),
    "zero bubble": ("llama3-8b", 7, {"tp": 2, "pp": 4, "schedule": "zero_bubble", "recompute": "mlp_norm+mlp"}),
    "interleaved": (
        "llama3-8b",
        16,
        {"tp": 2, "pp": 2, "dp": 2, "num_virtual_stages": 2, "recompute": "core_attention"},
    ),
    "interleaved, all forwards first, ZeRO-2": (
        "llama3-8b",
        2,
        {
            "pp": 2,
            "dp": 4,
            "num_virtual_stages": 2,
            "zero": 2,
            "recompute": ("full", "full", "none", "none"),
            "sequence_length": 2048,
        },
    ),
    "cp": ("llama3-8b", 2, {"tp": 2, "cp": 2, "dp": 2, "recompute": "core_attention+mlp"}),
    "ring": ("llama3-8b", 2, {"tp": 2, "cp": 2, "context_parallel": "ring"}),
    "ZeRO-2": ("llama3-8b", 4, {"tp": 2, "dp": 4, "zero": 2}),
    "ZeRO-3": ("llama3-8b", 8, {"pp": 2, "dp": 8, "zero": 3, "recompute": "core_attention+mlp"}),
    "few tokens, two tables, ZeRO-3": (
        "llama3-8b",
        3,
        {"dp": 8, "zero": 3, "recompute": "full", "sequence_length": 512},
    ),
    "few tokens, one table, ZeRO-3": ("tied", 3, {"dp": 8, "zero": 3, "recompute": "full", "sequence_length": 512}),
    "one block a rank, ZeRO-3": (
        "llama2-13b",
        3,
        {"pp": 4, "dp": 8, "zero": 3, "precision": "bf16_sr", "sequence_length": 2048},
    ),
    "FP32": ("olmo2-1b", 3, {"dp": 8, "precision": "fp32", "sequence_length": 2048}),
    "FP32, one table, ZeRO-3": ("tied", 3, {"dp": 8, "zero": 3, "precision": "fp32", "sequence_length": 1024}),
    "HSDP": ("llama3-8b", 8, {"pp": 2, "dp": 8, "zero": 3, "dp_replicate": 2, "recompute": "core_attention+mlp"}),
    "HSDP, kv replicated, ZeRO-2": ("llama3-8b", 2, {"tp": 16, "dp": 8, "zero": 2, "dp_replicate": 4}),
    "HSDP, ZeRO-1, full at the update": (
        "llama3-8b",
        2,
        {"tp": 2, "dp": 8, "dp_replicate": 4, "recompute": "full", "sequence_length": 256},
    ),
    "HSDP of experts, ZeRO-3": (
        "mixtral-8x7b",
        4,
        {"pp": 2, "dp": 32, "ep": 4, "zero": 3, "dp_replicate": 2, "recompute": "full"},
    ),
    "padded vocabulary": ("padded", 2, {"tp": 4, "pp": 2}),
    "loss in chunks": ("llama3-8b", 3, {"tp": 2, "pp": 2, "loss_chunks": 4}),
    "loss in chunks, one table, softcap, ZeRO-3": ("gemma2-2b", 3, {"dp": 8, "zero": 3, "loss_chunks": 8}),
    "loss in chunks, zero bubble": ("llama3-8b", 4, {"pp": 2, "schedule": "zero_bubble", "loss_chunks": 3}),
    "experts": ("mixtral-8x7b", 2, {"tp": 2, "dp": 4, "ep": 4, "recompute": "full"}),
    "experts whole, ZeRO-3": ("mixtral-8x7b", 4, {"pp": 2, "dp": 8, "zero": 3, "recompute": "full"}),
    "experts apart, ZeRO-3": ("mixtral-8x7b", 4, {"pp": 2, "dp": 16, "ep": 4, "zero": 3, "recompute": "full"}),
    "experts cut by tp, ZeRO-3": (
        "mixtral-8x7b",
        3,
        {"tp": 4, "dp": 16, "zero": 3, "recompute": "mlp", "sequence_length": 2048},
    ),
    "experts over tp": ("qwen3-30b-a3b", 2, {"tp": 4, "dp": 2, "ep": 4, "etp": 1, "recompute": "mlp_norm"}),
    "experts over tp and dp": ("mixtral-8x7b", 4, {"tp": 4, "pp": 2, "dp": 4, "ep": 8, "etp": 1}),
    "experts over tp, dp and cp, ZeRO-3": (
        "mixtral-8x7b",
        2,
        {"tp": 2, "cp": 2, "dp": 4, "ep": 8, "etp": 1, "zero": 3, "context_parallel": "zigzag_ring"},
    ),
    "parts of experts over tp and dp": (
        "deepseek-v2-lite",
        4,
        {"tp": 4, "pp": 2, "dp": 4, "ep": 4, "etp": 2, "recompute": "full"},
    ),
    "parts of experts, kv replicated, ZeRO-2": (
        "gpt-oss-20b",
        2,
        {"tp": 16, "dp": 4, "ep": 16, "etp": 2, "zero": 2, "recompute": "mlp"},
    ),
    "one block, ZeRO-3": ("mixtral-8x7b", 5, {"pp": 4, "dp": 8, "zero": 3, "recompute": "full"}),
    "recomputed sums": ("llama3-8b", 12, {"tp": 8, "pp": 2, "schedule": "gpipe", "recompute": "mlp+residual"}),
    "plain attention": ("llama3-8b", 2, {"tp": 2, "attention_kernel": "plain"}),
    "plain attention replayed": (
        "llama3-8b",
        2,
        {"tp": 2, "attention_kernel": "plain", "recompute": "attention_norm+attention+core_attention"},
    ),
    "plain attention behind an MLP that runs again": (
        "llama3-8b",
        2,
        {
            "tp": 8,
            "pp": 2,
            "microbatch_size": 2,
            "attention_kernel": "plain",
            "recompute": "mlp",
            "precision": "bf16_sr",
        },
    ),
    "unequal blocks": ("dense first", 8, {"tp": 2, "pp": 2, "dp": 4, "ep": 4, "recompute": "mlp_norm+mlp"}),
    "unequal blocks, ZeRO-3": ("dense first", 4, {"pp": 2, "dp": 16, "ep": 4, "zero": 3, "recompute": "full"}),
    "dense blocks and mixtures in turns, ZeRO-3": (
        "in turns",
        2,
        {"dp": 8, "zero": 3, "recompute": "full", "sequence_length": 1024},
    ),
    "unequal windows": ("windows", 8, {"tp": 4, "pp": 2, "num_virtual_stages": 2, "recompute": "core_attention"}),
    "a shared expert, eight others on a rank": (
        "glm-4.5-air",
        2,
        {"tp": 4, "pp": 2, "dp": 16, "ep": 16, "recompute": "full"},
    ),
    "the head alone on a chunk": (
        "gemma2-2b",
        8,
        {"tp": 2, "pp": 2, "num_virtual_stages": 2, "stage_layers": (1, 1, 2, 0)},
    ),
    "the head alone on a rank, ZeRO-3": (
        "mixtral-8x7b",
        4,
        {
            "pp": 2,
            "dp": 8,
            "ep": 4,
            "zero": 3,
            "recompute": "full",
            "stage_layers": (4, 0),
            "sequence_length": 2048,
        },
    ),
    "the embedding alone on a chunk, ZeRO-2": (
        "olmo-hybrid-7b",
        4,
        {"pp": 2, "dp": 4, "num_virtual_stages": 2, "zero": 2, "precision": "fp32", "stage_layers": (0, 2, 1, 1)},
    ),
    "unequal windows, ring": ("windows", 2, {"tp": 2, "cp": 2, "context_parallel": "zigzag_ring"}),
    "windows over a long sequence": ("windows", 2, {"tp": 8, "cp": 2, "sequence_length": 16384}),
    "capped scores": ("gemma2-2b", 4, {"tp": 2, "pp": 2, "recompute": "core_attention"}),
    "capped scores, a window as long as the sequence": (
        "gemma2-2b",
        4,
        {"tp": 2, "pp": 2, "recompute": "core_attention", "sequence_length": 512},
    ),
    "capped scores beside gradients, ZeRO-3": (
        "gemma2-9b",
        4,
        {"pp": 3, "dp": 4, "zero": 3, "recompute": "full", "stage_layers": (1, 2, 1), "sequence_length": 2048},
    ),
    "capped scores, a window in a ring": (
        "gemma2-2b",
        2,
        {"cp": 2, "context_parallel": "ring", "sequence_length": 512},
    ),
    "sinks, heads over cp": ("gpt-oss-20b", 2, {"cp": 2, "dp": 2, "ep": 2, "context_parallel": "ulysses"}),
    "sinks": ("gpt-oss-20b", 4, {"tp": 2, "dp": 4, "ep": 4, "recompute": "mlp"}),
    "chunks": ("llama4-scout", 2, {"tp": 4, "dp": 4, "ep": 4}),
    "sparse attention": (
        "deepseek-v3.2",
        3,
        {"tp": 4, "dp": 16, "ep": 16, "recompute": "attention_up+core_attention", "sequence_length": 2048},
    ),
    "sparse attention, pp, ZeRO-2": (
        "glm-5",
        4,
        {"pp": 2, "dp": 32, "ep": 32, "zero": 2, "recompute": "mlp", "sequence_length": 1024},
    ),
    "sparse attention, cp, plain": (
        "glm-5",
        2,
        {"cp": 2, "dp": 32, "ep": 64, "attention_kernel": "plain", "recompute": "full", "sequence_length": 1024},
    ),
    "one choice for several blocks, tp, ZeRO-3": (
        "glm-5.2",
        3,
        {"tp": 4, "dp": 16, "ep": 16, "zero": 3, "recompute": "attention_up+core_attention", "sequence_length": 2048},
    ),
    "one choice for several blocks, cp, ZeRO-3": (
        "glm-5.2",
        2,
        {"cp": 2, "dp": 32, "ep": 64, "zero": 3, "recompute": "full", "sequence_length": 1024},
    ),
    "queries that grow, interleaved": (
        "mistral-large-4-1t-a52b",
        4,
        {
            "tp": 4,
            "pp": 2,
            "dp": 32,
            "ep": 32,
            "num_virtual_stages": 2,
            "recompute": "core_attention",
            "sequence_length": 2048,
        },
    ),
    "pools of keys, tp, ZeRO-3": (
        "glm-5.3-flash",
        3,
        {"tp": 4, "dp": 16, "ep": 16, "zero": 3, "recompute": "attention_up+core_attention", "sequence_length": 2048},
    ),
    "pools of keys, pp, ZeRO-2": (
        "glm-5.3-flash",
        4,
        {"pp": 2, "dp": 16, "ep": 16, "zero": 2, "recompute": "mlp", "sequence_length": 1024},
    ),
    "latent attention": ("deepseek-v2-lite", 4, {"tp": 2, "pp": 2, "dp": 4, "ep": 4, "recompute": "attention_up"}),
    "latent attention in a ring": (
        "deepseek-v2",
        2,
        {"dp": 64, "cp": 4, "ep": 4, "zero": 3, "recompute": "full", "context_parallel": "zigzag_ring"},
    ),
    "linear attention": (
        "qwen3-next-80b-a3b",
        4,
        {"tp": 2, "dp": 8, "ep": 8, "recompute": "mlp", "sequence_length": 512},
    ),
    "linear attention, its own backward": (
        "qwen3-next-80b-a3b",
        2,
        {"pp": 4, "dp": 8, "ep": 8, "recompute": "full", "sequence_length": 512},
    ),
    "state space": ("granite-4.0-h-tiny", 4, {"tp": 2, "pp": 2, "sequence_length": 1024}),
    "a head with streams, ZeRO-3": (
        "deepseek-v4-flash",
        3,
        {"tp": 4, "pp": 2, "dp": 16, "ep": 16, "zero": 3, "recompute": "full", "sequence_length": 1024},
    ),
    "a mixture behind a dense block, ZeRO-3": ("glm-4.5-air", 2, {"pp": 2, "dp": 2, "zero": 3, "recompute": "full"}),
    "prediction module": ("predicting", 3, {"dp": 64, "ep": 16, "zero": 3, "recompute": "full"}),
    "prediction module, last stage": ("predicting", 3, {"pp": 2, "dp": 64, "ep": 16, "zero": 3, "recompute": "full"}),
    "dense blocks first, in a ring, ZeRO-3": (
        "two dense first",
        3,
        {
            "cp": 4,
            "dp": 64,
            "ep": 64,
            "zero": 3,
            "recompute": "attention+core_attention+mlp",
            "context_parallel": "zigzag_ring",
            "sequence_length": 8192,
        },
    ),
    "a shared expert, in a ring, ZeRO-3": (
        "qwen2-57b-a14b",
        3,
        {
            "cp": 4,
            "dp": 128,
            "ep": 4,
            "zero": 3,
            "recompute": "mlp",
            "context_parallel": "zigzag_ring",
            "microbatch_size": 2,
            "sequence_length": 8192,
        },
    ),
    "FP32, the head's gradient": (
        "llama3-8b",
        4,
        {"tp": 4, "pp": 2, "precision": "fp32", "recompute": "full", "sequence_length": 1024},
    ),
    "FP32, a tied table": ("tied", 3, {"tp": 8, "precision": "fp32", "recompute": "full", "sequence_length": 1024}),
    "a tied table on one rank": ("tied", 3, {"tp": 8, "recompute": "full", "sequence_length": 1024}),
    "BF16 with stochastic rounding": ("llama3-8b", 4, {"tp": 4, "pp": 2, "dp": 2, "precision": "bf16_sr"}),
    "plain attention over heads, replayed": (
        "llama3-8b",
        2,
        {"cp": 2, "context_parallel": "ulysses", "attention_kernel": "plain", "recompute": "core_attention"},
    ),
    "zero bubble, few microbatches": ("llama3-8b", 2, {"tp": 2, "pp": 2, "schedule": "zero_bubble"}),
    "interleaved, few microbatches": (
        "llama3-8b",
        4,
        {"tp": 4, "pp": 2, "num_virtual_stages": 2, "recompute": ("none", "none", "full", "full")},
    ),
    "two share an expert, ZeRO-3": (
        "mixtral-8x7b",
        3,
        {"cp": 4, "dp": 2, "ep": 4, "zero": 3, "recompute": "full", "context_parallel": "ring"},
    ),
    "a shared expert, all again, ZeRO-2": (
        "qwen2-57b-a14b",
        3,
        {"cp": 4, "dp": 16, "ep": 4, "zero": 2, "recompute": "full", "context_parallel": "ring"},
    ),
    "experts whole beside replicas": (
        "mixtral-8x7b",
        2,
        {"dp": 4, "ep": 2, "dp_replicate": 2, "recompute": "full", "sequence_length": 512},
    ),
    "weights rounded at random": (
        "phi3-mini-4k",
        2,
        {"tp": 2, "pp": 2, "precision": "bf16_sr", "recompute": "full", "sequence_length": 128},
    ),
    "latent attention, plain": (
        "deepseek-v2-lite",
        2,
        {
            "tp": 2,
            "ep": 2,
            "etp": 1,
            "sequence_length": 1024,
            "attention_kernel": "plain",
            "recompute": "core_attention",
        },
    ),
    "few tokens at a large head": (
        "qwen3-8b",
        2,
        {"tp": 2, "pp": 4, "recompute": "full", "sequence_length": 256},
    ),
    "few tokens in a ring": ("llama3-8b", 2, {"cp": 2, "context_parallel": "ring", "sequence_length": 64}),
    "few tokens in a zigzag": ("llama3-8b", 2, {"cp": 2, "context_parallel": "zigzag_ring", "sequence_length": 64}),
    "softcap in FP32": (
        "gemma2-2b",
        2,
        {"tp": 4, "pp": 4, "precision": "fp32", "recompute": "full", "sequence_length": 2048},
    ),
    "tied tables": ("tied", 3, {"tp": 4, "pp": 2, "dp": 8, "recompute": "full"}),
    "queries over tp and cp": (
        "qwen2.5-1.5b",
        2,
        {"tp": 2, "cp": 2, "sequence_length": 1024, "operators": {"self_attn.core_attention": "seq"}},
    ),
    "weights whole over tp, full at the update": (
        "llama3-8b",
        2,
        {
            "tp": 2,
            "cp": 2,
            "zero": 0,
            "recompute": "full",
            "sequence_length": 128,
            "operators": dict.fromkeys(("mlp.gate_proj", "mlp.up_proj", "mlp.act_fn", "mlp.down_proj"), "seq"),
        },
    ),
}
"""Name -> (model, microbatches of a step, what the strategy has other than 1). operators: what operators of blocks do
along tp where that is not the rule."""
FURTHER = {
    *("experts whole beside replicas", "experts whole, ZeRO-3", "experts over tp", "experts over tp and dp"),
    *("parts of experts over tp and dp", "two share an expert, ZeRO-3", "a shared expert, all again, ZeRO-2"),
    *(
        "sinks",
        "sinks, heads over cp",
        "capped scores",
        "capped scores, a window in a ring",
        "softcap in FP32",
        "plain attention",
        "latent attention, plain",
    ),
    *("unequal blocks, ZeRO-3", "unequal windows", "dense blocks first, in a ring, ZeRO-3", "prediction module"),
    *("weights rounded at random", "few tokens at a large head", "sparse attention, cp, plain"),
    *("HSDP, kv replicated, ZeRO-2", "HSDP of experts, ZeRO-3", "loss in chunks, zero bubble"),
    *("a shared expert, in a ring, ZeRO-3", "sparse attention, pp, ZeRO-2", "FP32, one table, ZeRO-3"),
    *("linear attention", "latent attention", "loss in chunks", "experts cut by tp, ZeRO-3", "zero bubble"),
    *("plain attention replayed", "few tokens, two tables, ZeRO-3", "few tokens, one table, ZeRO-3"),
    *("unequal blocks", "unequal windows, ring", "plain attention over heads, replayed", "one block, ZeRO-3"),
    *("latent attention in a ring", "the head alone on a chunk"),
    *("experts", "experts apart, ZeRO-3", "kv replicated", "a tied table on one rank", "tied tables"),
}
"""Plans that are audited with AUTOSHARD_CASES=all alone: another plan has each of their mechanisms, in another
combination."""


def plan(name: str) -> Plan:
    model_name, microbatches, changes = PLANS[name]
    apart = {"pp", "num_virtual_stages"} & changes.keys() or changes.get("zero") == 3
    few = FEW_LAYERS if not (ALL or apart) else NUM_LAYERS
    if model_name == "padded":  # an odd vocabulary
        model = replace(load_model("llama3-8b"), vocab_size=50257, num_hidden_layers=few)
    elif model_name == "tied":
        model = replace(load_model("llama3-8b"), tie_word_embeddings=True, num_hidden_layers=few)
    elif model_name in ("dense first", "in turns"):
        types = ("dense", *("sparse",) * (few - 1)) if model_name == "dense first" else ("dense", "sparse") * (few // 2)
        model = replace(
            load_model("qwen3-30b-a3b"),
            num_hidden_layers=few,
            mlp_layer_types=types,
            dense_intermediate_size=6144,
        )
    elif model_name == "two dense first":
        model = load_model("deepseek-v3").some_blocks((1, 2, 3, 4))
    elif model_name == "windows":
        types = ("sliding_attention", "full_attention") * (few // 2)
        model = replace(load_model("qwen3-8b"), num_hidden_layers=few, sliding_window=512, layer_types=types)
    elif model_name == "predicting":
        model = load_model("glm-4.5-air")
        model = replace(model.some_blocks(telling_blocks(model, few)), multi_token_prediction=MultiTokenPrediction(1))
    else:
        model = load_model(model_name).some_blocks(telling_blocks(load_model(model_name), few))
    fields: dict[str, Any] = dict.fromkeys(("tp", "pp", "dp", "cp", "ep", "num_virtual_stages", "microbatch_size"), 1)
    fields |= {"schedule": "1f1b", "recompute": "none", "zero": 1, "attention_kernel": "flash", **changes}
    length = fields.pop("sequence_length", SEQUENCE_LENGTH)
    precision = load_precision(fields.pop("precision", "mixed_precision"))
    loss_chunks, others = fields.pop("loss_chunks", 1), fields.pop("operators", {})
    fields["sequence_parallel"] = fields["tp"] > 1
    if fields["num_virtual_stages"] > 1:
        fields["schedule"] = "interleaved"
    stages = fields["pp"] * fields["num_virtual_stages"]
    fields.setdefault("stage_layers", even_stage_layers(model.num_hidden_layers, stages))
    strategy = Strategy(**fields)
    length = min(length, model.max_position_embeddings)
    training = TrainingSpec(length, microbatches * strategy.dp, precision, loss_chunks=loss_chunks)
    cluster = local_cluster(strategy.world_size)
    made = make_plan(model, training, cluster, "torch", strategy, estimate(model, training, cluster, strategy))
    operators = dict(made.operators)
    for name, choice in others.items():
        operators[f"model.layers.*.{name}"] = {**operators[f"model.layers.*.{name}"], "tp": choice}
    return priced(replace(made, operators=operators)) if others else made
