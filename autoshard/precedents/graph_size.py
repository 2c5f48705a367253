"""How large the largest graph is that a compiler gets for a layout, in numbers that a compiler's limits follow.

neuronx-distributed compiles forward and backward of a stage apart, of one microbatch; where there is no pipeline both
are one graph.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from autoshard.cost.stage import UNITS, LocalShape, Unit, block_unit, local_shape, stage_work
from autoshard.files.codec import NotNegative
from autoshard.graph.count import operator_steps, operator_work
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

    rows = shape.microbatch_size * training.sequence_length / shape.cp
    logits = rows * padded_vocab_size(model.vocab_size, shape.tp) / shape.tp
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


@lru_cache(maxsize=1024)
def _unit(model: ModelSpec, training: TrainingSpec, cluster: Cluster, shape: LocalShape, unit: Unit) -> _UnitSize:
    """A block or an end of the model. unit: as cost.stage.UNITS has it."""
    work = stage_work(
        model,
        training.sequence_length,
        training.expert_capacity_factor,
        training.precision.compute_dtype,
        shape,
        cluster.platform.kv_heads_innermost,
        *unit,
    )
    operators, forward, backward = 0, 0.0, 0.0
    for step in work.program.steps:
        found = operator_steps(step)
        operators += max(1, len(found))
        for one in found:
            done = operator_work(work.program, one)
            if done.matmul is None and done.kind != "attention":
                continue
            masked = done.kind == "attention" and shape.attention_kernel == "plain"
            tiles = done.flops * (MASKED if masked else 1.0) / TILE_FLOPS
            forward += tiles
            backward += tiles * done.backward_flops_ratio
    return _UnitSize(operators, forward, backward)
