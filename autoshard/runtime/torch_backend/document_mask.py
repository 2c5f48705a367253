"""Which keys a query sees: by its place, and where several documents share a row those of its own document."""

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
    key = torch.arange(starts.shape[1], device=starts.device)
    seen = sees(here.unsqueeze(1), key, window, chunk) & (key >= starts[:, here].unsqueeze(-1))
    return seen.unsqueeze(1)


def sees(query: torch.Tensor, key: torch.Tensor, window: int | None, chunk: int | None) -> torch.Tensor:
    """Whether the query at one place of the row sees the key at another; the places broadcast. window, chunk: as in
    document_mask."""
    seen = key <= query
    if window is not None:
        seen = seen & (key > query - window)
    return seen if chunk is None else seen & (key >= query // chunk * chunk)


def sees_all_before(seq: int, window: int | None, chunk: int | None) -> bool:
    """Whether each query of a row of so many places sees all keys up to itself."""
    return all(limit is None or limit >= seq for limit in (window, chunk))
