"""Worker functions of a calibration: one process times operators and memory, then all of them time collectives."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autoshard.calibration.arguments import CalibrationArguments
from autoshard.calibration.clock import Clock
from autoshard.calibration.collective_times import collective_times
from autoshard.calibration.operators import shapes, times
from autoshard.calibration.values import MemoryTime, OperatorTime, PassTime, faster
from autoshard.files.codec import from_json, to_json
from autoshard.runtime.worker import Reporter

DTYPES = {"cpu": "float32", "cuda": "bfloat16", "neuron": "bfloat16"}
"""Device kind -> dtype in which operators are timed."""
ALSO = {"cpu": ("bfloat16", "float64"), "cuda": ("float16", "float32"), "neuron": ("float32",)}
"""Device kind -> further dtypes, in which only one large product is timed, for its rate."""
PARAMETERS = 1 << 22
"""Elements of the optimizer's state: its 80 MB are beyond any cache."""
FP32_BYTES = 4
SWEEPS = 2
"""How often everything is timed, minutes apart: a busy machine is not busy all the time."""


def one_device(values: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Times operators, passes and memory on one device and reports each as it is measured; returns what is known of the
    device."""
    arguments = from_json(CalibrationArguments, values, "arguments")
    device = _device(arguments.device, 0)
    clock, dtype = Clock(device), DTYPES[device.type]
    torch.manual_seed(0)
    all_shapes = shapes(device.type)[: arguments.shapes]
    fastest: dict[str, OperatorTime | PassTime] = {}
    for number, shape in enumerate(all_shapes * SWEEPS):
        reporter.last_action = f"timing {shape.name}"
        for one in times(shape, dtype, clock):
            fastest[one.name] = one if one.name not in fastest else faster(one, fastest[one.name])
        reporter.report("progress", done=number + 1, of=SWEEPS * len(all_shapes), what=shape.name)
    reporter.last_action = "timing memory"
    return {
        "operators": to_json([one for one in fastest.values() if isinstance(one, OperatorTime)]),
        "passes": [vars(one) for one in fastest.values() if isinstance(one, PassTime)],
        "memory": [vars(one) for one in _memory_times(clock)],
        "rates": {name: _rate(name, clock) for name in (dtype, *ALSO[device.type])},
        "name": _name(device),
        "memory_bytes": _memory_bytes(device),
        "dtype": dtype,
    }


def collectives(values: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Times every kind of collective over all ranks."""
    device = _device(from_json(CalibrationArguments, values, "arguments").device, reporter.local_rank)
    backend = {"cpu": "gloo", "cuda": "nccl", "neuron": "neuron"}[device.type]
    torch.set_num_threads(1)
    dist.init_process_group(
        backend, init_method=reporter.init_method, rank=reporter.rank, world_size=reporter.world_size
    )
    found = []
    for one in collective_times(reporter.world_size, Clock(device)):
        found.append(vars(one))
        if reporter.rank == 0:
            reporter.report("progress", done=len(found), of=0, what=f"{one.kind} {one.payload_bytes:.0f} bytes")
    dist.destroy_process_group()
    return {"collectives": found}


def _device(name: str, index: int) -> torch.device:
    """This process's own device, which collectives of its group use too."""
    if name == "cuda":
        torch.cuda.set_device(index)
    return torch.device("cpu") if name == "cpu" else torch.device(name, index)


def _memory_times(clock: Clock) -> Iterator[MemoryTime]:
    """Yields the time of AdamW in FP32 and of adding a gradient to a sum, with the bytes that the cost model counts."""
    master = torch.nn.Parameter(torch.randn(PARAMETERS, device=clock.device))
    master.grad = torch.randn(PARAMETERS, device=clock.device)
    adamw = torch.optim.AdamW([master], fused=clock.device.type != "neuron")
    yield MemoryTime("AdamW", PARAMETERS * FP32_BYTES * 7.0, clock.fastest_s(adamw.step))
    total, gradient = torch.zeros_like(master.grad), master.grad
    yield MemoryTime("sum of gradients", PARAMETERS * FP32_BYTES * 3.0, clock.fastest_s(lambda: total.add_(gradient)))
    yield MemoryTime("copy", PARAMETERS * FP32_BYTES * 2.0, clock.fastest_s(lambda: total.copy_(gradient)))


def _rate(dtype: str, clock: Clock) -> float:
    """FLOP/s of one large product in the dtype."""
    size = 768 if clock.device.type == "cpu" else 8192
    a, b = (torch.randn(size, size, device=clock.device).to(getattr(torch, dtype)) for _ in range(2))
    return 2.0 * size**3 / clock.fastest_s(lambda: a @ b)


def _name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _memory_bytes(device: torch.device) -> float:
    """Memory of one device, bytes; a process on a CPU has its share of the machine's."""
    if device.type != "cpu":
        return float(getattr(torch, device.type).get_device_properties(device).total_memory)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) / num_cores()


def num_cores() -> int:
    """How many CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def present(values: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """{"devices": how many devices of the kind this machine has, "why": why there are none, '' where there are}."""
    name = from_json(CalibrationArguments, values, "arguments").device
    if name == "cpu":
        return {"devices": num_cores(), "why": ""}
    if name == "cuda":
        built = torch.version.cuda is not None
        why = "torch sees no GPU" if built else f"torch {torch.__version__} is built without CUDA"
        return {"devices": torch.cuda.device_count() if built else 0, "why": why}
    backend = getattr(torch, "neuron", None)
    if backend is None:
        return {"devices": 0, "why": f"torch {torch.__version__} has no device of that name"}
    count = backend.device_count()
    return {"devices": count, "why": "" if count else "torch sees no NeuronCore"}
