"""AdamW over flat buffers: gradients summed once a step, state and FP32 masters sharded over the data axes (ZeRO-1).

Parameters whose gradients travel alike share a bucket: one flat buffer of parameters (the modules' parameters are views
into it), one flat buffer of accumulated gradients, and this rank's shard of master weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType

import torch
import torch.distributed as dist
from torch import nn

from autoshard.errors import AutoshardError
from autoshard.graph.partition import Program
from autoshard.layout.buckets import BucketKey, bucket_key, padded_elements
from autoshard.layout.mesh import Mesh
from autoshard.runtime.torch_backend.collectives import all_gather, all_gather_into, all_reduce, reduce_scatter
from autoshard.runtime.torch_backend.fused_adamw import FusedAdamW
from autoshard.runtime.torch_backend.groups import Group, MeshGroups
from autoshard.runtime.torch_backend.parameters import piece_of
from autoshard.runtime.torch_backend.rounded_adamw import Piece, RoundedAdamW
from autoshard.runtime.torch_backend.stage_module import StageModule
from autoshard.spec.training import Precision

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
PieceShape = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class OptimizerSettings:
    """gradient_dtype: of the sum over microbatches; reduce_dtype: of the sums over ranks, None: the same.

    stochastic_rounding: weights and moments are bf16 and rounded at random, by a function of the seed.
    """

    learning_rate: float
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    max_gradient_norm: float = 1.0
    master_dtype: torch.dtype = torch.float32
    gradient_dtype: torch.dtype = torch.float32
    zero: int = 1
    reduce_dtype: torch.dtype | None = None
    stochastic_rounding: bool = False
    seed: int = 0


def optimizer_settings(precision: Precision, learning_rate: float, zero: int, seed: int) -> OptimizerSettings:
    """Of a plan's precision: bf16 weights without a master copy are rounded at random."""
    parameter = precision.parameter_dtype
    return OptimizerSettings(
        learning_rate,
        master_dtype=DTYPES[precision.master_dtype or parameter],
        gradient_dtype=DTYPES[precision.gradient_accumulation_dtype],
        zero=zero,
        reduce_dtype=DTYPES[precision.gradient_reduce_dtype],
        stochastic_rounding=precision.master_dtype is None and parameter == "bfloat16",
        seed=seed,
    )


def gradient_axes(program: Program, mesh: Mesh) -> set[tuple[str, ...]]:
    """Axis sets that the optimizer communicates over."""
    keys = [bucket_key(program, tensor.name, mesh, frozenset()) for tensor in program.graph.parameters()]
    return {axes for key in keys for axes in (key.sum_axes, key.shard_axes) if axes}


class Bucket:
    """Flat storage of the parameters that share a key; masters of the same dtype are the parameters themselves."""

    def __init__(
        self,
        key: BucketKey,
        named: list[tuple[str, nn.Parameter]],
        mesh: Mesh,
        groups: MeshGroups | None,
        s: OptimizerSettings,
    ):
        self.key, self.named = key, named
        self.names = [name for name, _ in named]
        self.sum_group = groups[key.sum_axes] if groups and key.sum_axes else None
        self.data_group = groups[key.shard_axes] if groups and key.shard_axes else None
        self.shards = self.data_group.size if self.data_group and s.zero else 1
        total = sum(parameter.numel() for _, parameter in named)
        padded = padded_elements(key, total, mesh, s.zero)
        first = named[0][1]
        self.parameters = first.new_zeros(padded)
        self.gradients = torch.zeros(padded, dtype=s.gradient_dtype, device=first.device)
        self._places: dict[str, tuple[int, torch.Size]] = {}
        offset = 0
        for name, parameter in named:
            piece = slice(offset, offset + parameter.numel())
            self._places[name] = (offset, parameter.shape)
            self.parameters[piece] = parameter.detach().flatten()
            parameter.data = self.parameters[piece].view(parameter.shape)
            _accumulate_into(parameter, self.gradients[piece].view(parameter.shape))
            offset += parameter.numel()
        index = self.data_group.index if self.data_group and s.zero else 0
        self._mine = slice(index * padded // self.shards, (index + 1) * padded // self.shards)
        self._reduce_dtype = s.reduce_dtype or s.gradient_dtype
        self._own_masters = s.master_dtype == self.parameters.dtype
        mine = self.parameters[self._mine]
        self.master = nn.Parameter(mine if self._own_masters else mine.to(s.master_dtype))

    def reduce(self) -> torch.Tensor:
        """Sum the gradients over every axis that needs it, in the dtype for that -> this rank's shard."""
        gradients = self.gradients
        if self.sum_group is not None or self.data_group is not None:
            gradients = gradients.to(self._reduce_dtype)
        if self.sum_group is not None:
            gradients = all_reduce(gradients, self.sum_group)
        if self.data_group is not None:
            if self.shards > 1:
                return reduce_scatter(gradients, self.data_group, 0)
            gradients = all_reduce(gradients, self.data_group)
        return gradients

    def by_name(self, shard: torch.Tensor) -> dict[str, torch.Tensor]:
        """The local tensors that a shard of this bucket is part of, gathered over the data axes."""
        if self.shards > 1:
            assert self.data_group is not None
            shard = all_gather(shard, self.data_group, 0)
        return {name: shard[start : start + shape.numel()].view(shape) for name, (start, shape) in self._places.items()}

    def gradient(self, name: str) -> torch.Tensor:
        """Accumulated local gradient of one parameter: a view of the flat buffer."""
        start, shape = self._places[name]
        return self.gradients[start : start + shape.numel()].view(shape)

    def pieces(self, shapes: Mapping[str, PieceShape]) -> list[Piece]:
        """The parameters that this rank's shard holds parts of."""
        found = []
        for name, (first, shape) in self._places.items():
            start, stop = max(first, self._mine.start), min(first + shape.numel(), self._mine.stop)
            if start < stop:
                shard = self._mine.start
                found.append(Piece(name, start - shard, stop - shard, start - first, *shapes[name]))
        return found

    def publish(self) -> None:
        """Masters, rounded to the parameters' dtype, back into every rank's parameters."""
        if self.shards == 1:
            if not self._own_masters:
                self.parameters.copy_(self.master.detach())
            return
        assert self.data_group is not None
        rounded = self.master.detach().to(self.parameters.dtype, copy=self._own_masters)  # it lies in the output
        all_gather_into(self.parameters, rounded, self.data_group)


def _accumulate_into(parameter: nn.Parameter, total: torch.Tensor) -> None:
    """Add each microbatch's gradient into the flat buffer. Where that has another precision, convert it and drop it."""
    if total.dtype == parameter.dtype:
        parameter.grad = total  # autograd adds in place to what is there
        return

    def hook(p: torch.Tensor) -> None:
        if p.grad is not None:  # it is where backward left the gradient for later
            total.add_(p.grad)
            p.grad = None

    parameter.register_post_accumulate_grad_hook(hook)


def _piece_shapes(
    modules: Iterable[StageModule], mesh: Mesh, groups: MeshGroups | None, published: Mapping[str, int]
) -> dict[str, PieceShape]:
    """By parameter: shape of the whole without padding, starts and lengths of this rank's piece."""
    index = groups.index if groups is not None else {}
    found = {}
    for module in modules:
        program = module.program
        for tensor in program.graph.parameters():
            shape = tuple(program.graph.sizes[dim] for dim in tensor.dims)
            piece = piece_of(shape, tensor.dims, program.states[tensor.name], mesh, index)
            found[tensor.name] = (tuple(published.get(d, program.graph.sizes[d]) for d in tensor.dims), *piece)
    return found


class ShardedAdamW:
    """AdamW on this rank's shards, with clipping by the norm of the whole model's gradient.

    tied: for a parameter that lives on two pipeline stages, the group of the ranks that hold the same piece of it.
    published: size of each dim without padding, where it may have some.
    """

    def __init__(
        self,
        modules: Iterable[StageModule],
        mesh: Mesh,
        groups: MeshGroups | None,
        world: Group | None,
        settings: OptimizerSettings,
        tied: dict[str, Group],
        published: Mapping[str, int] = MappingProxyType({}),
    ):
        self._settings, self._world = settings, world
        named: dict[BucketKey, list[tuple[str, nn.Parameter]]] = {}
        modules = tuple(modules)
        for module in modules:
            for tensor in module.program.graph.parameters():
                key = bucket_key(module.program, tensor.name, mesh, frozenset(tied))
                named.setdefault(key, []).append((tensor.name, module.parameter(tensor.name)))
        self.buckets = [Bucket(key, named[key], mesh, groups, settings) for key in sorted(named)]
        for module in modules:
            if module.later is not None:
                module.later.accumulate = {p: b.gradient(name).add_ for b in self.buckets for name, p in b.named}
        self._tied = [(b.gradient(name), tied[name]) for b in self.buckets for name in b.names if name in tied]
        self._summed: list[torch.Tensor] = []
        self._updates: list[FusedAdamW | RoundedAdamW]
        if settings.stochastic_rounding:
            shapes = _piece_shapes(modules, mesh, groups, published)
            self._updates = [RoundedAdamW(b.master.detach(), b.pieces(shapes), settings.seed) for b in self.buckets]
        else:
            self._updates = [FusedAdamW(b.master.detach()) for b in self.buckets]

    def step(self, learning_rate: float, keep_gradients: bool = False) -> float:
        """Sum, clip, update, publish, clear -> the gradient norm before clipping.

        keep_gradients: hold on to the summed gradients for `gradients()`.
        """
        s = self._settings
        for gradient, group in self._tied:
            gradient.copy_(all_reduce(gradient.to(s.reduce_dtype or gradient.dtype), group))
        shards = [bucket.reduce() for bucket in self.buckets]
        self._summed = [shard.clone() for shard in shards] if keep_gradients else []
        norm = self._norm(shards)
        if not isfinite(norm):
            raise AutoshardError(f"the gradient norm is {norm}")
        scale = min(1.0, s.max_gradient_norm / (norm + 1e-6))
        for bucket, shard, update in zip(self.buckets, shards, self._updates, strict=True):
            decay = s.weight_decay if bucket.key.decay else 0.0
            gradient = shard.mul_(scale).to(bucket.master.dtype)
            update.step(gradient, learning_rate, s.betas, s.eps, decay)
        for bucket in self.buckets:
            bucket.publish()
            bucket.gradients.zero_()
        return norm

    def gradients(self) -> dict[str, torch.Tensor]:
        """Summed gradients of the last step that kept them, local pieces by parameter name (collective)."""
        pairs = zip(self.buckets, self._summed, strict=True)
        return {name: value for bucket, shard in pairs for name, value in bucket.by_name(shard).items()}

    def masters(self) -> dict[str, torch.Tensor]:
        """Master weights, local pieces by parameter name (collective)."""
        return {name: value for b in self.buckets for name, value in b.by_name(b.master.detach()).items()}

    def state(self) -> list[tuple[torch.Tensor, ...]]:
        """Of each bucket, this rank's shard of the masters and of both moments: themselves, not copies."""
        return [(one.weights, one.first_moment, one.second_moment) for one in self._updates]

    def sharing_groups(self) -> list[Group | None]:
        """For each shard of `state` the ranks that hold the same; None where it is read by each for itself."""
        return [bucket.data_group if bucket.shards == 1 else None for bucket in self.buckets]

    def load_state(self, shards: list[tuple[torch.Tensor, ...]], steps: int) -> None:
        """Go on after so many steps from what `state` gave then, in any layout (collective)."""
        for bucket, update, (master, first, second) in zip(self.buckets, self._updates, shards, strict=True):
            bucket.master.data.copy_(master)
            update.load(first, second, steps)
            bucket.publish()

    def _norm(self, shards: list[torch.Tensor]) -> float:
        total = torch.zeros((), dtype=torch.float64, device=shards[0].device if shards else None)
        for bucket, shard in zip(self.buckets, shards, strict=True):
            copies = bucket.key.copies
            if bucket.data_group is not None and bucket.shards == 1:
                copies *= bucket.data_group.size
            total += torch.linalg.vector_norm(shard, dtype=torch.float64) ** 2 / copies
        if self._world is not None:
            dist.all_reduce(total, group=self._world.handle)
        return float(total.sqrt())
