"""Calculon (https://github.com/calculon-ai/calculon): a row in its words, with the efficiencies of its own system
files."""

from __future__ import annotations

import json
import logging
from copy import deepcopy
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from autoshard.bench.peers.peer import ROOMY_BYTES, Answer, bandwidth_bytes_per_s, crosses_nodes, recompute_words
from autoshard.bench.rows import Measured
from autoshard.units import GB, GIB, TFLOPS

NEWER, OLDER = "h100_80g_nvl8.json", "a100_80g.json"
"""Files in the folder systems of a checkout; a row's device has the efficiencies of one, and its own speeds."""
DTYPE = "bfloat16"


def said(row: Measured) -> Answer | None:
    """(seconds of a step, bytes of a device) as Calculon has them; None for what it has no words for: experts, grouped
    queries, context parallelism, ZeRO above 1, other recompute sets, Trainium.

    A gated MLP is said as one that is half as wide again, which has as many parameters and FLOPs. A flash kernel is
    said as scores that are run again, as it does.
    """
    model, strategy = row.model, row.strategy
    if model.is_moe or strategy.cp > 1 or strategy.zero > 1 or row.cluster.platform.is_trainium:
        return None
    if model.num_key_value_heads not in (1, model.num_attention_heads):
        return None
    flash = strategy.attention_kernel == "flash"
    recompute = recompute_words(row, "attn_only" if flash else "none", "attn_only", "full")
    if recompute is None:
        return None
    try:
        return _run(row, recompute)
    except Exception:  # other people's code: whatever it raises, it has no answer
        return None


def _run(row: Measured, recompute: str) -> Answer:
    from calculon import System
    from calculon.llm import Llm

    model, strategy, training = row.model, row.strategy, row.training
    described = Llm.Application(
        {
            "hidden": model.hidden_size,
            "feedforward": model.intermediate_size * (3 if model.family.has_gate else 2) // 2,
            "seq_size": training.sequence_length,
            "attn_heads": model.num_attention_heads,
            "attn_size": model.head_dim,
            "num_blocks": model.num_hidden_layers,
        }
    )
    layout = Llm.Execution.from_json(
        {
            "num_procs": row.cluster.world_size,
            "tensor_par": strategy.tp,
            "pipeline_par": strategy.pp,
            "data_par": strategy.dp,
            "tensor_par_net": int(crosses_nodes(row, "tp")),
            "pipeline_par_net": int(crosses_nodes(row, "pp")),
            "data_par_net": int(crosses_nodes(row, "dp")),
            "batch_size": training.global_batch_size,
            "microbatch_size": strategy.microbatch_size,
            "datatype": DTYPE,
            "fused_activation": True,
            "attention_type": "multihead" if model.num_key_value_heads > 1 else "multiquery",
            "activation_recompute": recompute,
            "pipeline_interleaving": strategy.num_virtual_stages,
            "optimizer_sharding": strategy.zero == 1 and strategy.dp > 1,
            "tensor_par_comm_type": "rs_ag" if strategy.sequence_parallel else "ar",
            "tensor_par_overlap": "none",
            "seq_par_ag_redo": False,
            "data_par_overlap": False,
            "weight_offload": False,
            "activations_offload": False,
            "optimizer_offload": False,
            "training": True,
        }
    )
    system = System(_system(row))
    found = Llm(described, logging.getLogger("calculon"))
    found.compile(system, layout)
    found.run(system)
    return float(found.get_total_time()), float(found.get_mem_tier1_cap_req())


def _system(row: Measured) -> dict[str, Any]:
    """The system file of the nearest device that Calculon has, with the row's speeds in place of that one's."""
    device, cluster = row.cluster.device, row.cluster
    values = deepcopy(_file(OLDER if device.name.startswith("a100") else NEWER))
    peak = device.peak_flops_per_s(row.training.precision.fastest_dtype) / TFLOPS
    vectors = values["vector"]["float16"]["tflops"] / values["matrix"]["float16"]["tflops"]
    values["matrix"] = {DTYPE: {**values["matrix"]["float16"], "tflops": peak}}
    values["vector"] = {DTYPE: {**values["vector"]["float16"], "tflops": peak * vectors}}
    values["mem1"] |= {"GiB": ROOMY_BYTES / GIB, "GBps": device.memory_bandwidth_bytes_per_s / GB}
    sizes, latencies = (cluster.devices_per_node, cluster.world_size), (cluster.intra_node[-1][1], cluster.inter_node)
    for between, (network, size, link) in enumerate(zip(values["networks"], sizes, latencies, strict=True)):
        speed = bandwidth_bytes_per_s(row, bool(between)) / GB
        network |= {"bandwidth": speed, "efficiency": 1.0, "size": size, "latency": link.latency_s}
        network["must_be_filled"] = False
    return values


@lru_cache(maxsize=2)
def _file(name: str) -> dict[str, Any]:
    spec = find_spec("calculon")
    assert spec is not None and spec.origin is not None
    values: dict[str, Any] = json.loads((Path(spec.origin).parents[1] / "systems" / name).read_text(encoding="utf-8"))
    return values
