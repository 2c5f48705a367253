"""A device that is not the host, and has no data: mixing it with the host's tensors is an error, as on a GPU.

Run as a program, since torch knows such a device once and for all: it takes steps on it, and says which went wrong.
With the device's name: `neuron` has no FP64, and each operator that a model has runs there.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from autoshard.audits.known_results import KnownResults
from autoshard.audits.measure import fake_world
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.runtime.torch_backend.devices import has_64_bits
from autoshard.runtime.torch_backend.onlooker import Onlooker
from autoshard.spec.cluster import load_cluster
from benchmarks import on_gpu_parts as parts
from tests.cases import ALL, some
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import BF16, CASES, FP32, plan_of, strategy


class _Scalars(Onlooker):
    """Numbers that the program reads from tensors without data: 1. FP64 is refused where the device has none."""

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()
        self._results = KnownResults(mode)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten._local_scalar_dense.default:
            return 1.0 if args[0].is_floating_point() else 1
        results = self._results.of(function, args, kwargs or {})
        for one in tree_leaves(results):
            if isinstance(one, torch.Tensor) and one.dtype == torch.float64 and not has_64_bits(one.device):
                raise TypeError(f"{function} makes FP64, which the device has not")
        return results


@contextmanager
def without_data(rank: int, world_size: int, name: str = "other") -> Iterator[torch.device]:
    """Backward runs on this thread: torch's own threads know nothing of the modes that are entered here."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with torch.autograd.set_multithreading_enabled(False), fake_world(rank, world_size), mode, _Scalars(mode):
        yield torch.device(name, 0)


def layout(plan: Any, rank: int) -> None:
    """A step and an evaluation of one rank."""
    with without_data(rank, plan.mesh.world_size) as device:
        session, batch = parts.session_of(plan, device, rank), parts.tokens_of(plan)
        session.step(*batch, 1e-4)
        session.evaluate(*batch)


def step(size: parts.Size, mode: str, precision: str) -> None:
    """A step that `benchmarks.on_gpu` times, at its full size."""
    plan = parts.plan_of(size, size.model("a size"), parts.cluster_of(load_cluster("h200-141gb", 1), 1), precision)
    with without_data(0, 1) as device:
        run, _ = parts._running(plan, mode, device)
        run()
        run()


def without_fp64(plan: Any) -> None:
    """A step of one rank on a device that has no FP64."""
    with without_data(0, 1, "neuron") as device:
        parts.session_of(plan, device, 0).step(*parts.tokens_of(plan), 1e-4)


def every_operator() -> Iterator[tuple[str, Callable[[], None]]]:
    """Steps of few models that together have all operators of all, with as many inputs."""
    traits = {}
    for name, model in MODELS.items():
        graph = stage_graph(model, dim_sizes(model, 1, 32), range(model.num_hidden_layers), True, True)
        kinds = {(one.kind, len(one.inputs)) for one in graph.operators}
        traits[name] = set() if "dropping" in name else kinds  # with dropout of scores no kernel is flash
    left = set().union(*traits.values())
    while left:
        name = max(traits, key=lambda one: len(traits[one] & left))
        left -= traits[name]
        yield name, partial(without_fp64, plan_of(MODELS[name], strategy(), 1, FP32))


def works() -> Iterator[tuple[str, Callable[[], None]]]:
    for name, (fields, changed) in parts.PARITY.items():
        if not changed.keys() & {"compile", "recompute"}:  # torch's checkpoint asks the device for random states
            tiny = replace(parts.TINY.model("parity"), **fields)
            plan = parts.plan_of(parts.TINY, tiny, parts.cluster_of(load_cluster("cpu", 1), 1), "fp32", **changed)
            yield name, partial(layout, plan, 0)
    layouts = ("tp", "dp, ZeRO-3", "zigzag ring", "mixtral ep", "ulysses", "gpt2 tp, padded vocabulary")
    for name in some(layouts, 4):
        model, strategy, microbatches = CASES[2][name]
        plan = plan_of(MODELS[model], strategy, microbatches, BF16[1])  # no master copy: rounded at random, by place
        yield name, partial(layout, plan, 1)
    for mode, name in (("planned", "mixed_precision"), ("plain", "fp32")):  # autocast knows no such device
        size = "1b" if ALL else "200m"
        yield f"{size}, {mode}", partial(step, parts.SIZES["cuda"][size], mode, name)


def mixes() -> None:
    """Takes a host's tensor and the device's together, which must not pass."""
    with without_data(0, 1) as device:
        torch.ones(3, device=device) + torch.ones(3)


def outcome(work: Callable[[], None]) -> str:
    try:
        work()
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__} {str(error).splitlines()[0]}"
    return "done"


def widens() -> None:
    """Makes FP64 on a device that has none, which must not pass."""
    with without_data(0, 1, "neuron") as device:
        torch.ones(3, device=device).double()


def main(device: str = "other") -> None:
    _setup_privateuseone_for_python_backend(device)
    torch.get_device_module(device).get_amp_supported_dtype = lambda: [torch.bfloat16]
    of_any = ("mixed", mixes), *works()
    for name, work in of_any if device == "other" else (("wide", widens), *every_operator()):
        print(f"{name}: {outcome(work)}", flush=True)
    sys.stdout.flush()
    os._exit(0)  # torch takes such a device apart with an abort


if __name__ == "__main__":
    main(*sys.argv[1:])
