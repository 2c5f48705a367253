"""The blocks of a rank, read off the runtime's own program as it runs one step on fake tensors. Torch is imported here
alone."""

from __future__ import annotations

from collections.abc import Mapping

from autoshard.allocations.blocks import (
    AGAIN,
    KEPT,
    RECEIVED,
    STATE,
    TABLES,
    TOKENS,
    WEIGHTS,
    WORKING,
    ActionStart,
    Block,
    RankMemory,
)
from autoshard.audits.measure import Recording, recorded
from autoshard.audits.memory_log import Allocation
from autoshard.audits.recorder import GATHERED, SYNC, ActionLog
from autoshard.audits.values import Role
from autoshard.plans.plan import Plan
from autoshard.schedules.action import Action


def rank_memory(plan: Plan, rank: int) -> RankMemory:
    """One step of a rank at full size. rank: 0 to the world size - 1."""
    pipeline_rank, _ = plan.mesh.coordinates(rank)
    with recorded(plan, Role(pipeline_rank, rank, 1, "")) as one:
        return memory_of(plan, rank, one)


def memory_of(plan: Plan, rank: int, one: Recording) -> RankMemory:
    """The blocks of a recorded step."""
    log, ready, actions = one.recorder.memory, one.ready, one.recorder.actions
    pipeline_rank, _ = plan.mesh.coordinates(rank)
    state: dict[int, str] = {}
    for name, tensor in one.probe.named_state.items():
        state.setdefault(id(log.see(tensor, -1, "")), name)
    others = {id(log.see(tensor, -1, "")): "optimizer" for tensor in one.probe.optimizer_tensors}
    names = others | state
    blocks = [
        _block(plan.strategy.pp, pipeline_rank, allocation, actions, ready, names)
        for allocation in log.allocations
        if allocation.death is None or allocation.death > ready
    ]
    tokens = [block for block in blocks if block.kind == TOKENS]
    more = (plan.num_microbatches - one.short.num_microbatches) * len(tokens) // one.short.num_microbatches
    blocks += [tokens[number % len(tokens)] for number in range(more)]
    last = max([one.death or 0 for one in blocks] + [one.birth for one in blocks])
    return RankMemory(
        plan.model.name,
        rank,
        pipeline_rank,
        one.short.num_microbatches,
        plan.num_microbatches,
        tuple(ActionStart(action.text, max(0, action.first_event - ready)) for action in actions),
        last,
        tuple(sorted(blocks, key=lambda block: block.birth)),
    )


def _block(
    pp: int, pipeline_rank: int, one: Allocation, actions: list[ActionLog], ready: int, state: Mapping[int, str]
) -> Block:
    in_step = one.birth > ready and id(one) not in state
    action = Action.parse(actions[one.action].text) if in_step and _in_action(one, actions) else None
    kind = STATE if id(one) in state else _kind(one, actions, ready)
    tensor, phase = state.get(id(one), one.tensor), one.phase if in_step else ""
    if kind in (TOKENS, TABLES) and not tensor:
        tensor = kind
    return Block(
        tensor,
        one.place,
        None if action is None else action.chunk * pp + pipeline_rank,
        None if action is None else action.microbatch,
        phase,
        kind,
        one.size,
        max(0, one.birth - ready),
        None if one.death is None else one.death - ready,
    )


def _in_action(one: Allocation, actions: list[ActionLog]) -> bool:
    return 0 <= one.action < len(actions) and actions[one.action].text != SYNC


def _kind(one: Allocation, actions: list[ActionLog], ready: int) -> str:
    if one.tensor.startswith(GATHERED):
        return WEIGHTS
    if one.birth <= ready or (one.death is None and _in_action(one, actions)):
        return TABLES
    if one.received:
        return RECEIVED
    if one.action < 0:
        begun = bool(actions) and (one.death is None or one.death >= actions[0].first_event)
        return TOKENS if begun else WORKING
    if one.phase == "recompute":
        return AGAIN
    end = actions[one.action + 1].first_event if one.action + 1 < len(actions) else None
    outlives = end is not None and (one.death is None or one.death >= end)
    return KEPT if one.phase == "forward" and outlives and _in_action(one, actions) else WORKING
