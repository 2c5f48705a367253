"""Collectives of processes on one machine, through memory that they share: operators like torch's functional ones.

gloo's own go through TCP, and its reduce-scatter is a whole all-reduce. The result of each is a tensor under way until
`wait_tensor` returns; the order of the sums is that of the ranks, so that all of them get the same bits. Operators, so
that whoever watches the dispatcher sees each one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist

from autoshard.runtime.torch_backend.shared_memory import PLACE_BYTES, Board, meet

NAMESPACE = "autoshard"
_library = torch.library.Library(NAMESPACE, "DEF")
_directs: WeakValueDictionary[str, Direct] = WeakValueDictionary()
"""By the name of the group, which is all that an operator is told."""
_Read = Callable[[slice, list[torch.Tensor]], object]


class Direct:
    """The collectives of one group."""

    def __init__(self, board: Board, index: int, name: str):
        self.board, self.index, self.size = board, index, board.size
        self.unread: dict[int, _UnderWay] = {}
        """By the turn of the board that each has to read next."""
        self._under_way: dict[int, _UnderWay] = {}
        """By the address of the result."""
        _directs[name] = self

    def start(self, rows: torch.Tensor, read: _Read, out: torch.Tensor) -> torch.Tensor:
        """As _UnderWay; read fills `out`."""
        self._under_way[out.data_ptr()] = _UnderWay(self, rows, read)
        return out

    def finish(self, out: torch.Tensor) -> None:
        """Wait until the result is there."""
        self._under_way.pop(out.data_ptr()).finish()


class _UnderWay:
    """Writes `rows` [rows, n], as many columns at a time as there is space for, the first ones at once.

    read: is given the columns that all ranks have written, and what each wrote.
    """

    def __init__(self, direct: Direct, rows: torch.Tensor, read: _Read):
        self._direct, self._rows, self._read = direct, rows, read
        self._width = PLACE_BYTES // (rows.shape[0] * rows.element_size())
        self._first = 0
        self._turn: int | None = None
        self._write()

    def finish(self) -> None:
        """Read what is written, then write and read the other columns."""
        board, count = self._direct.board, self._rows.shape[1]
        while (turn := self._turn) is not None:
            columns = self._columns()
            self._read(columns, board.read(turn, self._rows[:, columns]))
            board.done(turn)
            del self._direct.unread[turn]
            self._first, self._turn = self._first + self._width, None
            if self._first < count:
                self._write()

    def _write(self) -> None:
        """All ranks have started the same in the same order: what is in the way is finished early on all of them."""
        board, unread = self._direct.board, self._direct.unread
        while (turn := board.in_the_way) is not None:
            unread[turn].finish()
        self._turn = board.write(self._rows[:, self._columns()])
        unread[self._turn] = self

    def _columns(self) -> slice:
        return slice(self._first, self._first + self._width)


def connect(group: dist.ProcessGroup, index: int) -> Direct | None:
    """(collective) None where torch's own are taken: of other backends, and over several machines."""
    if group.size() == 1 or dist.get_backend(group) != "gloo":
        return None
    board = meet(group, index)
    return None if board is None else Direct(board, index, group.group_name)


def _all_gather(x: torch.Tensor, group_size: int, group: str, *, out: torch.Tensor) -> torch.Tensor:
    whole = out.view(group_size, -1)

    def read(columns: slice, written: list[torch.Tensor]) -> None:
        for row, piece in zip(whole, written, strict=True):
            row[columns].copy_(piece[0])

    return _directs[group].start(x.view(1, -1), read, out)


def _reduce_scatter(x: torch.Tensor, reduction: str, group_size: int, group: str) -> torch.Tensor:
    direct = _directs[group]
    out = x.new_empty(x.shape[0] // group_size, *x.shape[1:])
    flat, index = out.view(-1), direct.index

    def read(columns: slice, written: list[torch.Tensor]) -> None:
        _sum([piece[index] for piece in written], flat[columns])

    return direct.start(x.view(group_size, -1), read, out)


def _all_reduce(x: torch.Tensor, reduction: str, group: str) -> torch.Tensor:
    out = torch.empty_like(x)
    flat, reduce = out.view(-1), _sum if reduction == "sum" else _largest

    def read(columns: slice, written: list[torch.Tensor]) -> None:
        reduce([piece[0] for piece in written], flat[columns])

    return _directs[group].start(x.view(1, -1), read, out)


def _all_to_all(x: torch.Tensor, received: list[int], sent: list[int], group: str) -> torch.Tensor:
    """Of equal pieces, or one piece to the next rank."""
    direct, out = _directs[group], torch.empty_like(x)
    pieces = len(set(sent)) == 1
    index, from_index = direct.index, received.index(max(received))
    rows, arrived = (x.view(direct.size, -1), out.view(direct.size, -1)) if pieces else (x.view(1, -1), out.view(1, -1))

    def read(columns: slice, written: list[torch.Tensor]) -> None:
        for row, piece in zip(arrived, [one[index] for one in written] if pieces else written[from_index], strict=True):
            row[columns].copy_(piece)

    return direct.start(rows, read, out)


def _sum(pieces: list[torch.Tensor], out: torch.Tensor) -> None:
    torch.add(pieces[0], pieces[1], out=out)
    for piece in pieces[2:]:
        out += piece


def _largest(pieces: list[torch.Tensor], out: torch.Tensor) -> None:
    torch.maximum(pieces[0], pieces[1], out=out)
    for piece in pieces[2:]:
        torch.maximum(out, piece, out=out)


def _wait(x: torch.Tensor, group: str) -> None:
    _directs[group].finish(x)


_OPERATORS: dict[str, Callable[..., Any]] = {
    "all_gather_into_tensor_out(Tensor x, int group_size, str group, *, Tensor(a!) out) -> Tensor(a!)": _all_gather,
    "reduce_scatter_tensor(Tensor x, str reduction, int group_size, str group) -> Tensor": _reduce_scatter,
    "all_reduce(Tensor x, str reduction, str group) -> Tensor": _all_reduce,
    "all_to_all_single(Tensor x, int[] received, int[] sent, str group) -> Tensor": _all_to_all,
    "wait_tensor(Tensor(a!) x, str group) -> ()": _wait,
}
for _schema, _function in _OPERATORS.items():
    _library.define(_schema)
    _library.impl(_schema.split("(")[0], _function, "CPU")
