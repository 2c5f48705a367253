"""Seconds of a block whose activations wait in the memory of the host between forward and backward."""

from __future__ import annotations

from dataclasses import replace

from autoshard.cost.part import Part, Seconds
from autoshard.cost.stacks import Software
from autoshard.rows import smallest


def copied_to_host(block: Part, software: Software) -> Part:
    """The same block where a share of what it keeps goes to the host while it runs forward, and comes back while it
    runs backward.

    Copies of some blocks count as equal shares of all, as Transformer Engine spreads them over the work. They hide
    behind that; it takes longer meanwhile, as beside the transfers of sharded parameters. Leaves out what the host's
    memory takes longer where several devices copy at once.
    """
    copy_s = software.offloaded * block.kept_bytes / software.host_bytes_per_s

    def longer(seconds: Seconds, work_s: float) -> Seconds:
        exposed_s = copy_s - (1 - software.contention) * smallest(copy_s, work_s)
        return replace(seconds, compute=seconds.compute + exposed_s)

    return replace(
        block,
        forward=longer(block.forward, block.forward_s),
        backward=longer(block.backward, block.backward_s),
        kept_bytes=(1 - software.offloaded) * block.kept_bytes,
    )
