"""A request, a layout as far as it is decided, and a rule that may refuse it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from autoshard.layout.context_parallel import UNUSED
from autoshard.layout.mesh import AXIS_ORDER
from autoshard.layout.strategy import Strategy
from autoshard.schedules import usual_schedule
from autoshard.spec.blocks import Blocks
from autoshard.spec.cluster import Cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec


class Problem(NamedTuple):
    """The request that a layout answers. backend: a name in BACKENDS."""

    model: ModelSpec
    training: TrainingSpec
    cluster: Cluster
    backend: str

    @property
    def chosen(self) -> dict[str, Any]:
        """The options of a plan that may be searched beside its layout, with the values that make this problem."""
        cluster = self.cluster
        values = self.training.precision.name, cluster.lnc, self.backend, cluster.stack
        return dict(zip(("precision", "lnc", "backend", "stack"), values, strict=True))

    @property
    def blocks(self) -> Blocks:
        """The model's blocks by their kinds, as they are priced."""
        return self.training.blocks_of(self.model.blocks)


class Draft(NamedTuple):
    """A layout as far as it is decided: fields of Strategy. A rule reads only what its group has decided."""

    tp: int
    pp: int
    dp: int
    cp: int
    ep: int
    microbatch_size: int = 1
    num_virtual_stages: int = 1
    schedule: str = usual_schedule(1)
    attention_kernel: str = "plain"
    stage_layers: tuple[int, ...] = ()
    sequence_parallel: bool = True
    zero: int = 1
    context_parallel: str = UNUSED
    axis_order: tuple[str, ...] = AXIS_ORDER
    etp: int | None = None
    dp_replicate: int = 1

    @staticmethod
    def of(strategy: Strategy) -> Draft:
        """The draft of a whole layout: all of it but what it recomputes."""
        return Draft(**{name: getattr(strategy, name) for name in Draft._fields})

    def scheduled(self, schedule: str, num_virtual_stages: int, microbatch_size: int) -> Draft:
        """This layout with another schedule: what `_replace` gives, in half its time. Searches make thousands."""
        return Draft(
            self.tp,
            self.pp,
            self.dp,
            self.cp,
            self.ep,
            microbatch_size,
            num_virtual_stages,
            schedule,
            self.attention_kernel,
            self.stage_layers,
            self.sequence_parallel,
            self.zero,
            self.context_parallel,
            self.axis_order,
            self.etp,
            self.dp_replicate,
        )


@dataclass(frozen=True)
class Rule:
    """A rule that legal layouts keep.

    reason: what layouts that break it are counted under. check: what is wrong with this one, or None.
    """

    reason: str
    check: Callable[[Problem, Draft], str | None]


def fitting(degrees: Iterable[int], works: Callable[[int], bool]) -> str:
    """'1, 2, 4, 8': those that work, for the end of an error."""
    return ", ".join(str(degree) for degree in degrees if works(degree)) or "none"
