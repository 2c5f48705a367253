"""The local shape of a layout, which decides what one microbatch costs a rank, and the mesh of its ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from autoshard.layout.context_parallel import UNUSED
from autoshard.layout.degrees import Degrees
from autoshard.layout.mesh import AXIS_ORDER, Mesh, build_mesh, replicas_of_experts, tensor_ranks_apart
from autoshard.layout.sharding import OperatorChoices
from autoshard.models.padding import key_value_heads
from autoshard.spec.cluster import Cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import OWN_INDEXER
from autoshard.spec.training import DTYPE_BYTES, TrainingSpec


@dataclass(frozen=True)
class LocalShape:
    """Everything of a strategy that decides what one microbatch costs one rank of a stage, apart from recompute.

    placement: (axis, degree) of all axes, outermost first, where pp or dp are not outside of all others; else ().
    """

    tp: int
    cp: int
    ep: int
    microbatch_size: int
    sequence_parallel: bool
    attention_kernel: str
    context_parallel: str = UNUSED
    operators: OperatorChoices = ()
    placement: tuple[tuple[str, int], ...] = ()
    etp: int | None = None


class LocalChoices(Degrees, Protocol):
    """The degrees and choices of a layout that meshes and local shapes read."""

    @property
    def microbatch_size(self) -> int: ...
    @property
    def sequence_parallel(self) -> bool: ...
    @property
    def attention_kernel(self) -> str: ...
    @property
    def context_parallel(self) -> str: ...
    @property
    def axis_order(self) -> tuple[str, ...]: ...
    @property
    def etp(self) -> int | None: ...


def stage_mesh(model: ModelSpec, cluster: Cluster, shape: LocalShape) -> Mesh:
    """A mesh with this local shape and, where its placement says nothing, no pipeline: what a microbatch costs a rank
    does not depend on pp and dp where they are outside of all other axes.

    At least 2 data-parallel ranks then, so that the programs say which gradients they sum.
    """
    kv_inner = cluster.platform.kv_heads_innermost
    kv_heads = key_value_heads(model, shape.tp)
    tp, cp, ep, etp = shape.tp, shape.cp, shape.ep, shape.etp
    if shape.placement:
        degrees, order = dict(shape.placement), tuple(name for name, _ in shape.placement)
        return build_mesh(tp, degrees["pp"], degrees["dp"], cp, ep, kv_heads, kv_inner, order, etp=etp)
    inner = replicas_of_experts(ep, cp, tensor_ranks_apart(tp, etp))
    replicas = max(2, cluster.world_size // (tp * cp * inner))
    return build_mesh(tp, 1, replicas * inner, cp, ep, kv_heads, kv_inner, etp=etp)


def placement(tp: int, pp: int, dp: int, cp: int, ep: int, axis_order: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    """LocalShape.placement: () where axes of more than one rank are in the default order, but for pp and dp, outermost
    among themselves in any order."""
    if axis_order == AXIS_ORDER:
        return ()
    degrees = {"pp": pp, "dp": dp, "cp": cp, "tp": tp}
    used, usual = ([name for name in order if degrees[name] > 1] for order in (axis_order, AXIS_ORDER))
    if used == usual or (used[:2] == ["dp", "pp"] and used[2:] == usual[2:] and ep == 1):
        return ()
    return tuple((name, degrees[name]) for name in axis_order)


def local_shape(layout: LocalChoices, operators: OperatorChoices = ()) -> LocalShape:
    """The local shape of a layout: what decides the cost of one microbatch on a rank, apart from recompute. operators:
    choices of shardings beside the usual ones."""
    s = layout
    return LocalShape(
        s.tp,
        s.cp,
        s.ep,
        s.microbatch_size,
        s.sequence_parallel,
        s.attention_kernel,
        s.context_parallel,
        operators,
        placement(s.tp, s.pp, s.dp, s.cp, s.ep, s.axis_order),
        s.etp,
    )


def mesh_order(mesh: Mesh) -> tuple[tuple[str, int], ...]:
    """(axis, size) of every axis in the order of ranks, outermost first, as the collectives want it."""
    return tuple((axis.name, axis.size) for axis in mesh.rank_axes)


def hidden_bytes(model: ModelSpec, training: TrainingSpec, shape: LocalShape) -> int:
    """Bytes of the hidden activation of one microbatch between two blocks, on a rank."""
    inside = shape.cp * (shape.tp if shape.sequence_parallel else 1)
    elements = shape.microbatch_size * training.sequence_length * model.hidden_size * model.num_streams // inside
    return elements * DTYPE_BYTES[training.precision.compute_dtype]


def choice_bytes(model: ModelSpec, training: TrainingSpec, shape: LocalShape) -> int:
    """Bytes of an indexer's choice of one microbatch on a rank, a byte for each query and key, where blocks behind the
    one that has the indexer see it; else 0."""
    if set(model.indexer_types) <= {OWN_INDEXER}:
        return 0
    return shape.microbatch_size * (training.sequence_length // shape.cp) * training.sequence_length


def strategy_mesh(model: ModelSpec, cluster: Cluster, strategy: LocalChoices) -> Mesh:
    """The mesh of a strategy, or of a draft of one, on the platform of a cluster."""
    s = strategy
    kv_heads = key_value_heads(model, s.tp)
    kv_inner = cluster.platform.kv_heads_innermost
    fold = cluster.fold(s.tp)
    return build_mesh(s.tp, s.pp, s.dp, s.cp, s.ep, kv_heads, kv_inner, s.axis_order, fold, s.dp_replicate, s.etp)
