"""Seconds of one microbatch through units of the model and through virtual stages, over rows.

Under ZeRO-2 and -3 the weights of the next block arrive and the gradients of the last one leave while a block is at
work: it takes as long as its work or as these transfers, whichever is longer. Tables at the ends of the model, the
first gathering of a pass and the last scattering hide behind nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from autoshard.cost.rank import End
from autoshard.cost.zero_sharding import STAYS, Unit
from autoshard.rows import Number, largest
from autoshard.spec.cluster import Device


class Passes(NamedTuple):
    """Seconds of forward and of backward, recompute included."""

    forward_s: Number
    backward_s: Number


def block_passes(block: Any, unit: Unit) -> Passes:
    """A block among others, waits for what travels included. block: with forward_s and backward_s, as
    cost.program.Part has them."""
    moved = unit.travelling
    if moved is STAYS:
        return Passes(block.forward_s, block.backward_s)
    return Passes(largest(block.forward_s, moved.gather_s), largest(block.backward_s, moved.again_s + moved.scatter_s))


def end_passes(end: Any, unit: Unit) -> Passes:
    """An end of the model, waits included."""
    moved = unit.travelling
    if moved is STAYS:
        return Passes(end.forward_s, end.backward_s)
    return Passes(end.forward_s + moved.gather_s, end.backward_s + moved.again_s + moved.scatter_s)


def opening(block: Unit, device: Device) -> Passes:
    """Seconds of each pass through a virtual stage beside its blocks: the launch, the weights of the first block that
    arrive and the gradients of the last one that leave while nothing is at work."""
    forward_s = device.pass_launch_s + block.travelling.gather_s
    return Passes(forward_s, forward_s + block.travelling.scatter_s)


def stage_passes(layers: Number, block: Any, unit: Unit, device: Device, accumulation_s: float) -> Passes:
    """A virtual stage of so many blocks, the ends of the model left out. block: with its waits. accumulation_s: to add
    one element of a gradient to its sum."""
    forward_s, backward_s = opening(unit, device)
    return Passes(
        forward_s + layers * block.forward_s,
        backward_s + layers * (block.backward_s + accumulation_s * unit.parameters),
    )


def add_ends(forward_s: Any, backward_s: Any, ends: Iterable[End], accumulation_s: float) -> None:
    """Add the ends of the model to the first and the last virtual stage. forward_s, backward_s: by stage, changed in
    place. ends: with their waits."""
    for end in ends:
        stage = 0 if end.has_table else -1
        forward_s[stage] = forward_s[stage] + end.part.forward_s
        backward_s[stage] = backward_s[stage] + end.part.backward_s + accumulation_s * end.unit.parameters


def put_off_s(stages: Any, ends: Iterable[End]) -> Any:
    """Seconds of backward that a schedule may put off, for gradients of weights, by virtual stage. stages: those of its
    blocks, to which the ends are added in place."""
    for end in ends:
        stage = 0 if end.has_table else -1
        stages[stage] = stages[stage] + end.part.weight_gradients_s
    return stages


def unit_work_s(part: Any, unit: Unit, accumulation_s: float) -> Number:
    """Forward and backward of a block or an end, its gradients added to their sums."""
    return part.forward_s + part.backward_s + accumulation_s * unit.parameters


def exposed(part: Any, unit: Unit, passes: Passes) -> tuple[float, float]:
    """(gathering, scattering) that nothing hides, of one row. passes: of the part, waits included."""
    moved = unit.travelling
    both_s, waits_s = moved.again_s + moved.scatter_s, passes.backward_s - part.backward_s
    share = waits_s / both_s if both_s else 0.0
    return passes.forward_s - part.forward_s + share * moved.again_s, share * moved.scatter_s
