"""A part of a stage, such as a block: its seconds by what they are spent on, and its bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from autoshard.cost.backward_release import Moments
from autoshard.cost.orthogonal import MatricesByAxes
from autoshard.rows import Number, largest


@dataclass(frozen=True)
class Seconds:
    """Time of one rank by what it is spent on, over rows. All of it is exposed: nothing in a microbatch hides behind
    anything else."""

    compute: Number = 0.0
    attention: Number = 0.0
    tensor_parallel: Number = 0.0
    context_parallel: Number = 0.0
    expert_parallel: Number = 0.0

    @cached_property
    def total(self) -> Number:
        """Seconds of everything."""
        return self.operators + self.collectives

    @property
    def operators(self) -> Number:
        """Seconds in which the device computes, attention included."""
        return self.compute + self.attention

    @property
    def collectives(self) -> Number:
        """Seconds in which ranks exchange tensors inside a microbatch."""
        return self.tensor_parallel + self.context_parallel + self.expert_parallel

    @property
    def values(self) -> tuple[Number, ...]:
        """The five numbers in the order of the fields."""
        return (self.compute, self.attention, self.tensor_parallel, self.context_parallel, self.expert_parallel)


COMPUTE, ATTENTION, TENSOR, CONTEXT, EXPERT = range(5)
"""Places in Seconds.values."""


def add_up(seconds: Iterable[Seconds]) -> Seconds:
    """The sum, field by field."""
    return Seconds(*map(sum, zip(Seconds().values, *(item.values for item in seconds), strict=True)))


@dataclass(frozen=True)
class Part:
    """One block, the embedding or the head: one microbatch on one rank, over rows.

    recompute: what backward repeats of forward, collectives included; backward is without it.
    kept_bytes: from forward to backward. working_bytes: beyond that at the fullest step of a backward for which nothing
    runs again: gradients and gathered activations, less what was given back before. replay_bytes: beyond both, at the
    fullest step, where something runs again, or where forward needs more. segment_bytes: what the largest segment saves
    that runs again. again_bytes: beyond kept_bytes, what is there more in front of an MLP or of experts than where
    nothing runs again. at_weights_bytes: beyond kept_bytes and the gradients of the operator whose weights have most
    elements, where most is there with those of one operator.
    parameters: elements on one rank, by the axes over which their gradient is summed; matrices: those that are neither
    norms nor biases. num_tensors: how many parameters these are.
    weight_gradients_s: of backward, what a schedule may put off, half of each projection's; weights_waiting_bytes: what
    waits with it; for_weights_bytes: what is there where it does, beside all that kept_bytes, working_bytes and
    replay_bytes say.
    host_s: of forward and of backward with recompute, what the host needs to launch their operators: neither is faster.
    scores_bytes: one copy of all attention scores, where a kernel writes them.
    moments: of a block's backward. quantized: parameters that products read quantised. frozen: further elements, which
    are not trained; frozen_matrices: matrices that are not, by the axes of the ranks that share them under ZeRO-3.
    chunks_loss: whether it ends in a loss in chunks. head_gradients: elements of the head's table, where the losses of
    two modules read it, else 0. orthogonal: matrices that Muon updates.
    """

    forward: Seconds
    recompute: Seconds
    backward: Seconds
    kept_bytes: Number
    replay_bytes: Number
    working_bytes: Number
    parameters: Mapping[tuple[str, ...], float]
    host_s: tuple[Number, Number] = (0.0, 0.0)
    scores_bytes: float = 0.0

    segment_bytes: Number = 0.0
    again_bytes: Number = 0.0
    at_weights_bytes: Number = 0.0
    weight_gradients_s: Number = 0.0
    weights_waiting_bytes: Number = 0.0
    for_weights_bytes: Number = 0.0
    matrices: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    num_tensors: float = 0
    moments: Moments = field(default_factory=Moments)
    quantized: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    frozen: float = 0
    frozen_matrices: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    chunks_loss: bool = False
    head_gradients: float = 0
    orthogonal: MatricesByAxes = field(default_factory=dict)

    @cached_property
    def forward_s(self) -> Number:
        """Seconds of forward: those of the device, or of the host that launches its operators where that is slower."""
        return largest(self.forward.total, self.host_s[0])

    @cached_property
    def backward_s(self) -> Number:
        """Seconds of backward and of what it repeats of forward, or of the host that launches their operators."""
        return largest(self.recompute.total + self.backward.total, self.host_s[1])

    @cached_property
    def all_passes(self) -> Seconds:
        """The sum of forward, recompute and backward."""
        return add_up((self.forward, self.recompute, self.backward))

    @cached_property
    def waiting_s(self) -> Number:
        """Seconds of forward and backward in which the device waits for the host."""
        host_forward_s, host_backward_s = self.host_s
        ahead_s = largest(0.0, host_forward_s - self.forward.total)
        return ahead_s + largest(0.0, host_backward_s - (self.recompute.total + self.backward.total))

    @cached_property
    def num_parameters(self) -> float:
        """Elements of all parameters on one device."""
        return sum(self.parameters.values())
