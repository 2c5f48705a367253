"""How Megatron-LM's arguments cut a model into pipeline stages."""

from __future__ import annotations

import re
from collections.abc import Mapping

from autoshard.errors import AutoshardError
from autoshard.interop.written_layout import whole_number

LAYOUT = "pipeline-model-parallel-layout"
VIRTUAL, EACH_VIRTUAL = "num-virtual-stages-per-pipeline-rank", "num-layers-per-virtual-pipeline-stage"
FIRST, LAST = "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers"
"""Blocks of the first and the last rank of the pipeline; the other ranks share the rest."""
EMBEDDING, LOSS = "account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split"
"""Whether the embedding and the loss count as a block of the first and the last stage."""
STAGE_FLAGS = (LAYOUT, VIRTUAL, EACH_VIRTUAL, FIRST, LAST, EMBEDDING, LOSS)


def virtual_stages(flags: Mapping[str, str], layers: int | None, pp: int) -> int:
    """Stages of each rank. layers: blocks, None where the flags do not say. Raises AutoshardError."""
    if LAYOUT in flags:
        return max(1, len(layout_layers(flags[LAYOUT])) // pp)
    if VIRTUAL in flags:
        return whole_number(f"--{VIRTUAL}", flags[VIRTUAL])
    if EACH_VIRTUAL not in flags:
        return 1
    each = whole_number(f"--{EACH_VIRTUAL}", flags[EACH_VIRTUAL])
    instead = f"--{VIRTUAL} says as much without it"
    if given := [flag for flag in (FIRST, LAST) if flag in flags]:
        raise AutoshardError(f"--{EACH_VIRTUAL}={each} does not go with --{given[0]}; --{VIRTUAL} does")
    if layers is None:
        raise AutoshardError(f"--{EACH_VIRTUAL}={each} needs --num-layers, which is not there; {instead}")
    counted = _counted(flags, layers)
    if counted % (pp * each):
        raise AutoshardError(f"--{EACH_VIRTUAL}={each} x pp={pp} must divide {_counted_words(flags, layers)}")
    return counted // (pp * each)


def uneven_stages(flags: Mapping[str, str], layers: int | None, pp: int, vpp: int) -> tuple[int, ...] | None:
    """Blocks of each stage, in the model's order; None where the flags ask for as many in each. layers: as above.

    Raises AutoshardError for a cut that Megatron has not.
    """
    if LAYOUT in flags:
        return layout_layers(flags[LAYOUT])
    given = [flag for flag in (FIRST, LAST, EMBEDDING, LOSS) if flag in flags]
    if not given or pp == 1:
        return None
    if layers is None:
        raise AutoshardError(f"--{given[0]} needs --num-layers, which is not there; --{LAYOUT} says as much without it")
    ranks = _blocks_of_ranks(flags, layers, pp)
    if wrong := next((blocks for blocks in ranks if blocks % vpp), None):
        raise AutoshardError(f"{vpp} stages of each rank must divide its blocks, which --{given[0]} makes {wrong}")
    stages = [blocks // vpp for blocks in ranks] * vpp
    stages[0] -= EMBEDDING in flags
    stages[-1] -= LOSS in flags
    return tuple(stages)


def _blocks_of_ranks(flags: Mapping[str, str], layers: int, pp: int) -> list[int]:
    """Blocks of each rank, the embedding and the loss counted where they count as one."""
    ends = {flag: whole_number(f"--{flag}", flags[flag]) for flag in (FIRST, LAST) if flag in flags}
    if not ends:
        counted = _counted(flags, layers)
        if counted % pp:
            raise AutoshardError(f"pp={pp} must divide {_counted_words(flags, layers)}")
        return [counted // pp] * pp
    if both := [flag for flag in (EMBEDDING, LOSS) if flag in flags]:
        raise AutoshardError(f"--{both[0]} does not go with --{next(iter(ends))}; Megatron takes one of them")
    rest, others = layers - sum(ends.values()), pp - len(ends)
    if rest < 0 or (rest % others if others else rest):
        said = " and ".join(f"--{flag}={blocks}" for flag, blocks in ends.items())
        verb = "leave" if len(ends) > 1 else "leaves"
        left = f"{said} {verb} {rest} of --num-layers={layers}"
        raise AutoshardError(f"{left}, which {others} ranks cannot share evenly")
    middle = [rest // others] * others if others else []
    return [*([ends[FIRST]] if FIRST in ends else []), *middle, *([ends[LAST]] if LAST in ends else [])]


def _counted(flags: Mapping[str, str], layers: int) -> int:
    return layers + (EMBEDDING in flags) + (LOSS in flags)


def _counted_words(flags: Mapping[str, str], layers: int) -> str:
    more = _counted(flags, layers) - layers
    return f"--num-layers={layers}" + (f" + {more} for the embedding and the loss" if more else "")


def layout_layers(layout: str) -> tuple[int, ...]:
    """Blocks of each stage in Megatron's notation: 'Et*3|(t|)*2t*4L' is 3, 1, 1, 4. The first and the last stage may
    have none: the embedding, or the loss and the module for multi-token prediction, alone."""
    stages = _written_stages(layout)
    if not (stages[0].startswith("E") and stages[-1].endswith("L")):
        raise AutoshardError(f"--{LAYOUT} is {layout[:60]!r}; it must begin with E, the embedding, and end with L")
    for index, stage in enumerate(stages[1:-1], 1):
        if "t" not in stage:
            has = f"holds {stage} and no block" if stage else "holds nothing"
            raise AutoshardError(f"--{LAYOUT}: stage {index} {has}; here only the first and the last may have no block")
    return tuple(stage.count("t") for stage in stages)


def layout_warning(layout: str) -> str | None:
    """A sentence on a module for multi-token prediction that is not on the last stage; None without one."""
    at = next((index for index, stage in enumerate(_written_stages(layout)[:-1]) if "m" in stage), None)
    told = "priced on the last stage, with the head and the loss"
    return None if at is None else f"--{LAYOUT} has the module for multi-token prediction on stage {at}; {told}"


def _written_stages(layout: str) -> list[str]:
    """The letters of each stage. Raises AutoshardError for a text that is no layout."""
    text = re.sub(r"\(([^()]*)\)\*(\d{1,3})", lambda found: found[1] * int(found[2]), layout[:500].replace(",", ""))
    text = re.sub(r"([EtmL|])\*(\d{1,3})", lambda found: found[1] * int(found[2]), text[:5000])
    if len(layout) > 500 or not re.fullmatch(r"[EtmL|]+", text):
        raise AutoshardError(f"--{LAYOUT} is {layout[:60]!r}; one reads Et*3|t*4|t*4|t*3L")
    return text.split("|")
