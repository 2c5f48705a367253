"""The backend that runs the plan's graph on torch itself, on any device; on Neuron's native device under its rules."""

from __future__ import annotations

from autoshard.backends.backend import Backend
from autoshard.backends.native_neuron import (
    NATIVE_KERNEL_RULES,
    NATIVE_MESH_RULES,
    NATIVE_STATE_RULES,
    native_warnings,
)
from autoshard.backends.problem import Problem
from autoshard.layout.strategy import Strategy
from autoshard.spec.model import ModelSpec

_RUNTIME = "autoshard.runtime.torch_backend.runtime"

EAGER, COMPILED = "1.25 to 1.7", "1.05 to 1.3"
OF_EXPERTS, OF_RECURRENCES, OF_GEMMA = "1.2 to 1.9", "1.8 to 18", "2.6 and 2.9"
"""A step on one H200 against its prediction: three dense models, six with experts, three with recurrences (since then
these launch a third to a fifteenth of the operators), Gemma 4 and 2 [benchmarks/results/on_gpu.md]."""
LIKE_GEMMA_2 = ("gemma2", "gemma3_text", "gemma4_text")
"""With a norm behind attention and MLP too. Gemma 3 was not measured."""


def warnings(problem: Problem, strategy: Strategy) -> tuple[str, ...]:
    """Sentences on what native PyTorch does with a layout, and on how this runtime keeps its time on GPUs."""
    found = native_warnings(problem, strategy)
    return (*found, _on_gpus(problem.model)) if problem.cluster.platform.is_cuda else found


def _on_gpus(model: ModelSpec) -> str:
    kinds = []
    if model.num_local_experts:
        kinds.append(f"{OF_EXPERTS} with experts")
    if any(one is not None for one in (model.linear_attention, model.lightning_attention, model.mamba, model.mamba1)):
        kinds.append(f"{OF_RECURRENCES} with recurrences")
    if model.model_type in LIKE_GEMMA_2:
        kinds.append(f"{OF_GEMMA} for Gemma 4 and 2")
    return (
        "time: predicted for kernels fused as Megatron's are; autoshard's own runtime took, on one H200, "
        f"{COMPILED} times as long with --compile, {EAGER} without{''.join(f', {kind}' for kind in kinds)}; autoshard "
        "calibrate --device cuda measures yours"
    )


TORCH = Backend(
    "torch",
    "torch",
    _RUNTIME,
    early_imports=(_RUNTIME,),
    pads=True,
    balances_microbatches=True,
    unlike_stages=True,
    mesh_rules=NATIVE_MESH_RULES,
    kernel_rules=NATIVE_KERNEL_RULES,
    state_rules=NATIVE_STATE_RULES,
    warnings=warnings,
    runs_stacks=True,
)
