"""Around NxD's attention kernels, without the library: what they get and what becomes of what they give."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from autoshard.runtime.nxd_backend.attention import _on_heads

SIZES = {"batch": 2, "seq": 3, "kvhead": 2, "group": 4, "headdim": 5}
QUERY, KEY = "seq batch kvhead group headdim", "seq batch kvhead headdim"


def test_every_query_head_meets_the_keys_that_it_shares() -> None:
    dims = {"q": tuple(QUERY.split()), "k": tuple(KEY.split()), "v": tuple(KEY.split())}
    step: Any = SimpleNamespace(operator=SimpleNamespace(inputs=("q", "k", "v"), attributes={}))
    context: Any = SimpleNamespace(dims=dims.__getitem__)
    seen = []

    def core(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        seen.append((q.shape, k.shape, v.shape))
        return q * k + v

    q, k, v = (torch.randn([SIZES[dim] for dim in dims[name]]) for name in "qkv")
    found = _on_heads(context, step, core)(q, k, v)
    assert seen == [((2, 8, 3, 5),) * 3]
    assert torch.equal(found, q * k.unsqueeze(3) + v.unsqueeze(3))
