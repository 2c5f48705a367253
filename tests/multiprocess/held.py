"""Measures what tensors hold while something runs."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Held(TorchDispatchMode):
    """The most bytes that tensors hold at once: those given, and those made meanwhile."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.now, self.most, self.known = 0, 0, set[int]()
        self.see(tensors)

    def see(self, values: Any) -> None:
        for storage in (x.untyped_storage() for x in tree_leaves(values) if isinstance(x, torch.Tensor)):
            if storage._cdata not in self.known:
                self.known.add(storage._cdata)
                self.now += storage.nbytes()
                weakref.finalize(storage, self.forget, storage._cdata, storage.nbytes())
        self.most = max(self.most, self.now)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **kwargs or {})
        self.see(out)
        return out

    def forget(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size
