"""Gives a graph its loss in chunks: the product with the vocabulary and the loss behind it become one operator.

That operator has the logits of one chunk of rows at a time, forward and, computed again, backward. It is what others
call a fused linear cross-entropy.
"""

from __future__ import annotations

from dataclasses import replace

from autoshard.errors import AutoshardError
from autoshard.graph.ir import Graph, Operator
from autoshard.graph.partition import is_projection

IDENTITY = "x0"


def with_chunked_loss(graph: Graph, chunks: int) -> Graph:
    """The graph with each of its losses in so many chunks; the same graph where chunks is 1, and where it has no loss.

    Raises AutoshardError where something else than functions of single logits lies between the product with the
    vocabulary and the loss, or reads the logits besides.
    """
    losses = [op for op in graph.operators if op.kind == "cross_entropy"] if chunks > 1 else []
    if not losses:
        return graph
    found = {loss.name: _fused(graph, loss, chunks) for loss in losses}
    gone = {op.name for _, several in found.values() for op in several}
    operators = (found[op.name][0] if op.name in found else op for op in graph.operators if op.name not in gone)
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name not in gone}
    return replace(graph, tensors=tensors, operators=tuple(operators))


def _fused(graph: Graph, loss: Operator, chunks: int) -> tuple[Operator, list[Operator]]:
    """(the loss with its product, the operators that are part of it now)."""
    by_output, before, expression = {op.output: op for op in graph.operators}, list[Operator](), IDENTITY
    name = loss.inputs[0]
    while not before or not _is_head(graph, before[-1]):
        op = by_output.get(name)
        own = None if op is None else IDENTITY if _is_head(graph, op) else _expression(op)
        if op is None or own is None:
            read = [one for one in (op.inputs if op else ()) if graph.tensors[one].role == "parameter"]
            what = f"{name}, which reads {read[0]}," if read else name
            raise AutoshardError(
                f"loss_chunks={chunks}: {what} lies between the product with the vocabulary and the loss; use "
                "loss_chunks=1"
            )
        if sum(name in one.inputs for one in graph.operators) > 1:
            raise AutoshardError(f"loss_chunks={chunks}: {name} is read by more than the loss; use loss_chunks=1")
        before.append(op)
        expression, name = expression.replace(IDENTITY, own), op.inputs[0]
    of_logit = {} if expression == IDENTITY else {"expression": expression}
    attributes = {**loss.attributes, "chunks": chunks, **of_logit}
    inputs = (*before[-1].inputs, *loss.inputs[1:])
    return replace(loss, kind="linear_cross_entropy", inputs=inputs, attributes=attributes), before


def _is_head(graph: Graph, op: Operator) -> bool:
    """Whether an operator multiplies rows by a table [vocabulary, width]."""
    return is_projection(graph, op) and len(graph.tensors[op.inputs[1]].dims) == 2


def _expression(op: Operator) -> str | None:
    """An expression of graph/pointwise.py for what an operator computes of each logit; None where that is no function
    of single numbers."""
    if op.kind != "elementwise" or len(op.inputs) != 1:
        return None
    if op.attributes["function"] == "scale":
        return f"(mul {op.attributes['factor']!r} {IDENTITY})"
    return str(op.attributes["expression"]) if op.attributes["function"] == "pointwise" else None
