"""The backend that runs the plan's graph on torch itself, on any device, without limits of its own."""

from __future__ import annotations

from autoshard.backends.backend import Backend

TORCH = Backend("torch", "torch", "autoshard.runtime.torch_backend.runtime", pads=True, unlike_stages=True)
