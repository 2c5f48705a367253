"""What test_rules.py runs in its processes: each rule is broken once, and what is said of it goes back."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store

from autoshard.runtime.torch_backend import devices
from autoshard.runtime.worker import Reporter


def broken(_: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Rule -> the error of breaking it, as rank 0 sees it; "" where nothing was refused."""
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    devices.join(torch.device("neuron"), timedelta(seconds=100), reporter)
    pair = [dist.new_group([0, 1]), dist.new_group([2, 3])][reporter.rank // 2]
    three = dist.new_group([0, 1, 2])
    breaks = {
        **_of_the_device(reporter.rank),
        **_of_groups(pair, reporter.rank),
        "all-to-all world": lambda: _all_to_all(three) if reporter.rank < 3 else None,
        **_of_graphs(pair),
    }
    found = {name: _said(call) for name, call in breaks.items()}
    dist.barrier()
    return found


def before(_: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """The same, of what a group refuses to start with; rank 1 breaks one rule, rank 0 the others."""
    if reporter.rank == 1:
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        del os.environ["LOCAL_RANK"]
        return {"local rank": _said(_alone)}
    found = {"root address": _said(_alone)}
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    found["one core"] = _said(lambda: _alone(taken=f"core 0 of {socket.gethostname()}"))
    torch.ones(1, device="neuron")
    found["group first"] = _said(_alone)
    return found


def _alone(taken: str = "") -> None:
    store = HashStore()
    dist.init_process_group("neuron", store=_Taken(store, taken) if taken else store, rank=0, world_size=1)


class _Taken(Store):
    """A store in which a key was counted before, behind whatever prefix."""

    def __init__(self, inner: Store, taken: str):
        super().__init__()
        self._inner, self._taken = inner, taken

    def add(self, key: str, amount: int) -> int:
        return 2 if key.endswith(self._taken) else self._inner.add(key, amount)

    def set(self, key: str, value: str) -> None:
        self._inner.set(key, value)

    def get(self, key: str) -> bytes:
        return self._inner.get(key)

    def clone(self) -> Store:
        return self


def _of_the_device(rank: int) -> dict[str, Callable[[], object]]:
    return {
        "index": lambda: torch.zeros(1, device=f"neuron:{(rank + 1) % 4}"),
        "float64": lambda: torch.ones(2, device="neuron").double(),
        "int64": lambda: torch.tensor([3], device="neuron") * 2**40,
        "generator": lambda: torch.Generator(device="neuron"),
    }


def _of_groups(pair: dist.ProcessGroup, rank: int) -> dict[str, Callable[[], object]]:
    def uneven() -> None:
        out = torch.empty(4 if rank == 0 else 0, device="neuron")
        splits = [1, 1, 1, 1] if rank == 0 else [0, 0, 0, 0]
        dist.all_to_all_single(out, torch.ones(1, device="neuron"), splits, [1, 0, 0, 0])

    def ping() -> None:
        one = torch.ones(1, device="neuron")
        dist.send(one, rank ^ 1) if rank % 2 == 0 else dist.recv(one, rank ^ 1)

    return {
        "host tensors": lambda: dist.all_gather([torch.ones(2)] * 4, torch.ones(2, device="neuron")),
        "empty": lambda: dist.all_reduce(torch.ones(0, device="neuron")),
        "contiguous": lambda: dist.all_reduce(torch.ones(2, 3, device="neuron").t()),
        "barrier": lambda: dist.barrier(group=pair),
        "even splits": uneven,
        "all-to-all sizes": lambda: _all_to_all(pair),
        "point to point": ping,
    }


def _all_to_all(group: dist.ProcessGroup) -> None:
    x = torch.ones(group.size(), device="neuron")
    dist.all_to_all_single(torch.empty_like(x), x, group=group)


def _of_graphs(pair: dist.ProcessGroup) -> dict[str, Callable[[], object]]:
    collective = torch.ops._c10d_functional
    x = torch.ones(4, device="neuron")

    def in_groups(names: list[str]) -> Callable[[], object]:
        def run(x: torch.Tensor) -> torch.Tensor:
            for name in names:
                x = collective.wait_tensor(collective.all_reduce(x, "sum", name))
            return x

        return lambda: _compiled(run)(x)

    def dynamic() -> None:
        function = torch.compile(lambda x: x * 2, backend="neuron", dynamic=True)
        function(x)

    def broadcast(x: torch.Tensor) -> torch.Tensor:
        return collective.wait_tensor(collective.broadcast(x, 0, pair.group_name))

    ranks = dist.get_process_group_ranks(pair)
    many = [dist.new_group([first, first + 1]) for _ in range(17) for first in (0, 2)]
    mine = [one.group_name for one in many if dist.get_rank(one) >= 0]
    assert len(ranks) == 2 and len(mine) == 17
    return {
        "dynamic shapes": dynamic,
        "graph float64": lambda: _compiled(lambda x: (x.cpu().double() * 2).sum())(x),
        "graph groups": in_groups(mine),
        "graph world": in_groups(["nobody's"]),
        "graph broadcast": lambda: _compiled(broadcast)(x),
    }


def _compiled(function: Callable[..., object]) -> Callable[..., object]:
    return torch.compile(function, backend="neuron", fullgraph=True, dynamic=False)


def _said(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
