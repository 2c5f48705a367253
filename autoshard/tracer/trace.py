"""Turn `my_file.py:MyModel` into a ModelSpec."""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from autoshard.errors import AutoshardError
from autoshard.plugins.found import RAISED
from autoshard.spec.model import ModelSpec
from autoshard.spec.traced import LONGEST_TRACE
from autoshard.tracer import rules  # noqa: F401  # registers them
from autoshard.tracer.arrange import find_blocks, in_order, make_alike
from autoshard.tracer.dims import Mismatch, resolve
from autoshard.tracer.export import export_module, load_module, text_of
from autoshard.tracer.tracer import Tracer
from autoshard.tracer.values import Operation, Parameter, Unsupported, View
from autoshard.tracer.write import Traced, write_model

HOW_TO_ADD = (
    "rules are in autoshard/tracer/rules: to add one, register a function there with @rule('name') that gives the "
    "meaning in operators of autoshard/graph/operators.py"
)


def trace_model(model: str, seq: int | None = None) -> ModelSpec:
    """The ModelSpec of the class or function `model` names: makes the module and traces one forward.

    Runs the user's file. The forward has min(seq, LONGEST_TRACE) tokens; seq None: LONGEST_TRACE, or fewer where the
    module has a `config` with a smaller max_position_embeddings. Raises AutoshardError naming the operator, with its
    source line, that has no meaning in the graph.
    """
    module = load_module(model)
    return trace_module(module, model.rpartition(":")[2], _tokens(module) if seq is None else seq)


def trace_live(module: nn.Module, seq: int | None = None) -> ModelSpec:
    """The ModelSpec of a module that somebody has, named after its class, as `trace_model` makes it.

    The module stays as it is; a copy without numbers is traced, of what torch.compile or DistributedDataParallel wraps
    the module inside. Raises AutoshardError where it is sharded or cannot be copied, and what `trace_model` raises.
    """
    module = _inside(module)
    stand_ins: dict[int, object] = {
        id(one): nn.Parameter(torch.empty_like(one, device="meta"), requires_grad=one.requires_grad)
        for one in module.parameters()
    }
    name = type(module).__name__
    _check_is_whole(module, name)
    try:
        copy = deepcopy(module, stand_ins).eval()
    except RAISED as error:
        raise AutoshardError(
            f"cannot plan {name}: copy.deepcopy fails on it, and a copy is traced ({text_of(error)}); what holds no "
            "parameter (a lock, a file, a tensor with a history) can be made in forward, or give the file of its "
            "class, my_file.py:MyModel, which is made anew"
        ) from error
    return trace_module(copy, name, _tokens(module) if seq is None else seq)


def _inside(module: nn.Module) -> nn.Module:
    """The module without the wrappers of torch.compile and DistributedDataParallel."""
    found = module._modules.get("module" if isinstance(module, DistributedDataParallel) else "_orig_mod")
    return module if found is None else _inside(found)


def _check_is_whole(module: nn.Module, name: str) -> None:
    """Raise AutoshardError for a module that FSDP or tensor parallelism has sharded."""
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.tensor import DTensor

    is_sharded = any(isinstance(part, FullyShardedDataParallel) for part in module.modules())
    if is_sharded or any(isinstance(one, DTensor) for one in module.parameters()):
        raise AutoshardError(
            f"cannot plan {name}: its parameters are sharded already; give the module as it is before fully_shard, "
            "parallelize_module or FullyShardedDataParallel"
        )


def _tokens(module: nn.Module) -> int:
    """Tokens of the trace where nobody says: LONGEST_TRACE, or what a config with fewer positions has."""
    limit = getattr(getattr(module, "config", None), "max_position_embeddings", LONGEST_TRACE)
    return min(limit, LONGEST_TRACE) if isinstance(limit, int) else LONGEST_TRACE


def trace_module(module: nn.Module, name: str, seq: int) -> ModelSpec:
    """The ModelSpec of a module, as `trace_model` makes it. The module's parameters lose their numbers."""
    _check_trained(module, name)
    exported = export_module(module, min(seq, LONGEST_TRACE))
    tracer = Tracer(exported.program, exported.parameters, exported.constants)
    try:
        logits = tracer.run()
    except AutoshardError:
        raise
    except Exception as error:
        known = isinstance(error, (Unsupported, Mismatch))
        what = error if known else f"its rule fails ({type(error).__name__}: {error}); write it in another way"
        raise AutoshardError(
            f"cannot plan {name}: {tracer.operator} at {tracer.place.words}: {what}; {HOW_TO_ADD}"
        ) from (None if known else error)
    try:
        return write_model(_arranged(tracer, logits, module, name), name, seq)
    except Mismatch as error:
        raise AutoshardError(f"cannot plan {name}: its blocks are alike but for a dim: {error}") from None


def _check_trained(module: nn.Module, name: str) -> None:
    """Raise AutoshardError for a frozen parameter: a plan has a gradient and optimizer state for every parameter."""
    parameters = dict(module.named_parameters())
    frozen = [parameter for parameter, value in parameters.items() if not value.requires_grad]
    if frozen:
        raise AutoshardError(
            f"{name} has frozen parameters (requires_grad=False), {len(frozen):,} of {len(parameters):,}, the first is "
            f"{frozen[0]}: a plan trains all of them; call requires_grad_(True), or make constants buffers"
        )


def _arranged(tracer: Tracer, logits: View, module: nn.Module, name: str) -> Traced:
    head = logits.tensor
    if len(logits.axes) != 3 or logits.shape[:2] != ((tracer.batch,), (tracer.seq,)):
        raise AutoshardError(f"{name} must give logits [batch, seq, vocab]")
    if not isinstance(head, Operation) or head.dims != (tracer.batch, tracer.seq, *resolve(logits.axes[2])):
        raise AutoshardError(f"the logits of {name} must come from a projection to the vocabulary")
    operations = in_order(head)
    _check_sizes(operations, tracer, name)
    blocks = find_blocks(operations)
    make_alike(operations, blocks)
    _check_parameters(operations, module, name)
    return Traced(operations, blocks, resolve(logits.axes[2]), tracer.roles)


def _check_sizes(operations: list[Operation], tracer: Tracer, name: str) -> None:
    """Raise AutoshardError for a parameter with a dim for the tokens or the sequences of the trace."""
    for op in operations:
        for one in op.inputs:
            if not isinstance(one, Parameter):
                continue
            for dim, what, cure in (
                (tracer.seq, "tokens", "learned positions are [positions, width], added to the tokens' embeddings"),
                (tracer.batch, "sequences", "give it one row"),
            ):
                if dim in one.dims:
                    raise AutoshardError(
                        f"cannot plan {name}: parameter {one.tensor} at {op.line} has a dim for the {dim.size:,} "
                        f"{what} of the trace, and fits no other number of them; {cure}"
                    )


def _check_parameters(operations: list[Operation], module: nn.Module, name: str) -> None:
    """Raise AutoshardError unless every number of the module is read, once or as a whole."""
    parts: dict[str, set[tuple[int, int]]] = {}
    sizes: dict[str, int] = {}
    for op in operations:
        for one in op.inputs:
            if isinstance(one, Parameter):
                whole = (0, 1) if one.cut is None else (one.cut.start, one.cut.stop)
                parts.setdefault(one.tensor, set()).add(whole)
                sizes[one.tensor] = 1 if one.cut is None else one.cut.whole.size
    for parameter, _ in module.named_parameters():
        if parameter not in parts:
            raise AutoshardError(f"parameter {parameter} of {name} is not read in forward; remove it")
        places = sorted(parts[parameter])
        if places[0][0] != 0 or places[-1][1] != sizes[parameter]:
            raise AutoshardError(
                f"parameter {parameter} of {name} is read in part only, which has no meaning in a plan"
            )
        for before, after in pairwise(places):
            if before[1] != after[0]:
                raise AutoshardError(f"parameter {parameter} of {name} is read in parts that overlap or leave a gap")
