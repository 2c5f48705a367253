"""Sends tensors between neighbouring pipeline stages: point to point, or as a broadcast in a group of two.

Native PyTorch for Neuron before release 2.33 has no send and receive (backends/native_neuron.py). A plan for such a
release has a broadcast in their place, in a group for each pair of neighbours and direction: what two ranks send to
each other need not be in one order then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta

import torch
import torch.distributed as dist

from autoshard.graph.partition import Program
from autoshard.graph.redistribute import local_sizes
from autoshard.layout.mesh import Mesh
from autoshard.plans.stage_sections import neighbours
from autoshard.runtime.torch_backend.groups import Group
from autoshard.schedules import Action
from autoshard.spec.traced import HIDDEN

Pair = tuple[int, int]
"""(sender, receiver) as ranks of the whole mesh."""
Sent = tuple[torch.Tensor, ...]
"""What a stage sends to a neighbour: hidden activations, and an indexer's choice where the next stage sees it, too; or
a gradient."""
Arriving = Callable[[], Sent]
"""Waits for what is received, and returns it."""


class Transfers:
    """This rank's ways to its neighbours along the pipeline. pairs: its own groups of two; None: it sends point to
    point."""

    def __init__(self, pipeline: Group, pairs: dict[Pair, dist.ProcessGroup] | None):
        self.pipeline, self._pairs = pipeline, pairs
        self._sending: dict[Action, list[dist.Work]] = {}

    def send(self, tensors: Sent, to: int, made_by: Action) -> None:
        """Starts to send; `settle` waits for all that was sent. to: a rank of the whole mesh. made_by: the action of
        this rank that made the tensors."""
        mine = self.pipeline.ranks[self.pipeline.index]
        # each holds its tensor as long as it needs it
        self._sending[made_by] = [self._begun(tensor.detach().contiguous(), mine, to) for tensor in tensors]

    def receive(self, into: Sent, sender: int) -> Arriving:
        """Starts to receive from a rank of the whole mesh."""
        mine = self.pipeline.ranks[self.pipeline.index]
        works = [self._begun(tensor, sender, mine) for tensor in into]

        def arrived() -> Sent:
            for work in works:
                work.wait()
            return into

        return arrived

    def _begun(self, x: torch.Tensor, sender: int, receiver: int) -> dist.Work:
        """The transfer of one tensor between two ranks of the whole mesh, of which this one is one."""
        work: dist.Work | None
        if self._pairs is not None:
            work = dist.broadcast(x, src=sender, group=self._pairs[sender, receiver], async_op=True)
        elif sender == self.pipeline.ranks[self.pipeline.index]:
            work = dist.isend(x, dst=receiver, group=self.pipeline.handle)
        else:
            work = dist.irecv(x, src=sender, group=self.pipeline.handle)
        assert work is not None
        return work

    def let_go(self, received: Iterable[Action] = ()) -> None:
        """Lets go of all that is known to be sent by now. received: actions whose outputs have been received: gloo does
        not say so before it is waited for, and NCCL not before the device has come so far."""
        for action in received:
            self._wait_for(action)
        self._sending = {
            action: works for action, works in self._sending.items() if not all(work.is_completed() for work in works)
        }

    def settle(self) -> None:
        """Waits until everything is sent."""
        for action in tuple(self._sending):
            self._wait_for(action)

    def _wait_for(self, action: Action) -> None:
        for work in self._sending.pop(action, ()):
            work.wait()


def room_for(program: Program, forward: bool, dtype: torch.dtype, device: torch.device) -> Sent:
    """Empty tensors like what a rank of a stage with this program sends: forward, to the next stage; else like the
    gradient that comes back from there. dtype: of hidden activations."""

    def room(view: str) -> torch.Tensor:
        tensor = program.tensor(view)
        sizes = local_sizes(program.graph, tensor.dims, program.states[view], program.axes)
        return torch.empty(sizes, dtype=dtype if tensor.differentiable else torch.bool, device=device)

    return tuple(room(view) for view in program.outputs if forward or program.tensor(view).differentiable)


def received_inputs(program: Program, received: Sent) -> dict[str, torch.Tensor]:
    """Inputs of a stage by name, which the stage before, with this program, has sent."""
    hidden, *others = received
    names = (program.tensor(view).name for view in program.outputs[1:])
    return {HIDDEN: hidden, **dict(zip(names, others, strict=True))}


def pair_groups(mesh: Mesh, rank: int, wraps: bool, timeout: timedelta | None) -> dict[Pair, dist.ProcessGroup]:
    """The groups of two that this rank sends and receives in; every rank creates all of them in one order (collective).

    wraps: whether the last pipeline rank sends to the first, where ranks have several stages.
    """
    found: dict[Pair, dist.ProcessGroup] = {}
    for ranks in mesh.groups(("pp",)):
        for pair in neighbours(ranks, wraps):
            handle = dist.new_group(sorted(pair), timeout=timeout)
            if rank in pair:
                found[pair] = handle
    return found
