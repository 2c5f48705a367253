"""Finds the linear layers of a graph's blocks: products of an activation with a parameter."""

from __future__ import annotations

from autoshard.graph.ir import Graph, Operator
from autoshard.graph.recompute import in_block


def is_linear(graph: Graph, op: Operator) -> bool:
    """Whether the operator multiplies an activation by a parameter of a block, or by those of its experts."""
    return op.kind == "einsum" and in_block(op) and graph.tensors[op.inputs[1]].role == "parameter"


def routers(graph: Graph) -> frozenset[str]:
    """Names of what the products of routers give."""
    by_output = {op.output: op for op in graph.operators}
    logits = {op.inputs[0] for op in graph.operators if op.kind == "top_k_gate"}
    # with a bias, the product is one operator further back
    return frozenset(logits | {by_output[name].inputs[0] for name in logits if by_output[name].kind == "elementwise"})
