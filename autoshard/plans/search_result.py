"""The choices that a search is given and the answer that it returns."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from autoshard.backends.registry import BACKENDS
from autoshard.cost.values import Estimate
from autoshard.files.codec import Absence, NotNegative, Text, Whole
from autoshard.layout.strategy import Strategy
from autoshard.schedules import SCHEDULES


@dataclass(frozen=True)
class Pins:
    """Choices that the user fixed, named as in Strategy; None is searched. A pin is never changed.

    axis_order: As strategy.axis_order, with dashes between, 'dp-pp-cp-tp'.
    beaten_path: Whether only features may be chosen that are known to have run.
    searches_replicas: Whether dp_replicate is searched, where it is not fixed; else it is 1.
    searches_etp: Whether etp is searched, where it is not fixed; else tp cuts experts as the rest.
    """

    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    cp: int | None = None
    ep: int | None = None
    num_virtual_stages: int | None = None
    microbatch_size: int | None = None
    schedule: str | None = None
    recompute: str | None = None
    attention_kernel: str | None = None
    context_parallel: str | None = None
    zero: int | None = None
    axis_order: str | None = None
    etp: Annotated[int | None, Absence.WRITTEN] = None
    dp_replicate: Annotated[int | None, Absence.WRITTEN] = None
    beaten_path: Annotated[bool, Absence.WRITTEN] = False
    searches_replicas: Annotated[bool, Absence.WRITTEN] = False
    searches_etp: Annotated[bool, Absence.WRITTEN] = False

    @property
    def fixed(self) -> dict[str, Any]:
        """The choices that are pinned, in order; those that are rules for the search are none of them."""
        rules = ("beaten_path", "searches_replicas", "searches_etp")
        names = [f.name for f in fields(self) if f.name not in rules]
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


@dataclass(frozen=True)
class Candidate:
    """A whole layout and what is expected of it."""

    strategy: Strategy
    estimate: Estimate


@dataclass(frozen=True)
class Rejection:
    """Layouts dropped for one reason.

    reason: Why.
    count: Layouts dropped for it.
    example: The one that missed by least, or the first.
    """

    reason: Text
    count: Whole
    example: Text


@dataclass(frozen=True)
class PathSummary:
    """How the chosen layout stands to what is known to have run on its devices with its backend.

    generation: Whose published runs these are.
    results: How many rows of tables and layouts are known.
    unknown: Features of the chosen layout that none of them has.
    best: The best layout all of whose features are known, where it is another one; null where there is none.
    best_step_time_s: Its predicted seconds of a step; 0 where there is none.
    instead_of: The faster layout that was passed over, because more of it is unknown; null where there is none.
    """

    generation: Text
    results: Whole
    unknown: tuple[Text, ...]
    best: Strategy | None = None
    best_step_time_s: NotNegative = 0.0
    instead_of: Strategy | None = None


EXACT, OURS = "exact", "autoshard"
"""The searcher and the cost model that a plan is made with unless it asks for others."""
OPTIMAL = "optimal within this model: no layout is faster, however it is cut into stages"
"""The claim of a search that ended. It covers every legal layout, with every cut where a rank has one chunk, and with
every choice by virtual stage among the recompute sets that are tried; what it leaves out is said behind it."""

LESS_SURE = "room: another layout,"
"""Begins the note on the fastest layout that is passed over because it fits less surely."""


def pipelines_not_tried(backend: str, pinned: str | None = None) -> tuple[str, ...]:
    """The pipelines that a search does not try, in words behind OPTIMAL; nothing where it tries all of them.

    pinned: the schedule that all layouts have, of a plug-in too; None where it is searched among those built in.
    """
    searched = SCHEDULES if pinned is None else (pinned,)
    names = [name for name in searched if not SCHEDULES[name].stages_are_free and BACKENDS[backend].runs_schedule(name)]
    if not names:
        return ()
    which = " and ".join(names)
    return (f"pipelines of schedule {which} are cut evenly or by balance, and recompute alike in all stages",)


def sets_not_tried(backend: str, pins: Pins) -> tuple[str, ...]:
    """The recompute sets that a search does not try, in words behind OPTIMAL; nothing where no other one is better."""
    sets = BACKENDS[backend].recompute_sets
    if sets is None or pins.recompute is not None or pins.beaten_path:
        return ()
    return (f"recompute is one of {len(sets)} sets; --recompute takes any",)


@dataclass(frozen=True)
class SearchResult:
    """The answer of a search.

    best: the fastest layout that fits. runners_up: the best of other layouts, fastest first. considered: whole layouts
    looked at; fitting: those that broke no rule and fit in memory. The others are counted, by reason, in rejections.
    notes: how the best one was chosen, where it is not simply the fastest that fits. beaten_path: None where nothing is
    published. searcher, cost_model: what chose it, with the package of a plug-in. gap: how much faster another layout
    may be, as a share of the step of the best one.
    """

    best: Candidate
    runners_up: tuple[Candidate, ...]
    considered: int
    fitting: int
    rejections: tuple[Rejection, ...]
    optimality: str = OPTIMAL
    notes: tuple[str, ...] = ()
    beaten_path: PathSummary | None = None
    searcher: str = field(default=EXACT, kw_only=True)
    cost_model: str = field(default=OURS, kw_only=True)
    gap: float = field(default=0.0, kw_only=True)
