"""Whose bytes are held at the fullest moment of a step."""

from __future__ import annotations

from autoshard.audits.memory_log import Allocation, MemoryLog, storages
from autoshard.audits.recorder import SYNC, Recorder
from autoshard.audits.values import MEMORY_KINDS
from autoshard.runtime.session import Probe


def state_allocations(probe: Probe, log: MemoryLog) -> dict[str, set[int]]:
    """Identities of the allocations that the optimizer holds, by kind."""
    parameters = storages(log, probe.parameters)
    gradients = storages(log, probe.gradients)
    everything = storages(log, probe.optimizer_tensors)
    return {
        "parameters": parameters,
        "gradients": gradients,
        "optimizer state": everything - parameters - gradients,
    }


def peak(recorder: Recorder, state: dict[str, set[int]], ready: int, more: int = 0) -> tuple[dict[str, int], str]:
    """(bytes by kind at the fullest moment, that moment). ready: the last event before the step.

    more: bytes of further microbatches that would be kept during all actions, and are gone at the end of the step.
    """
    log, actions = recorder.memory, recorder.actions
    end = next((action.first_event for action in actions if action.text == SYNC), log.events + 1)
    levels = log.levels(ready + 1, log.events + 1)
    moment, _ = max(levels, key=lambda level: level[1] + more * (level[0] < end), default=(ready + 1, 0))
    current = max((i for i, action in enumerate(actions) if action.first_event <= moment), default=0)
    start = actions[current].first_event - 1
    kinds = {identity: kind for kind, ids in state.items() for identity in ids}
    held = dict.fromkeys(MEMORY_KINDS, 0)
    operator = ""
    for allocation in log.allocations:
        if allocation.lives(moment):
            held[kinds.get(id(allocation)) or _kind(allocation, ready, start)] += allocation.size
        if allocation.birth == moment:
            operator = allocation.operator
    held["kept activations"] += more * (moment < end)
    return held, f"{actions[current].text}, {operator or 'between operators'}"


def _kind(one: Allocation, ready: int, start: int) -> str:
    """Which of MEMORY_KINDS an allocation of no flat buffer is.

    ready: the event at which the session was built. start: the last event before the action at the peak. What outlives
    the actions between is kept for a backward, unless it is a gradient or an activation that came from another rank and
    waits to be read.
    """
    if one.birth > ready and one.action < 0:
        return "working" if one.received else "token ids and labels"
    if one.birth <= ready or one.death is None:
        return "tables"
    waits = one.received and (one.read_at is None or one.read_at > start)
    return "kept activations" if one.birth <= start and not waits else "working"
