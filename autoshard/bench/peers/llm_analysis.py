"""llm-analysis (https://github.com/cli99/llm-analysis): a row in its words."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from autoshard.bench.peers.peer import ROOMY_BYTES, Answer
from autoshard.bench.rows import Measured
from autoshard.graph.recompute import FULL_RECOMPUTE, NO_RECOMPUTE
from autoshard.units import GB, TFLOPS


def said(row: Measured) -> Answer | None:
    """(seconds of a step, bytes of a device) as llm-analysis 0.2 has them; None for what it does not know: several
    chunks a rank, context parallelism, Trainium.

    It takes its efficiencies from the user: seconds are at the devices' peak.
    """
    strategy, training = row.strategy, row.training
    if strategy.num_virtual_stages > 1 or strategy.cp > 1 or row.cluster.platform.is_trainium:
        return None
    try:
        answer = _llm_analysis(row).training(
            batch_size_per_gpu=strategy.microbatch_size,
            gradient_accumulation_steps=strategy.num_microbatches(training.global_batch_size),
            seq_len=training.sequence_length,
            total_num_tokens=training.tokens_per_step,
            activation_recomputation=_enum("ActivationRecomputation", _recompute_level(row)),
            ds_zero=_enum("DSZeRO", strategy.zero),
            flash_attn=strategy.attention_kernel == "flash",
            mlp_gated_linear_units=row.model.family.has_gate,
        )
    except Exception:  # other people's code: whatever it raises, it has no answer
        return None
    return float(answer["latency_per_iter"]), float(answer["(weight+op_state+grad+act)_memory_per_gpu"])


def _recompute_level(row: Measured) -> int:
    return {NO_RECOMPUTE: 0, FULL_RECOMPUTE: 2}.get(row.strategy.recompute[0], 1)


@lru_cache(maxsize=4)
def _enum_type(name: str) -> Any:
    from llm_analysis import analysis

    return getattr(analysis, name)


def _enum(name: str, value: int) -> Any:
    return _enum_type(name)(value)


def _llm_analysis(row: Measured) -> Any:
    from llm_analysis import config
    from llm_analysis.analysis import LLMAnalysis
    from llm_analysis.logger import logger

    logger.setLevel(logging.CRITICAL)
    model, cluster, strategy = row.model, row.cluster, row.strategy
    experts: Mapping[str, int] = {}
    if model.is_moe:
        experts = {"moe_num_experts": model.num_local_experts, "moe_top_k": model.num_experts_per_tok}
    described = config.ModelConfig(
        name=model.name,
        num_layers=model.num_hidden_layers,
        n_head=model.num_attention_heads,
        hidden_dim=model.hidden_size,
        vocab_size=model.vocab_size,
        max_seq_len=row.training.sequence_length,
        num_key_value_heads=model.num_key_value_heads,
        ffn_embed_dim=model.intermediate_size,
        expansion_ratio=model.intermediate_size / model.hidden_size,
        **experts,
    )
    device, (_, link) = cluster.device, cluster.intra_node[-1]
    gpu = config.GPUConfig(
        name=cluster.instance,
        mem_per_GPU_in_GB=ROOMY_BYTES / GB,
        hbm_bandwidth_in_GB_per_sec=device.memory_bandwidth_bytes_per_s / GB,
        intra_node_bandwidth_in_GB_per_sec=link.bandwidth_bytes_per_s / GB,
        intra_node_min_message_latency=link.latency_s,
        peak_fp16_TFLOPS=device.peak_flops_per_s(row.training.precision.fastest_dtype) / TFLOPS,
        inter_node_bandwidth_in_GB_per_sec=cluster.inter_node.bandwidth_bytes_per_s / GB,
    )
    ways = config.ParallelismConfig(tp_size=strategy.tp, pp_size=strategy.pp, dp_size=strategy.dp, ep_size=strategy.ep)
    return LLMAnalysis(described, gpu, parallelism_config=ways, flops_efficiency=1.0, hbm_memory_efficiency=1.0)
