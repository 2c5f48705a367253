"""Cuts tokens into batches. Step k's batch depends on the tokens, the seed and k, never on the layout.

Every rank computes the same global batch and takes its rows, so no rank has to be told where another one reads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from autoshard.errors import AutoshardError
from autoshard.files.codec import Absence, Checked, Count
from autoshard.files.fields import LARGEST, check_integer
from autoshard.runtime.data.shuffle import hashed, shuffled
from autoshard.runtime.data.token_file import TokenFile

NOT_LEARNED = -100
"""The label of a token that the model is not to learn: torch's cross-entropy leaves it out by default."""

Tokens = NDArray[np.int64]
_WITHOUT = " without the last "
"""Separates, in a digest, the data's own digest from the number of rows held out of them."""
_ANEW = "start anew with the checkpoint as weights and another checkpoint_dir"
"""What always works where a checkpoint is of other data: its folder would be resumed again."""
_LOOK = 1 << 20
"""Tokens that are looked at together for a label; nearly always there is one among the first."""


@dataclass(frozen=True)
class DataPosition:
    """How far a run is in its data: all that a checkpoint needs so that the next run goes on with the next row.

    sequences: rows taken so far, over all epochs. seed: of the order. digest: of the tokens. sequence_length: of a row,
    one token less than it has; None in the checkpoints of an older autoshard, which go on at any length.
    """

    sequences: Annotated[int, Checked(partial(check_integer, at_least=0, at_most=LARGEST**2))]
    seed: int
    digest: str
    sequence_length: Annotated[Count | None, Absence.READ] = None


@dataclass(frozen=True)
class TokenStream:
    """Batches of rows of sequence_length + 1 tokens.

    tokens: [tokens]. An epoch cuts them into rows that never overlap and shuffles the rows; the next one shuffles anew
    and starts its cut elsewhere. A batch takes the next rows, beyond an epoch's end where it must.
    learned: [tokens], 0 where a token is no label; None: all are. begins: [tokens], 1 where a document begins, whose
    first token is no label; None: a row is read as one. digest: names the tokens in a DataPosition.
    """

    tokens: NDArray[np.int32]
    global_batch_size: int  # sequences
    sequence_length: int
    seed: int = 0
    learned: NDArray[np.uint8] | None = None
    digest: str = ""
    begins: NDArray[np.uint8] | None = None

    def __post_init__(self) -> None:
        assert self.tokens.ndim == 1 and self.global_batch_size >= 1 and self.sequence_length >= 1
        if self.learned is not None and self.rows_per_epoch < self.global_batch_size:
            raise AutoshardError(
                f"the data fill {self.rows_per_epoch:,} rows of {self.sequence_length} + 1 tokens; one batch "
                f"has {self.global_batch_size}: give more of them or a smaller batch"
            )
        if self.rows_per_epoch < self.global_batch_size:
            needed = self.global_batch_size * (self.sequence_length + 1)
            raise AutoshardError(
                f"the text has {len(self.tokens):,} tokens; one batch of {self.global_batch_size} sequences x "
                f"({self.sequence_length} + 1) tokens needs {needed:,}: give more text or a smaller batch"
            )
        if not any(self._are_labels(slice(first, first + _LOOK)).any() for first in range(0, len(self.tokens), _LOOK)):
            raise self._without_label("the text", "other text")

    @property
    def rows_per_epoch(self) -> int:
        """Number of whole rows of sequence_length + 1 tokens in the data; the rest is left out."""
        return len(self.tokens) // (self.sequence_length + 1)

    @property
    def tokens_per_step(self) -> int:
        """Number of tokens that one step reads, including those that are not learned."""
        return self.global_batch_size * self.sequence_length

    def position(self, step: int) -> DataPosition:
        """The position in the data before this step."""
        return DataPosition(step * self.global_batch_size, self.seed, self.digest, self.sequence_length)

    def step_at(self, position: DataPosition) -> int:
        """The step that goes on from there. Raises AutoshardError when it is a position in other data."""
        difference = self._difference(position)
        if difference:
            raise AutoshardError(f"the data position was saved with {difference}: the order of rows would be another")
        step, rest = divmod(position.sequences, self.global_batch_size)
        if rest:
            raise AutoshardError(
                f"the data position, {position.sequences:,} sequences, is in the middle of a batch of "
                f"{self.global_batch_size}: give a batch that divides it, or {_ANEW}"
            )
        return step

    def _difference(self, position: DataPosition) -> str:
        """The first difference that puts the rows at `position` in another order, and what would work; '' without."""
        if position.seed != self.seed:
            return f"seed={position.seed}, not {self.seed} (give seed={position.seed}, or {_ANEW})"
        if position.sequence_length not in (None, self.sequence_length):
            before = position.sequence_length
            cure = f"give a plan with seq_len={before}, or {_ANEW}"
            return f"seq_len={before}, not {self.sequence_length} ({cure})"
        if position.digest == self.digest:
            return ""
        (theirs, before), (ours, now) = _without(position.digest), _without(self.digest)
        if theirs != ours:
            return f"other data or tokenizer, text_field, packing or document_mask (give those, or {_ANEW})"
        rows, size = self.rows_per_epoch + now, self.global_batch_size
        cure = f"give eval_fraction={before / rows}" if before else "leave eval_fraction out"
        if before % size:
            cure = f"no eval_fraction holds out part of a batch: give a plan whose batch, now {size}, divides {before}"
        return f"{before or 'no'} rows held out, not {now or 'none'} ({cure})"

    def starts(self, step: int) -> NDArray[np.int64]:
        """Index of the first token of each row in the step's batch: [global_batch_size]."""
        first = step * self.global_batch_size
        taken = np.arange(first, first + self.global_batch_size, dtype=np.int64)
        row_length = self.sequence_length + 1
        spare = len(self.tokens) - self.rows_per_epoch * row_length
        found = np.empty_like(taken)
        for epoch in range(first // self.rows_per_epoch, int(taken[-1]) // self.rows_per_epoch + 1):
            here = taken // self.rows_per_epoch == epoch
            offset = int(hashed(np.array([epoch], dtype=np.uint64), self.seed)[0] % np.uint64(spare + 1))
            rows = shuffled(taken[here] % self.rows_per_epoch, self.rows_per_epoch, self.seed, epoch)
            found[here] = rows * row_length + offset
        return found

    def batch(self, step: int) -> tuple[Tokens, Tokens]:
        """Inputs and labels of one step, each [global_batch_size, sequence_length]; labels are one token later.

        Raises AutoshardError where there is no label among them.
        """
        inputs, labels = self._cut(self.starts(step))
        if (labels == NOT_LEARNED).all():
            raise self._without_label(f"batch {step + 1} of the text", "other text or a larger batch")
        return inputs, labels

    def documents(self, step: int) -> Tokens | None:
        """For each input of the step's batch, the place in its row where its document begins: [global_batch_size,
        sequence_length]; None where documents are not kept apart."""
        return self._documents(self.starts(step))

    def in_order(self, batch: int) -> tuple[Tokens, Tokens]:
        """Inputs and labels of one batch of an evaluation, which takes all rows in their own order; shapes as in
        `batch`. batch: its number."""
        return self._cut(self._in_order(batch))

    def documents_in_order(self, batch: int) -> Tokens | None:
        """For each input of in_order's batch, the place in its row where its document begins; as `documents`."""
        return self._documents(self._in_order(batch))

    def _in_order(self, batch: int) -> NDArray[np.int64]:
        rows = np.arange(batch * self.global_batch_size, (batch + 1) * self.global_batch_size, dtype=np.int64)
        assert rows[-1] < self.rows_per_epoch, (batch, self.rows_per_epoch)
        return rows * (self.sequence_length + 1)

    def _documents(self, starts: NDArray[np.int64]) -> Tokens | None:
        if self.begins is None:
            return None
        places = np.arange(self.sequence_length, dtype=np.int64)
        begins = self.begins[starts[:, None] + places] != 0
        return np.maximum.accumulate(np.where(begins, places, 0), axis=1)

    def _cut(self, starts: NDArray[np.int64]) -> tuple[Tokens, Tokens]:
        indices = starts[:, None] + np.arange(self.sequence_length + 1, dtype=np.int64)
        rows = self.tokens[indices].astype(np.int64)
        return rows[:, :-1].copy(), np.where(self._are_labels(indices[:, 1:]), rows[:, 1:], NOT_LEARNED)

    def _are_labels(self, places: slice | NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the tokens at these places may be labels."""
        found = np.ones(self.tokens[places].shape, dtype=np.bool_)
        if self.learned is not None:
            found &= self.learned[places] != 0
        if self.begins is not None:
            found &= self.begins[places] == 0
        return found

    def _without_label(self, what: str, cure: str) -> AutoshardError:
        rules = [] if self.learned is None else ["be marked as learned"]
        rules += [] if self.begins is None else ["follow another token of its document"]
        return AutoshardError(f"{what} has no label, which must {' and '.join(rules)}: give {cure}")


def open_stream(file: TokenFile, *, global_batch_size: int, sequence_length: int, seed: int = 0) -> TokenStream:
    """A stream of batches of prepared tokens. Raises AutoshardError where rows that must stay whole have another
    sequence length."""
    assert file.row_length in (0, sequence_length + 1), (file.row_length, sequence_length)
    return TokenStream(
        file.tokens(),
        global_batch_size,
        sequence_length,
        seed,
        learned=file.learned(),
        digest=file.digest,
        begins=file.begins(),
    )


def _without(digest: str) -> tuple[str, int]:
    """Splits a digest made by `held_out`: (digest of the whole data, number of rows that are held out)."""
    whole, _, rows = digest.partition(_WITHOUT)
    return whole, int(rows.removesuffix(" rows") or 0)


def held_out(stream: TokenStream, fraction: float) -> tuple[TokenStream, TokenStream]:
    """(the stream without its last rows, a stream of those rows). fraction: of all rows, rounded to whole batches, at
    least one."""
    size, row_length = stream.global_batch_size, stream.sequence_length + 1
    rows = max(1, round(fraction * stream.rows_per_epoch / size)) * size
    if stream.rows_per_epoch - rows < size:
        raise AutoshardError(
            f"eval_fraction={fraction} of {stream.rows_per_epoch:,} rows leaves less than a batch of {size} to learn "
            "from: give more data or a smaller batch"
        )
    cut = len(stream.tokens) - rows * row_length
    digest = f"{stream.digest}{_WITHOUT}{rows} rows"
    parts = [
        replace(
            stream,
            tokens=stream.tokens[part],
            learned=None if stream.learned is None else stream.learned[part],
            begins=None if stream.begins is None else stream.begins[part],
            digest=digest,
        )
        for part in (slice(0, cut), slice(cut, None))
    ]
    return parts[0], parts[1]
