"""The values that kernels know beside their inputs: the program, this rank's place in its mesh, sequence positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from autoshard.graph.ir import Graph
from autoshard.graph.partition import OperatorStep, Program
from autoshard.runtime.torch_backend.document_mask import DocumentMasks
from autoshard.runtime.torch_backend.groups import Group, MeshGroups
from autoshard.runtime.torch_backend.router_loss import RouterLosses
from autoshard.runtime.torch_backend.weight_gradients import WeightGradients

Kernel = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Context:
    """The program and this rank's place in its mesh.

    groups: None on one device. later: where backward leaves gradients of weights for the schedule; None where it
    computes them at once. tables: constants that operators of all stages of a rank share, made by the first that needs
    them. router_losses: where routers leave their losses. document_masks: masks of microbatches, shared by blocks.
    """

    program: Program
    groups: MeshGroups | None
    later: WeightGradients | None = None
    tables: dict[Any, torch.Tensor] = field(default_factory=dict)
    router_losses: RouterLosses = field(default_factory=RouterLosses)
    document_masks: DocumentMasks = field(default_factory=DocumentMasks)

    @property
    def graph(self) -> Graph:
        return self.program.graph

    @property
    def weights_apart(self) -> bool:
        """Whether backward leaves gradients of weights for the schedule."""
        return self.later is not None

    def piece(self, step: OperatorStep, dim: str) -> tuple[int, int]:
        """(position, count) of this rank's piece of a loop dim while the operator runs."""
        axes = tuple(axis for axis in self.program.axes if step.choice.get(axis) == dim)
        if not axes:
            return 0, 1
        assert self.groups is not None
        return self.groups.position(axes), self.groups.mesh.size(axes)

    def group(self, step: OperatorStep, dim: str) -> Group | None:
        axes = tuple(axis for axis in self.program.axes if step.choice.get(axis) == dim)
        return self.groups[axes] if axes and self.groups is not None else None

    def is_first(self, step: OperatorStep, choice: str) -> bool:
        """Whether this rank is the first of those that the operator runs on with this choice; true without such."""
        return self.piece(step, choice)[0] == 0

    def positions(self, step: OperatorStep) -> torch.Tensor:
        """Positions in the original sequence of this rank's part of the dim `seq`, [seq]."""
        position, count = self.piece(step, "seq")
        seq = self.graph.sizes["seq"]
        pieces: Any = step.operator.attributes.get("sequence_pieces")
        return in_pieces(seq, pieces).chunk(count)[position]

    def place(self, step: OperatorStep, number: int) -> int:
        """The position in the original sequence of one element of this rank's part of the dim `seq`, as a number: where
        somebody asks for sizes alone, tensors have no values, and some sizes depend on it."""
        position, count = self.piece(step, "seq")
        pieces: Any = step.operator.attributes.get("sequence_pieces")
        in_order: Any = range(count) if pieces is None else pieces
        length = self.graph.sizes["seq"] // len(in_order)
        piece = in_order[position * (len(in_order) // count) + number // length]
        return int(piece * length + number % length)

    def logarithms(self, step: OperatorStep) -> Kernel:
        """A function from a tensor, and from where the documents of its rows begin [batch, row] if they are told apart,
        to the logarithms of its places, the first of which is 1: [batch or 1, seq], FP32 at least. They are computed in
        FP32, as transformers does."""
        places = self.positions(step) + 1
        pieces = step.operator.attributes.get("sequence_pieces")
        key = ("log_scale", self.piece(step, "seq"), self.graph.sizes["seq"], pieces)

        def run(like: torch.Tensor, starts: torch.Tensor | None = None) -> torch.Tensor:
            dtype = torch.promote_types(like.dtype, torch.float32)
            if starts is not None:
                here = places.to(starts.device)
                return (here - starts[:, here - 1]).float().log().to(dtype)
            place = (*key, dtype, like.device)
            if place not in self.tables:
                self.tables[place] = places.float().log().to(device=like.device, dtype=dtype).unsqueeze(0)
            return self.tables[place]

        return run

    def dims(self, tensor: str) -> tuple[str, ...]:
        return self.graph.tensors[tensor].dims


def in_pieces(seq: int, pieces: tuple[int, ...] | None) -> torch.Tensor:
    """Positions 0 .. seq - 1, equal pieces in the given order."""
    positions = torch.arange(seq)
    return positions if pieces is None else positions.view(len(pieces), -1)[list(pieces)].flatten()
