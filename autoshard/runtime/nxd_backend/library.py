"""Finds neuronx-distributed and mends its CPU mode and process groups. Imports it only inside functions."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.plans.plan import Plan
from autoshard.runtime.nxd_backend.rank_groups import mesh_groups, plan_case

INSTALL = (
    "backend nxd needs neuronx-distributed, which is not installed: with the Neuron SDK's package index, pip install "
    "neuronx-distributed==0.18.* torch-neuronx==2.9.* neuronx-cc==2.* boto3 tenacity; --backend torch runs without it"
)


def require_library() -> None:
    """Raises AutoshardError where neuronx-distributed is missing; the text says how to install it."""
    if find_spec("neuronx_distributed") is None:
        raise AutoshardError(INSTALL)


def is_cpu_mode() -> bool:
    """Whether NxD computes on CPU processes over gloo (NXD_CPU_MODE=1)."""
    return os.environ.get("NXD_CPU_MODE", "0") not in ("", "0")


def set_process_variables(rank: int, local_rank: int, world_size: int, local_world_size: int) -> None:
    """Sets the variables that NxD and torch_xla read from a launcher; those that are set already stay."""
    values = {
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": local_world_size,
    }
    for name, value in values.items():
        os.environ.setdefault(name, str(value))
    os.environ.setdefault("NXD_LOG_LEVEL", "error")
    os.environ.setdefault("PJRT_DEVICE", "CPU" if is_cpu_mode() else "NEURON")


def check_variables() -> None:
    """Raises AutoshardError where XLA would turn the plan's FP32 tensors into bf16 ones without a word."""
    for name in ("XLA_USE_BF16", "XLA_DOWNCAST_BF16"):
        if os.environ.get(name, "0") not in ("", "0"):
            raise AutoshardError(
                f"{name}={os.environ[name]} makes FP32 masters and sums bf16 on the device; set it to 0: a plan's "
                "weights are bf16 where it says so"
            )


def mend_cpu_mode() -> None:
    """Mends CPU mode: NxD 0.18.0's grads.py passes replica lists to a function that wants a process group there."""
    import torch_xla.core.xla_model as xm
    from neuronx_distributed.parallel_layers import comm, grads

    def all_reduce(op_type: str, tensors: Any, groups: Any, pin_layout: bool = True) -> Any:
        if isinstance(groups, (list, tuple)):
            return xm.all_reduce(op_type, tensors, groups=groups, pin_layout=pin_layout)
        return comm.all_reduce(op_type, tensors, groups=groups, pin_layout=pin_layout)

    grads.all_reduce = all_reduce


def mend_folded_groups(plan: Plan) -> None:
    """Puts the plan's groups in the place of NxD's where its LOGIC2 makes groups of consecutive ranks, which hold
    different shards (collective).

    These are the groups over which gradients are summed without ZeRO-1, and those that share key-value heads.
    """
    from neuronx_distributed.parallel_layers import parallel_state as state

    if not plan_case(plan).is_folded:
        return
    for name, theirs, axes in (
        ("_EXP_DATA_PARALLEL_GROUP", state.get_expert_data_parallel_replica_groups(), ("dp", "cp")),
        ("_KV_SHARED_GROUP", state.get_kv_shared_replica_groups(), ("tp1",)),
    ):
        ours = plan.mesh.groups(axes)
        if sorted(map(list, theirs)) != sorted(ours):
            state._build_and_assign_groups(name, f"{name}_SPMD", ours, compress_rg=False)


def check_groups(plan: Plan) -> None:
    """Compares NxD's process groups in this process with the plan's mesh. Raises AutoshardError where one differs."""
    from neuronx_distributed.parallel_layers import parallel_state as state

    made = {
        "tp_groups": state.get_tensor_model_parallel_replica_groups(),
        "dp_groups": state.get_data_parallel_replica_groups(),
        "pp_groups": state.get_pipeline_model_parallel_replica_groups(),
        "ep_model_groups": state.get_expert_model_parallel_replica_groups(),
        "ep_data_groups": state.get_expert_data_parallel_replica_groups(),
        "cp_groups": state.get_context_model_parallel_replica_groups(),
    }
    for kind, own in mesh_groups(plan).by_name().items():
        _compare(kind, made[kind], own)


def check_key_value_groups(plan: Plan) -> None:
    """Compares the groups of ranks that hold the same keys and values, which a layer has made by now, with the plan's.
    Raises AutoshardError where one differs."""
    from neuronx_distributed.parallel_layers import parallel_state as state

    _compare("groups of shared key-value heads", state.get_kv_shared_replica_groups(), plan.mesh.groups(("tp1",)))


def _compare(kind: str, theirs: Iterable[Iterable[int]], ours: Iterable[Iterable[int]]) -> None:
    found, wanted = (sorted(tuple(group) for group in groups) for groups in (theirs, ours))
    if found != wanted:
        raise AutoshardError(
            f"{kind} of NxD on this machine are {list(found[0])}, ..., of the plan {list(wanted[0])}, ...: "
            "plan for this instance type, LNC and number of nodes"
        )
