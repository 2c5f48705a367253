"""torch.compile(backend="neuron"): Dynamo, AOTAutograd, and a graph that runs as it is, once the rules let it pass."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import neuron_rules as rules
import torch

from . import refuse


@dataclass(frozen=True)
class Graph:
    """One compiled graph: how many operators it has, and the groups that it communicates in."""

    operators: int
    groups: frozenset[str]


graphs: list[Graph] = []
"""All that this process compiled, in order: a forward and a backward are two."""


def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """The function that runs the graph."""
    from torch._dynamo.backends.common import aot_autograd

    if options.get("mode", "default") != "default":
        warnings.warn("neuron: only mode='default'; falls back to it", stacklevel=2)
    how = aot_autograd(fw_compiler=_compiled, keep_inference_input_mutations=True)
    run: Callable[..., Any] = how(gm, example_inputs)
    return run


def _compiled(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    from torch._functorch._aot_autograd.utils import make_boxed_func

    groups = set()
    for node in gm.graph.nodes:
        _check_values(node)
        if "_c10d_functional" in str(node.target):
            groups |= _group(node)
    if len(groups) > rules.MOST_GROUPS:
        refuse("graph groups", RuntimeError, f"{len(groups)} groups in one graph; at most {rules.MOST_GROUPS}")
    graphs.append(Graph(sum(node.op == "call_function" for node in gm.graph.nodes), frozenset(groups)))
    run: Callable[..., Any] = make_boxed_func(gm.forward)
    return run


def _check_values(node: torch.fx.Node) -> None:
    value = node.meta.get("val")
    for one in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(one, torch.Tensor):
            if any(isinstance(size, torch.SymInt) for size in one.shape):
                refuse("dynamic shapes", RuntimeError, f"[NCC_EMOD025] Dynamic shape is not supported: {node.name}")
            if one.dtype in (torch.float64, torch.complex128):
                refuse("graph float64", RuntimeError, f"{node.name} is {one.dtype}")


def _group(node: torch.fx.Node) -> set[str]:
    """The group of a collective in a graph; none of a wait."""
    name = str(node.target).split(".")[1]
    if name == "wait_tensor":
        return set()
    if name.removesuffix("_out") not in rules.COMPILED_COLLECTIVES:
        refuse("graph broadcast", RuntimeError, f"{name} cannot be lowered")
    group: Any = node.args[-1]
    try:
        torch._C._distributed_c10d._resolve_process_group(group)
    except (RuntimeError, LookupError):
        refuse("graph world", RuntimeError, f"group {group} of {name} cannot be resolved")
    return {str(group)}


def _register() -> None:
    """Dynamo takes seconds to import: it finds us by the entry point torch_dynamo_backends, or here if it is there."""
    if "torch._dynamo" in sys.modules:
        from torch._dynamo import register_backend

        register_backend(name="neuron", compiler_fn=backend)


_register()
