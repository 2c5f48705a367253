"""What is measured, as plain values: the processes that measure send them, the fit reads them. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autoshard.cost.compute import OperatorNeeds


@dataclass(frozen=True)
class OperatorTime:
    """One operator on one device. name: which, with its shape. backward_s is None where it has none."""

    name: str
    dtype: str
    needs: OperatorNeeds
    forward_s: float
    backward_s: float | None


@dataclass(frozen=True)
class MemoryTime:
    """Moving so many bytes to and from memory. name: copy, or what an optimizer does."""

    name: str
    moved_bytes: float
    seconds: float


@dataclass(frozen=True)
class PassTime:
    """Forward or backward of a whole program: operators_s is what its operators take one by one."""

    name: str
    seconds: float
    operators_s: float


@dataclass(frozen=True)
class CollectiveTime:
    """kind: one of cost.collectives.KINDS, over `ranks` processes of this machine; payload_bytes as there."""

    kind: str
    ranks: int
    payload_bytes: float
    seconds: float


@dataclass(frozen=True)
class Measurements:
    """All of one machine. device: cpu, cuda or neuron. name: of the processor. devices: how many it has.

    memory_bytes: of one device.
    """

    device: str
    name: str
    devices: int
    memory_bytes: float
    operators: tuple[OperatorTime, ...]
    memory: tuple[MemoryTime, ...]
    passes: tuple[PassTime, ...]
    collectives: tuple[CollectiveTime, ...]


def faster(one: OperatorTime | PassTime, other: OperatorTime | PassTime) -> OperatorTime | PassTime:
    """The same thing measured twice: the shorter of each of its times."""
    if isinstance(one, PassTime):
        assert isinstance(other, PassTime)
        least = min(one.operators_s, other.operators_s)
        return PassTime(one.name, min(one.seconds, other.seconds), least)
    assert isinstance(other, OperatorTime)
    backward = None
    if one.backward_s is not None and other.backward_s is not None:
        backward = min(one.backward_s, other.backward_s)
    return replace(one, forward_s=min(one.forward_s, other.forward_s), backward_s=backward)
