"""Runs Muon on this rank's shards: momentum of each element, and an orthogonal update of each whole matrix.

The numbers are those of torch.optim.Muon with adjust_lr_fn="match_rms_adamw", so that learning rates and weight decay
of AdamW serve. Matrices are whole on one rank alone (layout/orthogonal.py), which orthogonalises those of a size
together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from math import prod, sqrt
from typing import NamedTuple

import torch

from autoshard.graph.orthogonal import NEWTON_SCHULZ_STEPS, matrix_dims
from autoshard.graph.partition import Program
from autoshard.layout.buckets import BucketKey
from autoshard.layout.mesh import Mesh
from autoshard.layout.orthogonal import Exchange, Matrices, Run, local_sizes, split_axes
from autoshard.runtime.torch_backend.collectives import exchange
from autoshard.runtime.torch_backend.groups import MeshGroups
from autoshard.runtime.torch_backend.optimizer_settings import OptimizerSettings
from autoshard.runtime.torch_backend.parameters import piece_of
from autoshard.runtime.torch_backend.parts import parts

MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the polynomial of each iteration: those of torch.optim.Muon."""
SMALLEST_NORM = 1e-7
RMS_OF_ADAMW = 0.2
"""What an update of AdamW has as its root mean square, about; one of Muon is scaled to it [arXiv 2502.16982]."""
TOGETHER = 2**24
"""Elements of matrices that are orthogonalised as one batch, unless one of them has more: a guess."""


Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Starts and lengths along each dim."""


class _Layout(NamedTuple):
    """The matrices of a parameter that have one owner, as ranks have them together. shape: by dim of the parameter.
    parts: box of each rank that has another part of them. scale: of the learning rate."""

    shape: tuple[int, ...]
    parts: tuple[Box, ...]
    scale: float

    def part(self, whole: torch.Tensor, split: int) -> torch.Tensor:
        """The view of a part in whole matrices of this shape. split: its place."""
        starts, lengths = self.parts[split]
        return whole[tuple(slice(start, start + size) for start, size in zip(starts, lengths, strict=True))]


class Muon:
    """Muon and its momentum for the buckets of a rank that it updates.

    weights: master weights of each bucket, this rank's shard. programs: those that it runs, which have the parameters.
    published: sizes of dims without padding, where they may have some. momentum: of each bucket, as weights.
    """

    def __init__(
        self,
        weights: Mapping[BucketKey, torch.Tensor],
        found: Sequence[Exchange],
        programs: Sequence[Program],
        published: Mapping[str, int],
        mesh: Mesh,
        groups: MeshGroups | None,
        settings: OptimizerSettings,
    ):
        self._weights, self._decay = weights, settings.weight_decay
        dtype = settings.moments_dtype
        self.momentum = {key: torch.zeros_like(shard, dtype=dtype) for key, shard in weights.items()}
        by_name = {tensor.name: program for program in programs for tensor in program.graph.parameters()}
        nothing = next(iter(weights.values())).new_empty(0, dtype=settings.orthogonal_dtype)
        self._exchanges = [_Exchange(one, by_name, published, mesh, groups, nothing) for one in found]

    @torch.no_grad()
    def step(self, gradients: Mapping[BucketKey, torch.Tensor], learning_rate: float) -> None:
        """Updates the weights in place. gradients: of each bucket's shard, summed and clipped; they are overwritten."""
        for key, gradient in gradients.items():
            for part in parts(gradient, self.momentum[key], self._weights[key]):
                _nesterov(*part)
            self._weights[key].mul_(1 - learning_rate * self._decay)
        for one in self._exchanges:
            one.update(gradients, self._weights, learning_rate)


def _nesterov(gradient: torch.Tensor, momentum: torch.Tensor, weights: torch.Tensor) -> None:
    """Adds a gradient to the momentum, and becomes the update that looks ahead; both in the dtype of the weights."""
    ahead, kept = gradient.to(weights.dtype), momentum.to(weights.dtype)
    kept.lerp_(ahead, 1 - MOMENTUM)
    ahead.lerp_(kept, MOMENTUM)
    for place, value in ((momentum, kept), (gradient, ahead)):
        if value is not place:
            place.copy_(value)


class _Own(NamedTuple):
    """Elements of matrices that this rank has in its shard of a bucket, of one parameter."""

    key: BucketKey
    name: str
    run: Run

    def of(self, shards: Mapping[BucketKey, torch.Tensor]) -> torch.Tensor:
        """The view of them in the shard of their bucket."""
        return shards[self.key][self.run.start : self.run.start + self.run.elements]


class _Exchange:
    """One exchange as this rank takes part in it. nothing: a tensor without elements, in the dtype of updates."""

    def __init__(
        self,
        found: Exchange,
        programs: Mapping[str, Program],
        published: Mapping[str, int],
        mesh: Mesh,
        groups: MeshGroups | None,
        nothing: torch.Tensor,
    ):
        members, self._nothing = found.members(mesh), nothing
        self._group = groups[found.axes] if groups is not None and found.axes else None
        self._place = 0 if self._group is None else self._group.index
        sharer, _ = members[self._place]
        every = [(owner, one) for owner, owned in found.matrices.items() for one in owned]
        own = ((owner, _Own(one.key, one.name, one.run(sharer))) for owner, one in every)
        self._own = [(owner, one) for owner, one in own if one.run.elements]
        self._owned = found.matrices.get(self._place, ())
        self._sizes = [[one.run(sharer).elements for one in self._owned] for sharer, _ in members]
        names = {one.name: one for _, one in every}
        self._layouts = {name: _layout(one, programs[name], published, mesh) for name, one in names.items()}
        self._holders: list[list[int]] = [[] for _ in range(mesh.size(found.split_axes))]
        for rank, (_, split) in enumerate(members):
            self._holders[split].append(rank)
        sent, received = found.sent(sharer), [*map(sum, self._sizes)]
        before, back_before = _skipped(found, members, self._place)
        self._there = _Sizes(sent, received, found.most_sent - sum(sent), before)
        self._back = _Sizes(received, sent, found.most_owned - sum(received), back_before)

    def update(
        self,
        updates: Mapping[BucketKey, torch.Tensor],
        weights: Mapping[BucketKey, torch.Tensor],
        learning_rate: float,
    ) -> None:
        """Adds the orthogonal updates to this rank's elements of the matrices. updates, weights: of each bucket's
        shard; the former are not orthogonal."""
        dtype = self._nothing.dtype
        arrived = self._moved([(owner, one.of(updates).to(dtype)) for owner, one in self._own], self._there)
        made = self._moved(self._orthogonalised(arrived), self._back)
        places = Counter[int]()
        for owner, one in self._own:
            start = places[owner]
            places[owner] += one.run.elements
            scale = self._layouts[one.name].scale
            one.of(weights).add_(made[owner][start : places[owner]], alpha=-learning_rate * scale)

    def _moved(self, pieces: list[tuple[int, torch.Tensor]], sizes: _Sizes) -> dict[int, torch.Tensor]:
        """The elements that came from each rank, of those that sent some. pieces: flat, with the rank that each is for,
        in their order; they are given up."""
        place, padding = self._place, self._nothing.new_zeros(sizes.padding)
        behind = sum(rank <= place for rank, _ in pieces)
        padded = torch.cat([*(one for _, one in pieces[:behind]), padding, *(one for _, one in pieces[behind:])])
        pieces.clear()
        if self._group is None:
            return {0: padded}
        sent, received = [*sizes.to], [*sizes.come]
        sent[place] += sizes.padding
        received[place] += sizes.padding
        came = exchange(padded, sent, received, sizes.skipped, self._group).split(received)
        return {rank: came[rank][:count] for rank, count in enumerate(sizes.come) if count}

    def _orthogonalised(self, arrived: dict[int, torch.Tensor]) -> list[tuple[int, torch.Tensor]]:
        """The updates of all parts of this rank's matrices, with the ranks that have them, in the order of those.
        arrived: as of `_moved`; it is given up."""
        pieces = {rank: values.split(self._sizes[rank]) for rank, values in arrived.items()}
        arrived.clear()
        wholes = [self._whole(place, pieces) for place in range(len(self._owned))]
        pieces.clear()
        for places in alike(self._owned):
            for place, one in zip(places, _together([wholes[place] for place in places]), strict=True):
                wholes[place] = one  # the matrices before are gone when parts are copied
        parts = [part for place, whole in enumerate(wholes) for part in self._parts(place, whole)]
        return sorted(parts, key=lambda part: part[0])

    def _whole(self, place: int, pieces: Mapping[int, Sequence[torch.Tensor]]) -> torch.Tensor:
        """Matrices [several, rows, columns] of which ranks have sent pieces. place: among this rank's own."""
        one, layout = self._owned[place], self._layouts[self._owned[place].name]
        whole = self._nothing.new_empty(layout.shape)
        for split, holders in enumerate(self._holders):
            held = [pieces[rank][place] for rank in holders if rank in pieces]
            flat = held[0] if len(held) == 1 else torch.cat(held)
            layout.part(whole, split).copy_(flat.view(layout.parts[split][1]))
        return whole.view(one.sizes)

    def _parts(self, place: int, whole: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
        """Yields the inverse of `_whole`: each rank with its piece."""
        layout = self._layouts[self._owned[place].name]
        for split, holders in enumerate(self._holders):
            flat = layout.part(whole.view(layout.shape), split).reshape(-1)
            for rank, piece in zip(holders, flat.split([self._sizes[rank][place] for rank in holders]), strict=True):
                if piece.numel():
                    yield rank, piece


class _Sizes(NamedTuple):
    """Elements that a rank sends to each and gets from each; padding that it sends itself besides, so that all ranks
    send as many; and elements that each one sends to ranks before this one."""

    to: list[int]
    come: list[int]
    padding: int
    skipped: list[int]


def _skipped(found: Exchange, members: Sequence[tuple[int, int]], place: int) -> tuple[list[int], list[int]]:
    """Elements that each rank sends, padding included, to ranks before the one at a place: there, and back."""
    sent, before = Counter[int](), Counter[int]()  # by the place of a rank among those that share a bucket
    back, owned = Counter[int](), Counter[int]()  # by owner
    in_front = Counter(sharer for sharer, _ in members[:place])
    for owner, matrices in found.matrices.items():
        for one in matrices:
            owned[owner] += prod(one.sizes)
            for sharer in one.sharers:
                elements = one.run(sharer).elements
                sent[sharer] += elements
                before[sharer] += elements * (owner < place)
                back[owner] += elements * in_front[sharer]
    ranks = [*enumerate(members)]
    there = [before[sharer] + (found.most_sent - sent[sharer]) * (rank < place) for rank, (sharer, _) in ranks]
    return there, [back[rank] + (found.most_owned - owned[rank]) * (rank < place) for rank, _ in ranks]


def _layout(one: Matrices, program: Program, published: Mapping[str, int], mesh: Mesh) -> _Layout:
    """How a parameter's matrices of one owner lie in the parts that ranks have of them."""
    graph, axes = program.graph, split_axes(program, one.name)
    dims, sizes = matrix_dims(graph, one.name), local_sizes(program, one.name)
    names = graph.tensors[one.name].dims
    if one.sizes[0] == 1:
        sizes.update(dict.fromkeys(dims.several, 1))
    shape = tuple(sizes[dim] for dim in names)
    entries = zip(program.axes, program.states[one.name], strict=True)
    state = tuple(entry if axis in axes else "I" for axis, entry in entries)
    indices = (_index(mesh, axes, split) for split in range(mesh.size(axes)))
    parts = tuple(piece_of(shape, names, state, mesh, index) for index in indices)
    _, rows, columns = dims.sizes({dim: published.get(dim, graph.sizes[dim]) for dim in names})
    return _Layout(shape, parts, RMS_OF_ADAMW * sqrt(max(rows, columns)))


def _index(mesh: Mesh, axes: Sequence[str], place: int) -> dict[str, int]:
    """The coordinates at a place along these axes taken together, 0 along all others."""
    index = {axis.name: 0 for axis in mesh.axes}
    for axis in reversed([axis for axis in mesh.axes if axis.name in axes]):
        place, index[axis.name] = divmod(place, axis.size)
    return index


def alike(owned: Sequence[Matrices]) -> list[list[int]]:
    """Places of matrices of one size, as many as are orthogonalised together."""
    in_order = sorted(range(len(owned)), key=lambda place: owned[place].sizes[1:])
    found: list[list[int]] = []
    for _, same in groupby(in_order, key=lambda place: owned[place].sizes[1:]):
        elements = 0
        for place in same:
            several, rows, columns = owned[place].sizes
            size = several * rows * columns
            if not elements or elements + size > TOGETHER:
                found.append([])
                elements = 0
            found[-1].append(place)
            elements += size
    return found


def _together(several: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """`orthogonalised` of matrices of one size, as one batch."""
    made = orthogonalised(several[0] if len(several) == 1 else torch.cat(several))
    return made.split([one.shape[0] for one in several])


def orthogonalised(matrices: torch.Tensor) -> torch.Tensor:
    """Matrices [several, rows, columns] with all singular values near 1, by Newton-Schulz iterations in their dtype.

    As torch.optim.Muon: the values come out between about 0.7 and 1.2, which serves as well as 1.
    """
    a, b, c = COEFFICIENTS
    x = matrices.mT if matrices.shape[1] > matrices.shape[2] else matrices
    x = x / x.flatten(1).norm(dim=1).clamp(min=SMALLEST_NORM)[:, None, None]
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if matrices.shape[1] > matrices.shape[2] else x
