"""Every layout rule: what it says of a layout that breaks it, word for word, and that legal ones pass."""

from dataclasses import replace
from typing import Any

import pytest

from autoshard.backends.native_neuron import device_objection
from autoshard.backends.nxd import experts_on_every_rank
from autoshard.backends.registry import BACKENDS
from autoshard.backends.rules import Draft, Problem, all_rules, check_strategy, divisors, warnings
from autoshard.errors import AutoshardError
from autoshard.layout.strategy import Strategy, even_stage_layers
from autoshard.models.registry import load_model
from autoshard.spec.attention_heads import GlobalAttention
from autoshard.spec.cluster import load_cluster
from autoshard.spec.dropout import Dropout
from autoshard.spec.lora import Lora
from autoshard.spec.prediction import MultiTokenPrediction
from autoshard.spec.training import TrainingSpec, load_precision
from tests.traced_models import ODD

LLAMA_70B, LLAMA_8B, LLAMA_13B = (load_model(name) for name in ("llama3-70b", "llama3-8b", "llama2-13b"))
MISTRAL = load_model("mistral-7b")
MIXTRAL, GPT3 = load_model("mixtral-8x7b"), load_model("gpt3-175b")
TRN1, TRN2, CPU = load_cluster("trn1.32xlarge", 16), load_cluster("trn2.48xlarge", 4), load_cluster("cpu", 1)
TRAINING = TrainingSpec(8192, 1024, load_precision("mixed_precision"))


def problem(**changes: Any) -> Problem:
    return Problem(**{"model": LLAMA_70B, "training": TRAINING, "cluster": TRN1, "backend": "nxd", **changes})


def strategy(layers: int = 80, **changes: Any) -> Strategy:
    """The published layout of llama3-70b on 16 trn1 nodes, with changes."""
    fields: dict[str, Any] = {"tp": 32, "pp": 8, "dp": 2, "cp": 1, "ep": 1, "num_virtual_stages": 1}
    fields |= {"microbatch_size": 1, "schedule": "1f1b", "recompute": "core_attention+mlp", "zero": 1}
    fields |= {"attention_kernel": "flash", **changes}
    fields.setdefault("sequence_parallel", fields["tp"] > 1)
    stages = fields["pp"] * fields["num_virtual_stages"]
    return Strategy(**{"stage_layers": even_stage_layers(layers, stages), **fields})


def length(tokens: int, batch: int = 1024) -> TrainingSpec:
    return replace(TRAINING, sequence_length=tokens, global_batch_size=batch)


def on(cluster: str, nodes: int, lnc: int | None = None) -> dict[str, Any]:
    return {"cluster": load_cluster(cluster, nodes, lnc)}


GRANITE = load_model("granite-4.0-h-tiny")
assert GRANITE.mamba is not None
NGRAMS = replace(load_model("qwen3.8-flash-next"), indexer=None)
IN_GROUPS = replace(GRANITE, mamba=replace(GRANITE.mamba, mamba_n_groups=2))
QWEN3_MOE = load_model("qwen3-30b-a3b")
DENSE_FIRST = replace(
    QWEN3_MOE,
    mlp_layer_types=("dense",) * 6 + ("sparse",) * (QWEN3_MOE.num_hidden_layers - 6),
    dense_intermediate_size=6144,
)
GEMMA4 = load_model("gemma4-31b")
UNLIKE_HEADS = replace(
    GEMMA4, num_attention_heads=12, num_key_value_heads=4, global_attention=GlobalAttention(3, GEMMA4.head_dim)
)
EXPERTS_OVER_NXD = {"tp": 32, "dp": 2, "ep": 2, "layers": QWEN3_MOE.num_hidden_layers}
MIXTRAL_TRN2 = {"model": load_model("mixtral-8x7b"), "cluster": TRN2.under_stack("neuron-compiled"), "backend": "torch"}
WHOLE = {"model": LLAMA_8B, "cluster": TRN2.under_stack("neuron-stages"), "backend": "torch"}
V4 = {"model": load_model("deepseek-v4-flash"), "backend": "torch"}
V32 = {"model": load_model("deepseek-v3.2"), "backend": "torch"}
BROKEN: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        {"model": UNLIKE_HEADS, **on("h100-80gb", 3), "backend": "torch"},
        {"tp": 12, "pp": 1, "layers": GEMMA4.num_hidden_layers},
        (
            "tp=12 cuts 4 key-value heads of blocks with a window and 3 of those with full attention across each "
            "other; degrees that fit here: 1, 2, 3, 4, 6, 8"
        ),
    ),
    (
        on("trn2.3xlarge", 16),
        {"tp": 32, "pp": 1},
        "tp=32 is not a group of trn2.3xlarge at lnc 2; degrees that are: 1, 4",
    ),
    (
        on("trn2.3xlarge", 4),
        {"tp": 16, "pp": 1, "dp": 1},
        "tp=16 is not a group of trn2.3xlarge at lnc 2; degrees that are: 1, 4",
    ),
    (
        {"model": MISTRAL, "training": length(16384)},
        {"layers": 32},
        (
            "attention_kernel=flash: NxD's sees all keys, and sliding_window=4096 of mistral-7b is less than "
            "sequence_length=16384; use plain"
        ),
    ),
    (
        {"model": replace(LLAMA_70B, head_dim=256)},
        {},
        "attention_kernel=flash: NxD's takes a head_dim of at most 128, not 256 of llama3-70b; use plain",
    ),
    (
        on("trn3-gen2", 16),
        {"tp": 16},
        "backend=nxd makes no key and value weights on trn3-gen2; use backend torch, or trn1 or trn2",
    ),
    (
        {"model": IN_GROUPS, "backend": "torch"},
        {"tp": 8, "pp": 1, "dp": 64, "layers": IN_GROUPS.num_hidden_layers},
        "tp=8 must divide mamba_n_groups=2 of granite-4.0-h-tiny; degrees that fit here: 1, 2",
    ),
    (
        {"model": NGRAMS, "backend": "torch", **on("p5.48xlarge", 6)},
        {"tp": 3, "pp": 1, "dp": 16, "layers": 48},
        (
            "tp=3 must divide hidden_size=2560 of qwen3.8-flash-next, channels of its convolution over n-grams; "
            "degrees that fit here: 1, 2, 4, 5, 8, 10, 16, 20, 32, 40, 64, 80, 128, 160, 256, 320, 512, 640, 1280, 2560"
        ),
    ),
    (
        {"model": NGRAMS, "backend": "torch", "cluster": TRN2.under_stack("neuron-compiled")},
        {"tp": 4, "pp": 1, "dp": 64, "ep": 64, "layers": 48},
        (
            "qwen3.8-flash-next has embeddings of n-grams: nobody ran their hashes of 64 bits with native PyTorch on "
            "Neuron; plan for GPUs"
        ),
    ),
    (
        {**WHOLE, "model": load_model("mixtral-8x7b")},
        {"tp": 4, "pp": 1, "dp": 64, "layers": 32},
        "mixtral-8x7b has experts: stack=neuron-stages is of dense models without; use stack=neuron-compiled",
    ),
    (
        WHOLE,
        {"tp": 4, "pp": 1, "dp": 32, "cp": 2, "context_parallel": "all_gather", "layers": 32},
        "cp=2: stack=neuron-stages has no context parallelism yet; use stack=neuron-compiled",
    ),
    (
        WHOLE,
        {"tp": 4, "pp": 1, "dp": 64, "zero": 3, "layers": 32},
        "zero=3: stack=neuron-stages reads whole weights; use zero=1, or stack=neuron-compiled",
    ),
    (
        WHOLE,
        {"tp": 4, "pp": 2, "dp": 32, "schedule": "zero_bubble", "layers": 32},
        (
            "schedule=zero_bubble puts gradients of weights off, and stack=neuron-stages has one backward; use "
            "stack=neuron-compiled"
        ),
    ),
    (
        MIXTRAL_TRN2,
        {"tp": 4, "pp": 1, "dp": 64, "ep": 2, "layers": 32},
        (
            "ep=2: an all-to-all of native PyTorch on Neuron takes 4, 8, 16 or a multiple of 32 ranks; degrees that "
            "divide the experts: 1, 4, 8"
        ),
    ),
    (
        MIXTRAL_TRN2,
        {"tp": 4, "pp": 1, "dp": 64, "ep": 8, "layers": 32, "etp": 1},
        (
            "ep=8 over 2 replicas and tp/etp=4: an all-to-all of native PyTorch on Neuron takes 4, 8, 16 or a multiple "
            "of 32 ranks; degrees that divide the experts: 4"
        ),
    ),
    (
        {**V32, "cluster": TRN2.under_stack("neuron-compiled")},
        {"tp": 4, "pp": 1, "dp": 64, "ep": 64, "layers": 61},
        (
            "deepseek-v3.2 has an indexer: attention of native PyTorch on Neuron takes no mask of the keys that it "
            "chooses; plan for GPUs"
        ),
    ),
    (
        {**V4, "cluster": TRN2.under_stack("neuron-compiled")},
        {"tp": 4, "pp": 1, "dp": 64, "ep": 64, "layers": 43},
        (
            "deepseek-v4-flash has compressed attention: nobody ran its kernels with native PyTorch on Neuron; plan "
            "for GPUs"
        ),
    ),
    (
        {**V4, **on("h100-80gb", 16), "training": length(64)},
        {"tp": 8, "pp": 1, "dp": 16, "ep": 16, "layers": 43},
        "sequence_length=64 must be at least 128: blocks of deepseek-v4-flash have an entry for so many tokens",
    ),
    (
        {**V4, **on("h100-80gb", 16)},
        {"tp": 8, "pp": 1, "dp": 8, "cp": 2, "ep": 16, "layers": 43, "context_parallel": "ring"},
        "context_parallel=ring: attention of deepseek-v4-flash sees entries of a whole row; use all_gather",
    ),
    (
        {**V4, **on("trn1.32xlarge", 16), "backend": "nxd"},
        {"layers": 43},
        "backend=nxd has no layers for the compressed attention of deepseek-v4-flash; plan for GPUs",
    ),
    (
        {**V32, "model": load_model("falcon-mamba-7b"), **on("h100-80gb", 16)},
        {"tp": 8, "pp": 1, "dp": 8, "cp": 2, "layers": 64, "context_parallel": "ulysses"},
        "context_parallel=ulysses: falcon-mamba-7b has no attention; use all_gather",
    ),
    (
        {**V32, "model": load_model("minimax-m3"), **on("h100-80gb", 16)},
        {"tp": 4, "pp": 1, "dp": 16, "cp": 2, "ep": 16, "layers": 60, "context_parallel": "ring"},
        "context_parallel=ring: the indexer of minimax-m3 chooses among the keys of a whole row; use all_gather",
    ),
    (
        {**V32, "model": load_model("minimax-m3"), **on("trn1.32xlarge", 16), "backend": "nxd"},
        {"layers": 60},
        "backend=nxd has no layers for attention of minimax-m3 to blocks of keys; plan for GPUs",
    ),
    (
        {**V32, **on("h100-80gb", 16)},
        {"tp": 8, "pp": 1, "dp": 8, "cp": 2, "ep": 16, "layers": 61, "context_parallel": "zigzag_ring"},
        (
            "context_parallel=zigzag_ring: the indexer of deepseek-v3.2 chooses among the keys of a whole row; use "
            "all_gather"
        ),
    ),
    (
        {**V32, **on("h100-80gb", 16)},
        {"tp": 8, "pp": 1, "dp": 8, "cp": 2, "ep": 16, "layers": 61, "context_parallel": "ulysses"},
        "context_parallel=ulysses: the indexer of deepseek-v3.2 chooses among the keys of a whole row; use all_gather",
    ),
    (
        {**V32, **on("trn1.32xlarge", 16), "backend": "nxd"},
        {"layers": 61},
        "backend=nxd has no layers for the latent attention of deepseek-v3.2; plan for GPUs",
    ),
    (
        {"model": LLAMA_8B, "cluster": TRN2.under_stack("neuron-compiled"), "backend": "torch"},
        {"tp": 4, "pp": 1, "dp": 32, "cp": 2, "layers": 32, "context_parallel": "ulysses"},
        (
            "context_parallel=ulysses with cp=2: an all-to-all of native PyTorch on Neuron takes 4, 8, 16 or a "
            "multiple of 32 ranks; use all_gather"
        ),
    ),
    (
        {
            "model": LLAMA_8B,
            "cluster": load_cluster("trn2.48xlarge", 4, sdk="2.32").under_stack("neuron-compiled"),
            "backend": "torch",
        },
        {"tp": 4, "pp": 1, "dp": 32, "cp": 2, "layers": 32, "context_parallel": "ring"},
        (
            "context_parallel=ring sends from rank to rank, which native PyTorch on Neuron does from SDK 2.33 "
            "(torch-neuronx 2.13.3) on, not under sdk=2.32; use all_gather"
        ),
    ),
    (
        {"model": load_model("gemma4-e4b"), "backend": "torch", **on("trn2.48xlarge", 1)},
        {"tp": 4, "pp": 2, "dp": 8},
        (
            "pp=2 is not supported for gemma4-e4b: its blocks read the embedding and keys and values of earlier "
            "blocks, which no stage sends on; use pp=1"
        ),
    ),
    ({}, {"dp": 4}, "tp=32 x pp=8 x dp=4 x cp=1 is 1,024 devices; 16 x trn1.32xlarge has 512"),
    ({}, {"tp": 4, "dp": 16}, "tp=4 is not a group of trn1.32xlarge at lnc 1; degrees that are: 1, 2, 8, 32"),
    ({}, {"tp": 64, "dp": 1}, "tp=64 is not a group of trn1.32xlarge at lnc 1; degrees that are: 1, 2, 8, 32"),
    (
        on("trn2.48xlarge", 8),
        {"tp": 8, "dp": 8},
        "tp=8 is not a group of trn2.48xlarge at lnc 2; degrees that are: 1, 4, 16, 32, 64",
    ),
    (
        on("trn2.48xlarge", 8),
        {"tp": 32, "dp": 1, "cp": 2, "context_parallel": "ring"},
        (
            "cp=2 with tp=32 at lnc 2: NxD numbers the ranks that share a sequence in two orders in these folded "
            "groups; use cp=1, another tp or backend torch"
        ),
    ),
    (
        on("trn2.48xlarge", 4, 1),
        {"tp": 16, "dp": 4},
        "tp=16 is not a group of trn2.48xlarge at lnc 1; degrees that are: 1, 4, 8, 32, 64",
    ),
    (
        {"model": replace(LLAMA_70B, num_attention_heads=256), **on("trn2u.48xlarge", 4)},
        {"tp": 256, "pp": 1, "dp": 1},
        (
            "tp=256 is not a group of trn2u.48xlarge at lnc 2, over the Z ring of the UltraServer neither; "
            "degrees that are: 1, 4, 16, 32, 64"
        ),
    ),
    (
        {"model": LLAMA_13B, **on("trn1.32xlarge", 4)},
        {"tp": 32, "pp": 2, "layers": 40},
        "tp=32 must divide num_attention_heads=40 of llama2-13b; degrees that fit here: 1, 2, 8",
    ),
    (
        {"model": replace(LLAMA_70B, num_attention_heads=96, num_key_value_heads=12)},
        {},
        ("tp=32 must divide num_key_value_heads=12 of llama3-70b or be a multiple of it; degrees that fit here: 1, 2"),
    ),
    (
        {"model": replace(LLAMA_70B, intermediate_size=28656)},
        {},
        "tp=32 must divide intermediate_size=28656 of llama3-70b",
    ),
    (
        {"model": replace(LLAMA_70B, num_attention_heads=16), "backend": "torch"},
        {},
        "tp=32 would pad num_attention_heads=16 of llama3-70b to 32; the nearest tp that fits here: 8",
    ),
    ({"training": length(8208)}, {}, "cp=1 x tp=32 must divide sequence_length=8208"),
    (
        {},
        {"dp": 2, "ep": 2},
        "ep=2 has no experts to split: llama3-70b has none; use ep=1",
    ),
    (
        {"model": replace(MIXTRAL, num_local_experts=6), **on("trn1.32xlarge", 4)},
        {"pp": 1, "dp": 4, "ep": 4, "layers": 32},
        "ep=4 must divide num_local_experts=6 of mixtral-8x7b; degrees that fit here: 1, 2",
    ),
    (
        {"model": MIXTRAL, **on("trn1.32xlarge", 8)},
        {"pp": 4, "dp": 1, "cp": 2, "layers": 32},
        "cp=2 with the experts of mixtral-8x7b is not supported on nxd; use cp=1 or backend torch",
    ),
    (
        on("trn1.32xlarge", 3),
        {"tp": 8, "pp": 4, "dp": 3},
        "tp x cp x dp=24 straddles nodes unevenly; it must divide their 32 devices or be a multiple of them",
    ),
    (
        on("trn1.32xlarge", 1),
        {"tp": 1, "pp": 8, "dp": 4},
        (
            "dp=4 must be 1, 8 or at least 32 where pp=8 is more than 1 and tp=1: nobody is known to have run another "
            "dp with tp below 8, and older code of NxD Training asserts it"
        ),
    ),
    (
        on("trn1.32xlarge", 1),
        {"tp": 2, "pp": 8, "dp": 2},
        (
            "dp=2 must be 1 or at least 16 where pp=8 is more than 1 and tp=2: nobody is known to have run another dp "
            "with tp below 8, and older code of NxD Training asserts it"
        ),
    ),
    (
        {"model": GPT3, "training": length(2048)},
        {"layers": 96, "attention_kernel": "plain"},
        "pp=8 with tied embeddings is not supported by NxD; gpt3-175b needs pp=1",
    ),
    (
        {"model": DENSE_FIRST},
        {**EXPERTS_OVER_NXD, "pp": 8},
        (
            "ep=2: pipeline rank 0 has no block with experts, and NxD skips gradient sums over expert-parallel ranks "
            "there; use ep=1, pp=1 or backend torch"
        ),
    ),
    (
        {"training": length(6144 + 1024)},
        {},
        "attention_kernel=flash needs sequence_length=7168 to be a multiple of 2048; use plain",
    ),
    (
        {"training": length(6144)},
        {"dp": 1, "cp": 4, "pp": 4},
        "cp=4 is ring attention here: sequence_length=6144 must be a multiple of 4096",
    ),
    (
        {"backend": "torch", "training": length(12288)},
        {"tp": 8, "dp": 1, "cp": 8, "context_parallel": "zigzag_ring"},
        "cp=8 is ring attention here: sequence_length=12288 must be a multiple of 8192",
    ),
    (
        {"backend": "torch"},
        {"tp": 8, "dp": 1, "cp": 8, "context_parallel": "all_gather"},
        (
            "attention_kernel=flash with context_parallel=all_gather cp=8 needs sequence_length=8192 to be a multiple "
            "of 16384; use plain"
        ),
    ),
    (
        {"backend": "torch", "training": length(3072)},
        {"tp": 8, "dp": 1, "cp": 8, "context_parallel": "ulysses"},
        "attention_kernel=flash needs sequence_length=3072 to be a multiple of 2048; use plain",
    ),
    (
        {},
        {"dp": 1, "cp": 2, "attention_kernel": "plain"},
        "attention_kernel=plain with cp=2: context parallelism of NxD is ring attention; use flash",
    ),
    ({}, {"dp": 1, "cp": 2}, "context_parallel=all_gather with cp=2: NxD has ring alone; use ring"),
    (
        {},
        {"axis_order": ("dp", "pp", "cp", "tp")},
        "axis_order=dp-pp-cp-tp: NxD builds its groups in the order pp-dp-cp-tp alone; use that or backend torch",
    ),
    (
        {"backend": "torch"},
        {"tp": 8, "pp": 2, "dp": 8, "cp": 4, "axis_order": ("pp", "dp", "tp", "cp"), "context_parallel": "ring"},
        "axis_order=pp-dp-tp-cp: cp=4 inside tp=8 makes groups of tp that trn1.32xlarge does not have; put tp last",
    ),
    (
        {},
        {"context_parallel": "ulysses"},
        "context_parallel=ulysses has nothing to share with cp=1; use all_gather",
    ),
    (
        {"backend": "torch"},
        {"dp": 1, "cp": 2, "context_parallel": "zigzag_ring", "attention_kernel": "plain"},
        "attention_kernel=plain: context_parallel=zigzag_ring never has all scores; use flash",
    ),
    (
        {"backend": "torch"},
        {"dp": 1, "cp": 2, "context_parallel": "ulysses"},
        (
            "context_parallel=ulysses: tp=32 x cp=2 must divide num_key_value_heads=8 of llama3-70b; "
            "tp that fits cp=2: 1, 2; all_gather takes any"
        ),
    ),
    (
        {"model": LLAMA_8B, "cluster": CPU, "training": length(12, 8), "backend": "torch"},
        {"tp": 1, "pp": 1, "dp": 2, "cp": 4, "layers": 32, "context_parallel": "zigzag_ring"},
        "context_parallel=zigzag_ring cuts sequence_length=12 into 2 x cp=4 pieces; use ring",
    ),
    (
        {"model": replace(GPT3, tie_word_embeddings=False), "training": length(2048)},
        {"layers": 96},
        "attention_kernel=flash: NxD Training has none for gpt2 models; use plain",
    ),
    ({"training": length(8192, 1001)}, {}, "dp=2 x microbatch_size=1 must divide global_batch_size=1001"),
    (
        {"model": replace(LLAMA_70B, num_hidden_layers=1)},
        {"layers": 1, "stage_layers": (1,) + (0,) * 7},
        "pp=8 x vpp=1 is 8 stages; llama3-70b has 1 block",
    ),
    ({}, {"stage_layers": (1,) + (0,) * 7}, f"stage_layers={[1] + [0] * 7} is 1 block; llama3-70b has 80"),
    (
        on("trn1.32xlarge", 256),
        {"pp": 128, "stage_layers": (1,) * 80 + (0,) * 48},
        "pp=128 x vpp=1 is 128 stages; llama3-70b has 80 blocks",
    ),
    (
        {},
        {"num_virtual_stages": 4, "schedule": "interleaved"},
        "pp=8 x vpp=4 must divide the 80 blocks of llama3-70b; vpp that fits here: 1, 2, 5, 10",
    ),
    (
        {},
        {"num_virtual_stages": 2},
        "schedule=1f1b has one chunk a rank, not vpp=2; use vpp=1 or schedule=interleaved",
    ),
    (
        {"training": length(8192, 24)},
        {"num_virtual_stages": 2, "schedule": "interleaved"},
        "schedule=interleaved needs a multiple of pp=8 as num_microbatches, not 12; 8 or 16 would do",
    ),
    (
        on("trn1.32xlarge", 2),
        {"pp": 1, "schedule": "interleaved", "num_virtual_stages": 2},
        "schedule=interleaved has no pipeline with pp=1; use 1f1b",
    ),
    ({}, {"schedule": "zero_bubble"}, "schedule=zero_bubble is not one of NxD's: 1f1b, interleaved"),
    (
        {"backend": "torch", **on("trn1.32xlarge", 2)},
        {"pp": 1, "schedule": "gpipe"},
        "schedule=gpipe has no pipeline with pp=1; use 1f1b",
    ),
    ({}, {"stage_layers": (10,) * 7 + (9,)}, f"stage_layers={[10] * 7 + [9]} is 79 blocks; llama3-70b has 80"),
    (
        {},
        {"stage_layers": (20,) + (10,) * 6 + (0,)},
        f"stage_layers={[20] + [10] * 6 + [0]} leaves a stage without blocks",
    ),
    (
        {},
        {"num_virtual_stages": 2, "schedule": "interleaved", "stage_layers": (6, 4) + (5,) * 14},
        f"stage_layers={[6, 4] + [5] * 14} must be alike with vpp=2",
    ),
    (
        on("trn1.32xlarge", 8),
        {"tp": 1, "dp": 32, "sequence_parallel": True},
        "sequence_parallel splits over tensor-parallel ranks; tp=1 has none",
    ),
    (
        {"training": replace(TRAINING, precision=load_precision("bf16_sr"))},
        {"dp": 1, "cp": 2, "context_parallel": "ring", "zero": 0},
        "cp=2 without zero=1 makes NxD apply gradients 2 times too large; use zero=1",
    ),
    (
        {"model": replace(LLAMA_70B, name="mine", model_type="traced", hidden_act="traced", graph=ODD.graph)},
        {},
        "backend=nxd has no layers for mine, which was traced; use backend torch",
    ),
    (
        {"model": replace(LLAMA_70B, model_type="gemma2", hidden_act="gelu_pytorch_tanh")},
        {},
        "backend=nxd has no layers for model_type=gemma2 of llama3-70b; use backend torch",
    ),
    (
        {"model": replace(load_model("glm-4.5-air"), num_attention_heads=64, num_key_value_heads=64)},
        {"layers": 46},
        "backend=nxd has no router with topk_method=noaux_tc of glm-4.5-air; use torch",
    ),
    (
        {"model": MIXTRAL, **on("trn1.32xlarge", 8)},
        {"tp": 8, "pp": 4, "dp": 8, "ep": 8, "layers": 32, "etp": 1},
        "etp=1 with tp=8: NxD cuts every expert over tp; use backend torch",
    ),
    (
        {**MIXTRAL_TRN2},
        {"tp": 32, "pp": 1, "dp": 8, "ep": 32, "layers": 32, "etp": 1},
        "ep=32 must divide num_local_experts=8 of mixtral-8x7b; degrees that fit here: none",
    ),
    (
        on("trn1.32xlarge", 16),
        {"tp": 8, "pp": 8, "dp": 8, "dp_replicate": 2},
        "dp_replicate=2: NxD shards over all data-parallel ranks alone; use dp_replicate=1 or backend torch",
    ),
    (
        {"backend": "torch"},
        {"tp": 8, "pp": 8, "dp": 8, "dp_replicate": 2, "zero": 0},
        "dp_replicate=2 repeats shards, and zero=0 has none; use zero=1, 2 or 3",
    ),
    (
        {"backend": "torch"},
        {"ep": 32, "etp": 1},
        "etp=1 has no experts to place: llama3-70b has none; leave it out",
    ),
    (
        {
            "model": replace(
                load_model("glm-4.5-air"),
                num_attention_heads=64,
                num_key_value_heads=64,
                router=None,
                multi_token_prediction=MultiTokenPrediction(),
            )
        },
        {"layers": 46},
        "backend=nxd has no prediction module: mtp_num_layers=1 needs backend torch",
    ),
    (
        {"model": replace(LLAMA_70B, model_type="olmo2")},
        {},
        "tp=32: NxD has no norm over the heads of several ranks, which llama3-70b needs; use tp=1 or backend torch",
    ),
    (
        {"model": replace(LLAMA_70B, router_aux_loss_coef=0.01)},
        {},
        "backend=nxd trains without router_aux_loss_coef=0.01 of llama3-70b; 0 works",
    ),
    (
        {"model": replace(LLAMA_70B, dropout=Dropout(residual=0.1))},
        {},
        "backend=nxd trains llama3-70b without dropout residual=0.1; use backend torch",
    ),
    (
        {"model": replace(MIXTRAL, lora=Lora(16, 16.0, ("q_proj",)))},
        {"pp": 1, "dp": 16, "ep": 4, "layers": 32},
        (
            "ep=4: with lora no expert learns, and NxD skips gradient sums over expert-parallel ranks then; use ep=1 "
            "or backend torch"
        ),
    ),
    (
        {"training": replace(TRAINING, loss_chunks=4)},
        {},
        "loss_chunks=4: NxD computes the loss of all logits at once; use loss_chunks=1 or backend torch",
    ),
    (
        {
            "training": replace(
                TRAINING, precision=replace(TRAINING.precision, name="a", gradient_reduce_dtype="bfloat16")
            )
        },
        {},
        (
            "precision a: NxD sums and sends gradients in one dtype, bfloat16 or float32, not in float32 and bfloat16; "
            "use backend torch"
        ),
    ),
    (
        {"training": replace(TRAINING, precision=replace(TRAINING.precision, name="b", optimizer_dtype="bfloat16"))},
        {},
        "precision b: moments of NxD are in float32, as its weights, not in bfloat16; use backend torch",
    ),
    (
        {"training": replace(TRAINING, precision=replace(TRAINING.precision, name="b", optimizer_dtype="int8"))},
        {},
        "precision b: moments of NxD are in float32, as its weights, not in int8; use backend torch",
    ),
    (
        {"training": replace(TRAINING, optimizer="muon")},
        {},
        "backend=nxd has no optimizer=muon, which needs whole matrices; use backend torch",
    ),
    (
        {"model": replace(LLAMA_70B, dropout=Dropout(attention=0.1)), "backend": "torch"},
        {},
        "attention_kernel=flash with attention dropout 0.1: only plain attention drops; use plain",
    ),
    (
        {"model": replace(LLAMA_70B, dropout=Dropout(attention=0.1)), "backend": "torch"},
        {"dp": 1, "cp": 2, "context_parallel": "ring"},
        (
            "attention_kernel=flash and context_parallel=ring with attention dropout 0.1: only plain attention drops; "
            "use plain, all_gather or ulysses"
        ),
    ),
    ({}, {"zero": 0}, "precision mixed_precision keeps master weights, which NxD does with zero=1 only"),
    ({}, {"zero": 3}, "zero=3: NxD shards the optimizer state alone; use zero=1 or backend torch"),
    (
        {"backend": "torch"},
        {"zero": 2, "schedule": "zero_bubble"},
        "schedule=zero_bubble puts off gradients that zero=2 sends at once; use 1f1b or zero=1",
    ),
]


@pytest.mark.parametrize(("given", "choices", "message"), BROKEN, ids=range(len(BROKEN)))
def test_a_broken_rule_says_what_would_work(given: dict[str, Any], choices: dict[str, Any], message: str) -> None:
    with pytest.raises(AutoshardError) as error:
        check_strategy(*problem(**given), strategy(**choices))
    assert str(error.value) == message


def test_nxd_sums_where_each_rank_has_experts() -> None:
    """A layout that is written down is taken at its word; a search may cut anywhere."""
    mixed, searched = problem(model=DENSE_FIRST), Draft(tp=32, pp=4, dp=4, cp=1, ep=2)
    for choices in ({"pp": 4, "dp": 4}, {"pp": 2, "dp": 8, "num_virtual_stages": 4}, {"pp": 8, "ep": 1}):
        assert experts_on_every_rank(mixed, strategy(**{**EXPERTS_OVER_NXD, **choices})) is None, choices  # type: ignore[arg-type]
    assert experts_on_every_rank(problem(model=QWEN3_MOE), searched) is None
    assert experts_on_every_rank(mixed, searched) == (
        "ep=2: with pp=4 a rank may have none of the 42 blocks with experts, and NxD skips gradient sums over "
        "expert-parallel ranks there; use ep=1, pp=1 or backend torch"
    )


def test_every_rule_is_broken_once() -> None:
    """So that a new rule gets a case above."""
    names = set()
    for given, choices, _ in BROKEN:
        case, layout = problem(**given), strategy(**choices)
        for rule in all_rules(case.backend):
            if rule.check(case, layout) is not None:  # type: ignore[arg-type]  # a Strategy has all that a Draft has
                names.add(rule.reason)
                break
    assert names == {rule.reason for name in BACKENDS for rule in all_rules(name)}


LEGAL: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"model": MISTRAL, "training": length(4096)}, {"layers": 32}),
    ({"model": MISTRAL, "training": length(16384)}, {"layers": 32, "attention_kernel": "plain"}),
    (on("trn1.32xlarge", 8), {"tp": 8, "pp": 16}),  # AWS's megatron_llama_70b_config.yaml
    ({}, {"dp": 1, "cp": 2, "context_parallel": "ring"}),
    ({}, {"num_virtual_stages": 2, "schedule": "interleaved"}),
    ({}, {"stage_layers": (11, *(10,) * 6, 9)}),
    (on("trn1.32xlarge", 1), {"tp": 1, "pp": 4, "dp": 8}),
    ({"model": MIXTRAL, **on("trn1.32xlarge", 8)}, {"pp": 4, "ep": 2, "layers": 32}),
    ({"model": LLAMA_8B, **on("trn2.48xlarge", 1)}, {"tp": 16, "pp": 1, "dp": 4, "layers": 32}),
    # cp over the instances of each UltraServer; gradient sums over one and a half
    (
        {"training": length(131072, 16), **on("trn2u.48xlarge", 32)},
        {"tp": 64, "dp": 1, "cp": 4, "context_parallel": "ring"},
    ),
    (
        {"training": length(8192, 1026), **on("trn2u.48xlarge", 6)},
        {"tp": 64, "pp": 1, "dp": 3, "cp": 2, "context_parallel": "ring"},
    ),
    # NxD's own rules are not torch's
    ({"model": GPT3, "training": length(2048), "backend": "torch"}, {"layers": 96}),
    ({"backend": "torch"}, {"zero": 0}),
    ({"backend": "torch"}, {"schedule": "gpipe"}),
    ({"backend": "torch"}, {"schedule": "zero_bubble"}),
    ({**on("trn1.32xlarge", 4), "backend": "torch"}, {"tp": 8, "pp": 8, "dp": 2}),
    ({"backend": "torch"}, {"dp": 1, "cp": 2, "attention_kernel": "plain"}),
    ({"backend": "torch"}, {"dp": 1, "cp": 2, "context_parallel": "zigzag_ring"}),
    ({"backend": "torch"}, {"tp": 8, "dp": 8, "cp": 1}),
    ({"backend": "torch"}, {"axis_order": ("dp", "pp", "cp", "tp")}),
    ({"backend": "torch"}, {"tp": 1, "pp": 8, "dp": 64, "axis_order": ("tp", "dp", "cp", "pp")}),
    (
        {**on("trn1.32xlarge", 4), "backend": "torch"},
        {"tp": 2, "dp": 2, "cp": 4, "context_parallel": "ulysses"},
    ),
    (
        {"training": length(2048), **on("trn1.32xlarge", 4), "backend": "torch"},
        {"tp": 2, "dp": 2, "cp": 4, "context_parallel": "ulysses"},
    ),
    (
        {"training": length(3072), **on("trn1.32xlarge", 4), "backend": "torch"},
        {"tp": 2, "dp": 2, "cp": 4, "context_parallel": "ulysses", "attention_kernel": "plain"},
    ),
    (
        {"training": length(3072), "backend": "torch"},
        {"tp": 8, "dp": 1, "cp": 8, "context_parallel": "all_gather", "attention_kernel": "plain"},
    ),
    # and a CPU has arithmetic alone
    ({"model": LLAMA_8B, "cluster": CPU, "training": length(100, 8)}, {"tp": 4, "pp": 2, "dp": 1, "layers": 32}),
]


@pytest.mark.parametrize("backend", ["nxd", "torch"])
def test_a_recompute_set_may_be_any_and_another_in_each_stage(backend: str) -> None:
    for recompute in (("full", *("none",) * 7), ("mlp",), ("core_attention+mlp.act_fn",)):
        check_strategy(*problem(backend=backend), strategy(recompute=recompute))


def test_a_recompute_set_names_what_a_block_has() -> None:
    check_strategy(*problem(backend="torch"), strategy(recompute=("mlp.act_fn+mlp.down_proj",)))
    with pytest.raises(AutoshardError, match=r"^recompute=mlp.fc1: a block has no mlp.fc1; a set is none, selective, "):
        check_strategy(*problem(backend="torch"), strategy(recompute=("mlp.fc1",)))


@pytest.mark.parametrize(("given", "choices"), LEGAL, ids=range(len(LEGAL)))
def test_a_legal_layout_passes(given: dict[str, Any], choices: dict[str, Any]) -> None:
    check_strategy(*problem(**given), strategy(**choices))


@pytest.mark.parametrize("backend", ["nxd", "torch"])
def test_device_rules_hold_for_every_backend(backend: str) -> None:
    with pytest.raises(AutoshardError, match="tp=4 is not a group of trn1"):
        check_strategy(*problem(backend=backend), strategy(tp=4, dp=16))


def test_warnings_name_what_nxd_gets_wrong() -> None:
    assert warnings(problem(), strategy(dp=1, cp=2)) == (
        (
            "cp=2: optimizer checkpoints of NxD 0.18.0 lack a context-parallel rank in their names and overwrite each "
            "other: autoshard run writes its own, NxD Training resumes wrongly"
        ),
        (
            "tp=32 replicates 8 key-value heads: the gradient norm of NxD 0.18.0 counts them 4 times: autoshard run "
            "counts them once, NxD Training clips early"
        ),
    )
    assert warnings(problem(), strategy(tp=8, dp=8)) == ()
    on_torch = problem(backend="torch")
    assert warnings(on_torch, strategy(dp=1, cp=2)) == (device_objection(on_torch.cluster),)


@pytest.mark.parametrize(
    ("model", "more"),
    [
        ("llama3-8b", ""),
        ("mixtral-8x7b", ", 1.2 to 1.9 with experts"),
        ("granite-4.0-h-tiny", ", 1.2 to 1.9 with experts, 1.8 to 18 with recurrences"),
        ("gemma2-2b", ", 2.6 and 2.9 for Gemma 4 and 2"),
    ],
)
def test_a_plan_for_gpus_says_how_this_runtime_kept_its_time(model: str, more: str) -> None:
    on_gpus = problem(model=load_model(model), backend="torch", cluster=load_cluster("h100-80gb", 1))
    assert warnings(on_gpus, strategy(tp=1, pp=1)) == (
        (
            "time: predicted for kernels fused as Megatron's are; autoshard's own runtime took, on one H200, 1.05 to "
            f"1.3 times as long with --compile, 1.25 to 1.7 without{more}; autoshard calibrate --device cuda measures "
            "yours"
        ),
    )


@pytest.mark.parametrize(("count", "expected"), [(1, (1,)), (12, (1, 2, 3, 4, 6, 12)), (49, (1, 7, 49))])
def test_divisors_rise(count: int, expected: tuple[int, ...]) -> None:
    assert divisors(count) == expected


def test_a_length_that_the_flash_kernel_does_not_take_is_told() -> None:
    """Below the kernel's multiple plain attention is cheap, and a window or heads may be what it does not take."""
    plain = strategy(tp=8, attention_kernel="plain")
    said = (
        "flash attention takes multiples of 2,048 tokens here, not sequence_length=5000, and plain stores all scores; "
    )
    assert warnings(problem(training=length(5000)), plain) == (f"{said}4096 or 6144 would have it",)
    assert warnings(problem(training=length(5000), backend="torch"), plain) != ()
    for tokens in (1024, 2047, 4096):
        assert warnings(problem(training=length(tokens)), plain) == ()
    for model in (MISTRAL, replace(LLAMA_70B, head_dim=256)):
        assert not any("flash" in note for note in warnings(problem(model=model, training=length(9000)), plain))
    assert warnings(problem(**on("h100-80gb", 64), training=length(5000), backend="torch"), plain)[1:] == ()


def test_a_draft_of_another_schedule_keeps_the_rest() -> None:
    draft = Draft(1, 2, 3, 4, 5, 6, 7, "1f1b", "flash", (8, 9), False, 3, "ring", ("tp", "pp", "dp", "cp"))
    expected = draft._replace(schedule="interleaved", num_virtual_stages=10, microbatch_size=11)
    assert draft.scheduled("interleaved", 10, 11) == expected
