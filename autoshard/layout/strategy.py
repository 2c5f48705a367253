"""Every choice that makes a layout, and nothing that follows from the choices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.graph.recompute import RECOMPUTE_SETS
from autoshard.layout.context_parallel import CONTEXT_PARALLEL, UNUSED
from autoshard.schedules import SCHEDULES

ATTENTION_KERNELS = ("flash", "plain")


@dataclass(frozen=True)
class Strategy:
    """A whole layout.

    dp counts all data-parallel replicas; ep is carved out of it.
    stage_layers: transformer blocks of each of the pp * num_virtual_stages virtual stages, in model order;
    stage s runs on pipeline rank s % pp as chunk s // pp.
    context_parallel: how ranks that share a sequence attend to all of it; "all_gather" where cp is 1.
    """

    tp: int
    pp: int
    dp: int
    cp: int
    ep: int
    num_virtual_stages: int
    microbatch_size: int
    schedule: str
    recompute: str
    sequence_parallel: bool
    zero1: bool
    attention_kernel: str
    stage_layers: tuple[int, ...]
    context_parallel: str = UNUSED

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "dp", "cp", "ep", "num_virtual_stages", "microbatch_size"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise AutoshardError(f"{name}={value!r} must be a whole number of at least 1")
        for name, known in (
            ("schedule", tuple(SCHEDULES)),
            ("recompute", tuple(RECOMPUTE_SETS)),
            ("attention_kernel", ATTENTION_KERNELS),
            ("context_parallel", CONTEXT_PARALLEL),
        ):
            if getattr(self, name) not in known:
                raise AutoshardError(f"{name}={getattr(self, name)!r} is not one of: {', '.join(known)}")
        for name in ("sequence_parallel", "zero1"):
            if type(getattr(self, name)) is not bool:
                raise AutoshardError(f"{name}={getattr(self, name)!r} must be true or false")
        if self.dp % self.ep:
            raise AutoshardError(f"ep={self.ep} must divide dp={self.dp}: experts are spread over data-parallel ranks")
        stages = self.pp * self.num_virtual_stages
        if len(self.stage_layers) != stages:
            raise AutoshardError(
                f"stage_layers has {len(self.stage_layers)} stages; "
                f"pp={self.pp} x num_virtual_stages={self.num_virtual_stages} needs {stages}"
            )
        if any(type(n) is not int or n < 0 for n in self.stage_layers):
            raise AutoshardError(f"stage_layers={list(self.stage_layers)} must hold whole numbers of blocks")

    @property
    def world_size(self) -> int:
        return self.tp * self.pp * self.dp * self.cp

    def num_microbatches(self, global_batch_size: int) -> int:
        """Microbatches that one data-parallel rank runs in a step."""
        return global_batch_size // (self.dp * self.microbatch_size)

    def stage_ranges(self) -> tuple[tuple[int, int], ...]:
        """[first, last) block of each virtual stage."""
        ranges, start = [], 0
        for count in self.stage_layers:
            ranges.append((start, start + count))
            start += count
        return tuple(ranges)

    def to_dict(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**values, "stage_layers": list(self.stage_layers)}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Strategy:
        """Raises AutoshardError for a missing or unknown key."""
        known = [field.name for field in fields(Strategy)]
        for name in known:
            if name not in values:
                raise AutoshardError(f"strategy has no {name}")
        for name in values:
            if name not in known:
                raise AutoshardError(f"strategy has an unknown field {name}; known: {', '.join(known)}")
        layers = values["stage_layers"]
        if not isinstance(layers, list):
            raise AutoshardError(f"stage_layers={layers!r} must be a list of whole numbers")
        return Strategy(**{**values, "stage_layers": tuple(layers)})


def even_stage_layers(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """As even as can be; the remainder goes to the middle, away from the embedding and the vocabulary head."""
    base, extra = divmod(num_layers, num_stages)
    first = (num_stages - extra + 1) // 2
    return tuple(base + (first <= stage < first + extra) for stage in range(num_stages))
