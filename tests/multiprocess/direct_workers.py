"""What test_direct.py runs in its processes: collectives through shared memory, and the same by gloo itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from time import monotonic
from typing import Any

import pytest
import torch
import torch.distributed as dist

from autoshard.layout.mesh import Axis, Mesh
from autoshard.runtime.torch_backend import collectives
from autoshard.runtime.torch_backend.collectives import Started
from autoshard.runtime.torch_backend.groups import Group, MeshGroups
from autoshard.runtime.torch_backend.shared_memory import PLACE_BYTES
from autoshard.runtime.worker import Reporter
from tests.cases import ALL
from tests.multiprocess.compared import connect

Start = Callable[[Group], Started]
TIMEOUT_S = 1.0
DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def differences(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """What differs from gloo's results, one after the other and with many under way."""
    connect(reporter)
    ranks = list(range(reporter.world_size))
    direct, gloo = (Group.of(dist.new_group(ranks), ranks, reporter.rank) for _ in range(2))
    assert direct.direct is not None
    gloo.__dict__["direct"] = None  # as over two machines
    starts = dict(_starts(reporter.rank, reporter.world_size))
    found = [name for name, start in starts.items() if not torch.equal(start(direct)(), start(gloo)())]
    with torch.no_grad():  # past the dispatcher
        under_way = [(name, start, start(direct)) for name, start in starts.items()]
        found += [name for name, start, one in reversed(under_way) if not torch.equal(one(), start(gloo)())]
    return {
        "differences": found,
        "compared": len(starts),
        "time_outs_s": _time_outs(reporter.rank, reporter.world_size),
    }


def _time_outs(rank: int, count: int) -> dict[str, float]:
    """How long a group of a mesh waits for a rank that does not come, through shared memory and by gloo itself."""
    mesh = Mesh(1, (Axis("dp", count),))
    groups = MeshGroups(mesh, rank, {("dp",), ("pp", "dp")}, timedelta(seconds=TIMEOUT_S))
    direct, gloo = groups[("dp",)], groups[("pp", "dp")]
    assert direct.direct is not None
    gloo.__dict__["direct"] = None
    found = {}
    for name, group in (("direct", direct), ("gloo", gloo)):
        start = monotonic()
        if rank != count - 1:
            with pytest.raises((ConnectionError, RuntimeError), match=r"(?i)timed out"):
                collectives.all_reduce(torch.ones(4), group)
        found[name] = monotonic() - start
        dist.barrier()  # who leaves closes connections
    return found


def _starts(rank: int, count: int) -> Iterator[tuple[str, Start]]:
    """Small integers, whose sums are exact; the last shape, by default of one dtype, does not fit at once. One tensor
    has its numbers in another order in memory, which torch keeps where it can."""
    large = (count, PLACE_BYTES // 64, 5 * count)
    for shape in ((2, 3, 4 * count), (1, 24, count), large):
        for dtype in DTYPES if ALL or shape != large else DTYPES[:1]:
            numbers = torch.arange(torch.Size(shape).numel()).view(shape)
            yield from _of((numbers * (rank + 3) % 7).to(dtype), count)
    pieces = torch.arange(2 * count * count * count * 8).view(2, count, count * count, 8) * (rank + 3) % 7
    last = pieces.to(memory_format=torch.channels_last)
    yield "all-to-all, last dim not innermost", lambda group: lambda: collectives.all_to_all(last, group, 1, 2)


def _of(x: torch.Tensor, count: int) -> Iterator[tuple[str, Start]]:
    what = f"{tuple(x.shape)} {x.dtype}"

    def whole(work: Callable[[Group], torch.Tensor]) -> Start:
        return lambda group: lambda: work(group)

    def lent(group: Group, dim: int) -> torch.Tensor:
        with collectives.start_lent_all_gather(x, group, dim)() as gathered:
            return gathered.clone()

    def lent_late(group: Group) -> torch.Tensor:
        lending, ones = collectives.start_lent_all_gather(x, group, 0), x.new_ones(count)
        assert all(collectives.all_reduce(ones, group).eq(count).all() for _ in range(9))
        with lending() as gathered:
            return gathered.clone()

    yield f"lent all-gather, others before it is read {what}", whole(lent_late)
    for dim in (0, 1):
        yield f"lent all-gather {dim} {what}", whole(lambda group, dim=dim: lent(group, dim))  # type: ignore[misc]
        yield f"all-gather {dim} {what}", lambda group, dim=dim: collectives.start_all_gather(x, group, dim)  # type: ignore[misc]
    for dim in (0, 1, 2):
        if x.shape[dim] % count == 0:
            yield (
                f"reduce-scatter {dim} {what}",
                lambda group, dim=dim: collectives.start_reduce_scatter(x, group, dim),  # type: ignore[misc]
            )
    yield f"all-reduce {what}", whole(lambda group: collectives.all_reduce(x, group))
    yield f"largest {what}", whole(lambda group: collectives.all_reduce(x, group, "max"))
    yield f"all-to-all {what}", whole(lambda group: collectives.all_to_all(x, group, 1, 2))
    yield f"next {what}", lambda group: collectives.pass_on(x, group)
