"""Runs collectives on local tensors along a dim, and redistributions with their autograd duals.

All of them are torch's functional collectives, or operators like them, so that whoever watches the dispatcher sees each
one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from autoshard.backends.native_neuron import has_point_to_point, installed_version, takes_all_to_all
from autoshard.graph.redistribute import Transition
from autoshard.runtime.torch_backend import shm_collectives as direct
from autoshard.runtime.torch_backend.groups import Group, MeshGroups
from autoshard.runtime.torch_backend.shared_memory import PLACE_BYTES

Move = Callable[[torch.Tensor], torch.Tensor]
Started = Callable[[], torch.Tensor]
"""A collective under way; call it when the result is needed, once."""
Lent = Callable[[], AbstractContextManager[torch.Tensor]]
"""A collective under way whose result exists only inside a `with` block."""


def _operators(group: Group) -> Any:
    return torch.ops._c10d_functional if group.direct is None else direct.operators()


def _wait(arriving: torch.Tensor, group: Group) -> torch.Tensor:
    if group.direct is None:
        return torch.ops._c10d_functional.wait_tensor(arriving)
    direct.wait(arriving, group.direct, group.name)
    return arriving


def all_reduce(x: torch.Tensor, group: Group, reduction: str = "sum") -> torch.Tensor:
    """The tensor reduced over the group, on every rank of it. reduction: "sum" or "max"."""
    return _wait(_operators(group).all_reduce(x.contiguous(), reduction, group.name), group)


def start_all_gather(x: torch.Tensor, group: Group, dim: int) -> Started:
    """Starts an all-gather: the pieces of the group's ranks concatenated along dim, in mesh order."""
    # without `out` torch gathers over gloo by way of one more buffer
    out = x.new_empty(group.size * x.shape[0], *x.shape[1:])
    arriving = _operators(group).all_gather_into_tensor_out(x.contiguous(), group.size, group.name, out=out)

    return lambda: _joined(_wait(arriving, group), x.shape, group.size, dim)


def start_lent_all_gather(x: torch.Tensor, group: Group, dim: int) -> Lent:
    """Starts an all-gather whose result is read at once; ranks that share memory read it there, without a copy."""
    if group.direct is None or x.nbytes > PLACE_BYTES:
        whole = start_all_gather(x, group, dim)
        return lambda: nullcontext(whole())
    arriving = direct.operators().all_gather(x.contiguous(), group.size, group.name)
    return partial(_Borrowed, arriving, x.shape, group, dim)


class _Borrowed(AbstractContextManager[torch.Tensor]):
    """The result of a lent all-gather along dim, while the `with` block lasts. shape: of each rank's piece."""

    def __init__(self, arriving: torch.Tensor, shape: torch.Size, group: Group, dim: int):
        self._arriving, self._shape, self._group, self._dim = arriving, shape, group, dim

    def __enter__(self) -> torch.Tensor:
        group, lender = self._group, self._group.direct
        assert lender is not None
        _wait(self._arriving, group)
        return _joined(lender.lent(self._arriving), self._shape, group.size, self._dim)

    def __exit__(self, *raised: object) -> None:
        assert self._group.direct is not None
        self._group.direct.take_back(self._arriving)


def _joined(gathered: torch.Tensor, shape: torch.Size, count: int, dim: int) -> torch.Tensor:
    """The tensor of `count` pieces concatenated along dim. gathered: the pieces, one after the other in memory. shape:
    of one piece."""
    if prod(shape[:dim]) == 1:
        return gathered.view(*shape[:dim], count * shape[dim], *shape[dim + 1 :])
    return torch.cat(gathered.chunk(count, 0), dim)


def start_reduce_scatter(x: torch.Tensor, group: Group, dim: int) -> Started:
    """Starts a sum over the group, of which this rank keeps its piece along dim."""
    shape = list(x.shape)
    shape[dim] //= group.size
    pieces = x if prod(x.shape[:dim]) == 1 else torch.cat(x.chunk(group.size, dim), 0)
    flat = pieces.contiguous().view(group.size * prod(shape[: dim + 1]), *shape[dim + 1 :])
    arriving = _operators(group).reduce_scatter_tensor(flat, "sum", group.size, group.name)
    return lambda: _wait(arriving, group).view(shape)


def all_gather(x: torch.Tensor, group: Group, dim: int) -> torch.Tensor:
    """The pieces of the group's ranks concatenated along dim, in mesh order."""
    return start_all_gather(x, group, dim)()


def reduce_scatter(x: torch.Tensor, group: Group, dim: int) -> torch.Tensor:
    """This rank's piece, along dim, of the sum over the group."""
    return start_reduce_scatter(x, group, dim)()


def all_gather_into(out: torch.Tensor, x: torch.Tensor, group: Group) -> torch.Tensor:
    """Writes the pieces of the group's ranks one after the other into `out` and returns it."""
    return _wait(_operators(group).all_gather_into_tensor_out(x, group.size, group.name, out=out), group)


def all_to_all(x: torch.Tensor, group: Group, gather_dim: int, split_dim: int) -> torch.Tensor:
    """The tensor after an all-to-all: it is no longer split along gather_dim, but along split_dim."""
    size, shape = group.size, list(x.shape)
    shape[split_dim] //= size
    if prod(x.shape[:split_dim]) == 1:
        pieces = x.contiguous().view(size, *shape)  # they lie one after the other as it is
    else:
        pieces = torch.stack(x.chunk(size, split_dim)).contiguous()  # stack keeps an order of strides
    received = _exchanged(pieces, group)
    del pieces
    if prod(shape[:gather_dim]) == 1:
        shape[gather_dim] *= size
        return received.view(shape)
    return torch.cat(received.unbind(0), gather_dim)


def _exchanged(pieces: torch.Tensor, group: Group) -> torch.Tensor:
    """Pieces [size, ...] after each rank has sent its piece r to rank r."""
    if group.is_neuron and not takes_all_to_all(group.size):  # everyone gets all, and takes what is its own
        return all_gather(pieces.unsqueeze(0), group, 0)[:, group.index].contiguous()
    ones = [1] * group.size
    return _wait(_operators(group).all_to_all_single(pieces, ones, ones, group.name), group)


def exchange(x: torch.Tensor, sent: list[int], received: list[int], skipped: list[int], group: Group) -> torch.Tensor:
    """The elements that each rank sends this one, one after the other. x: flat, with those that this one sends.

    sent, received: elements to and from each rank. skipped: elements that each one sends to ranks before this one.
    Neuron's all-to-all is of equal pieces alone: there everyone gets all, and takes what is its own.
    """
    if group.is_neuron:
        rows = all_gather(x, group, 0).view(group.size, -1)
        return torch.cat([row[skip : skip + n] for row, skip, n in zip(rows, skipped, received, strict=True)])
    operators = torch.ops._c10d_functional
    return operators.wait_tensor(operators.all_to_all_single(x, received, sent, group.name))


def pass_on(x: torch.Tensor, group: Group) -> Callable[[], torch.Tensor]:
    """Sends x to the next rank of the group and receives from the one before. Call the result when the received tensor
    is needed.

    It is an all-to-all with one destination: on NCCL a send and a receive, and seen where other collectives are.
    Neuron's all-to-all is of equal pieces alone: there it is a send and a receive, or in versions that have none an
    all-gather.
    """
    if group.is_neuron:
        return _sent_on(x.contiguous(), group)
    sent, received = [0] * group.size, [0] * group.size
    sent[(group.index + 1) % group.size] = received[group.index - 1] = x.numel()
    arriving = _operators(group).all_to_all_single(x.contiguous().flatten(), received, sent, group.name)
    return lambda: _wait(arriving, group).view(x.shape)


def _sent_on(x: torch.Tensor, group: Group) -> Callable[[], torch.Tensor]:
    before, behind = (group.index - 1) % group.size, (group.index + 1) % group.size
    if not has_point_to_point(installed_version()):
        gathering = start_all_gather(x.unsqueeze(0), group, 0)
        return lambda: gathering()[before].contiguous()
    received = torch.empty_like(x)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, x, group.ranks[behind], group.handle),
            dist.P2POp(dist.irecv, received, group.ranks[before], group.handle),
        ]
    )

    def arrived() -> torch.Tensor:
        for work in works:
            work.wait()
        return received

    return arrived


def take_piece(x: torch.Tensor, position: int, count: int, dim: int) -> torch.Tensor:
    """The piece at `position` of `count` equal pieces along dim, as a copy: a view would keep all of x in memory."""
    length = x.shape[dim] // count
    return x.narrow(dim, position * length, length).clone(memory_format=torch.contiguous_format)


def _pad(x: torch.Tensor, position: int, count: int, dim: int) -> torch.Tensor:
    """A whole tensor that is zero except for this rank's piece: the gradient of taking a piece of a replicated
    value."""
    shape = list(x.shape)
    shape[dim] *= count
    whole = x.new_zeros(shape)
    whole.narrow(dim, position * x.shape[dim], x.shape[dim]).copy_(x)
    return whole


def _move(kind: str, groups: MeshGroups, axes: tuple[str, ...], from_dim: int | None, to_dim: int | None) -> Move:
    """A function of the local tensor that stops splitting it along from_dim and starts splitting it along to_dim. kind:
    of the collective."""
    group, position = groups[axes], groups.position(axes)
    match kind:
        case "identity":
            return lambda x: x.view_as(x)
        case "all_reduce":
            return lambda x: all_reduce(x, group)
        case "scale":
            return lambda x: x / group.size
    if kind == "all_to_all":
        assert from_dim is not None and to_dim is not None
        gather_dim, split_dim = from_dim, to_dim
        return lambda x: all_to_all(x, group, gather_dim, split_dim)
    if kind in ("all_gather", "pad"):
        assert from_dim is not None
        dim = from_dim
        if kind == "all_gather":
            return lambda x: all_gather(x, group, dim)
        return lambda x: _pad(x, position, group.size, dim)
    assert to_dim is not None and kind in ("slice", "reduce_scatter"), kind
    dim = to_dim
    if kind == "slice":
        return lambda x: take_piece(x, position, group.size, dim)
    return lambda x: reduce_scatter(x, group, dim)


def transition_moves(transition: Transition, dims: tuple[str, ...], groups: MeshGroups) -> tuple[Move, Move]:
    """(forward, backward) functions of local tensors for one transition; backward is the dual, with the dims
    exchanged."""
    source = None if transition.source_dim is None else dims.index(transition.source_dim)
    target = None if transition.target_dim is None else dims.index(transition.target_dim)
    forward = _move(transition.forward, groups, transition.axes, source, target)
    return forward, _move(transition.backward, groups, transition.axes, target, source)


class Gathering(NamedTuple):
    """An all-gather along dim in forward whose dual is a reduce-scatter, both to be waited for later."""

    group: Group
    dim: int

    @classmethod
    def of(cls, transition: Transition, dims: tuple[str, ...], groups: MeshGroups) -> Gathering:
        """The one of such a transition. dims: of the tensor."""
        assert (transition.forward, transition.backward) == ("all_gather", "reduce_scatter"), transition
        assert transition.source_dim is not None
        return cls(groups[transition.axes], dims.index(transition.source_dim))

    def gather(self, x: torch.Tensor) -> Lent:
        """Starts the all-gather."""
        return start_lent_all_gather(x, self.group, self.dim)

    def scatter(self, x: torch.Tensor, in_pieces: bool = False) -> Started:
        """Starts the reduce-scatter. in_pieces: whether pieces of ranks lie one after the other."""
        return start_reduce_scatter(x, self.group, 0 if in_pieces else self.dim)

    def whole_shape(self, x: torch.Tensor, in_pieces: bool) -> list[int]:
        """The shape of what is gathered of pieces like x. in_pieces: as of `scatter`."""
        shape = list(x.shape)
        shape[0 if in_pieces else self.dim] *= self.group.size
        return shape

    def has_pieces(self, x: torch.Tensor) -> bool:
        """Whether pieces of ranks do not lie one after the other in a whole tensor with these other dims."""
        return prod(x.shape[: self.dim]) > 1


class _Redistribute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: Move, backward: Move) -> torch.Tensor:
        ctx.backward_move = backward
        return forward(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.backward_move(grads[0]), None, None


def differentiable(forward: Move, backward: Move) -> Move:
    """The function `forward` with `backward` as its gradient."""
    return lambda x: _Redistribute.apply(x, forward, backward)


def redistribution(transitions: tuple[Transition, ...], dims: tuple[str, ...], groups: MeshGroups) -> Move:
    """All transitions of a redistribution as one differentiable function of the local tensor. dims: of that tensor."""
    moves = [transition_moves(transition, dims, groups) for transition in transitions]

    def apply(x: torch.Tensor) -> torch.Tensor:
        for forward, backward in moves:
            x = _Redistribute.apply(x, forward, backward)
        return x

    return apply
