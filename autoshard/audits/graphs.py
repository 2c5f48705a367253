"""The graphs that the runtime would compile for a rank on native Neuron, counted on its own instructions."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from autoshard.audits.expected import NUMBER_BYTES
from autoshard.audits.recorder import SYNC
from autoshard.audits.values import Measurement
from autoshard.graph.count import Collective
from autoshard.plans.plan import Plan
from autoshard.plans.stage_sections import RankGraphs, Section, Wiring, communicators, compiled_runs, counted
from autoshard.runtime.torch_backend.compiled import Compiler


class GraphCounter(Compiler):
    """A compiler that notes what it would compile, and leaves everything as it is."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._backend, self._whole = plan, "none", plan.cluster.compiles_stages
        self._wirings: list[Wiring] = []

    @property
    def attends(self) -> bool:
        return True

    def section(self, section: Section) -> Section:
        runs = compiled_runs(section, by_block=True, whole=self._whole)
        self._wirings += [Wiring.of(run) for run, is_compiled in runs if is_compiled]
        return section

    def function(self, name: str, function: Callable[..., Any], kind: Hashable = None) -> Callable[..., Any]:
        return function

    def found(self, functions: int, rank: int, step: Measurement) -> RankGraphs:
        """The counts. functions: that would be compiled beside stages. step: of the rank; the sums of its norm and its
        loss are the hosts' affair on native Neuron."""
        sent = communicators(
            self._plan, rank, [one for one in step.collectives if not _is_number(one)], bool(step.transfers)
        )
        inside = max(len(self._groups(rank, step, phase)) for phase in ("forward", "backward")) if self._whole else 0
        return counted(self._wirings, self._whole, functions, len(sent), inside)

    def _groups(self, rank: int, step: Measurement, phase: str) -> frozenset[tuple[int, ...]]:
        return communicators(self._plan, rank, [one for one in step.collectives if one.phase == phase], sends=False)


def _is_number(one: Collective) -> bool:
    return one.phase == SYNC and one.bytes == NUMBER_BYTES
