"""Tell which part of a block an operator belongs to: recompute sets and the planner's reports name these parts."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.tracer.dims import Dim
from autoshard.tracer.values import Operation, Parameter


def block_modules(block: Sequence[Operation]) -> dict[Operation, str]:
    """The part of the block of each of its operators: 'attention_norm', 'attention', 'core_attention', 'residual',
    'mlp', ...

    'attention' is what queries, keys and values come from, and what is made of attention's result up to the residual.
    """
    inside = set(block)
    hidden = set(block[-1].dims)
    residuals = {
        op
        for op in block
        if op.attributes.get("function") == "add" and all(_is_hidden(one, hidden) for one in (op, *op.inputs))
    }
    before: set[Operation] = set()
    waiting = [op for op in block if op.kind == "attention"]
    while waiting:
        for one in waiting.pop().inputs:
            if isinstance(one, Operation) and one in inside and one not in before and one not in residuals:
                before.add(one)
                waiting.append(one)
    behind = {op for op in block if op.kind == "attention"}
    for op in block:
        if op not in residuals and op not in before and any(one in behind for one in op.inputs):
            behind.add(op)
    found = {}
    for op in block:
        normalises = op.kind == "norm" and _is_hidden(op, hidden)
        if op.kind == "attention":
            found[op] = "core_attention"
        elif op in residuals:
            found[op] = "residual"
        elif op in before:
            found[op] = "attention_norm" if normalises else "attention"
        elif op in behind:
            found[op] = "attention"
        else:
            found[op] = "mlp_norm" if normalises else "mlp"
    return found


def _is_hidden(tensor: object, hidden: set[Dim]) -> bool:
    return not isinstance(tensor, Parameter) and set(getattr(tensor, "dims", ())) == hidden
