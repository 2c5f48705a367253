"""The check of a family that another package brings: it builds what the model's fields say, by known operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.graph.ir import Graph, GraphBuilder
from autoshard.graph.operators import check_operator
from autoshard.graph.pointwise import parse
from autoshard.graph.recompute import name_in_block
from autoshard.models.families import FAMILIES, graph_of
from autoshard.models.hyper_connections import residual_dims
from autoshard.plugins.found import RAISED, in_one_line
from autoshard.spec.model import KIND_FIELDS, ModelSpec

KERNEL, ELEMENT_BYTES = "flash", 2


def check_family(model: ModelSpec, sizes: Mapping[str, int]) -> None:
    """Raise AutoshardError where its family does not build the model: all its blocks and both its ends, blocks of one
    kind alike, and no name twice, but for a parameter outside of blocks that is not learned.

    sizes: as `dim_sizes` gives them.
    """
    owners = dict[str, str]()
    firsts = dict[int, tuple[int, object]]()
    said = FAMILIES.said(model.model_type)
    for layer, what, built, form in _parts(model, sizes, said):
        for tensor in built.tensors.values():
            is_shared = tensor.role == "parameter" and not (tensor.differentiable or name_in_block(tensor.name))
            owner = what if tensor.role == "input" or is_shared else owners.setdefault(tensor.name, what)
            if owner != what:
                raise AutoshardError(
                    f"{owner} and {what} of {model.name} both have {tensor.name} in family {said}; names of a block's "
                    "parameters and operators must have its layer in them"
                )
        if layer is None:
            continue
        first, wanted = firsts.setdefault(model.blocks.kind_of[layer], (layer, form))
        if form != wanted:
            *fields, last = KIND_FIELDS
            raise AutoshardError(
                f"blocks {first} and {layer} of {model.name} are of one kind by {', '.join(fields)} and {last}, but "
                f"family {said} builds different ones; one of these fields must tell them apart"
            )


def _parts(model: ModelSpec, sizes: Mapping[str, int], said: str) -> Iterator[tuple[int | None, str, Graph, object]]:
    """(layer, name, graph, its form) of both ends together, whose layer is None, and of every block."""
    dims = residual_dims(model)

    def ends(b: GraphBuilder) -> None:
        x = graph_of(model.family).embedding(b, model)
        _check_hidden(b.build(), "embedding", x, dims)
        graph_of(model.family).head(b, model, x)

    def block(b: GraphBuilder, layer: int) -> None:
        hidden = b.hidden_input("hidden", " ".join(dims))
        x = graph_of(model.family).block(b, model, hidden, layer, KERNEL)
        _check_hidden(b.build(), "block", x, dims)

    def built(what: str, write: Callable[..., None], *arguments: int) -> tuple[Graph, object]:
        b = GraphBuilder(sizes, ELEMENT_BYTES)
        try:
            write(b, *arguments)
            graph = b.build()
            for op in graph.operators:
                check_operator(op)
            return graph, _form(graph)
        except RAISED as error:  # other people's code: whatever it raises is said in one line
            raise AutoshardError(
                f"family {said} does not build {what} of {model.name}: {in_one_line(error)}"
            ) from error

    yield None, "the ends", *built("the ends", ends)
    for layer in range(model.num_hidden_layers):
        yield layer, f"block {layer}", *built(f"block {layer}", block, layer)


def _check_hidden(built: Graph, function: str, x: object, dims: tuple[str, ...]) -> None:
    tensor = built.tensors.get(x) if isinstance(x, str) else None
    if tensor is None or tensor.role != "activation" or tensor.dims != dims:
        raise AutoshardError(
            f"{function} returned {show(x)}; it must return the name of an operator's output of dims {' '.join(dims)}"
        )


def _form(built: Graph) -> object:
    """All that estimates read of a graph, without names: two graphs of the same form cost the same."""
    place = {name: index for index, name in enumerate(built.tensors)}
    tensors = [
        (one.dims, one.role, one.element_bytes, one.differentiable, one.matrix) for one in built.tensors.values()
    ]
    operators = [
        (
            op.kind,
            [place[name] for name in op.inputs],
            place[op.output],
            op.loop_dims,
            op.module,
            _priced(op.attributes),
        )
        for op in built.operators
    ]
    return tensors, operators


def _priced(attributes: Mapping[str, object]) -> dict[str, object]:
    """Attributes without their fractions, such as a factor that falls from layer to layer: no estimate reads more of
    these than whether they are zero."""

    def without(value: Any) -> object:
        if isinstance(value, tuple):
            return tuple(map(without, value))
        return (float, value != 0) if isinstance(value, float) else value

    return {name: without(parse(value) if name == "expression" else value) for name, value in attributes.items()}
