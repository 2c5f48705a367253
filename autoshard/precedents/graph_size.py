"""How large the largest graph is that a compiler gets for a layout, in numbers that a compiler's limits follow.

neuronx-distributed compiles forward and backward of a stage apart, of one microbatch; where there is no pipeline both
are one graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple, Protocol

from autoshard.cost.local_shape import LocalChoices, LocalShape, local_shape
from autoshard.cost.stage_program import UNITS, Unit, block_unit, seen_by_operators, shape_program
from autoshard.files.codec import NotNegative
from autoshard.graph.count import operator_steps, operator_work
from autoshard.graph.ir import Operator
from autoshard.graph.loss_kinds import num_chunks
from autoshard.graph.partition import OperatorStep
from autoshard.graph.recompute import name_in_block
from autoshard.layout.strategy import Strategy
from autoshard.models.stage import padded_vocab_size
from autoshard.spec.cluster import Cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec

TILE_FLOPS = 2 * 128 * 128 * 512
"""FLOPs of one matrix tile: 128 x 128 weights of a Trainium core's matrix unit, for 512 rows of input [NKI: a matmul
instruction takes at most so much]."""

MASKED = 2.0
"""Times the work of causal attention, where scores are written out: those behind the mask are computed too."""


@dataclass(frozen=True)
class GraphSize:
    """The size of one compiled graph on one rank.

    operators: Operators and redistributions.
    tiles: FLOPs of its matrix products and attention in tiles of 128 x 128 x 512.
    logits: Elements of the logits of one microbatch, 0 where the graph has no head.
    """

    operators: NotNegative
    tiles: NotNegative
    logits: NotNegative

    def beyond(self, known: GraphSize) -> tuple[str, ...]:
        """The numbers in which it is larger than what is known, in words."""
        pairs = {
            "operators": (self.operators, known.operators),
            "matrix tiles": (self.tiles, known.tiles),
            "logits": (self.logits, known.logits),
        }
        return tuple(f"{round(own):,} {name}" for name, (own, most) in pairs.items() if own > most * (1 + 1e-9))


def largest_of(sizes: list[GraphSize]) -> GraphSize:
    """The largest of each number."""
    return GraphSize(
        max(one.operators for one in sizes), max(one.tiles for one in sizes), max(one.logits for one in sizes)
    )


class _UnitSize(NamedTuple):
    operators: int
    forward_tiles: float
    backward_tiles: float


def graph_size(model: ModelSpec, training: TrainingSpec, cluster: Cluster, strategy: Strategy) -> GraphSize:
    """The largest graph of a layout, without what a recompute set repeats: which sets have run is a feature of its
    own."""
    return size_of(model, training, cluster, local_shape(strategy), strategy.pp, strategy.stage_layers)


def size_of(
    model: ModelSpec,
    training: TrainingSpec,
    cluster: Cluster,
    shape: LocalShape,
    pp: int,
    stage_layers: tuple[int, ...],
) -> GraphSize:
    """The largest graph of a layout by its local shape. stage_layers: blocks of each virtual stage."""
    shape = replace(shape, placement=())  # where ranks are makes no graph larger
    head, embedding = (_unit(model, training, cluster, shape, UNITS[name]) for name in ("head", "embedding"))
    blocks = {kind: _unit(model, training, cluster, shape, block_unit(kind)) for kind in model.kinds}

    def stage(first: int, stop: int) -> _UnitSize:
        units = [(count, blocks[kind]) for kind, count in model.kind_counts(first, stop)]
        return _UnitSize(
            sum(count * unit.operators for count, unit in units),
            sum(count * unit.forward_tiles for count, unit in units),
            sum(count * unit.backward_tiles for count, unit in units),
        )

    logits = _logits(model, training, shape)
    if pp == 1:
        every = stage(0, model.num_hidden_layers)
        both = (every.forward_tiles + head.forward_tiles, every.backward_tiles + head.backward_tiles)
        operators = every.operators + head.operators + embedding.operators
        return GraphSize(2 * operators, sum(both), logits)
    stages = [stage(end - layers, end) for end, layers in zip(accumulate(stage_layers), stage_layers, strict=True)]
    last = stages[-1]
    inner = max(one.operators for one in stages) + embedding.operators, max(one.backward_tiles for one in stages)
    outer = last.operators + head.operators, last.backward_tiles + head.backward_tiles
    return GraphSize(max(inner[0], outer[0]), max(inner[1], outer[1]), logits)


def forward_size(
    model: ModelSpec, training: TrainingSpec, cluster: Cluster, shape: LocalShape, layers: int
) -> GraphSize:
    """The graph of so many blocks forward alone, with neither embedding nor head."""
    block = _unit(model, training, cluster, shape, UNITS["block"])
    return GraphSize(layers * block.operators, layers * block.forward_tiles, 0.0)


@dataclass(frozen=True)
class Region:
    """A graph that holds what a rank computes between two collectives.

    name: its first and its last operator, and whether it is the forward or the backward. operator_tiles: matrix tiles
    of its largest product; backward has two of that size for each. operator: the name of that product, "" without any.
    """

    name: str
    graph: GraphSize
    operator_tiles: float = 0.0
    operator: str = ""

    def of_sequences(self, count: int) -> Region:
        """The same graph of a microbatch with so many times the sequences: as many operators, of so many times the
        rows."""
        graph = GraphSize(self.graph.operators, count * self.graph.tiles, count * self.graph.logits)
        return Region(self.name, graph, count * self.operator_tiles, self.operator)


class StageChoices(LocalChoices, Protocol):
    """A layout whose stages are counted, too."""

    @property
    def num_virtual_stages(self) -> int: ...


def largest_stage(model: ModelSpec, layout: StageChoices) -> int:
    """Blocks of the largest stage, where the model is cut evenly."""
    return -(-model.num_hidden_layers // (layout.pp * layout.num_virtual_stages))


def regions(model: ModelSpec, training: TrainingSpec, cluster: Cluster, layout: StageChoices) -> tuple[Region, ...]:
    """The distinct graphs of a layout where what ranks compute between collectives is compiled, forward and backward
    apart, the largest first. Under an eager stack each operator is a graph by itself.

    A region ends with its block. Attention that communicates, or masks more than the future, is none of it, and neither
    is a loss over pieces of the vocabulary. Left out: optimizer and norms of gradients, which are small. Where
    whole stages are compiled: both passes of the largest stage, if it had the embedding and the head.
    """
    shape = replace(local_shape(layout), placement=(), microbatch_size=1)
    if cluster.compiles_stages:
        of_one = _stage_regions(model, training, cluster, shape, largest_stage(model, layout))
    else:
        of_one = _regions(model, training, cluster, shape)
    return tuple(one.of_sequences(layout.microbatch_size) for one in of_one)


@lru_cache(maxsize=1024)
def _stage_regions(
    model: ModelSpec, training: TrainingSpec, cluster: Cluster, shape: LocalShape, layers: int
) -> tuple[Region, ...]:
    """The graphs of a stage with so many blocks, with embedding and head, the largest first."""
    ends = [_unit(model, training, cluster, shape, UNITS[name]) for name in ("embedding", "head")]
    units = [(1, one) for one in ends]
    units += [(n, _unit(model, training, cluster, shape, block_unit(kind))) for kind, n in model.kind_counts(0, layers)]
    operators, logits = sum(n * one.operators for n, one in units), _logits(model, training, shape)
    passes = (
        ("backward", sum(n * one.backward_tiles for n, one in units)),
        ("forward", sum(n * one.forward_tiles for n, one in units)),
    )
    name = f"a stage of {layers} blocks"
    kinds = (UNITS["embedding"], *map(block_unit, model.kinds), UNITS["head"])
    product = _largest_product([step for unit in kinds for step in _steps(model, training, cluster, shape, unit)])
    return tuple(Region(f"{name}, {which}", GraphSize(operators, tiles, logits), *product) for which, tiles in passes)


def head_regions(
    model: ModelSpec, training: TrainingSpec, cluster: Cluster, layout: StageChoices
) -> tuple[Region, ...]:
    """The graphs of the head alone, of those that `regions` has: often the largest, in a part of the time; none where
    whole stages are compiled."""
    if cluster.compiles_stages:
        return ()
    shape = replace(local_shape(layout), placement=(), microbatch_size=1)
    of_one = _unit_regions(model, training, cluster, shape, UNITS["head"])
    return tuple(one.of_sequences(layout.microbatch_size) for one in of_one)


@lru_cache(maxsize=1024)
def _regions(model: ModelSpec, training: TrainingSpec, cluster: Cluster, shape: LocalShape) -> tuple[Region, ...]:
    units = (UNITS["embedding"], *map(block_unit, model.kinds), UNITS["head"])
    found = {one.name: one for unit in units for one in _unit_regions(model, training, cluster, shape, unit)}
    return tuple(sorted(found.values(), key=lambda one: (-one.graph.tiles, -one.graph.logits, one.name)))


def _unit_regions(
    model: ModelSpec, training: TrainingSpec, cluster: Cluster, shape: LocalShape, unit: Unit
) -> tuple[Region, ...]:
    """The graphs of a block or an end of the model. unit: as cost.stage_program.UNITS has it."""
    layers, _, last = unit
    return _regions_of_unit(model, training, cluster, seen_by_operators(model, shape, layers, last), unit)


@lru_cache(maxsize=4096)
def _regions_of_unit(
    model: ModelSpec, training: TrainingSpec, cluster: Cluster, shape: LocalShape, unit: Unit
) -> tuple[Region, ...]:
    """The graphs of `_unit_regions`. shape: as the unit's operators see it."""
    is_eager = cluster.stack is not None and "eager" in cluster.stack
    logits = _logits(model, training, shape)
    found: dict[str, Region] = {}
    run: list[tuple[str, _StepSize]] = []

    def close() -> None:
        if not run:
            return
        name = run[0][0] if len(run) == 1 else f"{run[0][0]} to {run[-1][0]}"
        count = sum(one.operators for _, one in run)
        own = max((logits / one.chunks for _, one in run if one.has_logits), default=0.0)
        product = _largest_product(run)
        passes = {"forward": [one.forward_tiles for _, one in run], "backward": [one.backward_tiles for _, one in run]}
        for which, tiles in passes.items():
            found[f"{name}, {which}"] = Region(f"{name}, {which}", GraphSize(count, sum(tiles), own), *product)
        run.clear()

    for name, size in _steps(model, training, cluster, shape, unit):
        if size.ends_region:
            close()
        if name != COLLECTIVE:
            run.append((name, size.of_chunk))
        if size.ends_region or is_eager:
            close()
    close()
    return tuple(found.values())


def _logits(model: ModelSpec, training: TrainingSpec, shape: LocalShape) -> float:
    """Elements of the logits of one microbatch on a rank."""
    rows = shape.microbatch_size * training.sequence_length / shape.cp
    return rows * padded_vocab_size(model.vocab_size, shape.tp) / shape.tp


def _largest_product(steps: Sequence[tuple[str, _StepSize]]) -> tuple[float, str]:
    """(matrix tiles, name) of the largest product of some steps, (0.0, "") where none is one."""
    name, size = max(steps, key=lambda step: step[1].product_tiles)
    return size.product_tiles, name if size.product_tiles else ""


COLLECTIVE = "a collective"


class _StepSize(NamedTuple):
    """A step of a program. operators: 0 for a gather that is a part of the products behind it. ends_region: whether it
    is a collective, or a kernel by itself. product_tiles: of its matrix product, 0 where it is something else. chunks:
    of rows that are graphs of their own, one after another."""

    operators: int
    forward_tiles: float
    backward_tiles: float
    ends_region: bool
    has_logits: bool
    product_tiles: float = 0.0
    chunks: int = 1

    @property
    def of_chunk(self) -> _StepSize:
        """One chunk alone."""
        tiles = {
            name: getattr(self, name) / self.chunks for name in ("forward_tiles", "backward_tiles", "product_tiles")
        }
        return self._replace(**tiles)


def _steps(
    model: ModelSpec, training: TrainingSpec, cluster: Cluster, shape: LocalShape, unit: Unit
) -> Iterator[tuple[str, _StepSize]]:
    """Yields (name, size) of each step of a block or an end of the model. unit: as cost.stage_program.UNITS
    has it."""
    program = shape_program(
        model,
        training.sequence_length,
        training.expert_slots(shape.ep),
        training.precision.compute_dtype,
        shape,
        cluster.platform.kv_heads_innermost,
        *unit,
        training.loss_chunks,
    )
    for step in program.steps:
        found = operator_steps(step)
        if not isinstance(step, OperatorStep):
            yield COLLECTIVE, _StepSize(int(not found), 0.0, 0.0, True, False)
        for one in found:
            done, forward, backward = operator_work(program, one), 0.0, 0.0
            is_attention = done.kind == "attention"
            is_apart = is_attention and (shape.cp > 1 or not _is_plainly_causal(one.operator, training))
            is_apart = is_apart or (done.kind == "cross_entropy" and "vocab" in one.choice.values())
            chunks = num_chunks(one.operator)
            if done.matmul is not None or is_attention:
                masked = is_attention and shape.attention_kernel == "plain"
                forward = done.flops * (MASKED if masked else 1.0) / TILE_FLOPS
                backward = forward * done.backward_flops_ratio
            yield (
                name_in_block(one.operator.name) or one.operator.name,
                _StepSize(
                    1,
                    forward,
                    backward,
                    is_apart or chunks > 1,
                    unit == UNITS["head"] and done.kind != "norm",
                    0.0 if done.matmul is None else forward,
                    chunks,
                ),
            )


def _is_plainly_causal(attention: Operator, training: TrainingSpec) -> bool:
    """Whether attention masks the future and nothing else, and drops nothing."""
    window = attention.attributes.get("sliding_window")
    covers = not isinstance(window, int) or window >= training.sequence_length
    return covers and attention.attributes.get("dropout") is None


@lru_cache(maxsize=1024)
def _unit(model: ModelSpec, training: TrainingSpec, cluster: Cluster, shape: LocalShape, unit: Unit) -> _UnitSize:
    """A block or an end of the model. unit: as cost.stage_program.UNITS has it."""
    steps = [size for _, size in _steps(model, training, cluster, shape, unit)]
    return _UnitSize(
        sum(one.operators for one in steps),
        sum(one.forward_tiles for one in steps),
        sum(one.backward_tiles for one in steps),
    )
