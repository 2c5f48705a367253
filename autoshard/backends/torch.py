"""The backend that runs the plan's graph on torch itself, on any device; on Neuron's native device under its rules."""

from __future__ import annotations

from autoshard.backends.backend import Backend
from autoshard.backends.native_neuron import (
    NATIVE_KERNEL_RULES,
    NATIVE_MESH_RULES,
    NATIVE_STATE_RULES,
    native_warnings,
)
from autoshard.layout.strategy import Strategy

_FOLDER = "autoshard.runtime.torch_backend."


def _early_imports(strategy: Strategy) -> tuple[str, ...]:
    """The runtime, and torch's pipelines, which take longer than it."""
    return (f"{_FOLDER}runtime", *[f"{_FOLDER}pipeline_runtime"] * (strategy.pp > 1))


TORCH = Backend(
    "torch",
    "torch",
    f"{_FOLDER}runtime",
    early_imports=_early_imports,
    pads=True,
    unlike_stages=True,
    mesh_rules=NATIVE_MESH_RULES,
    kernel_rules=NATIVE_KERNEL_RULES,
    state_rules=NATIVE_STATE_RULES,
    warnings=native_warnings,
    runs_stacks=True,
)
