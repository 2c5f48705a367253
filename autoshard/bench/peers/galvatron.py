"""Galvatron's cost model (https://github.com/PKU-DAIR/Hetu-Galvatron): a row in its words.

It takes times and sizes of a block from a profile of the user's machine. Rows have none, so their devices' peak, links
and published sizes of activations (Korthikanti et al. 2022) stand for one.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from autoshard.bench.peers.peer import Answer, bandwidth_bytes_per_s, crosses_nodes, recompute_words
from autoshard.bench.rows import Measured
from autoshard.cost.estimate import model_flops_per_step
from autoshard.models.stage import parameter_count
from autoshard.units import MIB

FP32_BYTES = 4
OVERLAP_SLOWDOWN = 1.3
"""How much slower computing and reducing are beside each other: its own default."""


def said(row: Measured) -> Answer | None:
    """(seconds of a step, bytes of a device) as Galvatron has them; None for what its cost model has no words for:
    experts, several chunks a rank, context parallelism, recompute of a part of a block, tensor without sequence
    parallelism, other schedules than 1F1B and GPipe, Trainium.

    ZeRO-1 is said as its zero2, which keeps gradients whole while they accumulate.
    """
    strategy = row.strategy
    if row.model.is_moe or strategy.num_virtual_stages > 1 or strategy.cp > 1 or row.cluster.platform.is_trainium:
        return None
    if recompute_words(row, "none", None, "full") is None or (strategy.tp > 1 and not strategy.sequence_parallel):
        return None
    if strategy.schedule not in ("1f1b", "gpipe"):
        return None
    try:
        return _run(row)
    except Exception:  # other people's code: whatever it raises, it has no answer
        return None


def _run(row: Measured) -> Answer:
    layer, other, arguments, strategies, handler = map(_module, MODULES)
    strategy, training, model = row.strategy, row.training, row.model
    chunks = strategy.num_microbatches(training.global_batch_size)
    kinds = strategies.DPType
    kind = {0: kinds.DDP, 1: kinds.ZERO2, 2: kinds.ZERO2, 3: kinds.ZERO3}[strategy.zero]
    degrees: dict[str, Any] = {"pp_size": strategy.pp, "tp_size": strategy.tp, "dp_size": strategy.dp}
    degrees["dp_type"] = kind if strategy.dp > 1 else kinds.DDP
    block = strategies.LayerStrategy(**degrees, checkpoint=strategy.uniform_recompute == "full")
    ends = block.to_embedding_lmhead_strategy()
    embedding = model.vocab_size * model.hidden_size
    tables = 1 if model.tie_word_embeddings else 2
    block_mib = FP32_BYTES * (parameter_count(model) - tables * embedding) / model.num_hidden_layers / MIB
    sizes = arguments.ModelArgs(block_mib, training.sequence_length, model.hidden_size, 1)
    trained = arguments.TrainArgs(mixed_precision=True, async_grad_reduce=True)
    flushed = "pipedream_flush" if strategy.schedule == "1f1b" else "gpipe"
    parallel = arguments.ParallelArgs(sequence_parallel=True, pipeline_type=flushed, chunks=chunks)
    profile, machine = _profile(row, arguments, embedding), _machine(row, arguments)
    common = {"global_batch_size": training.global_batch_size, "chunks": chunks}
    of_model = {"model_args": sizes, "train_args": trained, "parallel_args": parallel, "profile_model_args": profile}
    _, at_ends = other.EmbeddingLMHeadTimeCostModel(
        strategy=ends,
        sequence_length_list=[training.sequence_length],
        profile_hardware_args=machine,
        **common,
        **of_model,
    ).gen_result()
    step_s = handler.pipeline_costmodel(
        [model.num_hidden_layers],
        *([one] for one in (sizes, trained, parallel, profile, machine)),
        [block] * model.num_hidden_layers,
        list(strategy.stage_layers),
        chunks,
        training.global_batch_size,
        strategy.pp,
        at_ends,
    )
    around = other.EmbeddingLMHeadMemoryCostModel(strategy=ends, **common, **of_model).get_memory_cost()["enc_total"]
    held_mib = []
    for stage, blocks in enumerate(strategy.stage_layers):
        one = layer.MemoryCostModelBase(block, stage_idx=stage, **common, **of_model).get_memory_cost()
        held_mib.append(blocks * one["enc_total"] + around[stage])
    return float(step_s), float(max(held_mib)) * MIB


def _profile(row: Measured, arguments: Any, embedding: int) -> Any:
    """The profile of the model, as its profiler would measure it: forward times in ms of a sequence, sizes in MiB."""
    model, training, strategy = row.model, row.training, row.strategy
    peak = row.cluster.device.peak_flops_per_s(training.precision.fastest_dtype)
    forward = model_flops_per_step(model, training) / training.global_batch_size / 3
    head = 2 * training.sequence_length * embedding
    tokens = training.sequence_length * model.hidden_size
    scores = 5 * model.num_attention_heads * training.sequence_length / model.hidden_size
    kept = 34 + (0 if strategy.attention_kernel == "flash" else scores)
    degree = strategy.tp
    states = {degree: 4 * FP32_BYTES * embedding / degree / MIB}
    two_tables = {degree: 2 * states[degree]}
    read = {degree: 2 * tokens / degree / MIB}
    logits = {degree: 4 * (tokens + training.sequence_length * model.vocab_size) / degree / MIB}
    return arguments.ProfileModelArgs(
        tp_activation_per_bsz_dict={degree: kept * tokens / degree / MIB, "checkpoint": 2 * tokens / MIB},
        other_memory_pp_off={"model_states": two_tables, "activation": {degree: read[degree] + logits[degree]}},
        other_memory_pp_on={
            "first_stage": {"model_states": states, "activation": read},
            "last_stage": {"model_states": states, "activation": logits},
        },
        forward_computation_time=1e3 * (forward - head) / model.num_hidden_layers / peak,
        other_time_profiled=1e3 * head / peak,
    )


def _machine(row: Measured, arguments: Any) -> Any:
    """The profile of the machine, as its profiler would measure it: ms a MiB of messages."""
    strategy = row.strategy

    def ms_per_mib(axis: str) -> float:
        return 1e3 * MIB / bandwidth_bytes_per_s(row, crosses_nodes(row, axis))

    gathered = {"popt": (ms_per_mib("tp") * (strategy.tp - 1) / strategy.tp, 0.0)}
    return arguments.ProfileHardwareArgs(
        bct_fct_coe=2,
        dp_overlap_coe=OVERLAP_SLOWDOWN,
        bct_overlap_coe=OVERLAP_SLOWDOWN,
        p2p_comm_coe_dict={strategy.pp: ms_per_mib("pp") / strategy.pp},
        allreduce_dict={strategy.tp: gathered},
        allreduce_latency_per_MB_dict={f"{strategy.dp}_{int(strategy.tp == 1)}": ms_per_mib("dp")},
        allgather_message_size_to_latency_dict_dict={strategy.tp: gathered},
    )


MODULES = (
    "galvatron.core.cost_model.components.layer_cost",
    "galvatron.core.cost_model.components.embedding_lmhead_cost",
    "galvatron.core.cost_model.cost_model_args",
    "galvatron.utils.strategy_utils",
    "galvatron.core.cost_model.cost_model_handler",
)


@lru_cache(maxsize=8)
def _module(name: str) -> Any:
    """A module of Galvatron. The package galvatron.utils imports its runtime, with triton; the cost model needs one
    file of it, so that package is not run."""
    if "galvatron.utils" not in sys.modules:
        spec = find_spec("galvatron")
        assert spec is not None and spec.origin is not None
        package = ModuleType("galvatron.utils")
        package.__path__ = [str(Path(spec.origin).parent / "utils")]
        sys.modules["galvatron.utils"] = package
    return import_module(name)
