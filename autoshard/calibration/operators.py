"""Times the operators of a block, the embedding and the head one by one, as the torch runtime executes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from autoshard.calibration.clock import Clock
from autoshard.calibration.values import OperatorTime, PassTime
from autoshard.cost.compute import operator_needs
from autoshard.graph.partition import OperatorStep, Program
from autoshard.layout.sharding import stage_program
from autoshard.models.registry import load_model
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.runtime.torch_backend.context import Context
from autoshard.runtime.torch_backend.kernels import kernel
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import DTYPE_BYTES

HEAD_DIMS = {"cpu": 64, "cuda": 128, "neuron": 128}


@dataclass(frozen=True)
class Shape:
    """The size of a program to time. base: a built-in model, whose structure it has."""

    base: str
    hidden: int
    seq: int
    batch: int
    kernel: str
    vocab: int

    @property
    def name(self) -> str:
        return f"{self.base} hidden {self.hidden} tokens {self.batch}x{self.seq} {self.kernel}"


SMALL = (
    Shape("llama3-8b", 128, 128, 1, "flash", 512),
    Shape("llama3-8b", 256, 256, 1, "flash", 512),
    Shape("llama3-8b", 256, 256, 4, "plain", 2048),
    Shape("llama3-8b", 512, 512, 1, "flash", 2048),
    Shape("llama3-8b", 256, 1024, 1, "flash", 4096),
    Shape("llama3-8b", 1024, 256, 2, "plain", 4096),
    Shape("gpt3-175b", 256, 256, 1, "plain", 512),
    Shape("gpt3-175b", 512, 256, 2, "flash", 4096),
)
"""Programs that are timed on a CPU: the sizes of rehearsals and small models."""
LARGE = (
    Shape("llama3-8b", 1024, 2048, 1, "flash", 32000),
    Shape("llama3-8b", 2048, 2048, 1, "flash", 32000),
    Shape("llama3-8b", 4096, 2048, 1, "flash", 128256),
    Shape("llama3-8b", 4096, 8192, 1, "flash", 32000),
    Shape("llama3-8b", 8192, 2048, 1, "flash", 32000),
    Shape("llama3-8b", 2048, 2048, 1, "plain", 32000),
    Shape("gpt3-175b", 2048, 2048, 2, "flash", 50304),
    Shape("gpt3-175b", 4096, 1024, 4, "plain", 50304),
)
"""Programs that are timed on an accelerator."""


def shapes(device: str) -> tuple[Shape, ...]:
    return SMALL if device == "cpu" else LARGE


def times(shape: Shape, dtype: str, clock: Clock) -> Iterator[OperatorTime | PassTime]:
    """Yields the time of every operator of the program, then of its forward and backward as a whole."""
    program = _program(shape, dtype, clock.device.type)
    context = Context(program, None)
    values = {name: _value(program, name, dtype, clock.device) for name in _leaves(program)}
    forward_s = backward_s = 0.0
    for step in program.steps:
        assert isinstance(step, OperatorStep), step
        run = kernel(context, step)
        inputs = [_apart(values[name]) for name in step.inputs]
        found = _operator_time(run, inputs, clock)
        forward_s, backward_s = forward_s + found[0], backward_s + (found[1] or 0.0)
        yield OperatorTime(f"{step.operator.name} of {shape.name}", dtype, operator_needs(program, step), *found)
        with torch.no_grad():
            values[step.operator.output] = run(*[values[name] for name in step.inputs])
    yield from _whole(program, context, values, shape, clock, (forward_s, backward_s))


def model_of(shape: Shape, head_dim: int) -> ModelSpec:
    """The base model with this width, two layers and heads of head_dim."""
    base = load_model(shape.base)
    heads = max(2, shape.hidden // head_dim)
    kv_heads = heads if base.num_key_value_heads == base.num_attention_heads else max(1, heads // 2)
    width = base.intermediate_size / base.hidden_size
    return replace(
        base,
        name=shape.name,
        hidden_size=shape.hidden,
        intermediate_size=int(64 * round(shape.hidden * width / 64)),
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=shape.hidden // heads,
        vocab_size=shape.vocab,
        max_position_embeddings=shape.seq,
        rope_scaling=None,
    )


def _program(shape: Shape, dtype: str, device: str) -> Program:
    model = model_of(shape, HEAD_DIMS[device])
    graph = stage_graph(
        model,
        dim_sizes(model, shape.batch, shape.seq),
        range(1),
        first=True,
        last=True,
        attention_kernel=shape.kernel,
        element_bytes=DTYPE_BYTES[dtype],
    )
    return stage_program(graph, {}, False)


def _leaves(program: Program) -> Iterator[str]:
    written = {step.operator.output for step in program.steps if isinstance(step, OperatorStep)}
    yield from (name for name in program.graph.tensors if name not in written)


def _value(program: Program, name: str, dtype: str, device: torch.device) -> torch.Tensor:
    """A local input: random token ids where the tensor is not differentiable, else small random numbers."""
    tensor, sizes = program.graph.tensors[name], program.graph.sizes
    shape = [sizes[dim] for dim in tensor.dims]
    if not tensor.differentiable:
        return torch.randint(0, 200, shape, device=device)
    return 0.02 * torch.randn(shape, dtype=getattr(torch, dtype), device=device)


def _apart(value: torch.Tensor) -> torch.Tensor:
    """A detached copy that requires a gradient if its dtype can have one."""
    return value.detach().clone().requires_grad_(value.is_floating_point())


def _operator_time(
    run: Callable[..., torch.Tensor], inputs: list[torch.Tensor], clock: Clock
) -> tuple[float, float | None]:
    """Seconds of forward and of backward. Each backward is of a forward of its own: that of a plain softmax writes over
    what its forward kept."""
    wanted = [one for one in inputs if one.requires_grad]
    gradient = torch.ones_like(run(*inputs))

    def forward() -> torch.Tensor:
        return run(*inputs)

    def backward(out: torch.Tensor) -> Any:
        return torch.autograd.grad(out, wanted, gradient, retain_graph=True)

    return clock.typical_s(forward), clock.typical_s(backward, forward)


def _whole(
    program: Program,
    context: Context,
    values: dict[str, torch.Tensor],
    shape: Shape,
    clock: Clock,
    operators_s: tuple[float, float],
) -> Iterator[PassTime]:
    """Times the graph of all operators at once. Forward and backward take longer than the sum of the operators, by what
    starting a pass takes."""
    leaves = {name: _apart(values[name]) for name in _leaves(program)}
    wanted = [one for one in leaves.values() if one.requires_grad]
    runs = [(kernel(context, step), step) for step in program.steps if isinstance(step, OperatorStep)]

    def forward() -> torch.Tensor:
        env = dict(leaves)
        for run, step in runs:
            env[step.operator.output] = run(*[env[name] for name in step.inputs])
        return env[program.outputs[0]]

    def backward(out: torch.Tensor) -> Any:
        return torch.autograd.grad(out, wanted, retain_graph=True, allow_unused=True)

    yield PassTime(f"forward of {shape.name}", clock.typical_s(forward), operators_s[0])
    yield PassTime(f"backward of {shape.name}", clock.typical_s(backward, forward), operators_s[1])
