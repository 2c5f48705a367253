"""Hyper-connections: a residual of several streams, which each part of a block reads and may mix (mHC, 2512.24880)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from autoshard.files.annotated import check_annotated
from autoshard.files.codec import Absence, Count, Positive, Several


@dataclass(frozen=True)
class HyperConnections:
    """The streams of a model's residual, under the names of DeepSeek's config.

    hc_mult: Streams, each as wide as hidden_size: what passes from block to block is so many times as wide.
    hc_sinkhorn_iters: How often rows and columns of the matrix that mixes streams are divided by their sums; null where
        nothing mixes them (Hy4): each stream stays, and a part's output is added to it.
    hc_eps: Added to these sums and to what is divided, and to the weights with which streams are read; where nothing
        mixes them, also to those of what is added.
    hc_magnitude: By which the sigmoid that weighs a part's output is multiplied.

    Raises AutoshardError for a number that is not above 0, and for fewer than two streams.
    """

    hc_mult: Several
    hc_sinkhorn_iters: Count | None
    hc_eps: Positive
    hc_magnitude: Annotated[Positive, Absence.WRITTEN] = 2.0

    def __post_init__(self) -> None:
        check_annotated("hyper_connections", self)
