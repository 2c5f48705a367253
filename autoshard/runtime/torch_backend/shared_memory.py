"""Shares memory among the processes of a group where all of them run on one machine.

gloo sends everything through TCP, with several copies and wake-ups of its threads each way. Here a rank writes its data
once and tells the others so over a socket; they read it where it lies.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from uuid import uuid4

import torch
import torch.distributed as dist

PLACE_BYTES = 2 * 2**20
"""How many bytes a rank can write in a turn; what all ranks write in one turn lies one after the other."""
_TURNS = 4
"""How many turns there is space for before a rank overwrites its first."""
_LINE_BYTES = 64
"""Bytes of a rank's count of what it has read: a cache line of its own."""
_RETRY_S = 50e-6


class Places:
    """Views of where the ranks of a group write in a turn. rows: [ranks, rows, n]. index: of this rank."""

    def __init__(self, rows: torch.Tensor, index: int):
        self.rows, self._index = rows, index

    @cached_property
    def mine(self) -> torch.Tensor:
        """The rows [rows, n] that this rank writes."""
        return self.rows[self._index]

    @cached_property
    def others_mine(self) -> tuple[tuple[slice, torch.Tensor], ...]:
        """This rank's rows, without the row for its own place, as (slice, tensor) parts."""
        parts = (slice(0, self._index), slice(self._index + 1, self.rows.shape[1]))
        return tuple((part, self.mine[part]) for part in parts if part.start < part.stop)

    @cached_property
    def first_rows(self) -> torch.Tensor:
        """The first row of every rank, [ranks, n]."""
        return self.rows[:, 0]

    @cached_property
    def each_first(self) -> tuple[torch.Tensor, ...]:
        """The first row [n] of every rank, as separate tensors."""
        return self.first_rows.unbind(0)

    @cached_property
    def each_to_me(self) -> tuple[torch.Tensor, ...]:
        """The row [n] that every rank wrote for this rank's place."""
        return self.rows[:, self._index].unbind(0)


class Board:
    """One rank's view of the shared memory. Ranks write in turns; all write the same amount in the same turn.

    peers: a connection to every other rank, by its place in the group. timeout_s: how many seconds a rank is waited
    for.
    """

    def __init__(self, memory: mmap.mmap, peers: dict[int, socket.socket], index: int, timeout_s: int):
        self._peers, self._index, self.size, self._timeout_s = peers, index, len(peers) + 1, timeout_s
        for peer in peers.values():
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", timeout_s, 0))
        self._read_counts = memoryview(memory).cast("q")[: self.size * _LINE_BYTES // 8 : _LINE_BYTES // 8]
        places = torch.frombuffer(memory, dtype=torch.uint8, offset=self.size * _LINE_BYTES)
        self._turns = places.view(_TURNS, self.size * PLACE_BYTES)
        self._places: dict[tuple[int, torch.Size, torch.dtype], Places] = {}
        self._written = [0] * self.size
        self._read_by_all = 0
        self._ahead: set[int] = set()

    @property
    def in_the_way(self) -> int | None:
        """The turn that this rank has to finish reading before it can write again; None where there is none."""
        first = self._read_counts[self._index]
        return first if first <= self._written[self._index] - _TURNS else None

    def write(self, rows: torch.Tensor, own: bool = True) -> tuple[int, Places]:
        """Writes rows [rows, n], at most PLACE_BYTES, for the others to read; returns the turn and its places. Nothing
        may be `in_the_way`. own: whether the row for this rank's own place is written too."""
        turn = self._written[self._index]
        if turn - _TURNS >= self._read_by_all:
            self._wait_for_readers(turn - _TURNS)
        places = self._places_of(turn, rows)
        if own:
            places.mine.copy_(rows)
        else:
            for part, place in places.others_mine:
                place.copy_(rows[part])
        self._written[self._index] += 1
        for peer in self._peers.values():
            peer.send(b"\0")
        return turn, places

    def wait_for(self, turn: int) -> None:
        """Waits until all ranks have written in this turn; what they wrote stays until `done`."""
        for index, peer in self._peers.items():
            while self._written[index] <= turn:
                self._written[index] += self._heard(index, peer)

    def _places_of(self, turn: int, rows: torch.Tensor) -> Places:
        """The places of a turn, in which all ranks write as many rows."""
        key = (turn % _TURNS, rows.shape, rows.dtype)
        if (found := self._places.get(key)) is None:
            memory = self._turns[key[0], : self.size * rows.nbytes].view(rows.dtype)
            found = self._places[key] = Places(memory.view(self.size, *rows.shape), self._index)
        return found

    def done(self, turn: int) -> None:
        """Allows the ranks to overwrite what was written in this turn."""
        self._ahead.add(turn)
        while (count := self._read_counts[self._index]) in self._ahead:
            self._ahead.remove(count)
            self._read_counts[self._index] = count + 1

    def _wait_for_readers(self, turn: int) -> None:
        """Waits until all ranks are done with this turn."""
        until = time.monotonic() + self._timeout_s
        while (least := min(counts := self._read_counts.tolist())) <= turn:
            if time.monotonic() > until:
                raise self._timed_out(counts.index(least))
            time.sleep(_RETRY_S)
        self._read_by_all = least

    def _timed_out(self, index: int) -> ConnectionError:
        return ConnectionError(f"timed out waiting for place {index} of {self.size} in a group")

    def _heard(self, index: int, peer: socket.socket) -> int:
        """How often a rank has written since it was last asked; waits until it has written at least once."""
        try:
            heard = len(peer.recv(_TURNS))
        except BlockingIOError:
            raise self._timed_out(index) from None
        if not heard:
            raise ConnectionError(f"connection closed by peer, place {index} of {self.size} in a group")
        return heard


def meet(group: dist.ProcessGroup, index: int) -> Board | None:
    """A board for the group's ranks (collective); None where they are not all on one Linux machine."""
    with socket.socket(socket.AF_UNIX) as listener:
        here = _machine()
        address = f"\0autoshard-{uuid4().hex}"  # abstract: no file
        if here:
            listener.bind(address)
            listener.listen(group.size())
        everyone: list[tuple[str, str]] = [("", "")] * group.size()
        dist.all_gather_object(everyone, (here, address), group=group)
        if any(machine != here or not machine for machine, _ in everyone):
            return None
        peers = _connect(listener, [address for _, address in everyone], index)
    size = len(everyone) * (_LINE_BYTES + _TURNS * PLACE_BYTES)
    file = _share(peers, size) if index == 0 else socket.recv_fds(peers[0], 1, 1)[1][0]
    memory = mmap.mmap(file, size)
    os.close(file)
    timeout: timedelta = group._get_backend(torch.device("cpu")).options._timeout
    return Board(memory, peers, index, max(1, int(timeout.total_seconds())))


def _machine() -> str:
    """A name that is the same for processes that can connect by such addresses and share memory; "" where there is
    none."""
    if sys.platform != "linux":
        return ""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/net').readlink()}"


def _connect(listener: socket.socket, addresses: Sequence[str], index: int) -> dict[int, socket.socket]:
    peers = {}
    for other in range(index):
        peers[other] = socket.socket(socket.AF_UNIX)
        peers[other].connect(addresses[other])
        peers[other].send(struct.pack("i", index))
    for _ in range(index + 1, len(addresses)):
        peer, _ = listener.accept()
        (other,) = struct.unpack("i", peer.recv(4))
        peers[other] = peer
    return dict(sorted(peers.items()))


def _share(peers: dict[int, socket.socket], size: int) -> int:
    """The file descriptor of a file in memory, which the peers receive too. size: bytes."""
    file = os.memfd_create("autoshard")
    os.ftruncate(file, size)
    for peer in peers.values():
        socket.send_fds(peer, [b"\0"], [file])
    return file
