"""List the environment that a plan's processes need on Trainium, with a reason for each variable."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.jobs.native import cores_of_a_device, native_compiler, native_runtime
from autoshard.jobs.options import LaunchOptions
from autoshard.plans.plan import Plan
from autoshard.spec.platform import Variable
from autoshard.spec.sdk import is_before

TYPES_STAY = "each tensor has the format that the plan says: with 1, FP32 masters would be bf16 on the device"
"""NxD Training sets them to 1 and holds everything in FP32; a plan's weights are bf16 where it says so."""
COMPILER_PRECISION = {"fp32": "--auto-cast none"}
SHARED = "/shared"


def variables(plan: Plan, options: LaunchOptions, cache: str) -> tuple[Variable, ...]:
    """The variables to set, in this order; none if the plan is not for Trainium. cache: used if the options
    name none.
    """
    if not plan.cluster.platform.is_trainium:
        return ()
    network, cache = _network(plan) if plan.cluster.nodes > 1 else iter(()), options.cache or cache
    if plan.cluster.stack is not None:
        own = (*native_runtime(plan), *native_compiler(plan, cache, options.precompile))
    else:
        own = (*_runtime(plan), *_compiler(plan, cache))
    return (*network, *own, *plan.cluster.platform.variables)


def _network(plan: Plan) -> Iterator[Variable]:
    yield Variable(
        "FI_PROVIDER", "efa", f"libfabric must take the {plan.cluster.adapters_per_node} EFA adapters, not TCP"
    )
    yield Variable("FI_EFA_USE_DEVICE_RDMA", "1", "collectives go from device memory to the network without the host")
    yield Variable("FI_EFA_FORK_SAFE", "1", "data loaders fork; older kernels corrupt EFA's memory without it")


def _runtime(plan: Plan) -> Iterator[Variable]:
    name = plan.training.precision.name
    rounding = "1" if name == "bf16_sr" else "0"
    if plan.cluster.platform.has_lnc_choice:
        yield cores_of_a_device(plan)
    yield Variable("XLA_USE_BF16", "0", TYPES_STAY)
    yield Variable("XLA_DOWNCAST_BF16", "0", TYPES_STAY)
    yield Variable("NEURON_RT_STOCHASTIC_ROUNDING_EN", rounding, f"precision {name}: rounding to bf16 is random iff 1")
    if _is_before(plan, "2.31"):  # which ignores it [SDK announce-no-support-implicit-async-mode]
        yield Variable(
            "NEURON_RT_ASYNC_EXEC_MAX_INFLIGHT_REQUESTS", "5", "the host runs ahead of the device, a few graphs"
        )


def _is_before(plan: Plan, sdk: str) -> bool:
    """Whether the plan's release of the Neuron SDK is older; a plan that names none was made before releases were."""
    return plan.cluster.sdk is None or is_before(plan.cluster.sdk, sdk)


def _compiler(plan: Plan, cache: str) -> Iterator[Variable]:
    name = plan.training.precision.name
    flags = [
        "--model-type transformer",
        "--distribution-strategy=llm-training",
        COMPILER_PRECISION.get(name, "--enable-mixed-precision-accumulation"),
    ]
    if plan.cluster.platform.has_lnc_choice:
        flags.append(f"--lnc={plan.cluster.lnc}")
    yield Variable("NEURON_CC_FLAGS", " ".join(flags), "the compiler must know the model's kind, precision and cores")
    yield Variable("NEURON_COMPILE_CACHE_URL", cache, "shared by all nodes, so that a graph is compiled once")
