"""Worker functions of a calibration: one process times operators and memory, then all of them time collectives."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from autoshard.calibration.arguments import CalibrationArguments
from autoshard.calibration.clock import Clock
from autoshard.calibration.collective_times import collective_times
from autoshard.calibration.curves import curves, or_left_out
from autoshard.calibration.devices import POWER_CAP, State, check_free, count, open_device
from autoshard.calibration.operators import shapes, times
from autoshard.calibration.values import MemoryTime, OperatorTime, PassTime, faster
from autoshard.errors import AutoshardError
from autoshard.files.codec import from_json, to_json
from autoshard.runtime.torch_backend.devices import COLLECTIVES
from autoshard.runtime.worker import Reporter
from autoshard.units import GIB

DTYPES = {"cpu": "float32", "cuda": "bfloat16", "neuron": "bfloat16"}
"""Device kind -> dtype in which operators are timed."""
ALSO = {"cpu": ("bfloat16", "float64"), "cuda": ("float16", "float32"), "neuron": ("float32",)}
"""Device kind -> further dtypes, in which only one large product is timed, for its rate."""
PARAMETERS = {"cpu": 1 << 22, "cuda": 1 << 26, "neuron": 1 << 22}
"""Device kind -> elements of the optimizer's state: beyond any cache, a GPU's 60 MB too."""
FP32_BYTES = 4
SWEEPS = 2
"""How often everything is timed, minutes apart: a busy machine is not busy all the time."""
NEEDED_BYTES = {"cpu": 0.5 * GIB, "cuda": 16 * GIB, "neuron": 0.0}
"""Device kind -> memory that the largest programs take, about; those that do not fit are left out."""
SLOWER = 0.05
"""The product that is timed again and again may take so much longer at the end than at its fastest."""


def one_device(values: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Times operators, passes, memory and curves on one device and reports each as it is measured; returns what is
    known of the device."""
    arguments = from_json(CalibrationArguments, values, "arguments")
    under_test = open_device(arguments.device)
    check_free(under_test, NEEDED_BYTES[arguments.device])
    clock, dtype = Clock(under_test), DTYPES[arguments.device]
    torch.manual_seed(0)
    all_shapes = shapes(arguments.device)[: arguments.shapes]
    fastest: dict[str, OperatorTime | PassTime] = {}
    steady, notes = _Steadiness(clock, dtype), list[str]()
    for number, shape in enumerate(all_shapes * SWEEPS):
        reporter.last_action = f"timing {shape.name}"
        for one in or_left_out(shape.name, partial(times, shape, dtype, clock), notes):
            fastest[one.name] = one if one.name not in fastest else faster(one, fastest[one.name])
        steady.look()
        reporter.report("progress", done=number + 1, of=SWEEPS * len(all_shapes), what=shape.name)
    if not fastest:
        raise AutoshardError(f"device={arguments.device}: {notes[0]}, nor does any other program")
    reporter.last_action = "timing curves"
    found = list(curves(dtype, clock, notes)) if arguments.device != "neuron" else []  # each size would be compiled
    reporter.report("progress", done=len(found), of=0, what="products, attention, copies and launches by size")
    reporter.last_action = "timing memory"
    memory, rates = list(_memory_times(clock)), {name: _rate(name, clock) for name in (dtype, *ALSO[arguments.device])}
    steady.look()
    return {
        "operators": to_json([one for one in fastest.values() if isinstance(one, OperatorTime)]),
        "passes": [vars(one) for one in fastest.values() if isinstance(one, PassTime)],
        "memory": [vars(one) for one in memory],
        "curves": to_json([one for one in found if isinstance(one, OperatorTime)]),
        "copies": [vars(one) for one in found if isinstance(one, MemoryTime)],
        "notes": [*dict.fromkeys(notes), *steady.notes()],
        "rates": rates,
        "name": under_test.name,
        "memory_bytes": under_test.memory_bytes,
        "dtype": dtype,
    }


class _Steadiness:
    """Notices a device that slows down while it is measured: by one product, timed again and again, and by what the
    device says of its clock."""

    def __init__(self, clock: Clock, dtype: str):
        self._clock, size = clock, 256 if clock.device.type == "cpu" else 4096
        self._a, self._b = (torch.randn(size, size, device=clock.device).to(getattr(torch, dtype)) for _ in range(2))
        self._seconds: list[float] = []
        self._states: list[State] = []
        self.look()

    def look(self) -> None:
        self._seconds.append(self._clock.typical_s(lambda: self._a @ self._b))
        state = self._clock.under_test.state()
        if state is not None:
            self._states.append(state)

    def notes(self) -> list[str]:
        """Sentences; none where nothing was noticed."""
        return unsteady(self._seconds, self._states)


def unsteady(seconds: list[float], states: list[State]) -> list[str]:
    """Says what is wrong with a device, in sentences. seconds: of the same product, again and again. states: of the
    device at those moments."""
    found = []
    slowest = max(seconds[len(seconds) // 2 :])
    if slowest > min(seconds) * (1 + SLOWER):
        found.append(
            f"the device slowed down: one product took {slowest / min(seconds) - 1:.0%} longer than at its fastest"
        )
    if reasons := dict.fromkeys(reason for state in states for reason in state.slowed_by):
        clocks = sorted(state.clock_mhz for state in states)
        found.append(
            f"the clock was held down ({', '.join(reasons)}): {clocks[0]:.0f} to {clocks[-1]:.0f} MHz of "
            f"{states[0].most_mhz:.0f}, up to {max(state.temperature_c for state in states):.0f} degrees Celsius"
        )
    if any(state.reasons & POWER_CAP for state in states):
        found.append("the power cap held the clock down at times, as is usual for a GPU under full load")
    return found


def collectives(values: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Times every kind of collective over all ranks."""
    under_test = open_device(from_json(CalibrationArguments, values, "arguments").device, reporter.local_rank)
    torch.set_num_threads(1)
    dist.init_process_group(
        COLLECTIVES[under_test.device.type],
        init_method=reporter.init_method,
        rank=reporter.rank,
        world_size=reporter.world_size,
    )
    found = []
    for one in collective_times(reporter.world_size, Clock(under_test)):
        found.append(vars(one))
        if reporter.rank == 0:
            reporter.report("progress", done=len(found), of=0, what=f"{one.kind} {one.payload_bytes:.0f} bytes")
    dist.destroy_process_group()
    return {"collectives": found}


def _memory_times(clock: Clock) -> Iterator[MemoryTime]:
    """Yields the time of AdamW in FP32 and of adding a gradient to a sum, with the bytes that the cost model counts."""
    elements = PARAMETERS[clock.device.type]
    master = torch.nn.Parameter(torch.randn(elements, device=clock.device))
    master.grad = torch.randn(elements, device=clock.device)
    adamw = torch.optim.AdamW([master], fused=clock.device.type != "neuron")
    yield MemoryTime("AdamW", elements * FP32_BYTES * 7.0, clock.typical_s(adamw.step))
    total, gradient = torch.zeros_like(master.grad), master.grad
    yield MemoryTime("sum of gradients", elements * FP32_BYTES * 3.0, clock.typical_s(lambda: total.add_(gradient)))
    yield MemoryTime("copy", elements * FP32_BYTES * 2.0, clock.typical_s(lambda: total.copy_(gradient)))


def _rate(dtype: str, clock: Clock) -> float:
    """FLOP/s of one large product in the dtype."""
    size = 768 if clock.device.type == "cpu" else 8192
    a, b = (torch.randn(size, size, device=clock.device).to(getattr(torch, dtype)) for _ in range(2))
    return 2.0 * size**3 / clock.typical_s(lambda: a @ b)


def present(values: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """{"devices": how many devices of the kind this machine has, "why": why there are none, '' where there are, "name":
    of the first one}."""
    kind = from_json(CalibrationArguments, values, "arguments").device
    devices, why = count(kind)
    return {"devices": devices, "why": why, "name": open_device(kind).name if devices else ""}
