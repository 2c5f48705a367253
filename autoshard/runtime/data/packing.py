"""Packs conversations into rows of one length: several share a row where they fit, and padding fills the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autoshard.runtime.data.chat import Conversation

OPEN_ROWS = 64
"""How many rows wait for a conversation that fits: a guess at where more of them stop filling rows better."""

Row = tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.uint8]]


@dataclass
class Packer:
    """Packs conversations into rows in the order in which they come; each goes into the row that it leaves the least
    room in.

    row_length: tokens of a row, one more than the sequence length. pad: the id that fills rows up. together: False
    gives each conversation a row of its own. A conversation that is longer than a row keeps its end, where its last
    answer is. Attention is causal over the row, so later conversations see earlier ones unless the run keeps documents
    apart.
    """

    row_length: int
    pad: int
    together: bool = True
    conversations: int = 0
    shortened: int = 0
    rows: int = 0
    tokens: int = 0
    learned: int = 0
    _open: list[list[Conversation]] = field(default_factory=list)

    def pack(self, conversations: Iterable[Conversation]) -> Iterator[Row]:
        """Yields rows, each of three arrays [row_length]: ids; marks of what is learned; marks of where a document or
        padding begins."""
        for one in conversations:
            self.conversations += 1
            if len(one.ids) > self.row_length:
                self.shortened += 1
                yield from self._add(self._end_of(one))
            else:
                yield from self._add(one)
        while self._open:
            yield self._closed(0)

    def _end_of(self, one: Conversation) -> Conversation:
        learned = one.learned[-self.row_length :].copy()
        learned[0] = 0
        return Conversation(one.ids[-self.row_length :], learned)

    def _add(self, one: Conversation) -> Iterator[Row]:
        rooms = [self._room(row) - len(one.ids) for row in self._open]
        fitting = [(room, position) for position, room in enumerate(rooms) if room >= 0]
        if fitting and self.together:
            self._open[min(fitting)[1]].append(one)
            return
        self._open.append([one])
        if len(self._open) > OPEN_ROWS or not self.together:
            yield self._closed(min(range(len(self._open)), key=lambda position: self._room(self._open[position])))

    def _room(self, row: list[Conversation]) -> int:
        return self.row_length - sum(len(one.ids) for one in row)

    def _closed(self, position: int) -> Row:
        row = self._open.pop(position)
        ids = np.full(self.row_length, self.pad, dtype=np.int32)
        learned = np.zeros(self.row_length, dtype=np.uint8)
        used = self.row_length - self._room(row)
        ids[:used] = np.concatenate([one.ids for one in row])
        learned[:used] = np.concatenate([one.learned for one in row])
        begins = np.zeros(self.row_length, dtype=np.uint8)
        ends = np.cumsum([0, *(len(one.ids) for one in row)])
        begins[ends[ends < self.row_length]] = 1
        self.rows, self.tokens, self.learned = self.rows + 1, self.tokens + used, self.learned + int(learned.sum())
        return ids, learned, begins
