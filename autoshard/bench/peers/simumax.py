"""SimuMax (https://github.com/MooreThreads/SimuMax): a row in its words, with the efficiencies of its system file."""

from __future__ import annotations

import contextlib
import io
import json
import warnings
from copy import deepcopy
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from autoshard.bench.peers.peer import ROOMY_BYTES, Answer, bandwidth_bytes_per_s, recompute_words
from autoshard.bench.rows import Measured
from autoshard.units import GIB, KIB, MIB, TFLOPS

SYSTEM = "b200_bf16_ceperm.json"
"""A file in the folder configs/system of a checkout, its one machine with NVLink; a row's device has the mean
efficiencies of its operators, and its own speeds."""
UNITS = {"ms": 1e-3, "s": 1.0, "B": 1.0, "KB": KIB, "MB": MIB, "GB": GIB, "TB": 1024 * GIB}
"""Its units of time and memory, in seconds and bytes."""


def said(row: Measured) -> Answer | None:
    """(seconds of a step, bytes of a device) as SimuMax has them; None for what it has no words for: ZeRO above 1,
    other recompute sets than all or the scores, uneven stages, latent attention, Trainium."""
    model, strategy = row.model, row.strategy
    if strategy.zero > 1 or model.latent_attention is not None or row.cluster.platform.is_trainium:
        return None
    if len(set(strategy.stage_layers)) > 1 or strategy.axis_order[-1] != "tp":
        return None
    recompute = recompute_words(row, "none", "sdp_only", "full_block")
    if recompute is None:
        return None
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            return _run(row, recompute)
    except Exception:  # other people's code: whatever it raises, it has no answer
        return None


def _run(row: Measured, recompute: str) -> Answer:
    from simumax.core.config import ModelConfig, StrategyConfig, SystemConfig
    from simumax.core.perf_llm import PerfLLM

    strategy, training = row.strategy, row.training
    flash = strategy.attention_kernel == "flash"
    layout = StrategyConfig(
        seq_len=training.sequence_length,
        micro_batch_size=strategy.microbatch_size,
        micro_batch_num=strategy.num_microbatches(training.global_batch_size),
        dtype="bf16",
        world_size=row.cluster.world_size,
        tp_size=strategy.tp,
        cp_size=strategy.cp,
        pp_size=strategy.pp,
        ep_size=strategy.ep,
        etp_size=strategy.etp or strategy.tp if row.model.is_moe else 1,
        interleaving_size=strategy.num_virtual_stages,
        zero_state=strategy.zero,
        enable_sequence_parallel=strategy.sequence_parallel and strategy.tp > 1,
        use_flash_sdp=flash,
        use_math_sdp=not flash,
        use_fp32_accum_grad=training.precision.gradient_accumulation_dtype == "float32",
        enable_recompute=recompute != "none",
        recompute_granularity=None if recompute == "none" else recompute,
        recompute_layer_num=0 if recompute == "none" else row.model.num_hidden_layers,
    )
    found = PerfLLM()
    found.configure(layout, ModelConfig(**_model(row)), SystemConfig.init_from_dict(_system(row)))
    found.run_estimate()
    cost, memory = found.analysis_cost().data, found.analysis_mem().data
    stages = [memory] if "peak_mem" in memory else list(memory.values())
    return _number(cost["duration_time_per_iter"]), max(_number(stage["peak_mem"]) for stage in stages)


def _model(row: Measured) -> dict[str, Any]:
    """The model as a configuration of SimuMax. Raises ValueError for a mixture whose dense blocks do not come first."""
    model = row.model
    values = {
        "model_name": model.name,
        "hidden_size": model.hidden_size,
        "head_num": model.num_attention_heads,
        "kv_head_num": model.num_key_value_heads,
        "head_size": model.head_dim,
        "intermediate_size": model.intermediate_size,
        "layer_num": model.num_hidden_layers,
        "vocab_size": model.vocab_size,
        "use_swiglu": model.family.has_gate,
    }
    if not model.is_moe:
        return {**values, "model_type": "dense"}
    dense = model.num_hidden_layers - model.num_sparse_layers
    if "sparse" in model.mlp_layer_types[:dense]:
        raise ValueError("dense blocks come first")
    shared = model.shared_expert_intermediate_size
    return {
        **values,
        "model_type": "moe",
        "intermediate_size": model.dense_intermediate_size or model.intermediate_size,
        "moe_ffn_hidden_size": model.intermediate_size,
        "expert_num": model.num_local_experts,
        "topk": model.num_experts_per_tok,
        "dense_layers": dense,
        **({"moe_shared_expert_intermediate_size": shared} if shared else {}),
    }


def _system(row: Measured) -> dict[str, Any]:
    """SimuMax's system file with the row's speeds in place of that machine's."""
    device, cluster = row.cluster.device, row.cluster
    values = deepcopy(_file())
    peak = device.peak_flops_per_s(row.training.precision.fastest_dtype) / TFLOPS
    accelerator = values["accelerator"]
    accelerator["mem_gbs"] = ROOMY_BYTES / GIB
    for operator in accelerator["op"].values():
        operator |= {"tflops": peak, "accurate_efficient_factor": {}}
    for memory in accelerator["bandwidth"].values():
        memory["gbps"] = device.memory_bandwidth_bytes_per_s / GIB
    values["num_per_node"] = cluster.devices_per_node
    for name, between in (("low_intra_node", False), ("high_intra_node", False), ("inter_node", True)):
        network = values["networks"][name]
        shared = cluster.devices_per_node if between else 1  # it divides a node's adapters among its devices
        network["bandwidth"] |= {"gbps": shared * bandwidth_bytes_per_s(row, between) / GIB, "efficient_factor": 1.0}
    return values


@lru_cache(maxsize=1)
def _file() -> dict[str, Any]:
    spec = find_spec("simumax")
    assert spec is not None and spec.origin is not None
    path = Path(spec.origin).parents[1] / "configs" / "system" / SYSTEM
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values


def _number(text: str) -> float:
    """Seconds of "878.6826 ms", bytes of "64.8446 GB": SimuMax returns texts."""
    value, unit = text.split(" ")
    return float(value) * UNITS[unit]
