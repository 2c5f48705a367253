"""Marks the products of a graph that read quantised operands: linear layers of blocks, as Transformer Engine has them.

Left in the compute dtype are attention's own products, routers, adapters, the embedding, the head, and layers whose
inputs or outputs the format does not divide, such as gates of one output. Where the ranks of a mesh get such a share of
a layer, its product is as the others there (`operand_bytes`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from autoshard.graph.adapters import RANK
from autoshard.graph.count import divides
from autoshard.graph.ir import CASTS_INPUT, OPERAND_BYTES, OPERAND_MULTIPLE, Graph, Operator
from autoshard.graph.linear_layers import is_linear, routers
from autoshard.graph.recompute import block_of, in_block, is_recomputed


def with_quantized_products(
    graph: Graph,
    operand_bytes: float | None,
    unquantized: tuple[str, ...] = (),
    multiple: int = 1,
    wide_blocks: Collection[int] = (),
) -> Graph:
    """The graph with its linear layers' products marked; the same graph where operand_bytes is None.

    operand_bytes: those of one element of a quantised operand. unquantized: modules and operators of a block whose
    products stay as they are.
    multiple: see ProductFormat. wide_blocks: the places of blocks that have no quantised products at all.
    """
    if operand_bytes is None:
        return graph
    routing = routers(graph)
    cast: set[str] = set()
    operators = []
    for op in graph.operators:
        is_wide = op.output in routing or RANK in op.loop_dims or is_recomputed(op, "+".join(unquantized))
        is_wide = is_wide or (bool(wide_blocks) and in_block(op) and _place(op) in wide_blocks)
        if is_linear(graph, op) and not is_wide and divides(op, graph, graph.sizes, multiple):
            marks: dict[str, object] = {
                OPERAND_BYTES: operand_bytes,
                OPERAND_MULTIPLE: multiple,
                CASTS_INPUT: op.inputs[0] not in cast,
            }
            cast.add(op.inputs[0])
            op = replace(op, attributes={**op.attributes, **marks})
        operators.append(op)
    return replace(graph, operators=tuple(operators))


def _place(op: Operator) -> int:
    """The place in the model of an operator's block."""
    return int(block_of(op.name).rpartition(".")[2])
