"""Attention on a GPU that torch's flash kernel does not know: windows, chunks, capped scores, sinks, pieces of queries.

torch's flex_attention compiles one kernel for each kind, which passes over blocks of keys that no query of a block
sees. Elsewhere, and where it has no kernel, attention is computed otherwise: `attention.py` says how.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.attention.flex_attention as flex

from autoshard.runtime.torch_backend.compiled import configure, first_line
from autoshard.runtime.torch_backend.document_mask import sees, sees_all_before

FEWEST_ROWS = 128
"""Rows of queries and keys of a block, below which the kernel has nothing to pass over."""
LEAST_WIDTH = 16
"""The narrowest heads of flex_attention; all are powers of two wide."""
MOST_PAIRS = 2**28
"""Pairs of a query and a key up to which they are all looked at at once, a byte each; of more, blocks are, by a kernel
that takes seconds to compile."""

Places = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Kind:
    """A kind of attention: what its queries see, and how it makes scores.

    first: the place in the sequence of the first query here. seq: number of keys. window: keys that a query sees,
    itself included; None: all before. chunk: it sees keys of its own chunk of so many places alone; None: no chunks.
    softcap: a score s becomes softcap * tanh(s / softcap); None leaves it as it is. scale: factor of the scores; None
    for 1/sqrt(headdim). sinks: whether rows have a score more, which weighs no value.
    """

    first: int
    seq: int
    window: int | None
    chunk: int | None
    softcap: float | None
    scale: float | None
    sinks: bool

    @property
    def is_causal_alone(self) -> bool:
        """Whether it is what the flash kernel computes of a whole sequence: all keys up to a query, scores as they
        are."""
        sees_all = self.first == 0 and sees_all_before(self.seq, self.window, self.chunk)
        return sees_all and self.softcap is None and not self.sinks

    def takes(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
        """Whether flex_attention is the kernel for these. q [batch kvhead group rows headdim], k and v [batch kvhead
        keys headdim]."""
        if q.device.type != "cuda" or self in _WITHOUT_KERNEL:
            return False
        if self.is_causal_alone and q.shape[-2] == k.shape[-2]:
            return False
        if torch._C._len_torch_dispatch_stack() > 0:  # watched by operators: torch would compile nothing
            return False
        wide = (q.shape[-1], v.shape[-1])
        return min(q.shape[-2], k.shape[-2]) >= FEWEST_ROWS and all(
            width >= LEAST_WIDTH and width.bit_count() == 1 for width in wide
        )


def flex_attention(
    kind: Kind, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None, blocks: Any
) -> torch.Tensor | None:
    """Attention [batch kvhead group rows headdim] of q [batch kvhead group rows headdim] over k and v [batch kvhead
    keys headdim]; None where torch has no kernel, which is said once.

    sinks [kvhead group]. blocks: of `block_mask`.
    """
    try:
        out, more = _kernel()(
            q.flatten(1, 2),
            k,
            v,
            score_mod=None if kind.softcap is None else _capped(kind.softcap),
            block_mask=blocks,
            scale=kind.scale if kind.scale is not None else 1 / math.sqrt(q.shape[-1]),
            enable_gqa=q.shape[2] > 1,
            return_aux=flex.AuxRequest(lse=True),
        )
    except torch._dynamo.exc.BackendCompilerFailed as error:
        reason = first_line(error)
        warnings.warn(
            f"flex_attention has no kernel for heads of {q.shape[-1]} ({reason}); attention goes without", stacklevel=2
        )
        _WITHOUT_KERNEL.add(kind)
        return None
    out = out.unflatten(1, q.shape[1:3])
    if sinks is None:
        return out
    lse = more.lse.unflatten(1, q.shape[1:3])
    return out * torch.sigmoid(lse - sinks.unsqueeze(-1)).to(out.dtype).unsqueeze(-1)


_WITHOUT_KERNEL: set[Kind] = set()
"""Kinds that torch could not compile in this process."""


def block_mask(kind: Kind, rows: int, device: torch.device) -> Any:
    """Which blocks of keys each block of queries sees, and what in them. rows: of queries."""
    seen, compiles = _seen(kind.first, kind.window, kind.chunk), rows * kind.seq > MOST_PAIRS
    return flex.create_block_mask(seen, None, None, rows, kind.seq, device, _compile=compiles)


@cache
def _kernel() -> Callable[..., Any]:
    configure()
    return torch.compile(flex.flex_attention, dynamic=False)


@cache
def _capped(softcap: float) -> Callable[..., torch.Tensor]:
    def cap(score: torch.Tensor, *place: torch.Tensor) -> torch.Tensor:
        return softcap * torch.tanh(score / softcap)

    return cap


@cache
def _seen(first: int, window: int | None, chunk: int | None) -> Places:
    def seen(batch: torch.Tensor, head: torch.Tensor, row: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return sees(row + first, key, window, chunk)

    return seen
