"""The graph of a traced model as operators over named dims: what the ModelSpec's graph says, block after block."""

from __future__ import annotations

from collections.abc import Mapping

from autoshard.graph.ir import GraphBuilder
from autoshard.models.mixtral.graph import ROUTES
from autoshard.spec.model import ModelSpec
from autoshard.spec.traced import HIDDEN, TracedGraph, TracedOperator


def embedding(b: GraphBuilder, model: ModelSpec) -> str:
    graph = graph_of(model)
    values = {"input_ids": b.index_input("input_ids", "batch seq")}
    return _section(b, model, graph.embedding, values, None, "flash")


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    return _section(b, model, graph_of(model).block, {HIDDEN: x}, layer, kernel)


def head(b: GraphBuilder, model: ModelSpec, x: str) -> str:
    values = {HIDDEN: x, "labels": b.index_input("labels", "batch seq")}
    return _section(b, model, graph_of(model).head, values, None, "flash")


def graph_of(model: ModelSpec) -> TracedGraph:
    assert model.graph is not None, model.name
    return model.graph


def full_name(graph: TracedGraph, name: str, layer: int | None) -> str:
    """The name in the whole model: 'mlp.up' of block 3 -> 'model.layers.3.mlp.up'; names outside of blocks are whole
    already.
    """
    return name if layer is None else f"{graph.prefix}.{layer}.{name}"


def _section(
    b: GraphBuilder,
    model: ModelSpec,
    operators: tuple[TracedOperator, ...],
    values: Mapping[str, str],
    layer: int | None,
    kernel: str,
) -> str:
    """Append the operators of a section, and return the name of the last one's output. values: tensors read,
    by name.
    """
    graph, found = graph_of(model), dict(values)
    parameters = graph.by_name
    for op in operators:
        b.module = op.module
        for name in op.inputs:
            if name not in found:
                one = parameters[name]
                found[name] = b.parameter(full_name(graph, name, layer), " ".join(one.dims), matrix=one.is_matrix)
        inputs = tuple(found[name] for name in op.inputs)
        found[op.name] = _append(b, model, op, full_name(graph, op.name, layer), inputs, kernel)
    return found[operators[-1].name]


def _append(
    b: GraphBuilder, model: ModelSpec, op: TracedOperator, name: str, inputs: tuple[str, ...], kernel: str
) -> str:
    attributes = dict(op.attributes)
    if op.kind == "attention":
        attributes = {"kernel": kernel, "sliding_window": attributes.get("sliding_window")}
    elif op.kind == "cross_entropy":
        attributes = {"valid_vocab": model.vocab_size}
    elif op.kind == "top_k_gate":
        attributes["aux_loss_coef"] = model.router_aux_loss_coef / model.num_hidden_layers
    elif op.kind == "rope":
        attributes = {"theta": None, "scaling": None, **attributes}
    return b.operator(
        op.kind,
        "loss" if op.kind == "cross_entropy" else name,
        inputs,
        op.dims,
        _loop_dims(b, op, inputs),
        b.summed_bytes if op.kind == "cross_entropy" else None,
        **attributes,
    )


def _loop_dims(b: GraphBuilder, op: TracedOperator, inputs: tuple[str, ...]) -> tuple[str, ...]:
    """The loop dims of a traced operator, as the families that people wrote have them."""
    match op.kind:
        case "einsum":
            return tuple(dict.fromkeys(dim for name in inputs for dim in b.dims(name)))
        case "norm":
            return op.dims[:-1]
        case "rope" | "attention":
            return tuple(dim for dim in op.dims if dim != "headdim")
        case "embedding":
            return ("batch", "seq", "vocab", "embed")
        case "cross_entropy":
            return ("batch", "seq", "vocab")
        case "top_k_gate":
            return ("batch", "seq")
        case "dispatch" | "combine":
            return ROUTES
    return op.dims
