"""Layouts that another cut, or other recompute sets by stage, may make faster than what is known: found by bounds.

No bound of a promise is above what its fastest layout takes. `refine.py` looks for that layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from math import inf
from typing import NamedTuple

import numpy as np

from autoshard.backends.problem import Draft
from autoshard.cost.memory import rank_memory
from autoshard.cost.passes import unit_work_s
from autoshard.cost.step import accumulation_s_per_parameter
from autoshard.cost.zero_sharding import State
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.bounds import after_at_least_s, equal_chunks_at_least_s
from autoshard.planner.grid.free_cut_bounds import FreeCutBounds
from autoshard.planner.grid.interleaved_bounds import MixedLeast
from autoshard.planner.grid.kind_choices import kinds_at_least_s
from autoshard.planner.grid.kind_pairs import ChunkRoom
from autoshard.planner.grid.kind_room import held_at_least_s, may_hold_all, replayed_at_least_s
from autoshard.planner.grid.kind_stage_rooms import stages_at_least
from autoshard.planner.grid.kind_stage_times import AlternatingTimes, WeightsApartTimes
from autoshard.planner.grid.price import layouts_ends, rank_rows
from autoshard.planner.grid.unit_costs import PartColumns
from autoshard.planner.grid.whole import Whole
from autoshard.rows import pieces

ROUNDING = 1e-9
"""Share of a step by which a bound may be off for rounding."""
LONG_S = 1e12
"""Longer than any step takes."""
AT_ONCE = 24
"""So many layouts are bounded together by the room of their ranks: more take more memory, and hardly less time."""
KINDS_AT_ONCE = 256
"""So many layouts with several kinds of blocks are bounded together by what these cost, before that."""
MOST_OF_THREE = 14
"""With more blocks on a rank of three chunks, these may have too many contents together."""


class Promise(NamedTuple):
    """A layout that may be faster than what is known.

    at_least_s: no cut and no choice of sets takes less. sets: places of those that stages may choose from. tighter_s:
    gives a higher bound of the same, which takes longer to find; None where it is not known of any.
    """

    at_least_s: float
    whole: Whole
    draft: int
    sets: tuple[int, ...]
    tighter_s: Callable[[], float] | None = None

    @property
    def layout(self) -> Draft:
        """The layout as far as it is decided."""
        return self.whole.drafts.drafts[self.draft]


def promising(wholes: Iterable[Whole], known_s: float, least_s: Callable[[Draft], float]) -> Iterator[Whole]:
    """The wholes with only those drafts of which it is not known that they take known_s seconds or more. least_s: what
    a draft takes at least."""
    for whole in wholes:
        may = [place for place, draft in enumerate(whole.drafts.drafts) if least_s(draft) < known_s]
        if may:
            yield whole if len(may) == len(whole.drafts.drafts) else whole.only(np.array(may))


def is_solved_by_stages(whole: Whole) -> bool:
    return whole.has_kinds and whole.family.num_virtual_stages == 1 and whole.family.rules.warm_up is not None


def is_solved_by_paths(whole: Whole) -> bool:
    return whole.has_kinds and whole.family.num_virtual_stages == 2 and whole.family.sets_are_free


def promises(whole: Whole, by_stage: bool, limit_bytes: float, known_s: float) -> Iterator[Promise]:
    if whole.has_kinds:
        yield from _kind_promises(whole, limit_bytes, known_s)
    elif whole.family.cuts_are_free:
        yield from free_cut_promises(whole, by_stage, limit_bytes, known_s)
    elif by_stage and whole.family.sets_are_free:
        yield from _mixed_promises(whole, limit_bytes, known_s)


def free_cut_promises(whole: Whole, by_stage: bool, limit_bytes: float, known_s: float) -> Iterator[Promise]:
    """The drafts with free cuts of which some layout may fit and take less than known_s."""
    count, sets = len(whole.drafts.drafts), len(whole.sets)
    draft, recompute = np.repeat(np.arange(count), sets), np.tile(np.arange(sets), count)
    shape = (count, sets) if by_stage else (count * sets, 1)
    layouts = FreeCutBounds(whole, draft.reshape(shape), recompute.reshape(shape))
    at_least_s = layouts.at_least_s()
    rows = np.flatnonzero(at_least_s < known_s * (1 - ROUNDING))
    if len(rows):
        rows = rows[FreeCutBounds(whole, layouts.draft[rows], layouts.recompute[rows]).has_room(limit_bytes, known_s)]
    for row in rows.tolist():
        yield Promise(float(at_least_s[row]), whole, int(layouts.draft[row, 0]), tuple(layouts.recompute[row].tolist()))


def _kind_promises(whole: Whole, limit_bytes: float, known_s: float) -> Iterator[Promise]:
    """The drafts of models with several kinds of blocks of which some layout may take less than known_s."""
    if whole.family.pp == 1:
        return
    every = np.arange(len(whole.drafts.drafts))
    at_least_s = np.concatenate(
        [_kinds_at_least_s(whole, every[some], limit_bytes, known_s) for some in pieces(len(every), KINDS_AT_ONCE)]
    )
    drafts = np.flatnonzero(at_least_s < known_s * (1 - ROUNDING))
    drafts = drafts[at_least_s[drafts].argsort(kind="stable")]
    # without a known time a bound tells alone what does not fit; that of rooms would then take much memory
    bound = _tighter_bound(whole) if known_s < inf or is_solved_by_stages(whole) else None
    for rows in pieces(len(drafts), AT_ONCE):
        some = drafts[rows]
        together = None if bound is None else cache(partial(bound, whole, some, limit_bytes, known_s))
        for draft in some.tolist():
            tighter_s = None if together is None else partial(_of, together, draft)
            yield Promise(float(at_least_s[draft]), whole, draft, whole.useful_sets(draft), tighter_s)


def _kinds_at_least_s(whole: Whole, drafts: Array, limit_bytes: float, known_s: float) -> Array:
    """Seconds of a step at least, by draft, by what blocks of several kinds cost of its ranks' time and memory: known_s
    or more where nothing that takes less fits."""
    at_least_s = kinds_at_least_s(whole, drafts, limit_bytes)
    may = np.flatnonzero(at_least_s < known_s * (1 - ROUNDING))
    if len(may) and whole.moves_blocks:
        holds_all = may_hold_all(whole, drafts[may], limit_bytes, known_s)
        at_least_s[may[~holds_all]] = np.inf
        may = may[holds_all]
    if len(may):
        replayed_s = replayed_at_least_s(whole, drafts[may], limit_bytes, known_s)
        at_least_s[may] = kinds_at_least_s(whole, drafts[may], limit_bytes, replayed_s)
    return at_least_s


def _tighter_bound(whole: Whole) -> Callable[[Whole, Array, float, float], dict[int, float]] | None:
    """A function of (whole, drafts, limit_bytes, known_s) that gives a higher bound of several drafts at once; None
    where there is none."""
    if _is_bounded_by_rooms(whole):
        return _rooms_at_least_s
    if is_solved_by_stages(whole):
        return _stages_at_least_s
    return _held_at_least_s if whole.moves_blocks else None


def _is_bounded_by_rooms(whole: Whole) -> bool:
    family, layers = whole.family, whole.problem.model.num_hidden_layers
    few = family.num_virtual_stages == 3 and layers <= MOST_OF_THREE * family.pp
    return is_solved_by_paths(whole) or (few and family.sets_are_free)


def _stages_at_least_s(whole: Whole, drafts: Array, limit_bytes: float, known_s: float) -> dict[int, float]:
    """Seconds of a step at least, by draft, by what each stage takes and has room for, as far as they are below
    known_s."""
    of_family = WeightsApartTimes if whole.family.rules.weights_apart else AlternatingTimes
    times = of_family(whole, drafts, limit_bytes, known_s, stages_at_least)
    return dict(zip(drafts.tolist(), times.at_least_s().tolist(), strict=True))


def _rooms_at_least_s(whole: Whole, drafts: Array, limit_bytes: float, known_s: float) -> dict[int, float]:
    """Seconds of a step at least, by draft, by what its ranks have room for, as far as they are below known_s."""
    room = ChunkRoom(whole, drafts, np.arange(len(whole.sets)), limit_bytes, known_s)
    if room.at_once < len(drafts):
        parts = (drafts[some] for some in pieces(len(drafts), room.at_once))
        every = (_rooms_at_least_s(whole, some, limit_bytes, known_s) for some in parts)
        return {draft: seconds for found in every for draft, seconds in found.items()}
    return dict(zip(drafts.tolist(), room.steps_s(room.relaxed()).tolist(), strict=True))


def _held_at_least_s(whole: Whole, drafts: Array, limit_bytes: float, known_s: float) -> dict[int, float]:
    """Seconds of a step at least, by draft, by what blocks cost of its ranks' time and memory, as far as they are below
    known_s."""
    return dict(zip(drafts.tolist(), held_at_least_s(whole, drafts, limit_bytes, known_s).tolist(), strict=True))


def _of(seconds: Callable[[], dict[int, float]], draft: int) -> float:
    return seconds()[draft]


def _mixed_promises(whole: Whole, limit_bytes: float, known_s: float) -> Iterator[Promise]:
    """The promises of `interleaved_promises` that a bound leaves which also knows how much fits."""
    promised = [*interleaved_promises(whole, limit_bytes, known_s)]
    if not promised:
        return
    drafts = np.array([promise.draft for promise in promised])
    at_least_s = MixedLeast(whole, drafts, limit_bytes).steps_s()
    for promise, seconds in zip(promised, at_least_s.tolist(), strict=True):
        if seconds < known_s * (1 - ROUNDING):
            yield promise._replace(at_least_s=max(promise.at_least_s, seconds))


def interleaved_promises(whole: Whole, limit_bytes: float, known_s: float) -> Iterator[Promise]:
    """The drafts of an interleaved family of which some layout may fit and take less than known_s."""
    count, sets = len(whole.drafts.drafts), len(whole.sets)
    parts = whole.least_parts_of(np.arange(count))
    at_least_s = _interleaved_at_least_s(whole, *parts)
    rows = np.flatnonzero(at_least_s < known_s * (1 - ROUNDING))
    if not len(rows):
        return
    fits = _least_fits(whole, parts, rows, limit_bytes)
    at_least_s[rows[~fits]] = np.inf
    for row in rows[np.isfinite(at_least_s[rows])].tolist():
        yield Promise(float(at_least_s[row]), whole, row, tuple(range(sets)))


def _least_fits(
    whole: Whole, parts: tuple[PartColumns, PartColumns, PartColumns, State], rows: Array, limit_bytes: float
) -> Array:
    """Whether the ranks of an interleaved family have room, by row, if each number were the least of all sets. parts:
    as `Whole.least_parts_of` has them. rows: some drafts."""
    block, first, last = (part.take(rows) for part in parts[:3])
    state = parts[3].take(rows)
    layers = whole.problem.model.num_hidden_layers // (whole.family.pp * whole.family.num_virtual_stages)
    blocks, precision = np.full(len(rows), layers), whole.problem.training.precision
    free = limit_bytes - whole.problem.cluster.device.reserved_memory_bytes
    ends, hidden_bytes = layouts_ends(whole.family, first, last, state), whole.hidden_bytes(rows)
    holds = whole.family.holds(whole.count[rows])
    fits = np.ones(len(rows), dtype=bool)
    for rank in {0, min(1, whole.family.pp - 1), whole.family.pp - 1}:
        of_rank = rank_rows(whole.family, holds[rank], blocks, rank, block, ends, hidden_bytes)
        fits &= rank_memory(of_rank, state, precision).total <= free
    return fits


def _interleaved_at_least_s(
    whole: Whole, block: PartColumns, first: PartColumns, last: PartColumns, state: State
) -> Array:
    """Seconds of a step, at least, by draft; parts as `Whole.least_parts_of` has them."""
    pp, vpp, problem, m = whole.family.pp, whole.family.num_virtual_stages, whole.problem, whole.count
    per_parameter = accumulation_s_per_parameter(problem.training.precision, problem.cluster.device)
    layers = problem.model.num_hidden_layers
    block_s, first_s, last_s = (
        unit_work_s(part, unit, per_parameter)
        for part, unit in ((block, state.block), (first, state.first), (last, state.last))
    )
    chunk_s = 2 * problem.cluster.device.pass_launch_s + layers // (pp * vpp) * block_s
    after_s = after_at_least_s(whole.fewest_blocks, whole.states, whole.state)
    at_least_s: Array = equal_chunks_at_least_s(pp, vpp, m, chunk_s, first_s, last_s, whole.hop_s) + after_s
    return at_least_s


def may_fit(whole: Whole, limit_bytes: float) -> Array:
    """Whether some cut and some sets of each draft may fit, by draft; no order of axes needs more memory or less."""
    drafts = np.arange(len(whole.drafts.drafts))
    if whole.has_kinds:
        return np.isfinite(kinds_at_least_s(whole, drafts, limit_bytes)) if whole.family.pp > 1 else drafts >= 0
    if whole.family.cuts_are_free:
        sets = len(whole.sets)
        recompute = np.broadcast_to(np.arange(sets), (len(drafts), sets))
        return FreeCutBounds(whole, np.repeat(drafts, sets).reshape(-1, sets), recompute).has_room(limit_bytes, LONG_S)
    return _least_fits(whole, whole.least_parts_of(drafts), drafts, limit_bytes)
