"""torch.compile(backend="neuron"): Dynamo, AOTAutograd, and a graph that runs as it is, once the rules let it pass."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import neuron_rules as rules
import torch

from . import refuse

COMPILES_ONLY = os.environ.get("TORCH_NEURONX_COMPILE_ONLY") == "1"
"""Whether graphs are compiled and not run. What they give then is public nowhere: not numbers, here."""


@dataclass(frozen=True)
class Graph:
    """One compiled graph: whether it is a backward, the operators that its nodes are annotated with, and the groups
    that it communicates in."""

    is_backward: bool
    operators: frozenset[str]
    groups: frozenset[str]


graphs: list[Graph] = []
"""All that this process compiled, in order: a forward and a backward are two."""


def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """The function that runs the graph."""
    from torch._dynamo.backends.common import aot_autograd

    if options.get("mode", "default") != "default":
        warnings.warn("neuron: only mode='default'; falls back to it", stacklevel=2)
    forward, backward = partial(_compiled, False), partial(_compiled, True)
    how = aot_autograd(fw_compiler=forward, bw_compiler=backward, keep_inference_input_mutations=True)
    run: Callable[..., Any] = how(gm, example_inputs)
    return run


def _compiled(is_backward: bool, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    from torch._functorch._aot_autograd.utils import make_boxed_func

    groups = set()
    for node in gm.graph.nodes:
        _check_values(node)
        if "_c10d_functional" in str(node.target):
            groups |= _group(node)
    if len(groups) > rules.MOST_GROUPS:
        refuse("graph groups", RuntimeError, f"{len(groups)} groups in one graph; at most {rules.MOST_GROUPS}")
    named = (node.meta.get("custom", {}).get("operator") for node in gm.graph.nodes)
    graphs.append(Graph(is_backward, frozenset(name for name in named if name), frozenset(groups)))
    run: Callable[..., Any] = make_boxed_func(_nothing(gm) if COMPILES_ONLY else gm.forward)
    return run


def _nothing(gm: torch.fx.GraphModule) -> Callable[..., Any]:
    """A function with the outputs of a graph that is not run: numbers that are not ones, on the device."""
    (output,) = (node for node in gm.graph.nodes if node.op == "output")
    values = [one.meta["val"] if isinstance(one, torch.fx.Node) else one for one in output.args[0]]

    def blank(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        filler = float("nan") if value.is_floating_point() else 0
        return torch.full(value.shape, filler, dtype=value.dtype, device=value.device)

    return lambda *inputs: [blank(value) for value in values]


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
