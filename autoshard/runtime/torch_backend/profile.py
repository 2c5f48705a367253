"""Watches a few steps of a session: when each action ran, and what of it was communication.

Communication of gradients and weights is the optimizer's, also where ZeRO-2 and ZeRO-3 do it inside of an action.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from autoshard.runtime.torch_backend.devices import synchronize
from autoshard.runtime.torch_backend.flat_buffers import ShardedBucket
from autoshard.runtime.torch_backend.onlooker import Onlooker
from autoshard.runtime.torch_backend.session import Session
from autoshard.runtime.torch_backend.shm_collectives import NAMESPACE
from autoshard.runtime.torch_backend.transfers import Sent
from autoshard.schedules import Action

Span = tuple[str, str, float, float]
"""category ('action', 'collective', 'optimizer'), name, start and end in seconds."""


class StepProfiler:
    """Records spans of the steps that run inside `step`. Attached to a session for good: outside it costs nothing much.

    zero_s: the moment on this machine's monotonic clock that counts as 0.
    On a device every span waits for the device, so that what would overlap is shown one after the other.
    """

    def __init__(self, session: Session, zero_s: float) -> None:
        self.spans: list[Span] = []
        self.steps: list[tuple[float, float]] = []
        self._zero_s, self._device = zero_s, session.device
        self._watching = False
        self._purpose: tuple[str, str] | None = None
        self._attach(session)
        with _Collectives(self):  # an older torch imports for seconds at the first operator under it
            torch.empty(0)

    @contextmanager
    def step(self) -> Iterator[None]:
        self._watching = True
        start = self._now_s()
        try:
            with _Collectives(self):
                yield
        finally:
            self._watching = False
        self.steps.append((start, self._now_s()))

    @contextmanager
    def span(self, category: str, name: str) -> Iterator[None]:
        if not self._watching:
            yield
            return
        start = self._now_s()
        yield
        self.spans.append((category, name, start, self._now_s()))

    def collective(self, name: str) -> AbstractContextManager[None]:
        """The span of a collective operator: under the purpose that it is known to serve, else under its own name."""
        return self.span(*(self._purpose or ("collective", name)))

    @contextmanager
    def _serving(self, category: str, name: str) -> Iterator[None]:
        before, self._purpose = self._purpose, (category, name)
        try:
            yield
        finally:
            self._purpose = before

    def _now_s(self) -> float:
        synchronize(self._device)
        return time.monotonic() - self._zero_s

    def _attach(self, session: Session) -> None:
        """Around the methods of this session's own objects; its classes stay as they are."""
        pipeline = session._pipeline
        compute = pipeline.compute

        def watched(action: Action, arrived: list[torch.Tensor]) -> Sent:
            with self.span("action", str(action)):
                return compute(action, arrived)

        pipeline.compute = watched  # type: ignore[method-assign]
        sync, gather = ("optimizer", "gradient sync"), ("optimizer", "parameter gather")
        for bucket in session.optimizer.buckets:
            _wrap(bucket, "reduce", lambda: self.span(*sync))
            _wrap(bucket, "publish", lambda: self.span(*gather))
            if isinstance(bucket, ShardedBucket):  # of these the collectives alone: the rest is work
                _wrap(bucket, "take", lambda: self._serving(*gather))
                _wrap(bucket, "again", lambda: self._serving(*gather))
                _wrap(bucket, "leave", lambda: self._serving(*sync))
        _wrap(session.optimizer, "finish_backward", lambda: self.span(*sync))
        _wrap(session.optimizer, "step", lambda: self.span("optimizer", "optimizer step"))


def _wrap(owner: Any, method: str, context: Callable[[], AbstractContextManager[None]]) -> None:
    """Let a method of one object run within a context, made anew for each call."""
    original: Callable[..., Any] = getattr(owner, method)

    def watched(*args: Any, **kwargs: Any) -> Any:
        with context():
            return original(*args, **kwargs)

    setattr(owner, method, watched)


class _Collectives(Onlooker):
    """Every collective operator, and the wait for it, as a span; there are none in what torch compiles."""

    def __init__(self, profiler: StepProfiler) -> None:
        super().__init__()
        self._profiler = profiler

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        namespace, _, name = func._schema.name.partition("::")
        if namespace not in ("_c10d_functional", NAMESPACE):
            return func(*args, **(kwargs or {}))
        with self._profiler.collective(name):
            return func(*args, **(kwargs or {}))
