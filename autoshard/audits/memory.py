"""Whose bytes are held at the fullest moment of a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from autoshard.audits.memory_log import Allocation, MemoryLog, storages
from autoshard.audits.recorder import Recorder
from autoshard.audits.values import MEMORY_KINDS
from autoshard.runtime.torch_backend.session import Session


def state_allocations(session: Session, log: MemoryLog) -> dict[str, set[int]]:
    """Identities of the allocations that the optimizer holds, by kind."""
    parameters = storages(log, [bucket.parameters for bucket in session.optimizer.buckets])
    gradients = storages(log, [bucket.gradients for bucket in session.optimizer.buckets])
    everything = storages(log, _tensors(session.optimizer))
    return {
        "parameters": parameters,
        "gradients": gradients,
        "optimizer state": everything - parameters - gradients,
    }


def _tensors(value: object) -> Iterator[torch.Tensor]:
    """Those that an object of the runtime holds, directly or through others."""
    left, seen = [value], set()
    while left:
        one = left.pop()
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, torch.optim.Optimizer):
            left += [*one.state.keys(), *one.state.values()]
        elif isinstance(one, Mapping):
            left += one.values()
        elif isinstance(one, (list, tuple, set)):
            left += one
        elif type(one).__module__.startswith("autoshard.runtime") and id(one) not in seen:
            seen.add(id(one))
            left += vars(one).values()


def peak(recorder: Recorder, state: dict[str, set[int]], ready: int) -> tuple[dict[str, int], str]:
    """(bytes by kind at the fullest moment, that moment). ready: the last event before the step."""
    log, actions = recorder.memory, recorder.actions
    moment, _ = log.peak(ready + 1, log.events + 1)
    current = max((i for i, action in enumerate(actions) if action.first_event <= moment), default=0)
    start = actions[current].first_event - 1
    kinds = {identity: kind for kind, ids in state.items() for identity in ids}
    held = dict.fromkeys(MEMORY_KINDS, 0)
    operator = ""
    for one in log.allocations:
        if one.lives(moment):
            held[kinds.get(id(one)) or _kind(one, ready, start)] += one.size
        if one.birth == moment:
            operator = one.operator
    return held, f"{actions[current].text}, {operator or 'between operators'}"


def _kind(one: Allocation, ready: int, start: int) -> str:
    """start: the last event before the action at the peak. What outlives the actions between is kept for a backward,
    unless it is a gradient or an activation that came from another rank and waits to be read."""
    if one.birth > ready and one.action < 0:
        return "working" if one.received else "token ids and labels"
    if one.birth <= ready or one.death is None:
        return "tables"
    waits = one.received and (one.read_at is None or one.read_at > start)
    return "kept activations" if one.birth <= start and not waits else "working"
