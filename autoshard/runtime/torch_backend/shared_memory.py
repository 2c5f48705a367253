"""Memory that the processes of a group share where all of them run on one machine.

gloo sends everything through TCP, several copies and wake-ups of its threads each way. Here a rank writes once what the
others are to know and tells them so over a socket; they read it where it lies.
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
from pathlib import Path
from uuid import uuid4

import torch
import torch.distributed as dist

PLACE_BYTES = 2 * 2**20
"""What a rank can write at one time."""
_TURNS = 4
"""Of writing before a rank overwrites its first."""
_LINE_BYTES = 64
"""A rank's count of what it has read, on a cache line of its own."""
_RETRY_S = 50e-6


class Board:
    """One rank's view of the memory. Ranks write in turns; all write the same amount in the same turn.

    peers: a connection to every other rank, by its place in the group. timeout_s: how long one is waited for.
    """

    def __init__(self, memory: mmap.mmap, peers: dict[int, socket.socket], index: int, timeout_s: int):
        self._peers, self._index, self.size, self._timeout_s = peers, index, len(peers) + 1, timeout_s
        for peer in peers.values():
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", timeout_s, 0))
        self._read_counts = memoryview(memory).cast("q")[: self.size * _LINE_BYTES // 8 : _LINE_BYTES // 8]
        places = torch.frombuffer(memory, dtype=torch.uint8, offset=self.size * _LINE_BYTES)
        self._places = places.view(_TURNS, self.size, PLACE_BYTES)
        self._written = [0] * self.size
        self._ahead: set[int] = set()

    @property
    def in_the_way(self) -> int | None:
        """The turn that this rank has to be done with before it can write again."""
        first = self._read_counts[self._index]
        return first if first <= self._written[self._index] - _TURNS else None

    def write(self, x: torch.Tensor) -> int:
        """x, at most PLACE_BYTES, for the others to read -> the turn."""
        assert self.in_the_way is None
        turn = self._written[self._index]
        self._wait_for_readers(turn - _TURNS)
        self._place(turn, self._index, x).copy_(x)
        self._written[self._index] += 1
        for peer in self._peers.values():
            peer.send(b"\0")
        return turn

    def read(self, turn: int, like: torch.Tensor) -> list[torch.Tensor]:
        """What each rank wrote, in their order: views that stay as they are until `done`."""
        for index, peer in self._peers.items():
            while self._written[index] <= turn:
                self._written[index] += self._heard(index, peer)
        return [self._place(turn, index, like) for index in range(self.size)]

    def done(self, turn: int) -> None:
        """What was written in this turn may be overwritten."""
        self._ahead.add(turn)
        while (count := self._read_counts[self._index]) in self._ahead:
            self._ahead.remove(count)
            self._read_counts[self._index] = count + 1

    def _wait_for_readers(self, turn: int) -> None:
        """Until all are done with this turn."""
        until = time.monotonic() + self._timeout_s
        while min(counts := self._read_counts.tolist()) <= turn:
            if time.monotonic() > until:
                raise self._timed_out(counts.index(min(counts)))
            time.sleep(_RETRY_S)

    def _timed_out(self, index: int) -> ConnectionError:
        return ConnectionError(f"timed out waiting for place {index} of {self.size} in a group")

    def _place(self, turn: int, index: int, like: torch.Tensor) -> torch.Tensor:
        place = self._places[turn % _TURNS, index, : like.numel() * like.element_size()]
        return place.view(like.dtype).view(like.shape)

    def _heard(self, index: int, peer: socket.socket) -> int:
        """How often a rank has written since it was asked last, at least once."""
        try:
            heard = len(peer.recv(_TURNS))
        except BlockingIOError:
            raise self._timed_out(index) from None
        if not heard:
            raise ConnectionError(f"connection closed by peer, place {index} of {self.size} in a group")
        return heard


def meet(group: dist.ProcessGroup, index: int) -> Board | None:
    """A board of the group's ranks (collective); None where they are not all in one place on one Linux machine."""
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
    """The same for processes that can connect to each other by such addresses and share memory; "" for none."""
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
    """A file in memory that the others receive too."""
    file = os.memfd_create("autoshard")
    os.ftruncate(file, size)
    for peer in peers.values():
        socket.send_fds(peer, [b"\0"], [file])
    return file
