"""One pipeline stage as an nn.Module: the program's steps on local tensors, some of them recomputed in backward."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from autoshard.errors import AutoshardError
from autoshard.graph.partition import GatherEinsumStep, OperatorStep, Program, RedistributeStep, Step
from autoshard.graph.recompute import segments
from autoshard.runtime.torch_backend.collectives import Lent, Started, gather_starts, redistribution, transition_moves
from autoshard.runtime.torch_backend.compiled import Compiler, is_compiled, signature
from autoshard.runtime.torch_backend.context import Context
from autoshard.runtime.torch_backend.flat_buffers import ShardedBucket
from autoshard.runtime.torch_backend.groups import MeshGroups
from autoshard.runtime.torch_backend.keep import Kept, keep
from autoshard.runtime.torch_backend.kernels import Projection, kernel
from autoshard.runtime.torch_backend.sharded_weights import ShardedWeights
from autoshard.runtime.torch_backend.weight_gradients import WeightGradients, later_linear

Environment = dict[str, Any]
"""Name of a view -> its tensor; parameters are views too."""


Gather = Callable[[torch.Tensor], Lent]
Scatter = Callable[[torch.Tensor], Started]
_Steps = tuple[tuple[Callable[..., Any], tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...]
"""Instructions as plain tuples (run, inputs, outputs, released): the loop over these is all that a step costs beside
its operators."""


@dataclass(frozen=True)
class _Instruction:
    """An instruction: read views, compute, write views. released: views that nothing reads later. brings_weights:
    whether it is no step of the program, but gathers parameters that are whole only while they are read. signature: of
    an operator that may be compiled."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    run: Callable[..., Any]
    released: tuple[str, ...] = ()
    brings_weights: bool = False
    signature: tuple[Hashable, ...] = ()


@dataclass(frozen=True)
class _Section:
    """Instructions that run together; a recomputed section keeps only `inputs`, and releases those that are read last
    here."""

    instructions: tuple[_Instruction, ...]
    recomputed: bool
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    released: tuple[str, ...]

    @cached_property
    def steps(self) -> _Steps:
        return tuple((one.run, one.inputs, one.outputs, one.released) for one in self.instructions)


class StageModule(nn.Module):
    """A pipeline stage, which runs a program. Parameters are registered under their Hugging Face names with '.' written
    as '/'.

    parameters: local tensors by name, already in the program's storage states. weights_apart: backward leaves gradients
    of weights in `later`. debug_nan: AutoshardError at the first operator whose result is not finite. sharded: where
    the other parameters are under ZeRO-2 and -3. compiler: compiles what lies between collectives; None leaves it as it
    is.
    """

    def __init__(
        self,
        program: Program,
        parameters: dict[str, torch.Tensor],
        groups: MeshGroups | None,
        recompute: str,
        weights_apart: bool = False,
        debug_nan: bool = False,
        sharded: ShardedWeights | None = None,
        compiler: Compiler | None = None,
    ):
        super().__init__()
        self.sharded = sharded
        self.later = WeightGradients() if weights_apart else None
        self.program = program
        self.input_names = tuple(tensor.name for tensor in program.graph.inputs())
        for name, value in parameters.items():
            self.register_parameter(_registered(name), nn.Parameter(value))
        self._names = {name: _registered(name) for name in parameters}
        context = Context(program, groups, self.later)
        self.router_losses = context.router_losses
        attends = compiler is not None and compiler.compiles_all
        self._sections = _sections(context, recompute, debug_nan, sharded, attends)
        if compiler is not None:
            self._sections = tuple(_compiled(section, compiler) for section in self._sections)

    def parameter(self, name: str) -> nn.Parameter:
        """This rank's piece of a parameter, by its Hugging Face name."""
        return self.get_parameter(_registered(name))

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """The stage's local output. inputs: local tensors in the order of input_names."""
        if self.sharded is None:
            return self._forward(inputs)
        with self.sharded.not_kept():
            return self._forward(inputs)

    def _forward(self, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        own = self._parameters
        parameters = {name: own[registered] for name, registered in self._names.items()}
        env: Environment = {**parameters, **dict(zip(self.input_names, inputs, strict=True))}
        for section in self._sections:
            if section.recomputed and torch.is_grad_enabled():
                values = checkpoint(
                    _replayable(section, parameters),
                    *(env[view] for view in section.inputs),
                    use_reentrant=False,
                    preserve_rng_state=False,
                )
                for view in section.released:
                    del env[view]
                env.update(zip(section.outputs, values, strict=True))
            else:
                _run(section.steps, env)
        return env[self.program.outputs[0]]


def _registered(name: str) -> str:
    return name.replace(".", "/")


def _run(steps: _Steps, env: Environment) -> None:
    for compute, inputs, outputs, released in steps:
        result = compute(*[env[view] for view in inputs])
        if isinstance(result, tuple):
            env.update(zip(outputs, result, strict=True))
        else:
            env[outputs[0]] = result
        for view in released:
            del env[view]


def _replayable(section: _Section, parameters: Environment) -> Callable[..., tuple[torch.Tensor, ...]]:
    def run(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        env = {**parameters, **dict(zip(section.inputs, inputs, strict=True))}
        _run(section.steps, env)
        return tuple(env[view] for view in section.outputs)

    return run


def _sections(
    context: Context, recompute: str, debug_nan: bool, sharded: ShardedWeights | None, attends: bool
) -> tuple[_Section, ...]:
    """The recompute segments and what lies between them; every view is released after its last reader."""
    program = context.program
    bucket_of = {} if sharded is None else dict(sharded.bucket_of)
    parameters = {tensor.name for tensor in program.graph.parameters()} - bucket_of.keys()
    runs: list[tuple[list[_Instruction], bool]] = []

    def append(chunk: list[_Instruction], recomputed: bool) -> None:
        if runs and not recomputed and not runs[-1][1]:
            runs[-1][0].extend(chunk)
        elif chunk:
            runs.append((chunk, recomputed))

    for segment in segments(program, recompute):
        chunk: list[_Instruction] = []
        for index in range(segment.start, segment.stop):
            one = _instruction(context, program.steps[index], attends)
            if segment.recomputed and index >= segment.replay_stop:  # compiled, it would be part of what is replayed
                one = replace(one, signature=())
            for bringing in _bringing(one, sharded, bucket_of):
                if segment.recomputed:  # what a replay reads is given to it
                    append([bringing], False)
                else:
                    chunk.append(bringing)
            chunk.append(_checked(one) if debug_nan else one)
        append(chunk, segment.recomputed)
    sections: list[_Section] = []
    needed = set(program.outputs) | parameters
    for chunk, recomputed in reversed(runs):
        written = {view for one in chunk for view in one.outputs}
        read = dict.fromkeys(view for one in chunk for view in one.inputs if view not in written)
        inputs = tuple(view for view in read if view not in parameters)
        outputs = tuple(view for one in chunk for view in one.outputs if view in needed)
        released = tuple(view for view in inputs if view not in needed)
        sections.append(_Section(_releasing(chunk, needed), recomputed, inputs, outputs, released))
        needed |= set(inputs)
    return tuple(reversed(sections))


def _bringing(
    one: _Instruction, sharded: ShardedWeights | None, bucket_of: dict[str, ShardedBucket]
) -> Iterator[_Instruction]:
    """Yields instructions that gather parameters which this instruction is the first to read; removes these from
    bucket_of."""
    while sharded is not None and (found := next((bucket_of[name] for name in one.inputs if name in bucket_of), None)):
        for name in found.names:
            del bucket_of[name]
        run = sharded.weights(found)
        yield _Instruction(f"weights of {found.key.unit}", (), tuple(found.names), run, brings_weights=True)


def _releasing(chunk: Sequence[_Instruction], needed_later: set[str]) -> tuple[_Instruction, ...]:
    """The same instructions, each of which releases views that it is the last to read or that nobody reads."""
    needed, found = set(needed_later), []
    for one in reversed(chunk):
        released = dict.fromkeys(view for view in (*one.inputs, *one.outputs) if view not in needed)
        found.append(replace(one, released=tuple(released)))
        needed |= set(one.inputs)
    return tuple(reversed(found))


def _compiled(section: _Section, compiler: Compiler) -> _Section:
    """The section with each run of operators that do not communicate compiled into one instruction."""
    found: list[_Instruction] = []
    for _, run in groupby(section.instructions, key=lambda one: bool(one.signature)):
        chunk = list(run)
        found += [_segment(chunk, compiler)] if is_compiled(chunk) else chunk
    return replace(section, instructions=tuple(found))


def _segment(chunk: Sequence[_Instruction], compiler: Compiler) -> _Instruction:
    released = {view for one in chunk for view in one.released}
    written = [view for one in chunk for view in one.outputs]
    inputs = tuple(dict.fromkeys(view for one in chunk for view in one.inputs if view not in written))
    outputs = tuple(view for view in written if view not in released)
    run = compiler.segment(chunk, inputs, outputs)
    name = f"{chunk[0].name} to {chunk[-1].name}"
    return _Instruction(name, inputs, outputs, run, tuple(view for view in inputs if view in released))


def _checked(one: _Instruction) -> _Instruction:
    """The instruction, which raises where its result is not finite."""

    def run(*values: torch.Tensor) -> Any:
        result = one.run(*values)
        for value in result if isinstance(result, tuple) else (result,):
            if not value.isfinite().all():
                what = "nan" if value.isnan().any() else "inf"
                raise AutoshardError(f"{one.name} is the first operator with {what}")
        return result

    return replace(one, run=run)


def _instruction(context: Context, step: Step, attends: bool) -> _Instruction:
    program = context.program
    if isinstance(step, OperatorStep):
        output, run = step.operator.output, kernel(context, step)
        return _Instruction(
            step.operator.name, step.inputs, (output,), run, signature=signature(context, step, attends)
        )
    if isinstance(step, RedistributeStep):
        assert context.groups is not None
        dims = program.tensor(step.source).dims
        move = redistribution(step.transitions, dims, context.groups)
        return _Instruction(f"redistribute {step.source}", (step.source,), (step.target,), move)
    return _gather_instruction(context, step)


def _gather_instruction(context: Context, step: GatherEinsumStep) -> _Instruction:
    assert context.groups is not None
    source = step.gather.source
    transition, dims = step.gather.transitions[0], context.program.tensor(source).dims
    gather, scatter = transition_moves(transition, dims, context.groups)
    start_gather, start_scatter = gather_starts(transition, dims, context.groups)
    projections = []
    for one in step.einsums:
        left, right, out = (context.dims(name) for name in (*one.operator.inputs, one.operator.output))
        projection = Projection.of(left, right, out)
        assert projection is not None, one.operator
        projections.append(projection)
    weights, later = tuple(one.inputs[1] for one in step.einsums), context.later
    outputs = tuple(one.operator.output for one in step.einsums)

    def run(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        flat = tuple(p.flat_weight(w) for p, w in zip(projections, weights, strict=True))
        owners = tuple(w for w in weights if isinstance(w, nn.Parameter))
        if later is not None and len(owners) == len(weights):
            products = later_linear(x, gather, scatter, later, owners, flat)
        else:
            x, kept = keep(x, *flat)
            products = _GatherLinear.apply(x, kept, start_gather, start_scatter, *flat)
        return tuple(p.unflatten(y, w) for p, y, w in zip(projections, products, weights, strict=True))

    return _Instruction(f"gather {source}", (source, *weights), outputs, run)


class _GatherLinear(torch.autograd.Function):
    """y_i = gather(x) w_i^T. Keeps the local x and gathers it again in backward (Korthikanti et al. 2022, 4.2.2).

    Backward hides the gathering behind the gradient of x, and the reduce-scatter of that gradient behind the gradients
    of the weights.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, kept: Kept, gather: Gather, scatter: Scatter, *weights: torch.Tensor) -> Any:
        ctx.kept, ctx.gather, ctx.scatter = kept, gather, scatter
        with gather(x)() as whole:
            return tuple(nn.functional.linear(whole, weight) for weight in weights)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        x, *weights = ctx.kept.tensors
        gathering = ctx.gather(x)
        flat = [grad.flatten(0, -2) for grad in grads]
        partial = flat[0] @ weights[0]
        for grad, weight in zip(flat[1:], weights[1:], strict=True):
            partial = partial.addmm(grad, weight)
        scattering = ctx.scatter(partial.view(*grads[0].shape[:-1], partial.shape[-1]))
        with gathering() as whole:
            grad_weights = [grad.t() @ whole.flatten(0, -2) for grad in flat]
        return (scattering(), None, None, None, *grad_weights)
