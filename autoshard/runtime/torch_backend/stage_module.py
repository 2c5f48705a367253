"""One pipeline stage as an nn.Module: the program's steps on local tensors, some of them recomputed in backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import torch
from torch import nn

from autoshard.graph.partition import GatherEinsumStep, OperatorStep, Program, RedistributeStep, Step
from autoshard.plans.stage_sections import Instruction, Section, sections, signature
from autoshard.runtime.not_finite import NotFinite
from autoshard.runtime.torch_backend.collectives import Gathering, redistribution, transition_moves
from autoshard.runtime.torch_backend.compiled import Compiler
from autoshard.runtime.torch_backend.context import Context
from autoshard.runtime.torch_backend.flat_buffers import ShardedBucket
from autoshard.runtime.torch_backend.groups import MeshGroups
from autoshard.runtime.torch_backend.keep import Kept, keep
from autoshard.runtime.torch_backend.kernels import Projection, kernel
from autoshard.runtime.torch_backend.replay import replayed
from autoshard.runtime.torch_backend.sharded_weights import ShardedWeights, unpack
from autoshard.runtime.torch_backend.weight_gradients import WeightGradients, later_linear

Environment = dict[str, Any]
"""Name of a view -> its tensor; parameters are views too."""

Steps = Sequence[tuple[Callable[..., Any], tuple[str, ...], tuple[str, ...], tuple[str, ...]]]


class StageModule(nn.Module):
    """A pipeline stage, which runs a program. Parameters are registered under their Hugging Face names with '.' written
    as '/'.

    parameters: local tensors by name, already in the program's storage states. weights_apart: backward leaves gradients
    of weights in `later`. debug_nan: NotFinite at the first operator whose result is not finite. sharded: where
    the other parameters are under ZeRO-2 and -3. compiler: compiles what lies between collectives; None leaves it as it
    is. tables: where operators leave constants for each other, those of the rank's other stages too; None where there
    are no others.
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
        tables: dict[Any, torch.Tensor] | None = None,
    ):
        super().__init__()
        self.sharded = sharded
        self._replayed = replayed if sharded is None else partial(replayed, weights=(sharded.pack, unpack))
        self.later = WeightGradients() if weights_apart else None
        self.program = program
        self.input_names = tuple(tensor.name for tensor in program.graph.inputs())
        for name, value in parameters.items():
            is_learned = program.graph.tensors[name].differentiable
            self.register_parameter(_registered(name), nn.Parameter(value, requires_grad=is_learned))
        self._names = {name: _registered(name) for name in parameters}
        context = Context(program, groups, self.later, {} if tables is None else tables)
        self.router_losses = context.router_losses
        attends = compiler is not None and compiler.attends

        def make(step: Step) -> Instruction:
            one = _instruction(context, step, attends)
            return _checked(one, step) if debug_nan else one

        def bring(bucket: ShardedBucket) -> Instruction:
            assert sharded is not None
            run = sharded.weights(bucket)
            return Instruction(f"weights of {bucket.key.unit}", (), tuple(bucket.names), run, brings_weights=True)

        bucket_of = {} if sharded is None else sharded.bucket_of
        self._sections = sections(program, recompute, make, bucket_of, bring)
        if compiler is not None:
            self._sections = tuple(compiler.section(section) for section in self._sections)

    def parameter(self, name: str) -> nn.Parameter:
        """This rank's piece of a parameter, by its Hugging Face name."""
        return self.get_parameter(_registered(name))

    def forward(self, *inputs: torch.Tensor) -> Any:
        """The stage's local output, or a tuple of them where the next stage needs several. inputs: local tensors in the
        order of input_names."""
        if self.sharded is None:
            return self._forward(inputs)
        with self.sharded.not_kept():
            return self._forward(inputs)

    def _forward(self, inputs: tuple[torch.Tensor, ...]) -> Any:
        own = self._parameters
        parameters = {name: own[registered] for name, registered in self._names.items()}
        env: Environment = {**parameters, **dict(zip(self.input_names, inputs, strict=True))}
        for section in self._sections:
            if section.recomputed and torch.is_grad_enabled():
                again = _replayable(section, parameters)
                # no name of this frame may hold what comes out: the next section frees it
                env.update(
                    zip(section.outputs, self._replayed(again, *map(env.__getitem__, section.inputs)), strict=True)
                )
                for view in section.released:
                    del env[view]
            else:
                _run(section.steps, env)
        output, *others = (env[view] for view in self.program.outputs)
        return (output, *others) if others else output


def _registered(name: str) -> str:
    return name.replace(".", "/")


def _run(steps: Steps, env: Environment) -> None:
    for compute, inputs, outputs, released in steps:
        result = compute(*[env[view] for view in inputs])
        if isinstance(result, tuple):
            env.update(zip(outputs, result, strict=True))
        else:
            env[outputs[0]] = result
        for view in released:
            del env[view]


def _replayable(section: Section, parameters: Environment) -> Callable[..., tuple[torch.Tensor, ...]]:
    def run(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        env = {**parameters, **dict(zip(section.inputs, inputs, strict=True))}
        _run(section.steps, env)
        return tuple(env[view] for view in section.outputs)

    return run


def _checked(one: Instruction, step: Step) -> Instruction:
    """The step's instruction, which raises where its result is not finite."""
    names = [one.name]
    if isinstance(step, GatherEinsumStep):
        names = [einsum.operator.name for einsum in step.einsums]

    def run(*values: torch.Tensor) -> Any:
        result = one.run(*values)
        for name, value in zip(names, result if isinstance(result, tuple) else (result,), strict=True):
            if not value.isfinite().all():
                what = "nan" if value.isnan().any() else "inf"
                raise NotFinite(f"{name} is the first operator with {what}")
        return result

    return replace(one, run=run)


def _instruction(context: Context, step: Step, attends: bool) -> Instruction:
    program = context.program
    if isinstance(step, OperatorStep):
        output, run = step.operator.output, kernel(context, step)
        return Instruction(step.operator.name, step.inputs, (output,), run, signature=signature(context, step, attends))
    if isinstance(step, RedistributeStep):
        assert context.groups is not None
        dims = program.tensor(step.source).dims
        move = redistribution(step.transitions, dims, context.groups)
        return Instruction(f"redistribute {step.source}", (step.source,), (step.target,), move)
    return _gather_instruction(context, step)


def _gather_instruction(context: Context, step: GatherEinsumStep) -> Instruction:
    assert context.groups is not None
    source = step.gather.source
    transition, dims = step.gather.transitions[0], context.program.tensor(source).dims
    gather, scatter = transition_moves(transition, dims, context.groups)
    gathering = Gathering.of(transition, dims, context.groups)
    projections = []
    for one in step.einsums:
        left, right, out = (context.dims(name) for name in (*one.operator.inputs, one.operator.output))
        projection = Projection.of(left, right, out)
        assert projection is not None, one.operator
        projections.append(projection)
    weights, later = tuple(one.inputs[1] for one in step.einsums), context.later
    contracted = tuple(one.num_contracted for one in projections)
    outputs = tuple(one.operator.output for one in step.einsums)

    def run(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        flat = tuple(p.flat_weight(w) for p, w in zip(projections, weights, strict=True))
        owners = tuple(w for w in weights if isinstance(w, nn.Parameter))
        if later is not None and len(owners) == len(weights):
            products = later_linear(x, gather, scatter, later, owners, flat, contracted)
        else:
            x, kept = keep(x, *flat)
            products = _GatherLinear.apply(x, kept, gathering, contracted, *flat)
        return tuple(p.unflatten(y, w) for p, y, w in zip(projections, products, weights, strict=True))

    return Instruction(f"gather {source}", (source, *weights), outputs, run)


class _GatherLinear(torch.autograd.Function):
    """y_i = gather(x) w_i^T, over the last contracted[i] dims of x. Keeps the local x and gathers it again in backward
    (Korthikanti et al. 2022, 4.2.2).

    Backward hides the gathering behind the gradient of x, and the reduce-scatter of that gradient behind the gradients
    of the weights. Of several sequences a rank's pieces do not lie together: the gradient of x is computed piece by
    piece, as it is scattered, and only what is gathered is copied, where that gradient is gone. Pieces of a contracted
    dim are in no gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        kept: Kept,
        gathering: Gathering,
        contracted: tuple[int, ...],
        *weights: torch.Tensor,
    ) -> Any:
        ctx.kept, ctx.gathering, ctx.contracted = kept, gathering, contracted
        with gathering.gather(x)() as whole:
            return tuple(
                nn.functional.linear(whole.flatten(-dims), weight)
                for dims, weight in zip(contracted, weights, strict=True)
            )

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        (x, *weights), gathering, contracted = ctx.kept.tensors, ctx.gathering, ctx.contracted
        first = x.dim() - max(contracted)
        in_pieces = gathering.dim < first and gathering.has_pieces(x)
        arriving = gathering.gather(x)
        flat = [grad.flatten(0, -2) for grad in grads]
        if in_pieces:
            partial = _in_pieces(gathering, x, flat, weights)
        else:
            partial = flat[0] @ weights[0]
            for grad, weight in zip(flat[1:], weights[1:], strict=True):
                partial.view(-1, weight.shape[1]).addmm_(grad, weight)
        scattering = gathering.scatter(partial.view(gathering.whole_shape(x, in_pieces)), in_pieces)
        del partial  # which is as large as what was gathered
        lent = arriving()
        del arriving  # of several sequences it has the pieces that were joined
        with lent as whole:
            grad_weights = [
                grad.t() @ whole.flatten(-dims).flatten(0, -2) for dims, grad in zip(contracted, flat, strict=True)
            ]
        return (scattering(), None, None, None, *grad_weights)


def _in_pieces(
    gathering: Gathering, x: torch.Tensor, grads: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]
) -> torch.Tensor:
    """The gradient of what is gathered of pieces like x, in which the pieces of ranks lie one after the other. grads:
    of products with the weights, flat."""
    count, sequences = gathering.group.size, prod(x.shape[: gathering.dim])
    partial = grads[0].new_empty(count, x.numel())
    for number, (grad, weight) in enumerate(zip(grads, weights, strict=True)):
        every, of_each = grad.view(sequences, count, -1, grad.shape[-1]), weight.expand(sequences, *weight.shape)
        for rank, piece in enumerate(partial):  # which is not read where the first product is written
            piece.view(sequences, -1, weight.shape[1]).baddbmm_(every[:, rank], of_each, beta=min(1, number))
    return partial
