"""Operators that keep and hold less are what torch computes when they are written out."""

from __future__ import annotations

import pytest
import torch

from autoshard.runtime.torch_backend.recomputing_ops import MaskedSoftmax, weighed_sums
from tests.multiprocess.held import Held


def test_weighed_sums_are_a_scatter_add() -> None:
    generator = torch.Generator().manual_seed(0)
    answers = torch.randn(3, 2, 4, 5, dtype=torch.float64, generator=generator).requires_grad_()
    weight = torch.rand(3, 2, 4, 1, dtype=torch.float64, generator=generator).requires_grad_()
    rows = torch.randint(0, 7, (3, 2, 4), generator=generator)
    grad = torch.randn(7, 5, dtype=torch.float64, generator=generator)

    index = rows.flatten().unsqueeze(-1).expand(-1, 5)
    written_out = torch.zeros(7, 5, dtype=torch.float64).scatter_add(0, index, (answers * weight).flatten(0, 2))
    expected = torch.autograd.grad(written_out, (answers, weight), grad)
    out = weighed_sums(answers, weight, rows, 7)
    found = torch.autograd.grad(out, (answers, weight), grad)

    torch.testing.assert_close(out, written_out)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_masked_softmax_is_a_softmax(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 3, 4, 5, dtype=dtype, generator=generator).requires_grad_()
    values = torch.randn(2, 3, 5, 6, dtype=dtype, generator=generator).requires_grad_()
    mask = torch.ones(4, 5, dtype=torch.bool).tril()
    grad = torch.randn(2, 3, 4, 6, dtype=dtype, generator=generator)

    written_out = torch.softmax(scores.masked_fill(~mask, float("-inf")), -1) @ values
    expected = torch.autograd.grad(written_out, (scores, values), grad)
    weights: torch.Tensor = MaskedSoftmax.apply(scores, mask)  # type: ignore[no-untyped-call]
    out = weights @ values
    found = torch.autograd.grad(out, (scores, values), grad)

    torch.testing.assert_close(out, written_out)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert found[0].data_ptr() == weights.data_ptr()  # in place of what it read last


@pytest.mark.parametrize(("dtype", "heads_bytes"), [(torch.bfloat16, 2 * 4), (torch.float32, 4)])
def test_masked_softmax_holds_what_one_head_needs(dtype: torch.dtype, heads_bytes: int) -> None:
    """In backward the probabilities of one head and the gradient of these, in FP32; forward the scores and the result.
    A graph counts as much (Attention.tile_bytes)."""
    heads, queries, keys = 5, 64, 128
    scores = torch.randn(1, heads, queries, keys, dtype=dtype).requires_grad_()
    mask, grad = torch.ones(queries, keys, dtype=torch.bool).tril(), torch.randn(1, heads, queries, keys, dtype=dtype)
    rows_bytes = queries * 4
    with Held([scores, mask, grad]) as held:
        before = held.now
        weights: torch.Tensor = MaskedSoftmax.apply(scores, mask)  # type: ignore[no-untyped-call]
        written, mask_bytes = weights.nbytes, queries * keys
        assert held.most - before - written - mask_bytes <= 2 * queries * keys * 4
        held.most = before = held.now
        weights.backward(grad)  # type: ignore[no-untyped-call]
    assert held.most - before <= heads_bytes * queries * keys + 2 * rows_bytes
