"""Watches a few steps of a session: when each action ran, and what of it was communication."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autoshard.runtime.torch_backend.devices import synchronize
from autoshard.runtime.torch_backend.session import Session
from autoshard.runtime.torch_backend.shm_collectives import NAMESPACE
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
        self._attach(session)

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

    def _now_s(self) -> float:
        synchronize(self._device)
        return time.monotonic() - self._zero_s

    def _attach(self, session: Session) -> None:
        """Around the methods of this session's own objects; its classes stay as they are."""
        pipeline = session._pipeline
        compute = pipeline.compute

        def watched(action: Action, arrived: torch.Tensor | None) -> torch.Tensor | None:
            with self.span("action", str(action)):
                return compute(action, arrived)

        pipeline.compute = watched  # type: ignore[method-assign]
        for bucket in session.optimizer.buckets:
            self._wrap(bucket, "reduce", "optimizer", "gradient sync")
            self._wrap(bucket, "publish", "optimizer", "parameter gather")
        self._wrap(session.optimizer, "step", "optimizer", "optimizer step")

    def _wrap(self, owner: Any, method: str, category: str, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, method)

        def watched(*args: Any, **kwargs: Any) -> Any:
            with self.span(category, name):
                return original(*args, **kwargs)

        setattr(owner, method, watched)


class _Collectives(TorchDispatchMode):
    """Every collective operator, and the wait for it, as a span."""

    def __init__(self, profiler: StepProfiler) -> None:
        super().__init__()
        self._profiler = profiler

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """torch compiles what runs under it all the same: there are no collectives in that."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        namespace, _, name = func._schema.name.partition("::")
        if namespace not in ("_c10d_functional", NAMESPACE):
            return func(*args, **(kwargs or {}))
        with self._profiler.span("collective", name):
            return func(*args, **(kwargs or {}))
