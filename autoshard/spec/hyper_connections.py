"""Hyper-connections: a residual of several streams, which each part of a block mixes (mHC, 2512.24880)."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.files.codec import Count, Positive
from autoshard.files.fields import check_integer, check_positive


@dataclass(frozen=True)
class HyperConnections:
    """The streams of a model's residual, under the names of DeepSeek's config.

    hc_mult: Streams, each as wide as hidden_size: what passes from block to block is so many times as wide.
    hc_sinkhorn_iters: How often rows and columns of the matrix that mixes streams are divided by their sums.
    hc_eps: Added to these sums, and to what is divided.

    Raises AutoshardError for a number that is not above 0, and for fewer than two streams.
    """

    hc_mult: Count
    hc_sinkhorn_iters: Count
    hc_eps: Positive

    def __post_init__(self) -> None:
        of = "hyper_connections"
        check_integer(of, "hc_mult", self.hc_mult, at_least=2)
        check_integer(of, "hc_sinkhorn_iters", self.hc_sinkhorn_iters)
        check_positive(of, "hc_eps", self.hc_eps)
