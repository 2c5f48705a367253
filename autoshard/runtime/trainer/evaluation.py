"""The loss on data that are not learned."""

from __future__ import annotations

from autoshard.errors import AutoshardError
from autoshard.runtime.data import TokenStream
from autoshard.runtime.session import Session


def evaluate(session: Session, stream: TokenStream, most: int) -> float:
    """Mean loss over the learned tokens of the stream's first batches. most: how many these are, as far as there are
    so many.

    Raises AutoshardError where they have no label.
    """
    total, tokens = 0.0, 0
    for batch in range(min(most, stream.rows_per_epoch // stream.global_batch_size)):
        inputs, labels = stream.in_order(batch)
        learned = int((labels >= 0).sum())
        if learned:
            starts = stream.documents_in_order(batch)
            total, tokens = total + learned * session.evaluate(inputs, labels, starts), tokens + learned
    if not tokens:
        raise AutoshardError(f"eval_batches={most}: so many have no label: evaluate more, or on other data")
    return total / tokens
