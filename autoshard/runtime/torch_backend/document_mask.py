"""Masks attention where several documents share a row: a query sees keys of its own document, up to itself."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.weak import TensorWeakRef


class DocumentMasks:
    """Masks that the blocks of a stage share: while one block keeps a microbatch's mask, the others find it here."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[TensorWeakRef, TensorWeakRef]] = {}

    def added(
        self,
        starts: torch.Tensor,
        positions: torch.Tensor,
        window: int | None,
        chunk: int | None,
        like: torch.Tensor,
    ) -> Any:
        """The mask [batch, 1, queries, keys] as numbers to add to scores, in the dtype of `like`; arguments as in
        document_mask."""
        key = id(starts), int(positions[0]), len(positions), window, chunk, like.dtype
        found = self._known.get(key)
        mask = None if found is None or found[0]() is not starts else found[1]()
        if mask is None:
            seen = document_mask(starts, positions, window, chunk)
            mask = torch.zeros(seen.shape, dtype=like.dtype, device=seen.device).masked_fill_(~seen, float("-inf"))
            self._known = {key: pair for key, pair in self._known.items() if pair[1]() is not None}
            self._known[key] = TensorWeakRef(starts), TensorWeakRef(mask)
        return mask


def document_mask(
    starts: torch.Tensor, positions: torch.Tensor, window: int | None, chunk: int | None = None
) -> torch.Tensor:
    """Boolean [batch, 1, queries, keys], True where a query sees a key.

    starts [batch, row]: where the document of each place begins. positions [queries]: places of the queries. window:
    keys that a query sees, itself included. chunk: it sees keys of its own chunk of so many places of the row alone.
    """
    here = positions.to(starts.device)
    query = here.unsqueeze(1)
    key = torch.arange(starts.shape[1], device=starts.device)
    seen = (key <= query) & (key >= starts[:, here].unsqueeze(-1))
    if window is not None:
        seen &= key > query - window
    if chunk is not None:
        seen &= key >= query // chunk * chunk
    return seen.unsqueeze(1)
