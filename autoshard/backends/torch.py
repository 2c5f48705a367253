"""The backend that runs the plan's graph on torch itself, on any device; on Neuron's native device under its rules."""

from __future__ import annotations

from autoshard.backends.backend import Backend
from autoshard.backends.native_neuron import (
    NATIVE_KERNEL_RULES,
    NATIVE_MESH_RULES,
    NATIVE_STATE_RULES,
    native_warnings,
)

_RUNTIME = "autoshard.runtime.torch_backend.runtime"

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
    warnings=native_warnings,
    runs_stacks=True,
)
