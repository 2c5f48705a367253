"""A twin of torch-neuronx without a chip: device "neuron", process groups "neuron", torch.compile(backend="neuron").

Memory is the host's, arithmetic is torch's on the CPU, groups go over gloo. What the real one refuses, or computes
wrongly without a word, is refused by a named rule (rules.py). NEURON_TWIN_STRICT=0 leaves out what betas alone refuse.
"""

from __future__ import annotations

import os
from importlib.metadata import version as _installed
from typing import Any

import neuron_rules as rules
import torch
from torch.utils.backend_registration import generate_methods_for_privateuse1_backend, rename_privateuse1_backend

from . import extension

__version__ = _installed("torch-neuronx")
VERSION = tuple(int(part) for part in __version__.split(".")[:3])
IN_FORCE = rules.in_force(VERSION, os.environ.get("NEURON_TWIN_STRICT", "1") == "1")
twin: Any = extension.load()
"""The C++ part."""
twin.set_rules(set(IN_FORCE))


def refuse(rule: str, kind: type[Exception], text: str) -> None:
    """Raises what the real one raises, if the rule is in force."""
    if rule in IN_FORCE:
        raise kind(f"{text} [rule {rule}]")


from . import neuron  # noqa: E402  it needs what is above

rename_privateuse1_backend("neuron")
torch._register_device_module("neuron", neuron)
generate_methods_for_privateuse1_backend(for_tensor=True, for_module=True, for_storage=True)

_printed = torch._tensor_str._tensor_str
torch._tensor_str._tensor_str = lambda x, indent: _printed(x.cpu() if x.device.type == "neuron" else x, indent)
"""torch prints in float64."""

from . import neuron_dynamo_backend as neuron_dynamo_backend  # noqa: E402
from . import process_group as process_group  # noqa: E402
from .neuron import Event as Event  # noqa: E402


def memory_allocated(device: Any = None) -> int:
    """Bytes on the device now."""
    return int(twin.allocated())


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes on the device so far."""
    return int(twin.peak())


def reset_peak_memory_stats(device: Any = None) -> None:
    twin.reset_peak()


memory_reserved, max_memory_reserved = memory_allocated, max_memory_allocated


def _autoload() -> None:
    """torch calls it, by the entry point torch.backends: the import has done all."""
