"""Queries that grow with the logarithm of their place, and rotary positions by frequencies that a parameter scales."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from autoshard.graph.operator_kind import DOCUMENT_STARTS
from autoshard.graph.partition import OperatorStep, Program, partition
from autoshard.layout.documents import with_documents
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.runtime.torch_backend.context import Context
from autoshard.runtime.torch_backend.kernels import kernel
from autoshard.runtime.torch_backend.rotation import rope_frequencies
from tests.multiprocess.models import MODELS

MODEL = MODELS["mistral large 4"]
SEQ = 12
STARTS = torch.tensor([[0] * 5 + [5] * 7, [0] * 12])


def step_of(kind: str, documents: bool = False) -> tuple[Program, OperatorStep]:
    """The first step of this kind in block 1, which has positions."""
    graph = stage_graph(MODEL, dim_sizes(MODEL, 2, SEQ), (1,), False, False, element_bytes=4)
    graph = with_documents(graph) if documents else graph
    program = partition(graph, {}, {op.name: {} for op in graph.operators})
    steps = (step for step in program.steps if isinstance(step, OperatorStep))
    return program, next(step for step in steps if step.operator.kind == kind)


def numbers(program: Program, step: OperatorStep) -> list[torch.Tensor]:
    """Of every input of floating-point numbers."""
    graph, generator = program.graph, torch.Generator().manual_seed(0)
    dims = [graph.tensors[name].dims for name in step.operator.inputs if name != DOCUMENT_STARTS]
    return [torch.randn([graph.sizes[dim] for dim in own], generator=generator) for own in dims]


@pytest.mark.parametrize("documents", [False, True])
def test_queries_grow_by_two_numbers_of_their_head(documents: bool) -> None:
    program, step = step_of("log_scale", documents)
    x, scale, bias = (value.double().requires_grad_() for value in numbers(program, step))
    starts = (STARTS,) if documents else ()
    run = kernel(Context(program, None), step)
    places = torch.arange(SEQ) + 1 - (STARTS if documents else torch.zeros(1, SEQ, dtype=torch.long))
    logs = places.float().log().double()
    expected = x * (scale * logs[..., None, None] + bias).unsqueeze(-1)
    torch.testing.assert_close(run(x, scale, bias, *starts), expected)
    cotangent = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    wanted = torch.autograd.grad(expected, (x, scale, bias), cotangent)
    torch.testing.assert_close(torch.autograd.grad(run(x, scale, bias, *starts), (x, scale, bias), cotangent), wanted)


def test_of_queries_that_grow_they_themselves_are_kept() -> None:
    program, step = step_of("log_scale")
    inputs = [value.requires_grad_() for value in numbers(program, step)]
    kept: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda one: one):
        kernel(Context(program, None), step)(*inputs)
    assert [one.shape for one in kept] == [one.shape for one in inputs]


def test_frequencies_are_multiplied_by_exp_of_a_parameter() -> None:
    """8 numbers of 20 turn, neighbours with each other; the parameter alone is kept, and has no gradient."""
    program, step = step_of("scaled_rope")
    assert step.operator.name == "model.layers.1.self_attn.k_rope"
    x, exponents = (value.double() for value in numbers(program, step))
    x.requires_grad_()
    frequencies = rope_frequencies(8, 1e4, MODEL.rope_scaling) * exponents.exp()
    angles = torch.outer(torch.arange(SEQ).double(), frequencies)
    assert MODEL.rope_scaling is not None
    turn = torch.polar(torch.full_like(angles, MODEL.rope_scaling.rotation_factor), angles)
    expected = torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (4, 2))) * turn).flatten(-2)
    run, kept = kernel(Context(program, None), step), list[torch.Tensor]()

    def keep(one: torch.Tensor) -> torch.Tensor:
        kept.append(one)
        return one

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one):
        found = run(x, exponents)
    torch.testing.assert_close(found, expected)
    assert [one.shape for one in kept] == [exponents.shape]
    cotangent = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (wanted,) = torch.autograd.grad(expected, x, cotangent)
    torch.testing.assert_close(torch.autograd.grad(found, x, cotangent)[0], wanted)
