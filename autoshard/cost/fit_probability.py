"""How much of a device's memory a layout may fill, so that it fits as surely as is wanted."""

from __future__ import annotations

from typing import NamedTuple

from autoshard.cost.interval import fits_probability
from autoshard.spec.cluster import Cluster

LOWER = (0.999, 0.99, 0.9, 0.75, 0.5)
"""What is wanted next where no layout fits that surely. With 0.5 the prediction itself fits."""


class Level(NamedTuple):
    """A layout of so many bytes fits with this probability."""

    probability: float
    memory_bytes: float


def levels(cluster: Cluster, wanted: float) -> tuple[Level, ...]:
    """The wanted level, then the lower ones. wanted: a probability, more than 0, less than 1."""
    probabilities = (wanted, *(lower for lower in LOWER if lower < wanted))
    return tuple(Level(probability, _memory_bytes(cluster, probability)) for probability in probabilities)


def place_of(needed_bytes: float, cluster: Cluster, wanted: float) -> int:
    """The place of the first of `levels` that a layout of so many bytes meets, 0 for the wanted one; their number where
    it meets none."""
    found = levels(cluster, wanted)
    return next((place for place, one in enumerate(found) if needed_bytes <= one.memory_bytes), len(found))


def _memory_bytes(cluster: Cluster, probability: float) -> float:
    """The most that fits with this probability, and never more than there is."""
    low, high = 0.0, cluster.device.memory_bytes
    if fits_probability(high, high, cluster) >= probability:
        return high
    while high - low > 1.0:
        middle = (low + high) / 2
        if middle in (low, high):  # no float lies between them: beyond 2^53 neighbours are more than a byte apart
            break
        if fits_probability(middle, cluster.device.memory_bytes, cluster) >= probability:
            low = middle
        else:
            high = middle
    return low
