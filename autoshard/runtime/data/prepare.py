"""Writes everything that a path names to disk as tokens, once, in bounded memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autoshard.errors import AutoshardError
from autoshard.runtime.data.chat import MESSAGES_FIELD, chat_template, conversations
from autoshard.runtime.data.files import DATA_OPTION, TEXT, DataFiles, find_files
from autoshard.runtime.data.packing import Packer
from autoshard.runtime.data.records import Record, column_names, records
from autoshard.runtime.data.stream import NOT_LEARNED
from autoshard.runtime.data.text import WINDOW_BYTES, python_manual, text_windows
from autoshard.runtime.data.token_file import (
    FORMAT,
    TokenFile,
    TokenWriter,
    one_at_a_time,
    read_unchanged,
    remove_abandoned_parts,
)
from autoshard.runtime.tokenizer import Tokenizer
from autoshard.units import format_count

TOKENS_FIELD, TEXT_FIELD = "input_ids", "text"
"""Column of a dataset that holds token ids, and column that holds text."""
LABELS_FIELD, PRESENT_FIELD = "labels", "attention_mask"
"""Columns beside token ids: each id again where it is learned, else NOT_LEARNED; 1, or 0 for padding at an end."""
TEXTS, TOKENIZED, CHAT = "texts", "tokenized before", "chat"
"""The kinds of content that data can have."""

Run = tuple[NDArray[np.int32], bool, NDArray[np.uint8] | None]
"""Tokens [n]; whether a document begins at the first; marks [n] of those that are learned, where the data say it."""


@dataclass(frozen=True)
class DataSource:
    """The options of a run on its data.

    path: None takes the Python manual. text_field: the column of a table that holds the text; None decides by the
    table's columns: conversations, token ids or "text". sequence_length: conversations are packed into rows of one
    token more. packing: False gives each conversation a row of its own. apart: whether to record where documents begin.
    option: gave the path, for errors.
    """

    path: Path | None
    tokenizer: Tokenizer
    text_field: str | None = None
    sequence_length: int = 2
    packing: bool = True
    apart: bool = False
    option: str = DATA_OPTION


@dataclass(frozen=True)
class Piece:
    """Part of a document: text, or ids from a table that is tokenized already. starts: whether the document starts
    here. learned: of each id, where the table says it."""

    text: str
    ids: NDArray[np.int32] | None = None
    starts: bool = True
    learned: NDArray[np.uint8] | None = None


def prepare(source: DataSource, cache: Path) -> TokenFile:
    """The tokens of a source, from the cache folder where they are there already.

    Documents are joined by the tokenizer's end-of-text token, by a blank line where it has none, and as they are where
    they were tokenized before. Memory stays bounded by a window of text (4 MiB) and one row. Files that change their
    place, size or time are read again; their digest is of the tokens alone.
    Raises AutoshardError, naming file and row, for what cannot be read.
    """
    files = None if source.path is None else find_files(source.path, source.option)
    content = _content(source, files)
    _check_options(source, files, content)
    path = cache / f"{_cache_key(source, files, content)}.json"
    with one_at_a_time(path):
        remove_abandoned_parts(cache)
        made = read_unchanged(path) or _write(source, files, content, path)
    unread = "" if files is None or not files.unread else f"; not read: {files.unread}"  # may change while tokens stay
    return replace(made, made_of=made.made_of + unread)


def _check_options(source: DataSource, files: DataFiles | None, content: str) -> None:
    """Raise AutoshardError for an option that the data have no use for; data to evaluate on may be of another kind."""
    if source.option != DATA_OPTION:
        return
    where = source.path or "the Python manual"
    if source.text_field is not None and (files is None or files.kind == TEXT):
        raise AutoshardError(f"text_field={source.text_field} is of a table, and {where} is plain text")
    if not source.packing and content != CHAT:
        raise AutoshardError(f"packing=False is of conversations, and {where} has none")


def _content(source: DataSource, files: DataFiles | None) -> str:
    """The kind of content (TEXTS, TOKENIZED or CHAT), by the columns of the first row."""
    if files is None or files.kind == TEXT or source.text_field is not None:
        return TEXTS
    columns = column_names(files)
    if columns is None:
        raise AutoshardError(f"{source.option} {source.path} holds no text")
    for field, content in ((MESSAGES_FIELD, CHAT), (TOKENS_FIELD, TOKENIZED), (TEXT_FIELD, TEXTS)):
        if field in columns:
            return content
    others = f"but {', '.join(columns)}: name one by --text-field" if columns else "in its first row, which is empty"
    raise AutoshardError(
        f"{source.option} {source.path} has no column '{TEXT_FIELD}', '{TOKENS_FIELD}' or '{MESSAGES_FIELD}' {others}"
    )


def _write(source: DataSource, files: DataFiles | None, content: str, path: Path) -> TokenFile:
    writer = TokenWriter(path)
    try:
        if files is not None and content == CHAT:
            return _write_rows(source, files, writer)
        return _write_run(source, files, content, writer)
    except OSError as error:
        raise AutoshardError(f"cannot write {error.filename or path}: {error.strerror or error}") from error
    finally:
        writer.discard()


def _write_run(source: DataSource, files: DataFiles | None, content: str, writer: TokenWriter) -> TokenFile:
    """Writes documents as one run of tokens, from which rows may be cut anywhere."""
    tokenizer, learned, masked = source.tokenizer, 0, False
    for tokens, starts, marks in _token_runs(_pieces(source, files, content), tokenizer):
        writer.append(tokens, marks, _begins(len(tokens), starts) if source.apart else None)
        if marks is not None:
            learned, masked = learned + int(marks.sum()), True
    if not writer.num_tokens:
        raise AutoshardError(f"{source.option} {source.path} holds no text")
    name = "the Python manual" if files is None else files.source
    by = content if content == TOKENIZED else f"{tokenizer.name}, {tokenizer.vocab_size} ids"
    by += f", {format_count(learned)} learned" if masked else ""
    by += ", each document by itself" if source.apart else ""
    return writer.finish(
        row_length=0,
        vocab_size=writer.largest_id + 1 if content == TOKENIZED else tokenizer.vocab_size,
        made_of=f"{name}: {format_count(writer.num_tokens)} tokens ({by})",
    )


def _write_rows(source: DataSource, files: DataFiles, writer: TokenWriter) -> TokenFile:
    """Writes rows of whole conversations, in which only answers are learned."""
    tokenizer, length = source.tokenizer, source.sequence_length + 1
    packer = Packer(length, tokenizer.padding, source.packing)
    with chat_template(tokenizer) as template:
        for ids, learned, begins in packer.pack(conversations(records(files, (MESSAGES_FIELD,)), template, tokenizer)):
            writer.append(ids, learned, begins if source.apart else None)
    shortened = f" ({packer.shortened:,} longer than a row, shortened)" if packer.shortened else ""
    apart = ", each by itself" if source.apart else ""
    full = packer.tokens / (packer.rows * length)
    return writer.finish(
        row_length=length,
        vocab_size=tokenizer.vocab_size,
        made_of=(
            f"{files.source}: {packer.conversations:,} conversations{shortened} in {packer.rows:,} rows of {length:,} "
            f"tokens{apart}, {full:.0%} full, {format_count(packer.learned)} tokens of "
            f"answers ({template.name}, {tokenizer.name}, {tokenizer.vocab_size} ids)"
        ),
    )


def _pieces(source: DataSource, files: DataFiles | None, content: str) -> Iterator[Piece]:
    """Yields the pieces of every document that is not blank."""
    if files is None:
        yield Piece(python_manual())
    elif files.kind == TEXT:
        for file in files.paths:
            starts = True
            for window in text_windows(file, files.named(file)):
                if window.strip() or not starts:
                    yield Piece(window, starts=starts)
                    starts = False
    elif content == TOKENIZED:
        yield from _tokenized(files)
    else:
        field = source.text_field or TEXT_FIELD
        for record in records(files, (field,)):
            text = _text(record, field)
            if text.strip():
                yield Piece(text)


def _text(record: Record, field: str) -> str:
    text = record.values.get(field)
    if not isinstance(text, str):
        what = "has no" if field not in record.values else f"has {type(text).__name__} for"
        raise AutoshardError(f"{record.place} {what} {field!r}: every row needs a text there (--text-field names it)")
    return text


def _tokenized(files: DataFiles) -> Iterator[Piece]:
    """Yields the ids of every row that has any, without its padding, and which of them its labels have it learn."""
    labelled: bool | None = None
    for record in records(files, (TOKENS_FIELD, LABELS_FIELD, PRESENT_FIELD)):
        ids = _ids(record)
        learned = _learned(record, ids)
        if labelled not in (None, learned is not None):
            has, others = ("no", "have them") if labelled else ("its", "have none")
            raise AutoshardError(f"{record.place} has {has} {LABELS_FIELD}, rows before {others}: give all rows theirs")
        labelled = learned is not None
        present = _present(record, len(ids))
        if present.start < present.stop:
            yield Piece("", ids[present], learned=None if learned is None else learned[present])


def _ids(record: Record) -> NDArray[np.int32]:
    values = record.values.get(TOKENS_FIELD)
    if not isinstance(values, list) or not all(type(one) is int and 0 <= one < 2**31 for one in values):
        raise AutoshardError(f"{record.place} has {TOKENS_FIELD} that are no list of token ids")
    return np.array(values, dtype=np.int32)


def _learned(record: Record, ids: NDArray[np.int32]) -> NDArray[np.uint8] | None:
    """Marks of the ids that are learned; None for a row without labels."""
    labels = record.values.get(LABELS_FIELD)
    if labels is None:
        return None
    known = ids.tolist()
    if (
        not isinstance(labels, list)
        or len(labels) != len(known)
        or any(label not in (NOT_LEARNED, one) for label, one in zip(labels, known, strict=True))
    ):
        raise AutoshardError(
            f"{record.place} has {LABELS_FIELD} that do not go with its {TOKENS_FIELD}: each must be the id at its own "
            f"place, or {NOT_LEARNED} where that is not learned"
        )
    return np.array([label != NOT_LEARNED for label in labels], dtype=np.uint8)


def _present(record: Record, count: int) -> slice:
    """The ids of a row that are no padding."""
    mask = record.values.get(PRESENT_FIELD)
    if mask is None:
        return slice(0, count)
    if isinstance(mask, list) and len(mask) == count and all(one in (0, 1) for one in mask):
        first = mask.index(1) if 1 in mask else 0
        present = slice(first, first + sum(mask))
        if all(mask[present]):
            return present
    raise AutoshardError(
        f"{record.place} has an {PRESENT_FIELD} that does not go with its {TOKENS_FIELD}: each must be 1, or 0 for "
        "padding at an end"
    )


def _begins(count: int, starts: bool) -> NDArray[np.uint8]:
    marks = np.zeros(count, dtype=np.uint8)
    marks[:1] = starts
    return marks


def _token_runs(pieces: Iterator[Piece], tokenizer: Tokenizer) -> Iterator[Run]:
    """Yields tokens with separators at the ends of documents.

    About a window of text is tokenized at a time, so that the tokenizer can use its threads.
    """
    end = tokenizer.end_of_text
    separator = tokenizer.encode("\n\n") if end is None else np.array([end], dtype=np.int32)
    waiting: list[Piece] = []
    size, first = 0, True
    for piece in pieces:
        waiting.append(piece)
        size += len(piece.text) + (0 if piece.ids is None else 4 * len(piece.ids))
        if size >= WINDOW_BYTES:
            yield from _encoded(waiting, tokenizer, separator, first)
            waiting, size, first = [], 0, False
    yield from _encoded(waiting, tokenizer, separator, first)


def _encoded(pieces: list[Piece], tokenizer: Tokenizer, separator: NDArray[np.int32], first: bool) -> Iterator[Run]:
    """Yields the tokens of some pieces, as `_token_runs` does. first: nothing comes before the first of these
    pieces."""
    encoded = iter(tokenizer.encode_many([piece.text for piece in pieces if piece.ids is None]))
    for position, piece in enumerate(pieces):
        if piece.ids is None and piece.starts and not (first and position == 0):
            yield separator, False, None
        yield (next(encoded) if piece.ids is None else piece.ids), piece.starts, piece.learned


def _cache_key(source: DataSource, files: DataFiles | None, content: str) -> str:
    """The name of the tokens in the cache. It covers cheaply what they depend on: each file's path, size and time, the
    tokenizer, and the row length when packed."""
    stats = [] if files is None else [(str(file.resolve()), file.stat()) for file in files.paths]
    depends = [
        FORMAT,
        hashlib.sha256(python_manual().encode()).hexdigest() if files is None else files.kind,
        [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats],
        source.tokenizer.digest,
        source.text_field,
        [source.sequence_length, source.packing] if content == CHAT else WINDOW_BYTES,
        source.apart,
    ]
    return hashlib.sha256(json.dumps(depends).encode()).hexdigest()[:24]
