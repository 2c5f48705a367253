"""Embeddings of n-grams, which some blocks add to the residual (Qwen4-Exp's per-layer embeddings)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import isqrt
from typing import NamedTuple

from autoshard.errors import AutoshardError
from autoshard.files.annotated import check_annotated
from autoshard.files.codec import Count, Several, Whole

_WORD = (1 << 64) - 1
_LARGEST = (1 << 63) - 1
"""The largest signed integer of 64 bits: products of token ids with their factors stay below."""
_SEED_APART = 10_007
"""By how much seeds of the tables of two blocks that follow one another differ."""
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Constants of SplitMix64 (Steele, Lea and Flood 2014)."""
SMALL_ROWS = 64
"""Rows of a head's table, about, where a model is made small."""


class NgramTable(NamedTuple):
    """How the n-grams of one block's table become rows of it.

    factors: by which a token's id, and those of the tokens before it, are multiplied. rows: of each head, a prime: a
    row is what the exclusive or of these products leaves when it is divided by it. padded_rows: of the whole table.
    """

    factors: tuple[int, ...]
    rows: tuple[int, ...]
    padded_rows: int


@dataclass(frozen=True)
class NgramEmbedding:
    """The tables of n-grams, and what is made of their rows, under the names of Qwen4-Exp's Hugging Face config.

    ngram_size: Tokens of the longest n-gram; there are those of two tokens, of three, and so on.
    heads_per_ngram: Rows that an n-gram of each length has, of parts of the table that are hashed independently.
    ple_embed_dim: Width of all rows of a token behind one another.
    ple_conv_kernel_size: Taps of the convolution behind it, which are ngram_size tokens apart.
    ngram_vocab_size_base: Rows of a head's part of a table are the primes from here on, each head's its own.
    make_ngram_vocab_size_divisible_by: The rows of a table are padded to a multiple of this.
    seed: Of the factors of hashes.
    split_ngram_parts: Tensors that hold a table in checkpoints, each as many rows.
    eos_token_id: Token at which a document ends: an n-gram has it in place of all tokens up to it.

    Raises AutoshardError for a number that is none of these, for n-grams of one token, and where the heads do not
    divide ple_embed_dim.
    """

    ngram_size: Several
    heads_per_ngram: Count
    ple_embed_dim: Count
    ple_conv_kernel_size: Count
    ngram_vocab_size_base: Count
    make_ngram_vocab_size_divisible_by: Count
    seed: Whole
    split_ngram_parts: Count
    eos_token_id: Whole

    def __post_init__(self) -> None:
        check_annotated("ngram_embedding", self)
        if self.ple_embed_dim % self.heads:
            raise AutoshardError(
                f"ple_embed_dim={self.ple_embed_dim} of ngram_embedding must be a multiple of {self.heads}, the heads "
                f"of n-grams of 2 to ngram_size={self.ngram_size} tokens"
            )

    @property
    def heads(self) -> int:
        """Rows that each token has."""
        return (self.ngram_size - 1) * self.heads_per_ngram

    @property
    def row_width(self) -> int:
        """Width of a row."""
        return self.ple_embed_dim // self.heads

    def table(self, index: int, vocab_size: int) -> NgramTable:
        """The table number `index` of a model, from 0 on. vocab_size: of the model."""
        return _table(self, index, vocab_size)

    def part_rows(self, index: int, vocab_size: int) -> int:
        """Rows of each of the tensors that hold a table. Arguments are those of `table`.

        Raises AutoshardError where they do not divide it.
        """
        rows = self.table(index, vocab_size).padded_rows
        if rows % self.split_ngram_parts:
            raise AutoshardError(
                f"split_ngram_parts={self.split_ngram_parts} of ngram_embedding must divide the {rows:,} rows of table "
                f"{index}; a make_ngram_vocab_size_divisible_by that is a multiple of it would do"
            )
        return rows // self.split_ngram_parts

    def shrunk(self, width: int, parts: int, vocab_size: int) -> NgramEmbedding:
        """Tables of few and narrow rows. width: of a row. parts: of a table. vocab_size: of the small model."""
        return replace(
            self,
            heads_per_ngram=min(self.heads_per_ngram, 2),
            ple_embed_dim=(self.ngram_size - 1) * min(self.heads_per_ngram, 2) * width,
            ngram_vocab_size_base=min(self.ngram_vocab_size_base, SMALL_ROWS),
            make_ngram_vocab_size_divisible_by=parts,
            split_ngram_parts=parts,
            eos_token_id=min(self.eos_token_id, vocab_size - 1),
        )


@lru_cache(maxsize=1024)
def _table(ngrams: NgramEmbedding, index: int, vocab_size: int) -> NgramTable:
    rows = _primes(ngrams.ngram_vocab_size_base, (index + 1) * ngrams.heads)[-ngrams.heads :]
    half = max(1, _LARGEST // vocab_size // 2)
    seed = ngrams.seed + _SEED_APART * index
    factors = (2 * (_mixed(seed + _STEP * place) % half) + 1 for place in range(1, ngrams.ngram_size + 1))
    divisor = ngrams.make_ngram_vocab_size_divisible_by
    return NgramTable(tuple(factors), rows, -(-sum(rows) // divisor) * divisor)


def _mixed(state: int) -> int:
    """The number that SplitMix64 gives after a state, of 64 bits."""
    value = (state + _STEP) & _WORD
    value = ((value ^ (value >> 30)) * _FIRST) & _WORD
    value = ((value ^ (value >> 27)) * _SECOND) & _WORD
    return value ^ (value >> 31)


@lru_cache(maxsize=64)
def _primes(first: int, count: int) -> tuple[int, ...]:
    """The first `count` primes from `first` on."""
    found: list[int] = []
    number = first
    while len(found) < count:
        if number > 1 and all(number % divisor for divisor in range(2, isqrt(number) + 1)):
            found.append(number)
        number += 1
    return tuple(found)
