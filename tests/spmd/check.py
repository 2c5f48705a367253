"""A sharded program against the same graph on one rank, and what it moved against what the planner counts."""

from __future__ import annotations

from collections import Counter

import numpy as np

from autoshard.graph.count import Collective, backward_collectives, forward_collectives, parameter_elements
from autoshard.graph.ir import Graph
from autoshard.graph.partition import Program, partition
from tests.spmd.collectives import Array
from tests.spmd.interpreter import execute
from tests.spmd.random_programs import random_numbers, unread

TOLERANCE = 1e-10
"""Of the largest element, in FP64."""


def check_program(program: Program, seed: int) -> None:
    """Every value and every gradient, on every rank; and every collective. Raises AssertionError."""
    graph = program.graph
    given, cotangents = random_numbers(graph, seed), output_gradients(graph, seed)
    sharded, whole = execute(program, given, cotangents), execute(unsharded(graph), given, cotangents)
    for name in graph.tensors:
        _compare(sharded.whole_value(name), whole.values[name], f"seed {seed}: value of {name}")
        assert (name in sharded.gradients) == (name in whole.gradients), f"seed {seed}: {name}"
        if name in whole.gradients:
            _compare(sharded.whole_gradient(name), whole.gradients[name], f"seed {seed}: gradient of {name}")
    assert sharded.collectives == microbatch_collectives(program) + _deferred(program), f"seed {seed}"


def microbatch_collectives(program: Program) -> Counter[Collective]:
    """Every collective of one forward and backward without recompute."""
    counts: Counter[Collective] = Counter()
    for step in program.steps:
        counts.update(Collective("forward", *one) for one in forward_collectives(program, step))
        counts.update(Collective("backward", *one) for one in backward_collectives(program, step))
    return counts


def unsharded(graph: Graph) -> Program:
    return partition(graph, {}, {op.name: {} for op in graph.operators}, {}, dict.fromkeys(unread(graph)))


def output_gradients(graph: Graph, seed: int) -> dict[str, Array]:
    """Whole gradients of the outputs, of order one."""
    numbers = np.random.default_rng(seed + 1)
    return {
        name: numbers.standard_normal([graph.sizes[dim] for dim in graph.tensors[name].dims]) for name in unread(graph)
    }


def _compare(found: Array, expected: Array, what: str) -> None:
    assert found.shape == expected.shape, what
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    assert float(np.abs(found - expected).max(initial=0)) <= TOLERANCE * scale, what


def _deferred(program: Program) -> Counter[Collective]:
    """The sums that wait for the end of the step, one for each parameter."""
    elements = parameter_elements(program)
    bytes_each = {tensor.name: tensor.element_bytes for tensor in program.graph.parameters()}
    return Counter(
        Collective("sync", "all_reduce", axes, elements[name] * bytes_each[name])
        for name, axes in program.gradient_sync.items()
    )
