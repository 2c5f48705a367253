"""The strategy: every choice that makes a layout, and nothing that follows from the choices."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import groupby
from typing import Annotated, Any

from autoshard.errors import AutoshardError
from autoshard.files.codec import Absence, Count, Form, Limit, Whole, from_json, read_value
from autoshard.files.fields import show, take_own_numbers
from autoshard.graph.recompute import canonical
from autoshard.layout.context_parallel import CONTEXT_PARALLEL, UNUSED
from autoshard.layout.mesh import (
    AXIS_ORDER,
    check_axis_order,
    experts_objection,
    replicas_objection,
    tensor_ranks_apart,
)
from autoshard.schedules import SCHEDULES

ATTENTION_KERNELS = ("flash", "plain")
ZERO_STAGES = (0, 1, 2, 3)
"""Ranks that sum a gradient share: nothing; the optimizer state (ZeRO-1); sums of gradients too; weights too."""
_MOST_SHOWN = 32
"""An error lists the blocks of so many stages at most."""
AXIS_ORDER_FORM = Form(
    list,
    lambda data, where: read_value(tuple[Any, ...], data, where),
    {
        "type": "array",
        "items": {"type": "string", "enum": list(AXIS_ORDER)},
        "minItems": 4,
        "maxItems": 4,
        "uniqueItems": True,
    },
)


@dataclass(frozen=True)
class Strategy:
    """A whole layout: every choice, and nothing that follows from the choices.

    tp: Tensor-parallel degree, ranks.
    pp: Pipeline ranks.
    dp: Data-parallel replicas, all of them; experts are spread over a part of them.
    cp: Context-parallel degree: ranks that share one sequence.
    ep: Expert-parallel degree, over how many ranks experts are spread; carved out of dp x cp, cp first. With etp it is
        carved out of tp/etp too, before dp.
    num_virtual_stages: Stages on each pipeline rank (chunks).
    microbatch_size: Sequences of one microbatch on one data-parallel rank.
    schedule: Order of forwards and backwards on each pipeline rank: a name of autoshard.schedules.SCHEDULES.
    recompute: What backward computes again instead of keeping, of each virtual stage's blocks: none, full, or
        modules and operators of a block joined by + (graph/recompute.py); one that is everywhere may be given once.
    sequence_parallel: Whether norms and residuals are split along the sequence over the tensor-parallel ranks.
    zero: What the ranks that sum a gradient share: 0 nothing, 1 the optimizer state (ZeRO-1), 2 the sums of
        gradients too, 3 the weights too.
    attention_kernel: flash never stores scores; plain does.
    stage_layers: Transformer blocks of each virtual stage, in model order; stage s runs on pipeline rank s % pp as
        chunk s // pp.
    context_parallel: How ranks that share a sequence attend to all of it: keys and values go round a ring,
        zigzag_ring with the work balanced; the sequence is exchanged for heads; or keys and values are gathered (also
        what cp=1 has).
    axis_order: In which order ranks count through the axes, outermost first; ep is the inner part of dp. It decides
        which axis stays within a node.
    etp: Tensor-parallel degree of experts, less than tp, the inner part of it; 1 is whole experts. Absent: tp cuts
        experts as the rest.
    dp_replicate: Groups of data-parallel replicas that each hold all shards of ZeRO (HSDP): gradients are
        reduce-scattered inside a group and all-reduced across them; absent is 1, shards over all of dp x cp.
    """

    tp: Count
    pp: Count
    dp: Count
    cp: Count
    ep: Count
    num_virtual_stages: Count
    microbatch_size: Count
    schedule: str
    recompute: Annotated[tuple[str, ...], Limit(items=1)]
    sequence_parallel: bool
    zero: Annotated[int, Limit(choices=ZERO_STAGES)]
    attention_kernel: Annotated[str, Limit(choices=ATTENTION_KERNELS)]
    stage_layers: Annotated[tuple[Whole, ...], Limit(items=1)]
    context_parallel: Annotated[str, Limit(choices=CONTEXT_PARALLEL)] = UNUSED
    axis_order: Annotated[tuple[str, ...], AXIS_ORDER_FORM] = AXIS_ORDER
    etp: Annotated[Count | None, Absence.WRITTEN] = None
    dp_replicate: Annotated[Count, Absence.WRITTEN] = 1

    def __post_init__(self) -> None:
        take_own_numbers(self)
        for name in ("tp", "pp", "dp", "cp", "ep", "num_virtual_stages", "microbatch_size", "dp_replicate"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise AutoshardError(f"{name}={show(value)} must be a whole number of at least 1")
        if self.schedule not in (schedules := SCHEDULES.known(self.schedule)):
            raise AutoshardError(
                f"schedule={show(self.schedule)} is not one of: {', '.join(schedules)}, or that of an installed plug-in"
            )
        for name, known in (
            ("attention_kernel", ATTENTION_KERNELS),
            ("context_parallel", CONTEXT_PARALLEL),
        ):
            if getattr(self, name) not in known:
                raise AutoshardError(f"{name}={show(getattr(self, name))} is not one of: {', '.join(known)}")
        if type(self.sequence_parallel) is not bool:
            raise AutoshardError(f"sequence_parallel={show(self.sequence_parallel)} must be true or false")
        if type(self.zero) is not int or self.zero not in ZERO_STAGES:
            raise AutoshardError(f"zero={show(self.zero)} is not one of: {', '.join(map(str, ZERO_STAGES))}")
        check_axis_order(self.axis_order)
        if self.etp is not None and not (type(self.etp) is int and 1 <= self.etp < self.tp and self.tp % self.etp == 0):
            raise AutoshardError(f"etp={show(self.etp)} must divide tp={self.tp} and be less, or absent: as tp")
        place = self.ep, self.dp, self.cp, tensor_ranks_apart(self.tp, self.etp)
        if (objection := experts_objection(*place)) is not None:
            raise AutoshardError(objection)
        if (objection := replicas_objection(self.dp_replicate, *place)) is not None:
            raise AutoshardError(objection)
        stages = self.pp * self.num_virtual_stages
        if len(self.stage_layers) != stages:
            raise AutoshardError(
                f"stage_layers has {len(self.stage_layers)} stages; "
                f"pp={self.pp} x num_virtual_stages={self.num_virtual_stages} needs {stages}{self._even_cut(stages)}"
            )
        if wrong := [n for n in self.stage_layers if type(n) is not int or n < 0]:
            raise AutoshardError(f"stage_layers has {show(wrong[0])}; it must hold whole numbers of blocks")
        object.__setattr__(self, "recompute", _for_each_stage(self.recompute, stages))

    def _even_cut(self, stages: int) -> str:
        """', such as [8, 8, 8, 8]': the end of an error, the same blocks in so many stages; '' where it is long."""
        if stages > _MOST_SHOWN or not all(type(count) is int for count in self.stage_layers):
            return ""
        layers = sum(self.stage_layers)
        return f", such as {list(even_stage_layers(layers, stages))}" if layers >= stages else ""

    @property
    def uniform_recompute(self) -> str | None:
        """The recompute set that all stages share; None if they differ."""
        return self.recompute[0] if len(set(self.recompute)) == 1 else None

    @property
    def recompute_name(self) -> str:
        """The recompute sets as text: 'full', or 'full*3,none*5' for runs of virtual stages in model order."""
        if self.uniform_recompute is not None:
            return self.uniform_recompute
        return ",".join(f"{name}*{len(list(run))}" for name, run in groupby(self.recompute))

    @property
    def axis_order_name(self) -> str:
        """The axis order as text, outermost first: 'pp-dp-cp-tp'."""
        return "-".join(self.axis_order)

    @property
    def dp_shard(self) -> int:
        """Data-parallel replicas that share what ZeRO shards, together with the ranks of cp."""
        return self.dp // self.dp_replicate

    @property
    def world_size(self) -> int:
        """Number of logical cores; ep does not count, since it is a part of dp x cp x tp."""
        return self.tp * self.pp * self.dp * self.cp

    def num_microbatches(self, global_batch_size: int) -> int:
        """Number of microbatches that one data-parallel rank runs in a step. global_batch_size: sequences."""
        return global_batch_size // (self.dp * self.microbatch_size)

    def stage_ranges(self) -> tuple[tuple[int, int], ...]:
        """[first, last) blocks of each virtual stage, in model order; last is excluded."""
        ranges, start = [], 0
        for count in self.stage_layers:
            ranges.append((start, start + count))
            start += count
        return tuple(ranges)


def read_strategy(data: object, where: str) -> Strategy:
    """The strategy of plain JSON values. where: names the data in errors. Raises AutoshardError for what is none."""
    if not isinstance(data, dict):
        raise AutoshardError(f"{where} must be an object with named fields, not {show(data)}")
    if missing := [one.name for one in fields(Strategy) if one.name not in (*data, "etp", "dp_replicate")]:
        raise AutoshardError(f"strategy has no {missing[0]}")
    return from_json(Strategy, data, where)


def _for_each_stage(recompute: tuple[str, ...] | str, stages: int) -> tuple[str, ...]:
    sets = (recompute,) if isinstance(recompute, str) else recompute
    if not isinstance(sets, tuple) or not all(isinstance(one, str) for one in sets):
        raise AutoshardError(f"recompute={show(recompute)} must hold the name of a set for each virtual stage")
    sets = sets[:1] * stages if len(set(sets)) == 1 else sets
    if len(sets) != stages:
        raise AutoshardError(f"recompute has {len(sets)} sets; there are {stages} virtual stages")
    names = {one: canonical(one) for one in dict.fromkeys(sets)}
    return tuple(names[one] for one in sets)


def even_stage_layers(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Blocks of each stage, as even as can be; the remainder goes to the middle, away from the embedding and
    the head.
    """
    base, first, extra = even_cut(num_layers, num_stages)
    return tuple(base + (first <= stage < first + extra) for stage in range(num_stages))


def even_cut(num_layers: int, num_stages: int) -> tuple[int, int, int]:
    """(blocks of each stage, the first stage with one more, how many stages have one more)."""
    base, extra = divmod(num_layers, num_stages)
    return base, (num_stages - extra + 1) // 2, extra
