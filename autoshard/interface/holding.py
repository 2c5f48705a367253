"""Calls from Python about memory: what a rank allocates over a step, and a dump of a real run beside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import own_number
from autoshard.interface.inputs import check_plan, path_of
from autoshard.interface.shown import Shown
from autoshard.plans import plan as plans

if TYPE_CHECKING:
    from autoshard.allocations.blocks import RankMemory
    from autoshard.allocations.changes import Change
    from autoshard.allocations.compare import Diagnosis


@dataclass(frozen=True, repr=False)
class MemoryDiagnosis(Shown):
    """A dump of a real run against the plan. found: its blocks beside the planned ones; fitting: single changes of the
    plan with which the run would have fitted, the fastest first; smaller: how many more save memory, but too little."""

    found: Diagnosis
    fitting: tuple[Change, ...]
    smaller: int

    def to_dict(self) -> dict[str, Any]:
        """The diagnosis as JSON values."""
        from autoshard.files.codec import to_json

        found: dict[str, Any] = to_json(self.found)
        return {**found, "fitting": to_json(list(self.fitting))}

    def _page(self, width: int, color: bool) -> str:
        from autoshard.allocations.page import diagnosis_page

        return diagnosis_page(self.found, self.fitting, self.smaller, width, color)


@dataclass(frozen=True, repr=False)
class Memory(Shown):
    """The allocations of one rank over a step: every block with its tensor, operator, stage and microbatch."""

    plan: plans.Plan
    blocks: RankMemory

    @property
    def peak_bytes(self) -> int:
        """Bytes at the fullest moment, without the reserve of a device's runtime and compiler."""
        return self.blocks.peak()[1]

    def diagnose(self, snapshot: str | Path) -> MemoryDiagnosis:
        """Which planned blocks a dump of a real run has, which of its blocks were never planned, and which single
        change of the plan would have fitted.

        snapshot: a file of torch.cuda.memory._dump_snapshot, of a run of this plan; it is read as data, nothing in it
        is executed. Raises AutoshardError for a file that is none.
        """
        from autoshard.allocations.changes import changes
        from autoshard.allocations.compare import diagnose
        from autoshard.allocations.dump import read_dump

        found = diagnose(
            self.blocks, read_dump(path_of("diagnose", "snapshot", snapshot)), self.plan.cluster.device.memory_bytes
        )
        smaller = changes(self.plan, self.blocks.pipeline_rank) if found.short_bytes else ()
        fitting = tuple(one for one in smaller if one.saved_bytes >= found.short_bytes)
        return MemoryDiagnosis(found, fitting, len(smaller) - len(fitting))

    def save(self, path: str | Path) -> Path:
        """Writes the step in the form that the name ends with, and returns its path: .pickle for PyTorch's memory
        visualiser (https://pytorch.org/memory_viz), .json for https://ui.perfetto.dev, .png or .svg as a picture.
        Raises AutoshardError for another ending, and where it cannot be written."""
        from autoshard.files.atomic_file import write_bytes

        write_bytes(path, _writer(path_of("save", "path", path))(self), "memory")
        return Path(path)

    def to_dict(self) -> dict[str, Any]:
        """All blocks as JSON values."""
        from autoshard.files.codec import to_json

        found: dict[str, Any] = to_json(self.blocks)
        return found

    def _page(self, width: int, color: bool) -> str:
        from autoshard.allocations.page import memory_page

        return memory_page(self.blocks, self.plan.cluster.device.memory_bytes, width, color)


def check_form(path: str | Path) -> None:
    """Raises AutoshardError for a path whose ending names no form."""
    _writer(Path(path))


def _writer(path: Path) -> Callable[[Memory], bytes]:
    writers = {".pickle": _for_visualizer, ".json": _for_perfetto, ".png": _as_png, ".svg": _as_svg}
    if path.suffix not in writers:
        raise AutoshardError(f"memory {path} ends with none of: {', '.join(writers)}")
    return writers[path.suffix]


def _for_visualizer(one: Memory) -> bytes:
    from autoshard.allocations.clock import event_times_s
    from autoshard.allocations.snapshot import rank_snapshot, to_bytes

    return to_bytes(rank_snapshot(one.blocks, event_times_s(one.plan, one.blocks)))


def _for_perfetto(one: Memory) -> bytes:
    from autoshard.allocations.clock import event_times_s
    from autoshard.allocations.counters import counter_events
    from autoshard.files.trace_events import document

    events = document(counter_events(one.blocks, event_times_s(one.plan, one.blocks)))
    return (json.dumps(events, separators=(",", ":")) + "\n").encode()


def _as_png(one: Memory) -> bytes:
    return _picture(one, "png")


def _as_svg(one: Memory) -> bytes:
    return _picture(one, "svg")


def _picture(one: Memory, form: str) -> bytes:
    from autoshard.allocations.picture import draw

    return draw(one.blocks, one.plan.cluster.device.memory_bytes, form)


def memory(plan: plans.Plan, *, rank: int | None = None) -> Memory:
    """The allocations of one rank over a step, from the torch runtime's own program at full size on fake tensors.
    Needs torch.

    rank: 0 to the world size - 1; None: the first rank of the fullest pipeline rank. Raises AutoshardError for a rank
    that the plan does not have.
    """
    from autoshard.backends.products import check_runs
    from autoshard.backends.registry import ANYWHERE

    check_plan("memory", plan)
    check_runs(ANYWHERE, plan.training.precision)
    last = plan.mesh.world_size - 1
    if rank is None:
        sizes = [one.total_bytes for one in plan.estimate.memory]
        rank = plan.mesh.rank(sizes.index(max(sizes)), {})
    rank = own_number(rank)
    if type(rank) is not int or not 0 <= rank <= last:
        raise AutoshardError(f"rank={rank!r} is none of this plan's; its ranks are 0 to {last:,}")
    try:
        from autoshard.allocations.record import rank_memory
    except ModuleNotFoundError as error:
        raise AutoshardError(f"memory needs torch: pip install 'autoshard[torch]' ({error.name} is missing)") from None
    return Memory(plan, rank_memory(plan, rank))
