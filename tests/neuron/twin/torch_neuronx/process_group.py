"""Process groups "neuron": gloo's on the memory of the device's tensors, behind the rules of ProcessGroupNeuron."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import neuron_rules as rules
import torch
import torch.distributed as dist

from . import refuse, twin

_world: list[int] = []
asked: Counter[str] = Counter()
"""Collective -> how often it ran in this process."""
met: set[tuple[int, ...]] = set()
"""Groups of two ranks or more that communicated."""


def _create(options: Any, _: Any) -> Any:
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    if not _world:
        _initialize(options)
        _world.extend(ranks)
    gloo = dist.ProcessGroupGloo(options.store, options.group_rank, options.group_size, timeout=options.timeout)
    return twin.backend(gloo, partial(check, ranks))


def _initialize(options: Any) -> None:
    """The default group starts the device's runtime."""
    if twin.touched():
        refuse("group first", AssertionError, "Neuron runtime should not be initialized before the init_process_group.")
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        if name not in os.environ:
            refuse("local rank", KeyError, name)
    if not {"MASTER_ADDR", "NEURON_RT_ROOT_COMM_ID"} & os.environ.keys():
        refuse("root address", KeyError, "MASTER_ADDR")
    core = os.environ.setdefault("NEURON_RT_VISIBLE_CORES", os.environ.get("LOCAL_RANK", str(options.group_rank)))
    if options.store.add(f"core {core} of {socket.gethostname()}", 1) > 1:
        refuse("one core", RuntimeError, f"Requested:1 Available:0 Neuron cores: core {core} is busy")
    twin.set_index(int(os.environ.get("LOCAL_RANK", options.group_rank)))
    twin.touch()


def check(ranks: Sequence[int], name: str, tensors: Sequence[torch.Tensor], even: bool) -> None:
    """Raises what a group of these ranks refuses. even: whether an all-to-all's splits are."""
    asked[name] += 1
    if len(ranks) > 1:
        met.add(tuple(sorted(ranks)))
    if name in ("send", "recv"):
        refuse("point to point", NotImplementedError, f"ProcessGroupNeuron does not support {name}")
    if name == "barrier" and len(ranks) != len(_world):
        refuse("barrier", NotImplementedError, "Barrier is implemented only for default group")
    if name == "all_to_all":
        _check_all_to_all(len(ranks), even)
    for tensor in tensors:
        if tensor.device.type != "neuron":
            refuse("host tensors", RuntimeError, f"No backend type associated with device type {tensor.device.type}")
        if not tensor.is_contiguous():
            refuse("contiguous", RuntimeError, f"{name}: tensors must be contiguous")
        if tensor.numel() == 0:
            refuse("empty", RuntimeError, f"{name}: tensors cannot be empty")


def _check_all_to_all(size: int, even: bool) -> None:
    if not even:
        refuse("even splits", NotImplementedError, "alltoall_base: Only even split sizes are supported")
    if len(_world) % size:
        refuse("all-to-all world", ValueError, "world_size is not divisible by group_size")
    if size not in rules.ALL_TO_ALL_SIZES and size % rules.ALL_TO_ALL_MULTIPLE:
        refuse("all-to-all sizes", RuntimeError, f"unsupported world size {size}, supported: 4, 8, 16, multiples of 32")


dist.Backend.register_backend("neuron", _create, extended_api=True, devices=["neuron"])
