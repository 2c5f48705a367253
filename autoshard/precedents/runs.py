"""Layouts that are known to have run on a generation of devices with a backend, as results or as examples.

`known.json`, written by `python -m benchmarks.beaten_path` alone, holds them with their sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import exp, log
from pathlib import Path
from typing import Annotated, Literal, Protocol

from autoshard.errors import AutoshardError
from autoshard.files.codec import Count, Limit, NotNegative, Positive, Text, from_json
from autoshard.files.json_file import read_json
from autoshard.layout.degrees import Degrees
from autoshard.precedents.graph_size import GraphSize

FILE = Path(__file__).parent / "known.json"
MAX_FILE_BYTES = 1_000_000
MOST_RUNS = 10_000
Pipeline = Literal["between nodes", "inside a node", "none"]
BETWEEN: Pipeline = "between nodes"
INSIDE: Pipeline = "inside a node"
NO_PIPELINE: Pipeline = "none"


class PlacedDegrees(Degrees, Protocol):
    """Degrees and the order of axes, which the place of a pipeline follows from."""

    @property
    def axis_order(self) -> tuple[str, ...]: ...


def pipeline_place(layout: PlacedDegrees, devices_per_node: int) -> Pipeline:
    """Whether the neighbours of a pipeline share a node: NO_PIPELINE, INSIDE or BETWEEN."""
    if layout.pp == 1:
        return NO_PIPELINE
    apart = 1
    for axis in reversed(layout.axis_order):
        if axis == "pp":
            break
        apart *= int(getattr(layout, axis))
    return INSIDE if apart < devices_per_node else BETWEEN


@dataclass(frozen=True)
class Run:
    """A layout of a model that somebody published as running. graph: its largest. results: how many rows of tables say
    so. sources: the first of them."""

    model: Text
    tp: Count
    cp: Count
    ep: Count
    num_virtual_stages: Count
    microbatch_size: Count
    pipeline: Pipeline
    recompute: Text
    graph: GraphSize
    results: Count
    sources: Annotated[tuple[Text, ...], Limit(items=1, most_items=10)]


@dataclass(frozen=True)
class Compiled:
    """One graph that a compiler was given, whatever became of it. instructions: None where nobody printed them. limit:
    of instructions, as the compiler was set. compiles: whether it did."""

    name: Text
    generation: Text
    graph: GraphSize
    instructions: Positive | None
    limit: Positive
    compiles: bool
    source: Text


@dataclass(frozen=True)
class InstructionFit:
    """Instructions of a graph by its matrix tiles: a law with slope 1 in logarithms. The public pairs identify no more
    than its one constant: coefficients of operators and logits are 0 until more are published.

    per_tile: Instructions of a tile. left_out_error: mean of |predicted / printed - 1|, each pair left out in turn.
    least_tiles, most_tiles: Of the graphs that it was fitted to and checked with; beyond them nothing is said.
    """

    per_tile: Positive
    left_out_error: NotNegative
    least_tiles: NotNegative
    most_tiles: NotNegative

    def instructions(self, graph: GraphSize) -> float | None:
        """Instructions of a graph; None where nothing that large or that small was published."""
        inside = self.least_tiles <= graph.tiles <= self.most_tiles
        return self.per_tile * graph.tiles if inside else None


def fitted_instructions(graphs: tuple[Compiled, ...]) -> InstructionFit:
    """The law that fits the graphs whose instructions were printed best, by its mean in logarithms. There must be two
    of them."""
    logs = [log(one.instructions / one.graph.tiles) for one in graphs if one.instructions is not None]
    assert len(logs) > 1, "an error of left-out pairs needs two"
    errors = [abs(exp((sum(logs) - own) / (len(logs) - 1) - own) - 1) for own in logs]
    tiles = [one.graph.tiles for one in graphs]
    return InstructionFit(exp(sum(logs) / len(logs)), sum(errors) / len(errors), min(tiles), max(tiles))


@dataclass(frozen=True)
class BeatenPath:
    """Everything that is known to have run on one generation of devices with one backend.

    largest_graph: the largest of each number, of the runs' graphs and of those that a compiler of the generation took.
    """

    generation: Text
    backend: Text
    runs: Annotated[tuple[Run, ...], Limit(items=1, most_items=MOST_RUNS)]
    largest_graph: GraphSize

    @cached_property
    def values(self) -> dict[str, frozenset[int | str]]:
        """By name of FEATURES, the values that some run has."""
        return {name: frozenset(getattr(run, name) for run in self.runs) for name in FEATURES}

    @property
    def name(self) -> str:
        """Generation and backend in words, 'trn1 with backend nxd'."""
        return f"{self.generation} with backend {self.backend}"

    @property
    def results(self) -> int:
        """Rows of tables behind it."""
        return sum(run.results for run in self.runs)


FEATURES = ("tp", "cp", "ep", "num_virtual_stages", "microbatch_size", "pipeline", "recompute")
"""Fields of a Run that are known or not known value by value."""


@dataclass(frozen=True)
class Known:
    """The packaged file. paths: by generation and backend. compiled: what compilers were given."""

    made_by: Text
    paths: Annotated[tuple[BeatenPath, ...], Limit(most_items=100)]
    compiled: Annotated[tuple[Compiled, ...], Limit(most_items=MOST_RUNS)]
    instructions: InstructionFit


def read_known(file: Path) -> Known:
    """The content of a file of known runs. Raises AutoshardError, one line, for anything else."""
    known = from_json(Known, read_json(file, "file of known runs", MAX_FILE_BYTES), "known runs")
    pairs = [(one.generation, one.backend) for one in known.paths]
    if twice := [pair for pair in pairs if pairs.count(pair) > 1]:
        raise AutoshardError(
            f"known runs: {' with backend '.join(twice[0])} stands there twice; one entry holds all runs"
        )
    return known


@lru_cache(maxsize=1)
def packaged() -> Known:
    """The file that comes with autoshard."""
    return read_known(FILE)


def beaten_path(generation: str, backend: str) -> BeatenPath | None:
    """The path of a generation with a backend; None where nothing is published."""
    return next(
        (one for one in packaged().paths if (one.generation, one.backend) == (generation, backend)),
        None,
    )
