"""Every storage of a run, from its allocation to its release; what was held at the fullest moment is read off later."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch


@dataclass
class Allocation:
    """A storage that the runtime took in a logged step, and what is known of it.

    size: bytes. birth, death: places in the log's order of events; death None while it lives. action: index of the
    action. in_place_of: what it would take the place of, were it not watched, if that is gone with the next event.
    received: a buffer that another rank wrote; read_at: event at which an operator first read it. phase: of the
    work that made it. place: its operator with the number of its block. tensor: the name of what it holds. '' is
    unknown.
    """

    size: int
    birth: int
    action: int
    operator: str
    in_place_of: Allocation | None = None
    death: int | None = None
    received: bool = False
    read_at: int | None = None
    phase: str = ""
    place: str = ""
    tensor: str = ""

    @property
    def counts_from(self) -> int:
        """The event at which it takes room."""
        after, old = self.birth + 1, self.in_place_of
        return after if old is not None and (old.death, old.size) == (after, self.size) else self.birth

    def lives(self, event: int) -> bool:
        return self.counts_from <= event and (self.death is None or self.death > event)


@dataclass
class MemoryLog:
    """The only thing that keeps count: append-only, read after the run."""

    allocations: list[Allocation] = field(default_factory=list)
    events: int = 0
    _known: dict[int, tuple[Allocation, weakref.ref[torch.UntypedStorage]]] = field(default_factory=dict)

    def see(
        self, tensor: torch.Tensor, action: int, operator: str, in_place_of: Allocation | None = None
    ) -> Allocation:
        """The allocation behind a tensor, new or known. in_place_of: of a new one, as Allocation has it."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._known.get(key)
        if known is not None:
            return known[0]
        self.events += 1
        allocation = Allocation(storage.nbytes(), self.events, action, operator, in_place_of)
        self.allocations.append(allocation)

        def released(reference: weakref.ref[torch.UntypedStorage]) -> None:
            self.events += 1
            allocation.death = self.events
            del self._known[key]

        self._known[key] = (allocation, weakref.ref(storage, released))
        return allocation

    def known(self, tensor: torch.Tensor) -> Allocation | None:
        """The allocation behind a tensor; None where the log has not seen it."""
        known = self._known.get(tensor.untyped_storage()._cdata)
        return None if known is None else known[0]

    def read(self, tensor: torch.Tensor) -> None:
        """Note that an operator reads a tensor, where it is the first one that does."""
        known = self.known(tensor)
        if known is not None and known.read_at is None:
            known.read_at = self.events

    def levels(self, start: int, stop: int) -> list[tuple[int, int]]:
        """(event, bytes held after it), in order."""
        changes: list[tuple[int, int]] = [(one.counts_from, one.size) for one in self.allocations]
        changes += [(one.death, -one.size) for one in self.allocations if one.death is not None]
        changes.sort()
        held, after = 0, []
        for event, change in changes:
            held += change
            if start <= event < stop:
                after.append((event, held))
        return after


def storages(log: MemoryLog, tensors: Iterable[torch.Tensor]) -> set[int]:
    """Identities of the allocations behind tensors that the log has seen."""
    return {id(log.see(tensor, -1, "")) for tensor in tensors}
