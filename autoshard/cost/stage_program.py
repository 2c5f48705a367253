"""The programs that parts of stages are priced by: one block of each kind, the embedding, the head.

A program depends on the model and the local shape alone: neither on devices and links nor on pp, dp and schedule. So a
few small programs serve every layout with the same local shapes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from autoshard.cost.local_shape import LocalShape
from autoshard.cost.program import ProgramWork
from autoshard.errors import AutoshardError
from autoshard.graph.chunked_loss import with_chunked_loss
from autoshard.graph.ir import Graph
from autoshard.graph.orthogonal import with_orthogonal_updates
from autoshard.graph.partition import GatherEinsumStep, Program, RedistributeStep, with_gathered_kept
from autoshard.graph.quantize import with_quantized_products
from autoshard.layout.context_parallel import UNUSED, with_context_parallel
from autoshard.layout.mesh import DATA_AXES, build_mesh, replicas_of_experts, tensor_ranks_apart
from autoshard.layout.sharding import stage_program
from autoshard.layout.strategy import ATTENTION_KERNELS
from autoshard.models.padding import key_value_heads
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.spec.model import ModelSpec
from autoshard.spec.traced import HIDDEN
from autoshard.spec.training import DTYPE_BYTES, MUON, TrainingSpec

Unit = tuple[tuple[int, ...], bool, bool]
"""A program that parts are made of: (places of its blocks, with embedding, with head)."""
UNITS: dict[str, Unit] = {
    "block": ((0,), False, False),
    "first": ((0,), True, False),
    "embedding": ((), True, False),
    "head": ((), False, True),
    "tied": ((), True, True),
}
"""The programs of a model whose blocks are alike. first is the embedding and a block behind it, which is asked for only
where `begins_as_others` says no; tied, embedding and head on one rank, only where both need its table. A prediction
module belongs to the head."""


def block_unit(kind: int) -> Unit:
    """A block of a kind (Blocks.kinds) by itself."""
    return (kind,), False, False


def begins_as_others(block: Program) -> bool:
    """Whether the first block of a model keeps and repeats what others do, whatever is recomputed: where the operators
    of a block read its input as it comes. Behind an embedding they then read what its output was brought to, once, in
    front of the block. Where a block brings its input to them itself, as OLMo 2's projections gather it, the first one
    brings the embedding's output to them in another way.

    block: the program of one block by itself.
    """
    moves = (step.gather if isinstance(step, GatherEinsumStep) else step for step in block.steps)
    return not any(isinstance(step, RedistributeStep) and step.source == HIDDEN for step in moves)


class Rewrites(NamedTuple):
    """A stage's graph is rewritten so for how the model is trained. The first four fields are those of quantised
    products, as `with_quantized_products` has them. loss_chunks: as `with_chunked_loss` has them. by_muon: whether
    Muon updates its matrices."""

    operand_bytes: float | None = None
    unquantized: tuple[str, ...] = ()
    multiple: int = 1
    wide_blocks: tuple[int, ...] = ()
    loss_chunks: int = 1
    by_muon: bool = False

    def of(self, graph: Graph) -> Graph:
        """The graph as it is trained.

        Raises AutoshardError where its loss has no chunks.
        """
        graph = with_chunked_loss(with_quantized_products(graph, *self[:4]), self.loss_chunks)
        return with_orthogonal_updates(graph) if self.by_muon else graph


AS_WRITTEN = Rewrites()


def rewrites(model: ModelSpec, training: TrainingSpec, layers: Collection[int], last: bool) -> Rewrites:
    """How the graph of these blocks is rewritten for a training. last: whether the head is behind them."""
    products, loss_chunks = training.precision.products, training.loss_chunks if last else 1
    by_muon = training.optimizer == MUON
    if products is None:
        return AS_WRITTEN if loss_chunks == 1 and not by_muon else Rewrites(loss_chunks=loss_chunks, by_muon=by_muon)
    wide = tuple(layer for layer in training.wide_blocks(model.num_hidden_layers) if layer in layers)
    of_products = products.operand_bytes, training.unquantized, products.multiple, wide
    return Rewrites(*of_products, loss_chunks, by_muon)


def stage_work(
    model: ModelSpec,
    sequence_length: int,
    capacity_factor: float,
    dtype: str,
    shape: LocalShape,
    kv_inner: bool,
    layers: tuple[int, ...],
    first: bool,
    last: bool,
    rewrites: Rewrites = AS_WRITTEN,
    keeps_gathered: bool = False,
    gathers_quantized: bool = False,
) -> ProgramWork:
    """The program of a stage of this local shape, and what it asks for. It depends neither on the devices, nor on where
    its ranks are, nor on how many replicas there are: with 2, the program says which gradients they sum.
    keeps_gathered, gathers_quantized: as in Software.

    Raises AutoshardError for ranks that share sequences and not their experts.
    """
    seen = _seen(model, capacity_factor, shape, layers, last)
    of = _StageAsSeen(model, sequence_length, dtype, *seen, kv_inner, layers, first, last, rewrites)
    return _stage_work(of, keeps_gathered, gathers_quantized)


def shape_program(
    model: ModelSpec,
    sequence_length: int,
    capacity_factor: float,
    dtype: str,
    shape: LocalShape,
    kv_inner: bool,
    layers: tuple[int, ...],
    first: bool,
    last: bool,
    loss_chunks: int = 1,
) -> Program:
    """The program of `stage_work` alone, of products in one dtype.

    Raises what `stage_work` raises.
    """
    seen = _seen(model, capacity_factor, shape, layers, last)
    rewrites = Rewrites(loss_chunks=loss_chunks if last else 1)
    return _shape_program(_StageAsSeen(model, sequence_length, dtype, *seen, kv_inner, layers, first, last, rewrites))


def _seen(
    model: ModelSpec, capacity_factor: float, shape: LocalShape, layers: tuple[int, ...], last: bool
) -> tuple[LocalShape, float]:
    """(the local shape, the capacity of experts) that operators see."""
    seen = seen_by_operators(model, shape, layers, last)
    return seen, capacity_factor if seen is shape else 1.0


def seen_by_operators(model: ModelSpec, shape: LocalShape, layers: tuple[int, ...], last: bool) -> LocalShape:
    """The local shape with the usual value of all that a stage's operators do not see: without experts, how these are
    spread (but for axes of tensor parallelism that are cut for them); without blocks, also how attention is computed.
    layers, last: as of `stage_work`."""
    predicts = last and model.multi_token_prediction is not None
    told = model.graph is not None or shape.operators or shape.etp is not None
    if told or predicts or any(map(model.has_experts, layers)):
        return shape
    shape = replace(shape, ep=min(shape.ep, 2 * shape.cp))
    return shape if layers else replace(shape, attention_kernel=ATTENTION_KERNELS[0], context_parallel=UNUSED)


class _StageAsSeen(NamedTuple):
    """All that the program of a stage follows from, as its operators see it; fields as of `stage_work`."""

    model: ModelSpec
    sequence_length: int
    dtype: str
    shape: LocalShape
    capacity_factor: float
    kv_inner: bool
    layers: tuple[int, ...]
    first: bool
    last: bool
    rewrites: Rewrites = AS_WRITTEN


@lru_cache(maxsize=2048)
def _stage_work(of: _StageAsSeen, keeps_gathered: bool, gathers_quantized: bool) -> ProgramWork:
    program = _shape_program(of)
    if gathers_quantized:
        program = replace(program, gathers_quantized=True)
    return ProgramWork(with_gathered_kept(program) if keeps_gathered else program)


@lru_cache(maxsize=2048)
def _shape_program(of: _StageAsSeen) -> Program:
    model, sequence_length, dtype, shape, capacity_factor, kv_inner, layers, first, last, rewrites = of
    if model.is_moe and shape.cp > 1 and shape.ep == 1:
        raise AutoshardError(f"cp={shape.cp} with the experts of {model.name} whole on each rank has no price")
    kv_heads = key_value_heads(model, shape.tp)
    replicas = 2 * replicas_of_experts(shape.ep, shape.cp, tensor_ranks_apart(shape.tp, shape.etp))
    mesh = build_mesh(shape.tp, 1, replicas, shape.cp, shape.ep, kv_heads, kv_inner, etp=shape.etp)
    axes = mesh.stage_axes
    batch = shape.microbatch_size * mesh.size(DATA_AXES)
    attention = shape.attention_kernel, shape.context_parallel, shape.cp
    graph = _for_one_sequence(model, sequence_length, shape.tp, dtype, attention, layers, first, last, rewrites)
    graph = replace(graph, sizes=dim_sizes(model, batch, sequence_length, shape.tp, capacity_factor))
    return stage_program(graph, axes, shape.sequence_parallel, shape.operators, shape.etp is not None)


@lru_cache(maxsize=256)
def _for_one_sequence(
    model: ModelSpec,
    sequence_length: int,
    tp: int,
    dtype: str,
    attention: tuple[str, str, int],
    layers: tuple[int, ...],
    first: bool,
    last: bool,
    rewrites: Rewrites,
) -> Graph:
    """The graph of a stage for one sequence: its tensors and operators are those of any batch and capacity of experts.
    attention: its kernel, the kind of context parallelism and of how many ranks."""
    kernel, context_parallel, cp = attention
    sizes = dim_sizes(model, 1, sequence_length, tp)
    graph = stage_graph(model, sizes, layers, first, last, kernel, element_bytes=DTYPE_BYTES[dtype])
    return rewrites.of(with_context_parallel(graph, context_parallel, cp))
