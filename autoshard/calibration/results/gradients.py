"""Says in which dtype each published stack sums gradients over microbatches and sends them between ranks."""

from __future__ import annotations

from dataclasses import dataclass

HALF, SINGLE = "half", "float32"
SAID = ("fp32 grad", "float32 grad")
"""Words of a row's precision by which the row itself says that its gradients are in float32."""


@dataclass(frozen=True)
class Gradients:
    """Dtypes of the gradients of a run in bfloat16, or in 8 bits beside it: HALF is the parameters' own, in which all
    stacks here read and gather weights. begins: of a row's framework, in small letters. source: where it was read."""

    begins: str
    summed: str
    sent: str
    source: str


TABLE = (
    Gradients(
        "aa-scaling",
        HALF,
        SINGLE,
        "its published code sends them in float32; 13 billion parameters on 80 GB leave no room for sums in it",
    ),
    Gradients(
        "nemo automodel fsdp2+ep",
        SINGLE,
        SINGLE,
        "NVIDIA-NeMo/Automodel v0.2.0: components/moe/parallelizer.py, line 140",
    ),
    Gradients("nemo automodel", HALF, HALF, "NVIDIA-NeMo/Automodel v0.2.0: components/distributed/fsdp2.py, line 110"),
    Gradients("automodel", HALF, HALF, "NVIDIA-NeMo/Automodel v0.2.0: components/distributed/fsdp2.py, line 110"),
    Gradients(
        "nemo",
        HALF,
        HALF,
        "grad_reduce_in_fp32=False of NeMo 2's performance recipes (scripts/performance), grad_sync_dtype: bf16 in the "
        "yaml files of NeMo 1 that NVIDIA/dgxc-benchmarking measures; without it, as in its Nemotron-4 15B from v25.02 "
        "on, float32 [NVIDIA/NeMo v2.1.0: megatron_gpt_model.py, line 588], which such a row has to say",
    ),
    Gradients(
        "megatron-bridge",
        HALF,
        HALF,
        "grad_reduce_in_fp32=False [NVIDIA-NeMo/Megatron-Bridge: perf_recipes/_common.py, _benchmark_common]",
    ),
    *(
        Gradients(name, HALF, HALF, f"{read}; that XLA sums what a product makes before it casts it back is recalled")
        for name, read in (
            ("maxtext", "weights are cast to bfloat16 where a product reads them [layers/linears.py, line 297]"),
            ("paxml", "variables are cast to bfloat16 inside the loss [paxml/trainer_lib.py, _get_default_loss_fn]"),
            ("jax", "as MaxText and Paxml, the frameworks of JAX here"),
        )
    ),
    Gradients("torchtitan", SINGLE, SINGLE, "mixed_precision_reduce has no other choice [config/configs.py]"),
    Gradients(
        "llm-foundry pytorch fsdp, mp mode pure",
        HALF,
        HALF,
        "mosaicml/composer: composer/distributed/mosaic_parallelism.py, get_mixed_precision",
    ),
    Gradients(
        "llm-foundry",
        SINGLE,
        SINGLE,
        "DEFAULT, the mode that composer takes unless told [composer/distributed/mosaic_parallelism.py, "
        "get_mixed_precision]",
    ),
    Gradients(
        "pytorch fsdp",
        HALF,
        HALF,
        "bfSixteen [foundation-model-stack/fms-fsdp: policies/mixed_precision.py], and torch's MixedPrecision, whose "
        "reduce_dtype is param_dtype unless told",
    ),
    Gradients(
        "megatron-deepspeed",
        SINGLE,
        SINGLE,
        "bigscience's runs in bfloat16 name the optimizer that sums in float32; that it sends them so is recalled",
    ),
    Gradients("deepspeed + megatron", SINGLE, SINGLE, "as Megatron-DeepSpeed; a guess"),
    Gradients(
        "deepspeed",
        HALF,
        HALF,
        "deepspeedai/DeepSpeed: runtime/engine.py, communication_data_type and get_data_types, where nothing is set",
    ),
    *(
        Gradients(
            name,
            SINGLE,
            SINGLE,
            "NVIDIA/Megatron-LM: training/arguments.py sets accumulate_allreduce_grads_in_fp32 with --bf16",
        )
        for name in ("megatron-lm", "megatron-core")
    ),
    Gradients(
        "nanotron",
        SINGLE,
        SINGLE,
        "accumulate_grad_in_fp32 of all examples; FP32GradientAccumulator sends its sums [huggingface/nanotron: "
        "optim/gradient_accumulator.py]",
    ),
    Gradients(
        "internevo",
        HALF,
        HALF,
        "InternLM/InternEvo: solver/optimizer/hybrid_zero_optim.py, _reduce_and_copy, with dtype=None",
    ),
    *(
        Gradients(
            name, HALF, HALF, "hpcaitech/ColossalAI: zero/low_level/low_level_optim.py; communication_dtype is None"
        )
        for name in ("colossal-ai", "colossalai")
    ),
)
"""The first that a framework begins with counts."""


def known_gradients(framework: str) -> Gradients | None:
    """The entry of TABLE for a row's framework, None where nothing was read of it."""
    lowered = framework.strip().lower()
    return next((one for one in TABLE if lowered.startswith(one.begins)), None)


def assumed_gradients(sharded: bool) -> Gradients:
    """The dtypes of a stack that is not in TABLE. sharded: whether ranks keep parts of gradients: then they travel in
    the parameters' dtype, as torch's FSDP and DeepSpeed send them unless told; else in float32, as Megatron-LM does."""
    if sharded:
        return Gradients("", HALF, HALF, "as torch's FSDP and DeepSpeed send sharded ones")
    return Gradients("", SINGLE, SINGLE, "as Megatron-LM sends them")
