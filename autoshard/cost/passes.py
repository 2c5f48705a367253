"""Seconds of one microbatch through units of the model and through virtual stages, over rows.

Under ZeRO-2 and -3 the weights of the next block arrive and the gradients of the last one leave while a block is at
work: it takes as long as its work or as these transfers, whichever is longer. Tables at the ends of the model, the
first gathering of a pass and the last scattering hide behind nothing. To cast what was gathered is work of the pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from autoshard.cost.rank import End
from autoshard.cost.stacks import COMPILED, Software
from autoshard.cost.zero_sharding import STAYS, Unit
from autoshard.rows import Number, is_rows, largest
from autoshard.schedules import SCHEDULES, Work
from autoshard.spec.cluster import Device


class Passes(NamedTuple):
    """Seconds of forward and of backward, recompute included."""

    forward_s: Number
    backward_s: Number


def block_passes(block: Any, unit: Unit) -> Passes:
    """Seconds of a block among others, waits for what travels included. block: with forward_s and backward_s, as
    cost.part.Part has them."""
    moved = unit.travelling
    if moved is STAYS:
        return Passes(block.forward_s, block.backward_s)
    forward_s, backward_s = block.forward_s + moved.cast_s, block.backward_s + moved.cast_s
    return Passes(largest(forward_s, moved.gather_s), largest(backward_s, moved.again_s + moved.scatter_s))


def end_passes(end: Any, unit: Unit) -> Passes:
    """Seconds of an end of the model, waits included. end: as block of `block_passes`."""
    moved = unit.travelling
    if moved is STAYS:
        return Passes(end.forward_s, end.backward_s)
    forward_s, backward_s = end.forward_s + moved.cast_s, end.backward_s + moved.cast_s
    return Passes(forward_s + moved.gather_s, backward_s + moved.again_s + moved.scatter_s)


def opening(layers: Number, block: Unit, device: Device) -> Passes:
    """Seconds of each pass through a virtual stage beside its blocks: the launch and, where it has blocks, the weights
    of the first one that arrive and the gradients of the last one that leave while nothing is at work."""
    forward_s = device.pass_launch_s + (layers > 0) * block.travelling.gather_s
    return Passes(forward_s, forward_s + (layers > 0) * block.travelling.scatter_s)


def stage_passes(
    layers: Number, block: Any, unit: Unit, device: Device, accumulation_s: float, blocked_s: Number = 0.0
) -> Passes:
    """Seconds of a virtual stage of so many blocks, the ends of the model left out. block: with its waits.
    accumulation_s: to add one element of a gradient to its sum. blocked_s: each pass waits so long for a transfer."""
    forward_s, backward_s = opening(layers, unit, device)
    return Passes(
        forward_s + blocked_s + layers * block.forward_s,
        backward_s + blocked_s + layers * (block.backward_s + accumulation_s * unit.parameters),
    )


def add_ends(forward_s: Any, backward_s: Any, ends: Iterable[End], accumulation_s: float) -> None:
    """Add the ends of the model to the first and the last virtual stage. forward_s, backward_s: by stage, changed in
    place. ends: with their waits."""
    for end in ends:
        forward_s[end.stage] = forward_s[end.stage] + end.part.forward_s
        backward_s[end.stage] = backward_s[end.stage] + end.part.backward_s + accumulation_s * end.unit.parameters


class Waiting(NamedTuple):
    """Seconds of a block or an end of the model, waits included. weight_gradients_s: of backward, what a schedule may
    put off."""

    forward_s: Number
    backward_s: Number
    weight_gradients_s: Number


def waiting_block(block: Any, unit: Unit) -> Waiting:
    """Seconds of a block among others. block: as cost.part.Part has them."""
    return Waiting(*block_passes(block, unit), block.weight_gradients_s)


def waiting_end(end: End) -> End:
    """The end with the seconds of its part, waits included."""
    return end._replace(part=Waiting(*end_passes(end.part, end.unit), end.part.weight_gradients_s))


def stages_work(
    schedule: str,
    sizes: tuple[int, Number, int],
    layers: Any,
    blocks: Sequence[Any],
    ends: Sequence[End],
    units: Sequence[Unit],
    device: Device,
    accumulation_s: float,
    transfer_s: Number,
    software: Software = COMPILED,
) -> Work:
    """The work of the pipeline in one step: of one layout, or of many that share pp, chunks and schedule.

    sizes: (pp, microbatches, chunks a rank). layers, blocks: of one layout a number and a block for each virtual stage;
    of many an array (virtual stage, row), or (1, row) where all stages have as many, and the block that all have.
    ends: of the model. Blocks and ends come with their waits. units: of the blocks. accumulation_s: to add one element
    of a gradient to its sum. transfer_s: of one microbatch to the next stage.
    """
    apart, stages, blocked_s = SCHEDULES[schedule].weights_apart, sizes[0] * sizes[2], 0.0
    if software.transfer_share is not None:
        blocked_s, transfer_s = software.transfer_share * transfer_s, 0.0

    def stage(count: Number, block: Any, unit: Unit) -> tuple[Number, Number, Number]:
        passes = stage_passes(count, block, unit, device, accumulation_s, blocked_s)
        return *passes, count * block.weight_gradients_s if apart else 0.0

    if is_rows(layers):
        forward_s, backward_s, weights_s = (
            column.repeat(stages, axis=0) if is_rows(column) and len(column) < stages else column
            for column in stage(layers, blocks[0], units[0])
        )
    else:
        forward_s, backward_s, weights_s = map(list, zip(*map(stage, layers, blocks, units), strict=True))
    add_ends(forward_s, backward_s, ends, accumulation_s)
    if not apart:
        return Work(*sizes, forward_s, backward_s, transfer_s)
    for end in ends:
        weights_s[end.stage] = weights_s[end.stage] + end.part.weight_gradients_s
    return Work(*sizes, forward_s, backward_s, transfer_s, weights_s)


def unit_work_s(part: Any, unit: Unit, accumulation_s: float) -> Number:
    """Forward and backward of a block or an end, its gradients added to their sums."""
    return part.forward_s + part.backward_s + accumulation_s * unit.parameters


def exposed(part: Any, unit: Unit, passes: Passes) -> tuple[float, float]:
    """(gathering, scattering) that nothing hides, of one row. passes: of the part, waits included."""
    moved = unit.travelling
    ahead_s = passes.forward_s - (part.forward_s + moved.cast_s)
    waits_s = passes.backward_s - (part.backward_s + moved.cast_s)
    both_s = moved.again_s + moved.scatter_s
    share = waits_s / both_s if both_s else 0.0
    return ahead_s + share * moved.again_s, share * moved.scatter_s
