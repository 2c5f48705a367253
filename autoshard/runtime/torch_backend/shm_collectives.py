"""Collectives through shared memory, for processes on one machine: operators like torch's functional ones.

gloo's own go through TCP, and its reduce-scatter is a whole all-reduce. The result of each is a tensor under way until
`wait_tensor` returns. Sums are in the order of the ranks, so that all ranks get the same bits. They are operators so
that whoever watches the dispatcher sees each one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist

from autoshard.runtime.torch_backend.shared_memory import PLACE_BYTES, Board, Places, meet

NAMESPACE = "autoshard"
_library = torch.library.Library(NAMESPACE, "DEF")
_directs: WeakValueDictionary[str, Direct] = WeakValueDictionary()
"""Group name -> its collectives; the name is all that an operator is told."""
_Read = Callable[[slice | None, Places], object]


class Direct:
    """The collectives of one group through shared memory."""

    def __init__(self, board: Board, index: int, name: str):
        self.board, self.index, self.size = board, index, board.size
        self.unread: dict[int, _UnderWay | _Loan] = {}
        """Turn of the board -> the collective that has to read it next."""
        self._under_way: dict[int, _UnderWay | _Loan] = {}
        self._lent: dict[int, _Loan] = {}
        """Address of the result -> the loan."""
        _directs[name] = self

    def start(self, rows: torch.Tensor, read: _Read, out: torch.Tensor, own: bool = True) -> torch.Tensor:
        """Starts a collective, arguments as in _UnderWay; `read` fills `out`, which is returned."""
        self._under_way[out.data_ptr()] = _UnderWay(self, rows, read, own)
        return out

    def finish(self, out: torch.Tensor) -> None:
        """Waits until the result is in `out`."""
        self._under_way.pop(out.data_ptr()).finish()

    def lend(self, x: torch.Tensor) -> torch.Tensor:
        """A tensor that stands for the rows of all ranks, to be read where they lie: wait for it, then call `lent`."""
        loan = _Loan(self, x.view(1, -1))
        out = loan.gathered.view(self.size * x.shape[0], *x.shape[1:])
        assert out.data_ptr() not in self._lent
        self._under_way[out.data_ptr()] = self._lent[out.data_ptr()] = loan
        return out

    def lent(self, out: torch.Tensor) -> torch.Tensor:
        """The rows of all ranks, which are there until `take_back`."""
        return self._lent[out.data_ptr()].gathered.view(out.shape)

    def take_back(self, out: torch.Tensor) -> None:
        """Ends a loan: nobody here reads the rows any more."""
        self._lent.pop(out.data_ptr()).release()

    def make_room(self) -> None:
        """Finishes what is in the way early, on all ranks: all have started the same collectives in the same order."""
        while (turn := self.board.in_the_way) is not None:
            self.unread[turn].make_room()


class _UnderWay:
    """A collective under way. It writes `rows` [rows, n], as many columns at a time as there is space for, the first
    ones at once.

    read: called with the columns that all ranks have written, None for all, and their places. own: whether the row for
    this rank's own place is written too.
    """

    def __init__(self, direct: Direct, rows: torch.Tensor, read: _Read, own: bool):
        self._direct, self._rows, self._read, self._own = direct, rows, read, own
        self._width = PLACE_BYTES // (rows.shape[0] * rows.element_size())
        self._columns = None if rows.shape[1] <= self._width else slice(0, self._width)
        self._turn: int | None = None
        self._write(rows)

    def finish(self) -> None:
        """Reads what is written, then writes and reads the other columns."""
        direct = self._direct
        while (turn := self._turn) is not None:
            direct.board.wait_for(turn)
            self._read(self._columns, self._places)
            direct.board.done(turn)
            del direct.unread[turn]
            self._turn = None
            if self._columns is not None and self._columns.stop < self._rows.shape[1]:
                self._columns = slice(self._columns.stop, self._columns.stop + self._width)
                self._write(self._rows)

    make_room = finish

    def _write(self, rows: torch.Tensor) -> None:
        direct = self._direct
        direct.make_room()
        self._turn, self._places = direct.board.write(_part(rows, self._columns), self._own)
        direct.unread[self._turn] = self


class _Loan:
    """An all-gather whose result is read in shared memory. Writes `rows` [1, n], at most PLACE_BYTES.

    gathered [ranks, n]: the rows of all ranks, there once `finish` has returned; a copy where the memory was needed.
    """

    def __init__(self, direct: Direct, rows: torch.Tensor):
        direct.make_room()
        self._direct = direct
        self._turn, places = direct.board.write(rows)
        self.gathered = places.first_rows
        direct.unread[self._turn] = self

    def finish(self) -> None:
        if self._turn in self._direct.unread:
            self._direct.board.wait_for(self._turn)

    def make_room(self) -> None:
        self.finish()
        self.gathered = self.gathered.clone()
        self.release()

    def release(self) -> None:
        if self._direct.unread.pop(self._turn, None) is not None:
            self._direct.board.done(self._turn)


def connect(group: dist.ProcessGroup, index: int) -> Direct | None:
    """The group's collectives through shared memory (collective); None for other backends than gloo and across
    machines, where torch's own are used."""
    if group.size() == 1 or dist.get_backend(group) != "gloo":
        return None
    board = meet(group, index)
    return None if board is None else Direct(board, index, group.group_name)


def _all_gather(x: torch.Tensor, group_size: int, group: str, *, out: torch.Tensor) -> torch.Tensor:
    whole = out.view(group_size, -1)

    def read(columns: slice | None, places: Places) -> None:
        _part(whole, columns).copy_(places.first_rows)

    return _directs[group].start(x.view(1, -1), read, out)


def _all_gather_lent(x: torch.Tensor, group_size: int, group: str) -> torch.Tensor:
    return _directs[group].lend(x)


def _reduce_scatter(x: torch.Tensor, reduction: str, group_size: int, group: str) -> torch.Tensor:
    direct = _directs[group]
    out = x.new_empty(x.shape[0] // group_size, *x.shape[1:])
    rows, flat, index = x.view(group_size, -1), out.view(-1), direct.index
    mine = rows[index]

    def read(columns: slice | None, places: Places) -> None:
        pieces = list(places.each_to_me)
        pieces[index] = _part(mine, columns)
        _sum(pieces, _part(flat, columns))

    return direct.start(rows, read, out, own=False)


def _all_reduce(x: torch.Tensor, reduction: str, group: str) -> torch.Tensor:
    out = torch.empty_like(x)
    flat, reduce = out.view(-1), _sum if reduction == "sum" else _largest

    def read(columns: slice | None, places: Places) -> None:
        reduce(places.each_first, _part(flat, columns))

    return _directs[group].start(x.view(1, -1), read, out)


def _all_to_all(x: torch.Tensor, received: list[int], sent: list[int], group: str) -> torch.Tensor:
    """An all-to-all of equal pieces, or of one piece for the next rank."""
    direct, out = _directs[group], torch.empty_like(x)
    if len(set(sent)) > 1:
        flat, source = out.view(-1), received.index(max(received))

        def read_one(columns: slice | None, places: Places) -> None:
            _part(flat, columns).copy_(places.each_first[source])

        return direct.start(x.view(1, -1), read_one, out)
    rows, arrived, index = x.view(direct.size, -1), out.view(direct.size, -1), direct.index

    def read(columns: slice | None, places: Places) -> None:
        pieces = list(places.each_to_me)
        pieces[index] = _part(rows[index], columns)
        for row, piece in zip(arrived, pieces, strict=True):
            _part(row, columns).copy_(piece)

    return direct.start(rows, read, out, own=False)


def _part(x: torch.Tensor, columns: slice | None) -> torch.Tensor:
    return x if columns is None else x[..., columns]


def _sum(pieces: Sequence[torch.Tensor], out: torch.Tensor) -> None:
    torch.add(pieces[0], pieces[1], out=out)
    for piece in pieces[2:]:
        out += piece


def _largest(pieces: Sequence[torch.Tensor], out: torch.Tensor) -> None:
    torch.maximum(pieces[0], pieces[1], out=out)
    for piece in pieces[2:]:
        torch.maximum(out, piece, out=out)


def _wait(x: torch.Tensor, group: str) -> None:
    _directs[group].finish(x)


_OPERATORS: dict[str, Callable[..., Any]] = {
    "all_gather_into_tensor_out(Tensor x, int group_size, str group, *, Tensor(a!) out) -> Tensor(a!)": _all_gather,
    "all_gather(Tensor x, int group_size, str group) -> Tensor": _all_gather_lent,
    "reduce_scatter_tensor(Tensor x, str reduction, int group_size, str group) -> Tensor": _reduce_scatter,
    "all_reduce(Tensor x, str reduction, str group) -> Tensor": _all_reduce,
    "all_to_all_single(Tensor x, int[] received, int[] sent, str group) -> Tensor": _all_to_all,
    "wait_tensor(Tensor(a!) x, str group) -> ()": _wait,
}
for _schema, _function in _OPERATORS.items():
    _library.define(_schema)
    _library.impl(_schema.split("(")[0], _function, "CPU")

_unwatched = SimpleNamespace(**{schema.split("(")[0]: function for schema, function in _OPERATORS.items()})


def operators() -> Any:
    """The operators by name. Where neither autograd nor anybody else watches the dispatcher, it is bypassed: it takes
    longer than most of the operators do."""
    return torch.ops.autoshard if _is_watched() else _unwatched


def wait(x: torch.Tensor, direct: Direct, group: str) -> None:
    """Waits until a collective's result is in x. group: the name of the group whose collectives `direct` are."""
    if _is_watched():
        torch.ops.autoshard.wait_tensor(x, group)
    else:
        direct.finish(x)


def _is_watched() -> bool:
    return torch.is_grad_enabled() or torch._C._len_torch_dispatch_stack() > 0
