"""When each event of a recorded step would be, on the clock of the cost model."""

from __future__ import annotations

from itertools import pairwise

from autoshard.allocations.blocks import RankMemory
from autoshard.audits.expected import shortened
from autoshard.explanation.trace import seconds_behind
from autoshard.plans.plan import Plan
from autoshard.plans.timeline import planned_timeline


def event_times_s(plan: Plan, memory: RankMemory) -> list[float]:
    """Seconds from the start of the step, of the events 0 to memory.events. Events of an action are spread evenly over
    its time; a step of fewer microbatches than the plan's ends earlier."""
    _, timeline = planned_timeline(shortened(plan, memory.microbatches))
    spans = list(timeline.spans[memory.pipeline_rank])
    after = timeline.total_s, timeline.total_s + sum(seconds_behind(plan).values())
    times = [0.0] * (memory.events + 1)
    starts = [one.event for one in memory.actions] + [memory.events + 1]
    for (start, stop), (start_s, stop_s) in zip(pairwise(starts), [*spans, after], strict=False):
        for event in range(start, stop):
            times[event] = start_s + (stop_s - start_s) * (event - start) / (stop - start)
    return times
