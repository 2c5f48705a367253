"""The environment that a plan's processes need on Trainium, a reason for each variable.

[NxDT: examples/train_setup.sh and training_orchestrator.py of aws-neuron/neuronx-distributed-training; SDK: the Neuron
SDK's documentation]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autoshard.launch.options import LaunchOptions
from autoshard.layout.plan import Plan

XLA_TYPES = {"mixed_precision": ("0", "1", "0"), "bf16_sr": ("1", "0", "1"), "fp32": ("0", "0", "0")}
"""precision -> XLA_USE_BF16, XLA_DOWNCAST_BF16, NEURON_RT_STOCHASTIC_ROUNDING_EN [NxDT]"""
COMPILER_PRECISION = {"fp32": "--auto-cast none"}
SHARED = "/shared"


@dataclass(frozen=True)
class Variable:
    """reason: why it is set, a sentence without a full stop."""

    name: str
    value: str
    reason: str


def variables(plan: Plan, options: LaunchOptions, cache: str) -> tuple[Variable, ...]:
    """In the order in which they are set; none where the plan is not for Trainium. cache: where options name none."""
    if plan.cluster.layout_rules == "none":
        return ()
    network = _network(plan) if plan.cluster.nodes > 1 else iter(())
    return (*network, *_runtime(plan), *_compiler(plan, options.cache or cache), *_host())


def _network(plan: Plan) -> Iterator[Variable]:
    yield Variable(
        "FI_PROVIDER", "efa", f"libfabric must take the {plan.cluster.adapters_per_node} EFA adapters, not TCP"
    )
    yield Variable("FI_EFA_USE_DEVICE_RDMA", "1", "collectives go from device memory to the network without the host")
    yield Variable("FI_EFA_FORK_SAFE", "1", "data loaders fork; older kernels corrupt EFA's memory without it")


def _runtime(plan: Plan) -> Iterator[Variable]:
    use_bf16, downcast, rounding = XLA_TYPES.get(plan.training.precision.name, ("0", "0", "0"))
    name = plan.training.precision.name
    if plan.cluster.layout_rules == "trn2":
        lnc = plan.cluster.lnc
        yield Variable("NEURON_LOGICAL_NC_CONFIG", str(lnc), f"the plan's devices are {lnc} physical cores each")
    yield Variable("XLA_USE_BF16", use_bf16, f"precision {name}: {'all' if use_bf16 == '1' else 'not all'} is bf16")
    yield Variable("XLA_DOWNCAST_BF16", downcast, f"precision {name}: float32 tensors are bf16 on the device iff 1")
    yield Variable("NEURON_RT_STOCHASTIC_ROUNDING_EN", rounding, f"precision {name}: rounding to bf16 is random iff 1")
    yield Variable("NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS", "5", "the host runs ahead of the device, a few graphs")


def _compiler(plan: Plan, cache: str) -> Iterator[Variable]:
    name = plan.training.precision.name
    flags = [
        "--model-type transformer",
        "--distribution-strategy=llm-training",
        COMPILER_PRECISION.get(name, "--enable-mixed-precision-accumulation"),
    ]
    if plan.cluster.layout_rules == "trn2":
        flags.append(f"--lnc={plan.cluster.lnc}")
    yield Variable("NEURON_CC_FLAGS", " ".join(flags), "the compiler must know the model's kind, precision and cores")
    yield Variable("NEURON_COMPILE_CACHE_URL", cache, "shared by all nodes, so that a graph is compiled once")


def _host() -> Iterator[Variable]:
    yield Variable(
        "MALLOC_ARENA_MAX", "128", "one process for each device: glibc's arenas would fill the host's memory"
    )
