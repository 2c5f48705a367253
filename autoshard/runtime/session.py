"""Protocols of a backend for the trainer and the audit: one for the session of a rank, one for its module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from autoshard.graph.partition import Program, Step
from autoshard.plans.plan import Plan, Stage
from autoshard.runtime.worker import Reporter
from autoshard.runtime.worker_arguments import TrainArguments

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from autoshard.checkpoint.layout import Shard
    from autoshard.runtime.torch_backend.optimizer_settings import OptimizerSettings

Tokens = npt.NDArray[np.int64]
Span = tuple[str, str, float, float]
"""category ('action', 'collective', 'optimizer'), name, start and end in seconds."""


@dataclass(frozen=True)
class StepResult:
    """The losses and the gradient of one step.

    loss: mean over all learned tokens of the step, and what routers' losses add. gradient_norm: of the whole model,
    before clipping.
    """

    loss: float
    gradient_norm: float


class SharingGroup(Protocol):
    """Ranks that hold the same shard. index: this rank's place among ranks."""

    @property
    def handle(self) -> dist.ProcessGroup: ...
    @property
    def ranks(self) -> Sequence[int]: ...
    @property
    def index(self) -> int: ...


class Bucket(Protocol):
    """One shard. master: this rank's master weights, flat and in place. publish: give them to every rank."""

    @property
    def master(self) -> torch.Tensor: ...
    @property
    def publish(self) -> Callable[[], None]: ...


class Optimizer(Protocol):
    """The optimizer of one rank: shards of the parameters of its stages, and their state."""

    @property
    def buckets(self) -> Sequence[Bucket]:
        """The shards in the order of `Session.shards`."""

    def gradients(self) -> dict[str, torch.Tensor]:
        """By name this rank's pieces of the last step's gradients, where that step kept them."""

    def masters(self) -> dict[str, torch.Tensor]:
        """By name this rank's pieces of the master weights."""

    def state(self, learned_only: bool = False) -> Sequence[tuple[torch.Tensor, ...]]:
        """For each shard of `Session.shards`, in order: master weights and moments. learned_only: nothing for those
        that are not learned."""

    def sharing_groups(self) -> Sequence[SharingGroup | None]:
        """For each shard the ranks that hold the same one; None where nobody else does."""

    def load_state(self, shards: list[tuple[torch.Tensor, ...]], steps: int) -> None:
        """The inverse of `state`, after so many steps."""


class Held(Protocol):
    """A rank's part of a virtual stage. program: the program whose parameters it holds."""

    @property
    def program(self) -> Program: ...


class Compiles(Protocol):
    """A compiler of a session's stages. size: how much it compiles, in words. compile_time_s: time spent so far."""

    @property
    def size(self) -> str: ...
    @property
    def compile_time_s(self) -> float: ...
    def to_dict(self) -> dict[str, Any]: ...


class Profiler(Protocol):
    """Watches the steps that run inside `step`: their starts and ends, and spans of what was done in them."""

    @property
    def spans(self) -> Sequence[Span]: ...
    @property
    def steps(self) -> Sequence[tuple[float, float]]: ...
    def step(self) -> AbstractContextManager[None]: ...


class Probe(Protocol):
    """A view of a session for an audit. Each value is as of the moment it is read.

    parameter_elements: of all buffers of weights. parameters, gradients: those buffers. optimizer_tensors: everything
    that the optimizer holds, these too. orders: by pipeline rank the actions of a step, such as 'F3.1'.
    """

    @property
    def parameter_elements(self) -> int: ...
    @property
    def parameters(self) -> Sequence[torch.Tensor]: ...
    @property
    def gradients(self) -> Sequence[torch.Tensor]: ...
    @property
    def optimizer_tensors(self) -> Sequence[torch.Tensor]: ...
    @property
    def orders(self) -> Sequence[Sequence[str]]: ...

    def watch(self, watched: Callable[[Step, Callable[..., Any]], Callable[..., Any]]) -> None:
        """Run each step of the session's programs as watched(step, run) instead of as run; for good."""


class Session(Protocol):
    """One rank of a planned run.

    label: what the caller is doing, such as "step 3", for error messages. steps_done: of the whole training.
    repairs: what is done about a library's mistakes, in sentences. compiler: None where nothing is compiled.
    stages, modules: what this rank holds. control: where, and among whom, ranks tell each other small things.
    """

    label: str
    steps_done: int

    @property
    def plan(self) -> Plan: ...
    @property
    def rank(self) -> int: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def stages(self) -> tuple[Stage, ...]: ...
    @property
    def modules(self) -> Mapping[int, Held]: ...
    @property
    def optimizer(self) -> Optimizer: ...
    @property
    def repairs(self) -> Sequence[str]: ...
    @property
    def compiler(self) -> Compiles | None: ...
    @property
    def control(self) -> tuple[torch.device, dist.ProcessGroup | None]: ...

    def step(
        self,
        inputs: Tokens,
        labels: Tokens,
        learning_rate: float,
        keep_gradients: bool = False,
        starts: Tokens | None = None,
    ) -> StepResult:
        """One optimizer step on a global batch: arrays [global_batch, seq], the same on every rank."""

    def evaluate(self, inputs: Tokens, labels: Tokens, starts: Tokens | None = None) -> float:
        """Mean loss over the learned tokens of a global batch; nothing is learned from it."""

    def probe(self) -> Probe | None:
        """The session's view for an audit; None where the backend's program cannot be watched."""

    def shards(self) -> tuple[Shard, ...]:
        """The shards whose values `optimizer.state` gives, in its order, as boxes of the whole parameters."""

    def is_first_holder(self, program: Program, name: str) -> bool:
        """Whether this rank is the first of those that hold this piece of a parameter."""


class Runtime(Protocol):
    """The module that a Backend names: how its ranks get a device, meet, and open their sessions."""

    def device_of(self, plan: Plan, asked: str, is_rehearsal: bool, local_rank: int) -> torch.device:
        """The device on which the rank computes.

        asked: a name in DEVICES of options.py. is_rehearsal: the ranks share this machine. local_rank: of this machine.
        Raises AutoshardError where this machine, or the plan, has nothing for `asked`.
        """

    def import_early(self, compiles: bool) -> None:
        """Import what takes seconds: until a rank's first action silence is no hang."""

    def connect(self, device: torch.device, timeout: timedelta, reporter: Reporter) -> None:
        """Meet the other ranks."""

    def open_session(
        self,
        plan: Plan,
        rank: int,
        device: torch.device,
        settings: OptimizerSettings,
        arguments: TrainArguments,
        timeout: timedelta,
        on_action: Callable[[str], None],
    ) -> Session:
        """The session of the rank; on_action: told what it is about to do. Collective."""

    def profiler(self, session: Any, zero_s: float) -> Profiler:
        """For a session of `open_session`; zero_s: the moment of the monotonic clock that counts as 0."""
