"""Flat tensors of one length in parts, so that what is computed with in another dtype is never there whole."""

from __future__ import annotations

from collections.abc import Iterator

import torch

AT_ONCE = 2**22
"""Elements that are updated together in another dtype than theirs: for a whole embedding the buffers would be more than
a step's activations."""


def parts(*flat: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """The same views of all: whole where they share a dtype, else so many elements at most."""
    elements = flat[0].numel()
    if len({one.dtype for one in flat}) == 1:
        yield flat
        return
    for start in range(0, elements, AT_ONCE):
        yield tuple(one[start : start + AT_ONCE] for one in flat)
