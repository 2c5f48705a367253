"""Weights in another form, and a training run on another stack."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from autoshard.conversion.forms import QKV_STYLES
from autoshard.errors import AutoshardError
from autoshard.files.fields import check_flag, check_integer, show
from autoshard.files.reached import reached
from autoshard.files.urls import check_folder, is_url
from autoshard.interface.inputs import check_plan, path_of, path_text
from autoshard.interface.planned import Plan
from autoshard.migration.target import INSTANCE, Target
from autoshard.plans import plan as plans
from autoshard.units import format_bytes

if TYPE_CHECKING:
    from autoshard.conversion.convert import Written

LINE_EVERY_S = 30.0


@dataclass(frozen=True)
class Migration:
    """A migration that was written. before: the plan as NxD ran it. plan: the one to go on with. folder: has plan.json,
    the checkpoint, job.sh and the page. position: sentences on what the checkpoint holds; empty without one. warnings:
    what the configuration says that changes the step and that no plan holds."""

    before: Plan
    plan: Plan
    folder: Path
    position: str
    warnings: tuple[str, ...]

    @property
    def page_file(self) -> Path:
        """The page that says what changed and what that does to time and memory."""
        from autoshard.migration.page import PAGE

        return self.folder / PAGE

    @property
    def job_file(self) -> Path:
        """The Slurm script that goes on with the training."""
        from autoshard.migration.page import JOB

        return self.folder / JOB


def convert_checkpoint(
    source: str | Path,
    target: str | Path,
    *,
    adapter: str | Path | None = None,
    plan: plans.Plan | None = None,
    to: str | None = None,
    dtype: str | None = None,
    model: str | None = None,
    weights_only: bool = False,
    xser: bool = False,
    qkv: str = QKV_STYLES[0],
    kv_size_multiplier: int | None = None,
) -> Written:
    """Writes weights in another form: Hugging Face's, that of a plan's run, NxD's, or adapters alone as PEFT has them;
    hf, nxd and a plan without adapters get the merged model. Returns what was written: model, files,
    bytes, and the step of the optimizer's state, None where weights are alone. Nothing in a file is executed.

    source: a folder; which form it has is looked at. target: a folder to make, there when all of it is. adapter: a
    folder of PEFT, or a checkpoint, with adapters that stand beside the source's weights. plan: the layout to cut the
    weights for. to: "hf", "plan", "nxd" or "peft"; None: plan where there is one, else hf. dtype: bfloat16, float16 or
    float32; None: as the weights are. model: a name or a config.json, where NxD's files have none beside them and there
    is no plan; nothing else takes one. weights_only: leave out the optimizer's state that NxD saved.
    xser, qkv, kv_size_multiplier: of NxD's files: a file a tensor; "gqa", "fused", "separate" or "coalesced"; copies of
    each key-value head.

    Raises AutoshardError, and leaves nothing behind, where the source cannot be read or does not fit the plan.
    """
    if find_spec("numpy") is None:
        raise AutoshardError("autoshard convert needs numpy: pip install 'autoshard[torch]'")
    from autoshard.conversion.convert import Conversion, convert, open_source
    from autoshard.conversion.folder import check_free
    from autoshard.conversion.nxd import NxdOptions

    if plan is not None:
        check_plan("convert_checkpoint", plan)
        if model is not None:
            raise AutoshardError(f"model={show(model)} beside a plan, which says the model; leave it out")
    for name, place in (("source", source), ("target", target), ("adapter", adapter)):
        if place is None and name == "adapter":
            continue
        if not isinstance(place, (str, Path)):
            raise AutoshardError(f"{name}={show(place)} of convert_checkpoint must be the path of a folder")
        if is_url(place):
            raise AutoshardError(
                f"{name}={place}: convert reads and writes folders of this machine; copy it there first"
            )
    check_flag("convert_checkpoint", "weights_only", weights_only)
    check_flag("convert_checkpoint", "xser", xser)
    if kv_size_multiplier is not None:
        check_integer("convert_checkpoint", "kv_size_multiplier", kv_size_multiplier)
    form = ("hf" if plan is None else "plan") if to is None else to
    options = NxdOptions(qkv, xser, kv_size_multiplier)
    if form == "nxd" and find_spec("torch") is None:
        raise AutoshardError("NxD's files need torch: pip install 'autoshard[torch]'")
    conversion = Conversion(form, plan, dtype, options)
    with _terminated_as_interrupted(), _Display() as display:
        check_free(Path(target))
        beside = None if adapter is None else Path(adapter)
        whole = beside is None and plan is not None and plan.model.lora is None
        training = form == "plan" and not weights_only and whole
        known, alone = model if plan is None else plan.model, form == "peft"
        weights = open_source(Path(source), known, training=training, adapter=beside, alone=alone)
        return convert(weights, Path(target), conversion, display.starting, display.advance)


def migrate(
    conf: str | Path,
    out: str | Path = "migrated",
    *,
    checkpoint: str | Path | None = None,
    model: str | None = None,
    weights_only: bool = False,
    instance: str = INSTANCE,
    nodes: int | None = None,
    lnc: int | None = None,
    sdk: str | None = None,
    stack: str = "auto",
) -> Migration:
    """Makes a folder to go on with a run of NxD Training on native PyTorch: a plan, its checkpoint cut for that plan,
    a Slurm script, and a page that says what changed. Model, batch, sequence length and precision stay; the layout is
    searched.

    conf: YAML of NxD Training. out: the folder. checkpoint: what it saved, with folders model and optim. model: a name
    or a config.json, where conf does not say it. weights_only: leave out the optimizer's state. instance, nodes, lnc,
    sdk, stack: where it goes; nodes None: as many as have the same peak.
    Raises AutoshardError, and leaves nothing behind, for a file that is wrong and where no layout fits.
    """
    from autoshard.conversion.folder import check_free
    from autoshard.migration.migrate import migrate as migrated
    from autoshard.migration.write import write_migration

    check_flag("migrate", "weights_only", weights_only)
    folder = path_of("migrate", "out", out)
    check_folder("out", out)
    saved = None if checkpoint is None else path_of("migrate", "checkpoint", checkpoint)
    with reached(f"checkpoint={saved}"):
        if saved is not None and not saved.is_dir():
            raise AutoshardError(f"checkpoint={saved} is not a folder; NxD's has model/ and optim/ in it")
    check_free(folder)
    given = {} if model is None else {"model": model}
    found = migrated(path_text("migrate", "conf", conf), given, Target(instance, nodes, lnc, sdk, stack))
    with _terminated_as_interrupted():
        position = write_migration(found, folder, saved, weights_only)
    return Migration(Plan.of(found.before), Plan.of(found.after), folder, position, found.warnings)


class _Display:
    """Shows progress: a bar on a terminal, elsewhere a line on stderr now and then."""

    def __init__(self) -> None:
        self._total = self._done = 0
        self._said_s = time.monotonic()
        self._bar: Any = None
        self._task: Any = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
            from rich.progress import TransferSpeedColumn as Speed

            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), Speed(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)

    def starting(self, total: int) -> None:
        self._total = total
        if self._bar is not None:
            self._task = self._bar.add_task("converting", total=total)

    def advance(self, count: int) -> None:
        self._done += count
        if self._bar is not None:
            self._bar.advance(self._task, count)
        elif time.monotonic() - self._said_s > LINE_EVERY_S:
            self._said_s = time.monotonic()
            sys.stderr.write(f"converting: {self._done / self._total:.0%} of {format_bytes(self._total)}\n")
            sys.stderr.flush()

    def __enter__(self) -> _Display:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """While the context is open, SIGTERM raises KeyboardInterrupt in the main thread, so that it leaves as little
    behind as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
