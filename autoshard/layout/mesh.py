"""The logical mesh: a pipeline, the axes of its stages, and the order in which ranks count through them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

from autoshard.errors import AutoshardError
from autoshard.spec.attention_heads import GLOBAL
from autoshard.spec.platform import Fold

AXIS_ORDER = ("pp", "dp", "cp", "tp")
"""NxD's order and torchtitan's, outermost first: neighbours along the last one have neighbouring ranks."""
EXPERT_PART_AXES = ("etp", "etp1", "etp2", "etp0")
"""Axes of tensor parallelism that cut every expert, where others hold experts of their own (etp)."""
TENSOR_PARALLEL_AXES = ("tp", "tp1", "tp2", "tp0", *EXPERT_PART_AXES)
COPY_AXES = {"": ("tp1", "etp1"), GLOBAL: ("tp1", "etp1", "tp2", "etp2")}
"""Axes along which ranks have the same key-value heads, by the kind of these heads (AttentionHeads.kind)."""
FAMILIES = {"dp": ("dp_replicate", "dp", "ep"), "cp": ("cp",), "tp": TENSOR_PARALLEL_AXES}
"""Axes of a stage that stay together wherever their family stands."""


def parse_axis_order(text: str) -> tuple[str, ...]:
    """The axis order that a text such as 'dp-pp-cp-tp' names, outermost first.

    Raises AutoshardError for any other text.
    """
    order = tuple(text.split("-"))
    check_axis_order(order)
    return order


def check_axis_order(order: object) -> None:
    """Raise AutoshardError for anything but a permutation of AXIS_ORDER."""
    if not isinstance(order, tuple) or sorted(map(str, order)) != sorted(AXIS_ORDER):
        shown = ("-".join(map(str, order)) if isinstance(order, tuple) else str(order))[:60]
        raise AutoshardError(
            f"axis_order={shown if shown.isprintable() else ascii(shown)} must name each of "
            f"{', '.join(AXIS_ORDER)} once, outermost first, such as {'-'.join(AXIS_ORDER)}"
        )


@dataclass(frozen=True)
class Axis:
    """An axis of the mesh and its number of ranks.

    name: 'dp', 'ep', 'cp', 'tp'; 'tp1' and 'tp0' where tensor parallelism exceeds the KV heads; 'tp2' where it exceeds
    those of blocks with full attention by more than others; 'etp', 'etp1', 'etp2' and 'etp0' of these, where a part of
    tensor parallelism alone cuts experts; 'dp_replicate' where ZeRO shards among a part of the replicas alone.
    """

    name: str
    size: int


@dataclass(frozen=True)
class Mesh:
    """A pipeline of pp ranks, the axes of a stage, and the order in which ranks count through them.

    axes: of a stage, outermost first. If several axes split one dim, outer axes hold the larger pieces.
    order: families of axes and 'pp', outermost first: rank = ((i0 * n1 + i1) * n2 + i2) ... along it. It decides which
    links an axis crosses and nothing else: ranks of the last one share a chip, of the first one are nodes apart.
    fold: None, or how nodes are folded; then the number that `order` gives is a place of the folded order.
    """

    pp: int
    axes: tuple[Axis, ...]
    order: tuple[str, ...] = AXIS_ORDER
    fold: Fold | None = None

    @cached_property
    def rank_axes(self) -> tuple[Axis, ...]:
        """All axes with the pipeline, named 'pp', in the order in which ranks count through them, outermost first."""
        axes: list[Axis] = []
        for family in self.order:
            members = (Axis("pp", self.pp),) if family == "pp" else self.axes
            axes += [axis for axis in members if axis.name in FAMILIES.get(family, ("pp",))]
        return tuple(axes)

    @property
    def stage_size(self) -> int:
        """Number of ranks of one pipeline stage."""
        return prod(axis.size for axis in self.axes)

    @property
    def world_size(self) -> int:
        """Number of ranks of the whole mesh."""
        return self.pp * self.stage_size

    @property
    def stage_axes(self) -> dict[str, int]:
        """Size of each stage axis, as the graph wants it; axes of size 1 have no collectives and are left out."""
        return {axis.name: axis.size for axis in self.axes if axis.size > 1}

    def size(self, names: Iterable[str]) -> int:
        """Number of ranks along the named stage axes together; a name that is none of them counts as 1."""
        sizes = self._sizes
        return prod([sizes.get(name, 1) for name in set(names)])

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return {axis.name: axis.size for axis in self.axes}

    def coordinates(self, rank: int) -> tuple[int, dict[str, int]]:
        """(pipeline rank, index along every stage axis) of a rank."""
        index: dict[str, int] = {}
        rank = rank if self.fold is None else self.fold.place(rank)
        for axis in reversed(self.rank_axes):
            rank, index[axis.name] = divmod(rank, axis.size)
        return index["pp"], {axis.name: index[axis.name] for axis in self.axes}

    def position(self, index: Mapping[str, int], names: Iterable[str]) -> int:
        """The place along several axes taken together, the last one varying fastest. index: the place along each."""
        wanted, position = set(names), 0
        for axis in self.axes:
            if axis.name in wanted:
                position = position * axis.size + index[axis.name]
        return position

    def rank(self, pp: int, index: Mapping[str, int]) -> int:
        """The rank at these coordinates.

        pp: pipeline rank. index: along each stage axis; 0 along an axis that it leaves out.
        """
        place = {**index, "pp": pp}
        rank = 0
        for axis in self.rank_axes:
            rank = rank * axis.size + place.get(axis.name, 0)
        return self._at(rank)

    def group(self, rank: int, names: Iterable[str]) -> tuple[int, ...]:
        """The rank's own of `groups(names)`."""
        wanted, strides, stride = set(names), dict[str, int](), 1
        for axis in reversed(self.rank_axes):
            strides[axis.name], stride = stride, stride * axis.size
        pp, index = self.coordinates(rank)
        along = [(name, size) for name, size in (("pp", self.pp), *self.stage_axes.items()) if name in wanted]
        places = [sum(place * strides[name] for name, place in {**index, "pp": pp}.items() if name not in wanted)]
        for name, size in along:
            places = [first + place * strides[name] for first in places for place in range(size)]
        return tuple(map(self._at, places))

    def _at(self, place: int) -> int:
        return place if self.fold is None else self.fold.rank(place)

    def groups(self, names: Iterable[str]) -> list[list[int]]:
        """Groups of ranks that differ only along the named axes ('pp' may be one of them).

        The members of a group are in the order of a dim's pieces: along the pipeline, then along the axes, the last one
        fastest, whatever the order of ranks is.
        """
        wanted, strides, stride = set(names), dict[str, int](), 1
        for axis in reversed(self.rank_axes):
            strides[axis.name], stride = stride, stride * axis.size
        axes = (Axis("pp", self.pp), *self.axes)
        members: dict[tuple[int, ...], list[int]] = {}
        for position in product(*(range(axis.size) for axis in axes)):
            place = sum(index * strides[axis.name] for index, axis in zip(position, axes, strict=True))
            key = tuple(i for i, axis in zip(position, axes, strict=True) if axis.name not in wanted)
            members.setdefault(key, []).append(self._at(place))
        return list(members.values())


def build_mesh(
    tp: int,
    pp: int,
    dp: int,
    cp: int,
    ep: int,
    num_key_value_heads: int | tuple[int, ...],
    kv_inner: bool = True,
    order: tuple[str, ...] = AXIS_ORDER,
    fold: Fold | None = None,
    dp_replicate: int = 1,
    etp: int | None = None,
) -> Mesh:
    """The mesh of a strategy's degrees.

    dp counts all replicas. ep is carved out of dp x cp x tp/etp: experts are split over 'cp', over the tensor-parallel
    ranks that do not cut them, and over the inner part of dp, the axis 'ep'; the axis 'dp' is what is left.
    dp_replicate is carved out of dp too, its outermost part and an axis of its own: ZeRO shards inside of it. Of the
    experts, cp's and tp's ranks hold the larger pieces: so experts that these have split are split further by one
    exchange (graph/redistribute.py); in the other order they would be gathered first. tp beyond the KV heads becomes
    two axes: tp0 splits the KV heads, tp1 the query heads that share one, and keys and values are replicated over tp1.
    kv_inner puts tp0 innermost (rank r holds KV block r % num_key_value_heads), else it is outermost
    (r // multiplier): Platform.kv_heads_innermost. etp, where it is given, is the inner part of tp, axes of its own.
    num_key_value_heads: a number, or that of blocks with a window and that of blocks with full attention, which is no
    larger. Between tp0 and tp1 there is then tp2, which splits KV heads of the former, and query heads that share one
    of the latter: 8 and 2 heads on tp=16 are tp1=2 x tp2=4 x tp0=2.

    Raises AutoshardError where etp and the KV heads, or those of both kinds, would cut tp across each other.
    """
    replicas = replicas_of_experts(ep, cp, tensor_ranks_apart(tp, etp))
    axes = [Axis("dp_replicate", dp_replicate)] if dp_replicate > 1 else []
    axes += [Axis("dp", dp // (dp_replicate * replicas)), Axis("cp", cp)]
    of_replicas = [Axis("ep", replicas)] if replicas > 1 else []
    counts = (num_key_value_heads,) if isinstance(num_key_value_heads, int) else num_key_value_heads
    if (objection := heads_objection(tp, counts)) is not None:
        raise AutoshardError(objection)
    most, fewest = min(tp, counts[0]), min(tp, counts[-1])
    if tp > fewest:
        of_tensors = [Axis("tp1", tp // most)] if tp > most else []
        of_tensors += [Axis("tp2", most // fewest)] if most > fewest else []
        of_tensors += [Axis("tp0", fewest)]
        of_tensors = of_tensors if kv_inner else of_tensors[::-1]
    else:
        of_tensors = [Axis("tp", tp)]
    if etp is None:
        axes += [*of_replicas, *of_tensors]
    else:
        axes += [*_with_expert_parts(of_tensors, tp, etp), *of_replicas]
    return Mesh(pp, tuple(axes), order, fold)


def _with_expert_parts(axes: list[Axis], tp: int, etp: int) -> list[Axis]:
    """The axes of tensor parallelism, outermost first, cut where the inner etp ranks begin."""
    found: list[Axis] = []
    left = etp
    for axis in reversed(axes):
        inner = min(left, axis.size)
        if left % inner or axis.size % inner:
            cut = " x ".join(str(one.size) for one in axes)
            raise AutoshardError(f"etp={etp} cuts tp={tp} = {cut} (key-value heads and their copies) across")
        if inner > 1:
            found.insert(0, Axis(f"e{axis.name}", inner))
        if axis.size > inner:
            found.insert(0, Axis(axis.name, axis.size // inner))
        left //= inner
    return found


def heads_objection(tp: int, counts: tuple[int, ...]) -> str | None:
    """The reason why tp cannot split the KV heads of both kinds of blocks by axes that they share; None if it can.

    counts: as num_key_value_heads of `build_mesh`.
    """
    most, fewest = min(tp, counts[0]), min(tp, counts[-1])
    if most % fewest == 0:
        return None
    return (
        f"tp={tp} cuts {counts[0]} key-value heads of blocks with a window and {counts[-1]} of those with full "
        "attention across each other"
    )


def tensor_ranks_apart(tp: int, etp: int | None) -> int:
    """How many ranks of tensor parallelism, or groups of etp that cut the same experts, hold experts of their own: 1
    where etp is absent and tp cuts every expert, and where it is no part of tp."""
    return tp // etp if etp and tp % etp == 0 else 1


def replicas_of_experts(ep: int, cp: int, apart: int = 1) -> int:
    """How many replicas (each with sequences of its own) the ep ranks that share experts are; ranks of cp and those of
    tp that are apart (`tensor_ranks_apart`) share sequences.
    """
    return max(1, ep // (cp * apart))


def devices_objection(tp: int, pp: int, cp: int, world: int, of: str) -> str | None:
    """The reason why replicas of tp x pp x cp devices do not fill `world` devices; None if they do. of: whose these
    are, in words."""
    replica = tp * pp * cp
    if world % replica == 0:
        return None
    return f"tp={tp} x pp={pp} x cp={cp} is {replica:,} devices, which must divide the {world:,} of {of}"


def experts_objection(ep: int, dp: int, cp: int, apart: int = 1) -> str | None:
    """The reason why experts cannot be spread over ep of the dp x cp ranks, and of tp those that are apart
    (`tensor_ranks_apart`); None if they can."""
    together = cp * apart
    if (ep == 1 and apart == 1) or (ep % together == 0 and dp % (ep // together) == 0):
        return None
    if apart > 1:
        names, every = ("tp/etp", "dp x tp/etp") if cp == 1 else ("cp x tp/etp", "dp x cp x tp/etp")
        return (
            f"ep={ep} must be a multiple of {names}={together} that divides {every}={dp * together}: "
            "experts are spread over the ranks that see the same sequences, and then over replicas"
        )
    if cp == 1:
        return f"ep={ep} must divide dp={dp}: experts are spread over data-parallel ranks"
    return (
        f"ep={ep} must be a multiple of cp={cp} that divides dp x cp={dp * cp}: experts are spread over the ranks that "
        "share a sequence, and then over replicas"
    )


def replicas_objection(dp_replicate: int, ep: int, dp: int, cp: int, apart: int = 1) -> str | None:
    """The reason why ZeRO cannot shard inside each of dp_replicate groups of the dp x cp ranks; None if it can. apart:
    as in `experts_objection`."""
    if dp_replicate == 1:
        return None
    if dp % dp_replicate:
        return f"dp_replicate={dp_replicate} must divide dp={dp}: ZeRO shards inside each of so many groups of replicas"
    shard = dp // dp_replicate
    if shard * cp == 1:
        return f"dp_replicate={dp_replicate} leaves no ranks of dp={dp} to shard over; use zero=0 or fewer replicas"
    if experts_objection(ep, shard, cp, apart) is not None:
        ranks = shard * cp * apart
        return f"ep={ep} must lie inside the {ranks} ranks that shard, which dp_replicate={dp_replicate} leaves"
    return None


REPLICA_AXES = ("dp_replicate",)
"""Axes along which shards of ZeRO are repeated: each has the gradients of other sequences."""
DATA_AXES = (*REPLICA_AXES, "dp", "ep")
"""Axes that split the batch."""
ZERO_AXES = ("dp", "ep", "cp")
"""Axes over which the ranks that sum a gradient share what ZeRO shards (layout/strategy.py)."""
