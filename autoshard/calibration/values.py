"""Plain values for what is measured: the measuring processes send them, the fit reads them. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autoshard.cost.compute import OperatorNeeds

PRODUCT_CURVE, ATTENTION_CURVE, LAUNCH = "the product curve", "the attention curve", "one launch"
FP8 = "float8_e4m3fn"
"""The dtype of FP8 products, as torch calls it."""


@dataclass(frozen=True)
class OperatorTime:
    """Time of one operator on one device. name: which operator, with its shape. backward_s: None where it has no
    backward."""

    name: str
    dtype: str
    needs: OperatorNeeds
    forward_s: float
    backward_s: float | None


@dataclass(frozen=True)
class MemoryTime:
    """Time to move some bytes to and from memory. name: 'copy', or what an optimizer does."""

    name: str
    moved_bytes: float
    seconds: float


@dataclass(frozen=True)
class PassTime:
    """Time of the forward or backward of a whole program. operators_s: the sum of its operators, timed one by one."""

    name: str
    seconds: float
    operators_s: float


@dataclass(frozen=True)
class CollectiveTime:
    """Time of one collective over `ranks` processes of this machine. kind: one of cost.collectives.KINDS.
    payload_bytes: as in cost.collectives."""

    kind: str
    ranks: int
    payload_bytes: float
    seconds: float


@dataclass(frozen=True)
class Measurements:
    """All measurements of one machine. device: cpu, cuda or neuron. name: of the processor. devices: how many it has.
    memory_bytes: of one device. curves: single products and attention; copies: of memory by size, and one launch.
    notes: sentences on what may make these times wrong."""

    device: str
    name: str
    devices: int
    memory_bytes: float
    operators: tuple[OperatorTime, ...]
    memory: tuple[MemoryTime, ...]
    passes: tuple[PassTime, ...]
    collectives: tuple[CollectiveTime, ...]
    curves: tuple[OperatorTime, ...] = ()
    copies: tuple[MemoryTime, ...] = ()
    notes: tuple[str, ...] = ()


def faster(one: OperatorTime | PassTime, other: OperatorTime | PassTime) -> OperatorTime | PassTime:
    """Two measurements of the same thing merged: the shorter of each of its times."""
    if isinstance(one, PassTime):
        assert isinstance(other, PassTime)
        least = min(one.operators_s, other.operators_s)
        return PassTime(one.name, min(one.seconds, other.seconds), least)
    assert isinstance(other, OperatorTime)
    backward = None
    if one.backward_s is not None and other.backward_s is not None:
        backward = min(one.backward_s, other.backward_s)
    return replace(one, forward_s=min(one.forward_s, other.forward_s), backward_s=backward)
