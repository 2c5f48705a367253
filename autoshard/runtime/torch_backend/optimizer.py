"""Runs the optimizer over flat buffers: state and FP32 masters are sharded over the data axes (ZeRO-1 and above).

Parameters whose gradients are reduced alike share a bucket (flat_buffers.py), which has this rank's shard of master
weights. AdamW updates each bucket by itself, Muon all that are its own together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import torch
from torch import nn

from autoshard.graph.partition import Program
from autoshard.layout.buckets import BucketKey, bucket_key
from autoshard.layout.mesh import Mesh
from autoshard.layout.orthogonal import exchange_axes, exchanges
from autoshard.runtime.not_finite import check_finite
from autoshard.runtime.torch_backend.collectives import all_reduce
from autoshard.runtime.torch_backend.compiled import Compiler
from autoshard.runtime.torch_backend.devices import computes
from autoshard.runtime.torch_backend.flat_buffers import Bucket, Common, PieceShape, ShardedBucket
from autoshard.runtime.torch_backend.fused_adamw import FusedAdamW
from autoshard.runtime.torch_backend.groups import Group, MeshGroups
from autoshard.runtime.torch_backend.muon import Muon
from autoshard.runtime.torch_backend.optimizer_settings import OptimizerSettings
from autoshard.runtime.torch_backend.parameters import piece_of
from autoshard.runtime.torch_backend.rounded_adamw import RoundedAdamW
from autoshard.runtime.torch_backend.stage_module import StageModule
from autoshard.runtime.torch_backend.sums import Sums, row_squares


def bucket_axes(program: Program, mesh: Mesh, zero: int) -> set[tuple[str, ...]]:
    """The sets of axes that gradients and parameters travel over, and parts of matrices for Muon."""
    keys = [bucket_key(program, tensor.name, mesh, frozenset(), zero) for tensor in program.graph.parameters()]
    travel = {axes for key in keys for axes in (key.sum_axes, key.shard_axes, key.replica_axes) if axes}
    return travel | exchange_axes(program, mesh, zero)


def piece_shapes(
    modules: Iterable[StageModule], mesh: Mesh, groups: MeshGroups | None, published: Mapping[str, int]
) -> dict[str, PieceShape]:
    """Parameter name -> shape of the whole without padding, starts and lengths of this rank's piece."""
    index = groups.index if groups is not None else {}
    found = {}
    for module in modules:
        program = module.program
        for tensor in program.graph.parameters():
            shape = tuple(program.graph.sizes[dim] for dim in tensor.dims)
            piece = piece_of(shape, tensor.dims, program.states[tensor.name], mesh, index)
            found[tensor.name] = (tuple(published.get(d, program.graph.sizes[d]) for d in tensor.dims), *piece)
    return found


class ShardedOptimizer:
    """AdamW, or Muon and AdamW, on this rank's shards, with clipping by the norm of the whole model's gradient.

    tied: for a parameter that lives on two pipeline stages, the group of the ranks that hold the same piece of it.
    published: size of each dim without padding, where it may have some. compiler: compiles norms and updates where the
    device has no kernels for them; None leaves them as they are.
    """

    def __init__(
        self,
        modules: Iterable[StageModule],
        mesh: Mesh,
        groups: MeshGroups | None,
        sums: Sums,
        settings: OptimizerSettings,
        tied: dict[str, Group],
        published: Mapping[str, int] = MappingProxyType({}),
        compiler: Compiler | None = None,
    ):
        self._settings, self._sums = settings, sums
        named: dict[BucketKey, list[tuple[str, nn.Parameter]]] = {}
        modules = tuple(modules)
        for module in modules:
            for tensor in module.program.graph.parameters():
                key = bucket_key(module.program, tensor.name, mesh, frozenset(tied), settings.zero)
                if not key.unit:
                    named.setdefault(key, []).append((tensor.name, module.parameter(tensor.name)))
        whole = [Bucket(key, named[key], Common(mesh, groups, settings)) for key in named]
        sharded = [module.sharded for module in modules if module.sharded is not None]
        self._leaving = [one.leaving for one in sharded]
        apart = [bucket for one in sharded for bucket in one.buckets]
        self.buckets: list[Bucket | ShardedBucket] = sorted([*whole, *apart], key=lambda bucket: bucket.key)
        for module in modules:
            if module.later is not None:
                learned = (b for b in whole if b.key.learned)
                module.later.accumulate = {p: b.gradient(name).add_ for b in learned for name, p in b.named}
        self._tied = [(b.sum_tied(name), tied[name]) for b in self.buckets for name in b.names if name in tied]
        self._summed: list[torch.Tensor] = []
        shapes = piece_shapes(modules, mesh, groups, published) if settings.stochastic_rounding else {}

        def update(bucket: Bucket | ShardedBucket) -> FusedAdamW | RoundedAdamW:
            weights = bucket.master.detach()
            if not settings.stochastic_rounding:
                return FusedAdamW(weights, compiler, settings.moments_dtype)
            return RoundedAdamW(weights, bucket.pieces(shapes), settings.seed, compiler)

        self._muon: Muon | None = None
        if orthogonal := {bucket.key: bucket.master.detach() for bucket in self.buckets if bucket.key.orthogonal}:
            programs = [module.program for module in modules]
            found = exchanges(programs, mesh, frozenset(tied), settings.zero)
            self._muon = Muon(orthogonal, found, programs, published, mesh, groups, settings)
        by_adamw = [bucket.key.learned and not bucket.key.orthogonal for bucket in self.buckets]
        self._updates = [update(one) if own else None for one, own in zip(self.buckets, by_adamw, strict=True)]
        self._squares: list[Callable[[torch.Tensor], torch.Tensor]] = [
            row_squares
            if compiler is None
            else compiler.function("the gradient's norm", row_squares, ("norm", b.master.numel()))
            for b in self.buckets
        ]

    def step(self, learning_rate: float, keep_gradients: bool = False) -> float:
        """Sums and clips gradients, updates and publishes weights, clears gradients; returns the gradient norm before
        clipping.

        keep_gradients: keeps the summed gradients for `gradients()`.
        """
        s = self._settings
        self.finish_backward()
        shards = [bucket.reduce() for bucket in self.buckets]
        self._summed = [shard.clone() for shard in shards] if keep_gradients else []
        norm = self._norm(shards)
        if self.buckets and not computes(self.buckets[0].master.device):
            norm = 0.0
        check_finite("the gradient norm", norm)
        scale = min(1.0, s.max_gradient_norm / (norm + 1e-6))
        orthogonal: dict[BucketKey, torch.Tensor] = {}
        for bucket, shard, update in zip(self.buckets, shards, self._updates, strict=True):
            if not bucket.key.learned:
                continue
            gradient = shard.mul_(scale)
            if update is None:
                orthogonal[bucket.key] = gradient
                continue
            update.step(gradient, learning_rate, s.betas, s.eps, s.weight_decay if bucket.key.decay else 0.0)
        if self._muon is not None:
            self._muon.step(orthogonal, learning_rate)
        for bucket in self.buckets:
            bucket.publish()
            bucket.gradients.zero_()
        return norm

    def finish_backward(self) -> None:
        """Waits for gradients that backward sent, and sums those of a table that two stages share."""
        for leaving in self._leaving:
            leaving.settle()
        for gradient, group in self._tied:
            gradient.copy_(all_reduce(gradient.to(self._settings.reduce_dtype or gradient.dtype), group))

    def gradients(self) -> dict[str, torch.Tensor]:
        """Summed gradients of the last step that kept them, local pieces of what is learned, by name (collective)."""
        pairs = zip(self.buckets, self._summed, strict=True)
        learned = ((bucket, shard) for bucket, shard in pairs if bucket.key.learned)
        return {name: value for bucket, shard in learned for name, value in bucket.by_name(shard).items()}

    def masters(self) -> dict[str, torch.Tensor]:
        """Master weights, local pieces by parameter name (collective)."""
        return {name: value for b in self.buckets for name, value in b.by_name(b.master.detach()).items()}

    def state(self, learned_only: bool = False) -> list[tuple[torch.Tensor, ...]]:
        """This rank's shards of (masters, first moments, second moments) for each bucket, of what Muon updates
        (masters, momentum), of what is not learned (masters,), or () with learned_only: the tensors themselves, not
        copies, but for matrices that are not learned, which checkpoints hold in the dtype of masters."""
        shards: list[tuple[torch.Tensor, ...]] = []
        for bucket, one in zip(self.buckets, self._updates, strict=True):
            if bucket.key.learned:
                shards.append((bucket.master.detach(), *self._moments(bucket, one)))
            else:
                shards.append(() if learned_only else (self._stored(bucket),))
        return shards

    def _moments(
        self, bucket: Bucket | ShardedBucket, update: FusedAdamW | RoundedAdamW | None
    ) -> tuple[torch.Tensor, ...]:
        """The moments of a bucket that is learned. update: AdamW's of it, None where Muon updates it."""
        if update is not None:
            return update.first_moment, update.second_moment
        assert self._muon is not None
        return (self._muon.momentum[bucket.key],)

    def _stored(self, bucket: Bucket | ShardedBucket) -> torch.Tensor:
        weights: torch.Tensor = bucket.master.detach()
        return weights.to(self._settings.master_dtype) if bucket.key.decay else weights

    def sharing_groups(self) -> list[Group | None]:
        """For each shard of `state` the ranks that hold the same shard; None where each rank reads its own."""
        return [bucket.sharing_group for bucket in self.buckets]

    def load_state(self, shards: list[tuple[torch.Tensor, ...]], steps: int) -> None:
        """Continues after `steps` steps from shards that `state` gave then, in any layout (collective)."""
        for bucket, update, (master, *moments) in zip(self.buckets, self._updates, shards, strict=True):
            bucket.master.data.copy_(master)
            if update is not None:
                first, second = moments
                update.load(first, second, steps)
            elif bucket.key.orthogonal:
                self._moments(bucket, update)[0].copy_(moments[0])
            bucket.publish()

    def _norm(self, shards: list[torch.Tensor]) -> float:
        total = self._sums.zero()
        for bucket, shard, squares in zip(self.buckets, shards, self._squares, strict=True):
            if not bucket.key.learned:
                continue
            copies = bucket.key.copies
            if bucket.data_group is not None and bucket.shards == 1:
                copies *= bucket.data_group.size
            total += self._sums.squares(shard, squares) / copies
        return float(self._sums.over_ranks(total).sqrt())
