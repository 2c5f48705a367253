"""Computes embeddings of n-grams: the rows of a table that tokens have, and the gate before what is made of them."""

from __future__ import annotations

from typing import Any

import torch

from autoshard.graph.ngram_kinds import LEAST_PRODUCT
from autoshard.graph.partition import OperatorStep
from autoshard.graph.stream_kinds import STREAMS_AT_ONCE
from autoshard.runtime.torch_backend.context import Context, Kernel, in_pieces
from autoshard.runtime.torch_backend.recomputing_ops import at_least_fp32
from autoshard.runtime.torch_backend.run_again import Again, Slices


def hash_ngrams(context: Context, step: OperatorStep) -> Kernel:
    """The kernel of the rows that n-grams have: ids [batch, seq], and where the documents of a row begin [batch, row]
    if they are told apart -> int64 [batch, seq, head]."""
    attributes: Any = step.operator.attributes
    factors, rows, eos = (attributes[name] for name in ("factors", "rows", "eos"))
    # made on the host once: a tensor that is made on the device waits for it
    counts, firsts = torch.tensor(rows), torch.tensor([sum(rows[:head]) for head in range(len(rows))])
    each = len(rows) // (len(factors) - 1)
    pieces = attributes.get("sequence_pieces")
    places, ordered = in_pieces(context.graph.sizes["seq"], pieces), pieces is None or list(pieces) == sorted(pieces)

    def run(ids: torch.Tensor, starts: torch.Tensor | None = None) -> torch.Tensor:
        here = places.to(ids.device)
        tokens = ids if ordered else ids[:, here.argsort()]
        sizes, before = counts.to(ids.device), firsts.to(ids.device)
        numbers, found = tokens * factors[0], []
        for apart, shifted in enumerate(_tokens_before(tokens, len(factors) - 1, eos, starts), 1):
            numbers = numbers ^ (shifted * factors[apart])
            heads = slice((apart - 1) * each, apart * each)
            found.append(numbers.unsqueeze(-1).remainder(sizes[heads]) + before[heads])
        by_head = torch.cat(found, -1)
        return by_head if ordered else by_head[:, here]

    return run


def _tokens_before(tokens: torch.Tensor, count: int, eos: int, starts: torch.Tensor | None) -> list[torch.Tensor]:
    """The tokens 1 to `count` places before each of some tokens [batch, seq]; eos where that is before the row or its
    document, of which starts [batch, seq] has the first place, or before or at the last eos ahead of it."""
    place = torch.arange(tokens.shape[1], device=tokens.device)
    ends = torch.where(tokens == eos, place, -1).cummax(1).values
    last_end = torch.nn.functional.pad(ends[:, :-1], (1, 0), value=-1)
    if starts is not None:
        last_end = torch.maximum(last_end, starts - 1)
    found = []
    for apart in range(1, count + 1):
        shifted = torch.nn.functional.pad(tokens, (apart, 0), value=eos)[:, : tokens.shape[1]]
        found.append(torch.where(place - last_end > apart, shifted, eos))
    return found


def gate_streams(context: Context, step: OperatorStep) -> Kernel:
    """The kernel of a value [batch, seq, embed] in each stream, weighed by the product of keys and queries [batch, seq,
    stream, embed] -> [batch, seq, stream, embed]."""

    def run(value: torch.Tensor, keys: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
        tokens = max(1, STREAMS_AT_ONCE // keys.shape[0] // keys.shape[2] // keys.shape[3])
        out: torch.Tensor = Again.apply(_gated, Slices((1, 1, 1), tokens), value, keys, queries)
        return out

    return run


def _gated(value: torch.Tensor, keys: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
    product = (at_least_fp32(keys) * queries).sum(-1, keepdim=True) / keys.shape[-1] ** 0.5
    gate = product.abs().clamp(min=LEAST_PRODUCT).sqrt() * product.sign()
    return (torch.sigmoid(gate) * value.unsqueeze(2)).to(value.dtype)
