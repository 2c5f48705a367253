"""The longest path through the actions of a step, which bounds steps of the same orders with other durations."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from autoshard.rows import Number, weighted
from autoshard.schedules.closed_form import Work
from autoshard.schedules.orders import SCHEDULES
from autoshard.schedules.simulate import durations, run
from autoshard.schedules.step_time import in_order


class Path(NamedTuple):
    """A path through the actions of a step: each waits for the one before it on its rank, or for what that made.

    forwards, backwards: how often it goes through each virtual stage. transfers: how often to another rank.
    """

    forwards: tuple[int, ...]
    backwards: tuple[int, ...]
    transfers: int

    def at_least_s(self, work: Work) -> Number:
        """Seconds that a step takes at least whose orders have this path, whatever its durations are."""
        return (
            weighted(self.forwards, work.forward_s)
            + weighted(self.backwards, work.backward_s)
            + self.transfers * work.transfer_s
        )


@lru_cache(maxsize=256)
def longest_path(schedule: str, work: Work) -> tuple[float, Path]:
    """(seconds of a step as `step_time_s` has them, the path that takes so long). work: of one layout, its seconds in
    tuples; its backwards are in one piece. Searches ask for the same work many times.

    Two forwards and two backwards on one rank are one after the other:

    >>> longest_path(next(iter(SCHEDULES)), Work(1, 2, 1, (1.0,), (2.0,)))
    (6.0, Path(forwards=(2,), backwards=(2,), transfers=0))
    """
    assert not SCHEDULES[schedule].weights_apart, "a backward is one action"
    pp, m, vpp, forward_s, backward_s, transfer_s, _ = work
    ordered, stages = in_order(SCHEDULES[schedule], pp, m, vpp), pp * vpp
    seconds = durations(forward_s, backward_s, None)
    total_s, starts = run(ordered, seconds, transfer_s)
    counts, transfers = [0] * len(seconds), 0
    place = next(own[-1] for own in ordered.places if starts[own[-1]] + seconds[ordered.steps[own[-1]][1]] == total_s)
    while place >= 0:
        counts[ordered.steps[place][1]] += 1
        own, maker = ordered.waits_for[place]
        if own >= 0 and starts[own] + seconds[ordered.steps[own][1]] == starts[place]:
            place = own
        else:
            transfers += maker >= 0 and ordered.steps[maker][4]
            place = maker
    return total_s, Path(tuple(counts[:stages]), tuple(counts[stages : 2 * stages]), transfers)
