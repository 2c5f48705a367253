"""How torchtitan cuts a model into pipeline stages where its configuration does not name their modules."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from math import ceil
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.interop.written_layout import whole_number

FIRST_LESS, LAST_LESS = "pipeline_parallel_first_stage_less_layers", "pipeline_parallel_last_stage_less_layers"
"""Blocks that the embedding and the head count as: 1 each where they are not given."""
EACH = "pipeline_parallel_layers_per_stage"
SPLITS = "pipeline_parallel_split_points"
"""Of release 0.1.0: the modules that stages but the first begin with."""
STAGE_KEYS = (FIRST_LESS, LAST_LESS, EACH, SPLITS)


def stages_of(parallelism: Mapping[str, Any]) -> Callable[[int, int, int | None], tuple[int, ...]]:
    """The rule of `WrittenLayout.stages` that a section asks for. Raises AutoshardError for a value of no such kind."""
    first, last = (
        whole_number(f"parallelism.{key}", parallelism.get(key, 1), least=0) for key in (FIRST_LESS, LAST_LESS)
    )
    each = parallelism.get(EACH)
    if parallelism.get(SPLITS):
        return partial(_split_stages, _splits(parallelism[SPLITS]))
    return partial(_stages, first, last, None if each is None else whole_number(f"parallelism.{EACH}", each))


def _splits(value: object) -> tuple[int, ...]:
    """The blocks that stages begin with."""
    named = [re.fullmatch(r"layers\.([0-9]{1,4})", str(name)) for name in value] if isinstance(value, list) else [None]
    splits = tuple(int(name[1]) for name in named if name)
    if len(splits) < len(named) or any(here >= there for here, there in pairwise((0, *splits))):
        raise AutoshardError(
            f"parallelism.{SPLITS} is {show(value)}; it must be a list such as ['layers.8', 'layers.16']"
        )
    return splits


def _split_stages(splits: tuple[int, ...], layers: int, pp: int, vpp: int | None) -> tuple[int, ...]:
    """Blocks of each stage, where all but the first begin with the block that `splits` says."""
    if pp == 1:
        return (layers,)
    stages = len(splits) + 1
    if stages % pp or vpp not in (None, stages // pp):
        wants = f"which pp={pp} must divide" if vpp is None else f"not pp={pp} x vpp={vpp}"
        raise AutoshardError(f"parallelism.{SPLITS} makes {stages} stages, {wants}")
    if splits[-1] >= layers:
        raise AutoshardError(f"parallelism.{SPLITS} has layers.{splits[-1]}, but the model has {layers} blocks")
    return tuple(end - begin for begin, end in pairwise((0, *splits, layers)))


def _stages(first: int, last: int, each: int | None, layers: int, pp: int, vpp: int | None) -> tuple[int, ...]:
    """Blocks of each stage: as many in each, where `first` and `last` blocks more than there are count, and the
    remainder goes to the first stages. each: blocks of a stage, which says how many there are if vpp does not.
    """
    if pp == 1:
        return (layers,)
    counted = layers + first + last
    stages = pp * (vpp or 1) if vpp or each is None else ceil(counted / each)
    if stages % pp:
        made = f"parallelism.{EACH}={each} makes {stages} stages of {layers} blocks"
        raise AutoshardError(f"{made}, which pp={pp} must divide")
    fewest, more = divmod(counted, stages)
    if fewest < max(first, last, 1):
        ends = f"parallelism.{FIRST_LESS}={first} and {LAST_LESS}={last}"
        raise AutoshardError(f"{layers} blocks are too few for {stages} stages with {ends}")
    blocks = [fewest + (stage < more) for stage in range(stages)]
    blocks[0] -= first
    blocks[-1] -= last
    return tuple(blocks)
