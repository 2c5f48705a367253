"""Text to batches. What step k trains on depends on the text, the seed and k: never on the layout.

Every rank computes the same global batch and takes its rows, so no rank has to be told where another one reads.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autoshard.errors import AutoshardError
from autoshard.runtime.tokenizer import Tokenizer
from autoshard.units import format_count

TEXT_SUFFIXES = (".txt", ".md")


@dataclass(frozen=True)
class Text:
    """A text and, for people, where it came from."""

    text: str
    source: str


def load_text(path: Path | None = None) -> Text:
    """A text file, every .txt and .md under a folder in the order of their paths, or Python's own manual.

    The manual (pydoc_data.topics, about 465 KB of English) comes with every CPython, so the default needs no network
    and no download. Its words differ a little from one Python version to the next.
    Raises AutoshardError when there is nothing to read, or not text in UTF-8.
    """
    if path is None:
        return _python_manual()
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in TEXT_SUFFIXES and file.is_file())
        if not files:
            raise AutoshardError(f"--data {path} has no file ending in {' or '.join(TEXT_SUFFIXES)}")
        texts = [_read_text(file) for file in files]
        text, source = "\n\n".join(texts), f"{path} ({len(files)} file{'s' if len(files) > 1 else ''})"
    elif path.exists():
        text, source = _read_text(path), str(path)
    else:
        raise AutoshardError(
            f"--data {path} does not exist: give a text file or a folder of {', '.join(TEXT_SUFFIXES)}"
        )
    if not text.strip():
        raise AutoshardError(f"--data {path} holds no text")
    return Text(text, source)


@dataclass(frozen=True)
class TokenStream:
    """Batches cut from one run of tokens.

    tokens: [tokens]. An epoch cuts them into rows of sequence_length + 1 that never overlap, shuffles the rows, and
    takes whole batches; the rest is left for another epoch, which shuffles anew and starts its cut elsewhere.
    """

    tokens: NDArray[np.int32]
    global_batch_size: int  # sequences
    sequence_length: int
    seed: int = 0

    def __post_init__(self) -> None:
        assert self.tokens.ndim == 1 and self.global_batch_size >= 1 and self.sequence_length >= 1
        if self.steps_per_epoch < 1:
            needed = self.global_batch_size * (self.sequence_length + 1)
            raise AutoshardError(
                f"the text has {len(self.tokens):,} tokens; one batch of {self.global_batch_size} sequences x "
                f"({self.sequence_length} + 1) tokens needs {needed:,}: give more text or a smaller batch"
            )

    @property
    def rows_per_epoch(self) -> int:
        return len(self.tokens) // (self.sequence_length + 1)

    @property
    def steps_per_epoch(self) -> int:
        return self.rows_per_epoch // self.global_batch_size

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch_size * self.sequence_length

    def starts(self, step: int) -> NDArray[np.int64]:
        """Where each row of the step's batch starts in the tokens: [global_batch_size]."""
        epoch, index = divmod(step, self.steps_per_epoch)
        row_length = self.sequence_length + 1
        spare = len(self.tokens) - self.rows_per_epoch * row_length
        offset = int(_hash(np.array([epoch], dtype=np.uint64), self.seed)[0] % np.uint64(spare + 1))
        rows = _shuffled(self.rows_per_epoch, self.seed, epoch)
        first = index * self.global_batch_size
        return rows[first : first + self.global_batch_size] * row_length + offset

    def batch(self, step: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Inputs and labels of one step, each [global_batch_size, sequence_length]; labels are one token later."""
        columns = np.arange(self.sequence_length + 1, dtype=np.int64)
        rows = self.tokens[self.starts(step)[:, None] + columns].astype(np.int64)
        return rows[:, :-1].copy(), rows[:, 1:].copy()


def load_token_stream(
    path: Path | None, tokenizer: Tokenizer, *, global_batch_size: int, sequence_length: int, seed: int = 0
) -> tuple[TokenStream, str]:
    """The stream over the text at `path` (see load_text), and one line on what it is made of."""
    text = load_text(path)
    tokens = tokenizer.encode(text.text)
    stream = TokenStream(tokens, global_batch_size, sequence_length, seed)
    return stream, f"{text.source}: {format_count(len(tokens))} tokens ({tokenizer.name}, {tokenizer.vocab_size} ids)"


def _python_manual() -> Text:
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ImportError as error:
        raise AutoshardError(
            "this Python comes without its manual (pydoc_data): give a text by --data, a file or a folder"
        ) from error
    return Text("\n\n".join(topics[name] for name in sorted(topics)), "the Python manual")


def _read_text(file: Path) -> str:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise AutoshardError(f"cannot read --data {file}: {error.strerror or error}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise AutoshardError(
            f"--data {file} is not text in UTF-8: byte {error.start:,} of {len(data):,} is 0x{data[error.start]:02x}"
        ) from error
    if "\0" in text:
        raise AutoshardError(f"--data {file} is binary: it has a zero byte at {data.index(0):,} of {len(data):,}")
    return text


@lru_cache(maxsize=2)
def _shuffled(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """0 .. count - 1 in an order that only the arguments decide.

    Sorted by a hash rather than by numpy's generators, whose streams may change from one release to the next: a resumed
    run must see the same order.
    """
    epoch_seed = int(_hash(np.array([epoch], dtype=np.uint64), seed)[0])
    order = np.argsort(_hash(np.arange(count, dtype=np.uint64), epoch_seed), kind="stable").astype(np.int64)
    order.setflags(write=False)
    return order


def _hash(values: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """splitmix64 (Steele, Lea, Flood 2014) of values + 1 steps from a seed."""
    z: NDArray[np.uint64] = values * np.uint64(0x9E3779B97F4A7C15) + np.uint64(
        (seed * 0xD1342543DE82EF95 + 0x9E3779B97F4A7C15) % 2**64
    )
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z
