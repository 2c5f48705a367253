"""The obstacles to every layout: the rules that the nearest ones break.

A layout comes the nearer the fewer rules it breaks. The first rule that a layout breaks says little: where the batch
does not divide, many layouts break some rule on degrees before that one, and still no other degrees would do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from autoshard.backends.mesh_rules import EXPERTS_SPLIT, mesh_rules
from autoshard.backends.problem import Draft, Problem, Rule
from autoshard.backends.rules import LAYOUT_RULES, SENDING_RULES, kernel_rules, state_rules
from autoshard.planner.candidates import kernel_choices, meshes, microbatch_sizes, virtual_stages, zero_stages
from autoshard.planner.layouts import state_at_least_bytes
from autoshard.plans.search_result import Pins
from autoshard.units import format_bytes

MOST = 2
"""So many different obstacles are named."""
Broken = dict[str, str]
"""By the reason of each rule what is wrong."""


def state_has_room(problem: Problem, draft: Draft) -> str | None:
    """The objection that parameters, gradients and optimizer state alone exceed a device's memory; None if they fit."""
    needed, capacity = state_at_least_bytes(problem, draft), problem.cluster.device.memory_bytes
    if needed <= capacity:
        return None
    experts = f" ep={draft.ep}" if draft.ep > 1 else ""
    return (
        f"parameters, gradients and optimizer state alone take {format_bytes(needed)} of {format_bytes(capacity)} "
        f"with tp={draft.tp} pp={draft.pp}{experts} zero={draft.zero}"
    )


ROOM = Rule("the state does not fit", state_has_room)
"""Only an estimate says whether a layout fits; what breaks this does not."""
SAID_BY = {
    "the schedule does not take the microbatches": "the global batch does not split over dp and microbatches",
    "the sequence does not split over cp and tp": "the attention kernel does not take the sequence",
    "context parallelism does not go with the rest": "the attention kernel does not take the sequence",
}
"""Reasons of rules that say nothing new where the other one is broken: of a batch that does not split there is no
number of microbatches, and what a kernel wants of the sequence is more than that it splits."""


class Obstacles(NamedTuple):
    """The rules that stand against every layout. broken: how many rules the nearest layouts break. text: which, for the
    end of an error."""

    broken: int
    text: str


def obstacles(problem: Problem, pins: Pins, rules: tuple[Rule, ...] = ()) -> Obstacles:
    """The rules that the layouts break which break the fewest. Of different obstacles the MOST are told that stand
    against most meshes, each with the example of fewest replicas; where experts do not split over ep, of most, since
    more degrees divide these.

    rules: others that hold beside those on layouts; they read degrees and zero. pins: those that `check_pins` lets
    through.
    """
    groups = _Groups(problem, pins)
    nearest = [(mesh, _fewest_broken(groups, mesh, rules)) for mesh in meshes(problem, pins)]
    fewest = min(len(broken) for _, broken in nearest)
    by_reasons: dict[tuple[str, ...], list[tuple[Draft, Broken]]] = {}
    for mesh, broken in nearest:
        if len(broken) == fewest:
            by_reasons.setdefault(tuple(broken), []).append((mesh, broken))
    most = sorted(by_reasons, key=lambda reasons: (ROOM.reason not in reasons, -len(by_reasons[reasons])))
    shown = most[: MOST if fewest == 1 else 1]
    examples = [_example(by_reasons[reasons]) for reasons in shown]
    return Obstacles(fewest, "; other degrees: ".join(map(_words, examples)))


def _example(several: Sequence[tuple[Draft, Broken]]) -> Broken:
    """What is said of several meshes that break the same rules."""
    if EXPERTS_SPLIT.reason in several[0][1]:
        return max(several, key=lambda one: (one[0].dp, -one[0].cp))[1]
    return min(several, key=lambda one: one[0].dp * one[0].cp)[1]


class _Groups:
    """The rules that drafts break, of groups which read few fields of one: found once for each of their values, as many
    meshes share these."""

    def __init__(self, problem: Problem, pins: Pins):
        self.problem, self.pins = problem, pins
        self._kernels: dict[tuple[int, int], Broken] = {}
        self._schedules: dict[tuple[int, int], list[tuple[str, Broken]]] = {}

    def kernels(self, mesh: Draft) -> Broken:
        """The rules that the kernel and the kind of context parallelism break which break fewest."""
        key = (mesh.tp, mesh.cp)
        if key not in self._kernels:
            drafts = (draft for drafts in kernel_choices(self.problem, self.pins, mesh) for draft in drafts)
            rules = kernel_rules(self.problem.backend)
            self._kernels[key] = _least(_broken(self.problem, rules, draft) for draft in drafts)
        return self._kernels[key]

    def schedules(self, mesh: Draft) -> list[tuple[str, Broken]]:
        """(name, broken) of each schedule with each microbatch."""
        key = (mesh.pp, mesh.dp)
        if key not in self._schedules:
            drafts = [
                mesh._replace(schedule=schedule, num_virtual_stages=vpp, microbatch_size=size)
                for schedule, vpp in virtual_stages(self.problem, self.pins, mesh)
                for size in microbatch_sizes(self.problem, self.pins, mesh)
            ]
            self._schedules[key] = [(draft.schedule, _broken(self.problem, LAYOUT_RULES, draft)) for draft in drafts]
        return self._schedules[key]


def _fewest_broken(groups: _Groups, mesh: Draft, rules: tuple[Rule, ...]) -> Broken:
    """The fewest rules that any way to use a mesh breaks. Groups of rules read different choices, so the least of each
    group together are the least of all."""
    problem, pins = groups.problem, groups.pins
    sequence_parallel = (mesh._replace(sequence_parallel=on) for on in ((False, True) if mesh.tp > 1 else (False,)))
    zeros = sorted(zero_stages(problem, pins, mesh), reverse=True)  # what holds least first
    states = [mesh._replace(zero=zero) for zero in zeros]
    return {
        **_least(_broken(problem, mesh_rules(problem.backend), draft) for draft in sequence_parallel),
        **groups.kernels(mesh),
        **_least(_of_layouts(problem, states, groups.schedules(mesh), rules)),
    }


def _of_layouts(
    problem: Problem, states: Sequence[Draft], schedules: Sequence[tuple[str, Broken]], rules: tuple[Rule, ...]
) -> Iterator[Broken]:
    """The rules that each schedule breaks with each stage of ZeRO. Only those on what is sent read both, and of the
    schedule its name alone."""
    for state in states:
        of_state = _broken(problem, (*state_rules(problem.backend), *rules), state)
        names = {name for name, _ in schedules}
        sending = {name: _broken(problem, SENDING_RULES, state._replace(schedule=name)) for name in names}
        yield from ({**of_state, **broken, **sending[name]} for name, broken in schedules)


def _broken(problem: Problem, rules: tuple[Rule, ...], draft: Draft) -> Broken:
    return {rule.reason: wrong for rule in rules if (wrong := rule.check(problem, draft)) is not None}


def _least(several: Iterable[Broken]) -> Broken:
    """The broken rules of the draft which breaks fewest, the first of equals."""
    least: Broken | None = None
    for broken in several:
        if least is None or len(broken) < len(least):
            least = broken
        if not least:
            break
    return least or {}


def _words(broken: Broken) -> str:
    said = [reason for reason, more in SAID_BY.items() if more in broken]
    return "; ".join(wrong for reason, wrong in broken.items() if reason not in said)
