"""Every choice that makes a layout, and nothing that follows from the choices."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import groupby

from autoshard.errors import AutoshardError
from autoshard.files.codec import from_json
from autoshard.files.fields import show
from autoshard.graph.recompute import canonical
from autoshard.layout.context_parallel import CONTEXT_PARALLEL, UNUSED
from autoshard.layout.mesh import AXIS_ORDER, check_axis_order, experts_objection
from autoshard.schedules import SCHEDULES

ATTENTION_KERNELS = ("flash", "plain")
ZERO_STAGES = (0, 1, 2, 3)
"""What ranks that sum a gradient share: nothing; the optimizer state (ZeRO-1); sums of gradients too; weights too."""


@dataclass(frozen=True)
class Strategy:
    """A whole layout.

    dp counts all data-parallel replicas; ep is carved out of dp x cp, cp first.
    stage_layers: transformer blocks of each of the pp * num_virtual_stages virtual stages, in model order;
    stage s runs on pipeline rank s % pp as chunk s // pp.
    recompute: the set (graph/recompute.py) of each virtual stage's blocks; one that is everywhere may be written once.
    zero: which of ZERO_STAGES.
    context_parallel: how ranks that share a sequence attend to all of it; "all_gather" where cp is 1.
    axis_order: in which order ranks count through the axes, outermost first: a permutation of AXIS_ORDER.
    """

    tp: int
    pp: int
    dp: int
    cp: int
    ep: int
    num_virtual_stages: int
    microbatch_size: int
    schedule: str
    recompute: tuple[str, ...]
    sequence_parallel: bool
    zero: int
    attention_kernel: str
    stage_layers: tuple[int, ...]
    context_parallel: str = UNUSED
    axis_order: tuple[str, ...] = AXIS_ORDER

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "dp", "cp", "ep", "num_virtual_stages", "microbatch_size"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise AutoshardError(f"{name}={value!r} must be a whole number of at least 1")
        for name, known in (
            ("schedule", tuple(SCHEDULES)),
            ("attention_kernel", ATTENTION_KERNELS),
            ("context_parallel", CONTEXT_PARALLEL),
        ):
            if getattr(self, name) not in known:
                raise AutoshardError(f"{name}={getattr(self, name)!r} is not one of: {', '.join(known)}")
        if type(self.sequence_parallel) is not bool:
            raise AutoshardError(f"sequence_parallel={self.sequence_parallel!r} must be true or false")
        if type(self.zero) is not int or self.zero not in ZERO_STAGES:
            raise AutoshardError(f"zero={self.zero!r} is not one of: {', '.join(map(str, ZERO_STAGES))}")
        check_axis_order(self.axis_order)
        if (objection := experts_objection(self.ep, self.dp, self.cp)) is not None:
            raise AutoshardError(objection)
        stages = self.pp * self.num_virtual_stages
        if len(self.stage_layers) != stages:
            raise AutoshardError(
                f"stage_layers has {len(self.stage_layers)} stages; "
                f"pp={self.pp} x num_virtual_stages={self.num_virtual_stages} needs {stages}"
            )
        if any(type(n) is not int or n < 0 for n in self.stage_layers):
            raise AutoshardError(f"stage_layers={list(self.stage_layers)} must hold whole numbers of blocks")
        object.__setattr__(self, "recompute", _for_each_stage(self.recompute, stages))

    @property
    def uniform_recompute(self) -> str | None:
        """The set of all stages; None where they differ."""
        return self.recompute[0] if len(set(self.recompute)) == 1 else None

    @property
    def recompute_name(self) -> str:
        """'full', or 'full*3,none*5' for runs of virtual stages in model order."""
        if self.uniform_recompute is not None:
            return self.uniform_recompute
        return ",".join(f"{name}*{len(list(run))}" for name, run in groupby(self.recompute))

    @property
    def axis_order_name(self) -> str:
        """'pp-dp-cp-tp', outermost first."""
        return "-".join(self.axis_order)

    @property
    def world_size(self) -> int:
        """Logical cores; ep is a part of dp."""
        return self.tp * self.pp * self.dp * self.cp

    def num_microbatches(self, global_batch_size: int) -> int:
        """Microbatches that one data-parallel rank runs in a step."""
        return global_batch_size // (self.dp * self.microbatch_size)

    def stage_ranges(self) -> tuple[tuple[int, int], ...]:
        """[first, last) block of each virtual stage."""
        ranges, start = [], 0
        for count in self.stage_layers:
            ranges.append((start, start + count))
            start += count
        return tuple(ranges)


def read_strategy(data: object, where: str) -> Strategy:
    """The inverse of to_json. where: what errors call the data. Raises AutoshardError for what is no strategy."""
    if not isinstance(data, dict):
        raise AutoshardError(f"{where} must be an object with named fields, not {show(data)}")
    if missing := [one.name for one in fields(Strategy) if one.name not in data]:
        raise AutoshardError(f"strategy has no {missing[0]}")
    return from_json(Strategy, data, where)


def _for_each_stage(recompute: tuple[str, ...] | str, stages: int) -> tuple[str, ...]:
    sets = (recompute,) if isinstance(recompute, str) else recompute
    if not isinstance(sets, tuple) or not all(isinstance(one, str) for one in sets):
        raise AutoshardError(f"recompute={recompute!r} must hold the name of a set for each virtual stage")
    sets = sets[:1] * stages if len(set(sets)) == 1 else sets
    if len(sets) != stages:
        raise AutoshardError(f"recompute has {len(sets)} sets; there are {stages} virtual stages")
    names = {one: canonical(one) for one in dict.fromkeys(sets)}
    return tuple(names[one] for one in sets)


def even_stage_layers(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """As even as can be; the remainder goes to the middle, away from the embedding and the vocabulary head."""
    base, first, extra = even_cut(num_layers, num_stages)
    return tuple(base + (first <= stage < first + extra) for stage in range(num_stages))


def even_cut(num_layers: int, num_stages: int) -> tuple[int, int, int]:
    """(blocks of each stage, the first stage with one more, how many stages have one more)."""
    base, extra = divmod(num_layers, num_stages)
    return base, (num_stages - extra + 1) // 2, extra
