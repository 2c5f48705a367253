"""How near a graph comes to the limits of neuronx-cc, by what is public of graphs that it took and that it refused.

`known.json` has those graphs (benchmarks/data/compiler_graphs.csv) and the law that was fitted to them. A graph that is
no larger in any number than one that compiled is taken to compile, one that is no smaller in any number than a refused
one to be refused; between those the law speaks. Beyond its data nothing does, but that a graph of more matrix tiles
than one that is above the limit is above it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from autoshard.precedents.graph_size import GraphSize, Region
from autoshard.precedents.runs import Known, packaged

LIMIT = 10e6
"""Instructions of a graph: neuronx-cc 2.24 and 2.27 refused graphs above, "NCC_EVRF007" and "NCC_EXTP004" [third
parties, trn2]. Older ones refused above 5 million; a flag raises either."""


PRODUCT_COMPILES, PRODUCT_REFUSED = 2.0**19, 2.0**22
"""Matrix tiles of the largest matrix product that is known to compile, 16,384 cubed, and of one that is refused, 32,768
cubed, on trn2 [yahavb/trn2-matmul-bench]."""
OPERATOR_LIMIT = 300_000
"""Instructions of one operator that neuronx-cc takes: "NCC_EXTP003" above [third parties, trn2; 150,000 was seen on
trn1]. How many a product has is not public; the counts that are belong to gathers and convolutions."""


class Verdict(Enum):
    """Whether a graph compiles, with the word that a page has for it."""

    COMPILES = "compiles"
    NEAR = "near the limit"
    REFUSED = "refused"
    UNKNOWN = "unknown"


LIKELY = (Verdict.REFUSED, Verdict.NEAR, Verdict.UNKNOWN, Verdict.COMPILES)
"""The least likely to compile first."""


@dataclass(frozen=True)
class Judged:
    """A graph and what is expected of it. instructions: by the law, None beyond its data. because: a clause."""

    region: Region
    verdict: Verdict
    instructions: float | None
    because: str


def judge(region: Region, known: Known | None = None) -> Judged:
    """The verdict on a graph: on its largest operator where that is the harder one. known: of other data than the
    packaged."""
    whole, tiles = _judge_graph(region, known), region.operator_tiles
    operator = operator_verdict(tiles)
    if whole.verdict is Verdict.REFUSED or operator is Verdict.COMPILES:
        return whole
    said = f"one operator of {tiles:,.0f} matrix tiles, and neuronx-cc takes {OPERATOR_LIMIT:,} instructions of one"
    if operator is Verdict.REFUSED:
        return Judged(region, Verdict.REFUSED, whole.instructions, f"{said}: larger than 32,768^3, which is refused")
    if whole.verdict is Verdict.COMPILES:
        return Judged(region, Verdict.UNKNOWN, whole.instructions, f"{said}: none above 16,384^3 is known to compile")
    return whole


def _judge_graph(region: Region, known: Known | None) -> Judged:
    found = packaged() if known is None else known
    graph, count = region.graph, found.instructions.instructions(region.graph)
    for one in found.compiled:
        if one.compiles and not graph.beyond(one.graph):
            return Judged(region, Verdict.COMPILES, count, f"smaller than {one.name}, which compiles")
        if not one.compiles and not one.graph.beyond(graph):
            return Judged(region, Verdict.REFUSED, count, f"larger than {one.name}, which is refused")
    most = max(one.graph.logits for one in found.compiled if one.compiles)
    law, too_many = found.instructions, LIMIT * (1 + margin(found))
    if count is not None and count > too_many:
        return Judged(region, Verdict.REFUSED, count, "above the limit")
    if graph.tiles > law.most_tiles and law.per_tile * law.most_tiles > too_many:
        words = f"larger than one of {law.most_tiles:,.0f} matrix tiles, which is above the limit"
        return Judged(region, Verdict.REFUSED, count, words)
    if graph.logits > most:
        words = f"{graph.logits / 1e6:,.0f} M logits, and none above {most / 1e6:,.0f} M are known to compile"
        return Judged(region, Verdict.UNKNOWN, count, words)
    if count is None:
        return Judged(region, Verdict.UNKNOWN, count, f"no public graph has {graph.tiles:,.0f} matrix tiles")
    if count > LIMIT * (1 - margin(found)):
        return Judged(region, Verdict.NEAR, count, "within the law's own error of the limit")
    return Judged(region, Verdict.COMPILES, count, "below the limit")


def operator_instructions(tiles: float) -> tuple[float, float]:
    """(least, most) instructions of a matrix product, in proportion to its tiles: the largest that compiles has no more
    than the limit, the smallest that is refused no fewer. A guess: that it was refused for this limit."""
    return tiles * OPERATOR_LIMIT / PRODUCT_REFUSED, tiles * OPERATOR_LIMIT / PRODUCT_COMPILES


def operator_verdict(tiles: float) -> Verdict:
    """Whether the compiler takes a matrix product of so many tiles; unknown between those that are public."""
    if tiles <= PRODUCT_COMPILES:
        return Verdict.COMPILES
    return Verdict.REFUSED if tiles >= PRODUCT_REFUSED else Verdict.UNKNOWN


@lru_cache(maxsize=4)
def margin(known: Known) -> float:
    """The share by which the law may be off: the larger of its error on counts that are left out and of what it is
    above the limit of a graph that compiled."""
    law = known.instructions
    above = [law.per_tile * one.graph.tiles / one.limit - 1 for one in known.compiled if one.compiles]
    return max(law.left_out_error, *above)


def worst(judged: tuple[Judged, ...]) -> Judged:
    """The graph that is the least likely to compile; of equals the largest."""
    return min(judged, key=lambda one: (LIKELY.index(one.verdict), -_size(one.region.graph)))


def _size(graph: GraphSize) -> float:
    return graph.tiles
