"""Splits the CPU time of a sharded step into what its ranks compute and what sharding costs, beside one process.

Every operator of a rank is timed where it runs, in seconds of its thread's CPU time, so that neither waiting nor other
processes count. What a call costs that computes nothing, such as a view, is taken off each operator: it and the rest of
a step that nobody watches are Python, autograd and the dispatcher. What other threads take is apart. The same step is
then taken with collectives that send nothing and wait for nobody. CPU, gloo, one thread a process; about four minutes
on 2 cores.

  python -m benchmarks.runtime_split
  python -m benchmarks.runtime_split --results benchmarks/results/runtime_split.md
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from autoshard.runtime.torch_backend import collectives, flat_buffers, kernels, optimizer, ring_attention
from autoshard.runtime.torch_backend.groups import Group
from autoshard.runtime.torch_backend.sums import Sums
from autoshard.runtime.torch_backend.transfers import Transfers
from benchmarks.runtime_speed import SHARDED, SHARED, Work, a_step, of_processes, spent

ALONE = "products, alone"
"""A rank's products once more while all others wait: what they cost at this width, whoever calls them."""
SILENT, SILENT_ALONE = "silent", "silent, alone"
"""A step of a layout's ranks in which none waits for another, all at the same time and one after the other."""
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "matmul", "linear")
KINDS = ("products", "attention", "other operators", "copies", "collectives", "Python, autograd", "other threads")
APART = (ALONE, SILENT, SILENT_ALONE)
"""What is measured beside the step itself: no part of it."""
_COPIES = ("copy_", "clone", "cat", "stack", "_to_copy", "contiguous", "fill_", "zero_", "zeros", "new_zeros")
ROUNDS = 2
STEP = ", heavy"
"""The step of `runtime_speed` that is split: the one in which what sharding costs is more than noise."""


def kind_of(operator: Any) -> str:
    """The one of KINDS that an operator's time is counted under."""
    namespace, _, name = operator._schema.name.partition("::")
    if namespace in ("autoshard", "c10d", "_c10d_functional"):
        return "collectives"
    if name in PRODUCTS:
        return "products"
    if "attention" in name:
        return "attention"
    return "copies" if name in _COPIES else "other operators"


class Timed(TorchDispatchMode):
    """Seconds of the thread's CPU time in operators, and their calls, by name. Mutable."""

    def __init__(self) -> None:
        super().__init__()
        self.spent_s: Counter[Any] = Counter()
        self.calls: Counter[Any] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        begin_s = time.thread_time()
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.spent_s[func] += time.thread_time() - begin_s
            self.calls[func] += 1

    def by_kind(self) -> dict[str, float]:
        """Seconds by kind, but for what a call costs that computes nothing."""
        view = torch.ops.aten.view.default
        call_s = self.spent_s[view] / max(1, self.calls[view])
        found = dict.fromkeys(KINDS[:5], 0.0)
        for func, spent_s in self.spent_s.items():
            found[kind_of(func)] += max(0.0, spent_s - call_s * self.calls[func])
        return found


class Products(TorchDispatchMode):
    """Sizes and strides of the operands of matrix products, and how often they were multiplied. Mutable."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[tuple[Any, ...]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kind_of(func) == "products":
            operands = tuple((tuple(one.shape), one.stride()) for one in args if isinstance(one, torch.Tensor))
            self.calls[func, operands] += 1
        return func(*args, **(kwargs or {}))

    def again_s(self) -> float:
        """Seconds of the thread's CPU time that they take now, each in its fastest call of several."""
        total_s = 0.0
        for (func, operands), calls in self.calls.items():
            tensors = [torch.empty_strided(*one).fill_(0.5) for one in operands]
            times = []
            for _ in range(max(5, calls // 4)):
                begin_s = time.thread_time()
                func(*tensors)
                times.append(time.thread_time() - begin_s)
            total_s += calls * min(times)
        return total_s


@contextmanager
def silent() -> Iterator[None]:
    """Collectives and transfers send nothing and wait for nobody: what arrives has its shape, and is small numbers."""
    arrived: dict[tuple[Any, ...], torch.Tensor] = {}

    def arriving(x: torch.Tensor, sizes: tuple[int, ...]) -> torch.Tensor:
        if (found := arrived.get((sizes, x.dtype))) is None:
            found = arrived[sizes, x.dtype] = torch.full(sizes, 1e-3, dtype=x.dtype)
        return found

    def gathered(x: torch.Tensor, group: Group, dim: int) -> torch.Tensor:
        return arriving(x, (*x.shape[:dim], x.shape[dim] * group.size, *x.shape[dim + 1 :]))

    def scattered(x: torch.Tensor, group: Group, dim: int) -> torch.Tensor:
        return arriving(x, (*x.shape[:dim], x.shape[dim] // group.size, *x.shape[dim + 1 :]))

    def received(self: Transfers, into: torch.Tensor, sender: int) -> Callable[[], torch.Tensor]:
        return lambda: into.fill_(1e-3)

    stand_ins: dict[str, Callable[..., Any]] = {
        "all_gather": gathered,
        "start_all_gather": lambda *given: lambda: gathered(*given),
        "start_lent_all_gather": lambda *given: lambda: nullcontext(gathered(*given)),
        "reduce_scatter": scattered,
        "start_reduce_scatter": lambda *given: lambda: scattered(*given),
        "all_reduce": lambda x, group, reduction="sum": x.view_as(x),
        "all_gather_into": lambda out, x, group: out,
        "pass_on": lambda x, group: lambda: x,
    }
    with ExitStack() as stack:
        for module in (collectives, flat_buffers, kernels, optimizer, ring_attention):
            for name in stand_ins.keys() & vars(module).keys():
                stack.enter_context(mock.patch.object(module, name, stand_ins[name]))
        stack.enter_context(mock.patch.object(Sums, "over_ranks", lambda self, total: total))
        stack.enter_context(mock.patch.object(Transfers, "send", return_value=None))
        stack.enter_context(mock.patch.object(Transfers, "receive", received))
        yield


def silent_s(rank: int, work: Work) -> dict[str, list[float]]:
    """Seconds of this process in each round of steps in which nothing is sent, all ranks at once and one by one."""
    found: dict[str, list[float]] = {SILENT: [], SILENT_ALONE: []}
    with silent():
        work()
        for _ in range(ROUNDS):
            dist.barrier()
            found[SILENT].append(sum(spent(work)))
            for turn in range(dist.get_world_size()):
                dist.barrier()
                if turn == rank:
                    found[SILENT_ALONE].append(sum(spent(work)))
    return found


def split(work: Work) -> dict[str, float]:
    """Seconds of a step of this process by kind."""
    begin_s = time.thread_time()
    whole_s = sum(spent(work))
    thread_s = time.thread_time() - begin_s
    with Timed() as timed:
        work()
    found = timed.by_kind()
    return {**found, KINDS[5]: thread_s - sum(found.values()), KINDS[6]: whole_s - thread_s}


def splits(rank: int, step: str) -> dict[str, list[dict[str, float]]]:
    """Seconds by kind in each round: of each layout, and of one process alone, which is rank 0; they take turns."""
    found: dict[str, list[dict[str, float]]] = {}
    layouts = SHARDED[dist.get_world_size()]
    alone = a_step(0, step, {})[1] if rank == 0 else (lambda: None)
    with Products() as products:
        alone()
    alone_s = products.again_s()
    for name, degrees in layouts.items():
        session, sharded = a_step(rank, step, degrees)
        for turn in range(ROUNDS + 1):
            for key, work in ((name, sharded), ("", alone)):
                dist.barrier()
                one = split(work)
                if turn:
                    found.setdefault(key, []).append({**one, ALONE: alone_s})
        again_s = 0.0
        with Products() as products:
            sharded()
        for turn in range(dist.get_world_size()):
            dist.barrier()
            again_s = products.again_s() if turn == rank else again_s
        found[name] = [{**one, ALONE: again_s} for one in found[name]]
        quiet = silent_s(rank, sharded)
        found[name] = [{**one, **{kind: quiet[kind][turn] for kind in quiet}} for turn, one in enumerate(found[name])]
        dist.barrier()
        assert session._groups is not None
        for group in session._groups._groups.values():
            dist.destroy_process_group(group.handle)
    return found


SHARED["splits"] = partial(splits, step=STEP)


def rows(count: int) -> dict[str, dict[str, float]]:
    """By layout, "" for one process: seconds by kind of all ranks, in the round that took the least."""
    ranks = of_processes("splits", count)
    found = {}
    for name in ranks[0]:
        rounds = zip(*(rank[name] for rank in (ranks if name else ranks[:1])), strict=True)
        sums = [{kind: sum(one[kind] for one in turn) for kind in turn[0]} for turn in rounds]
        least = min(sums, key=lambda one: sum(one[kind] for kind in KINDS))
        found[name] = {kind: least[kind] if kind in KINDS else min(one[kind] for one in sums) for kind in least}
    return found


def page() -> str:
    """The table as Markdown."""
    lines = [
        "# Where the CPU time of a sharded step goes",
        "",
        "Per cent of the CPU time of a step in one process; all ranks together, one thread each.",
        "`benchmarks/runtime_split.py` makes this table and says how.",
        "'products, alone' are the products of a layout's ranks once more, one rank at a time.",
        "'silent' is the whole step once more with collectives that send nothing and wait for nobody: what more and",
        "narrower operators cost, however ranks talk. 'silent, alone' is that with one rank at a time: what is between",
        "the two is due to ranks that share caches; what 'all' is above 'silent' is communication.",
        "Where others use the machine too, cells move by several per cent from run to run.",
        "",
        f"| step | {' | '.join(KINDS)} | all | {' | '.join(APART)} |",
        "|---|" + "---:|" * (len(KINDS) + 1 + len(APART)),
    ]
    for count in SHARDED:
        found = rows(count)
        alone_s = sum(found[""][kind] for kind in KINDS)
        for name, one in found.items():
            cells = [100 * one[kind] / alone_s for kind in KINDS]
            apart = [f"{100 * one[kind] / alone_s:.1f}" if kind in one else "" for kind in APART]
            label = f"{count} processes, {name}" if name else f"one process, beside {count}"
            written = [f"{cell:.1f}" for cell in (*cells, sum(cells))]
            lines.append(f"| {label} | {' | '.join([*written, *apart])} |")
            print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, help="a Markdown file")
    arguments = parser.parse_args()
    table = page()
    if arguments.results is not None:
        arguments.results.write_text(table + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
