"""`autoshard convert`: weights of other programs for a plan, and a run's weights for other programs."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from autoshard.checkpoint.place import is_remote
from autoshard.commands.output import load_plan, say
from autoshard.commands.parser import Parser
from autoshard.conversion.forms import FORMS, QKV_STYLES
from autoshard.errors import AutoshardError
from autoshard.files.option_values import one_of, path, whole
from autoshard.units import format_bytes

if TYPE_CHECKING:
    from autoshard.conversion.convert import Conversion

SUMMARY = "weights from Hugging Face or NxD for a plan, and back"
USAGE = "autoshard convert SOURCE TARGET [options]"
DESCRIPTION = """\
Write weights in another form. SOURCE is a Hugging Face folder (safetensors), a checkpoint of a run, or NxD's files: it
is looked at. TARGET is a new folder, and is there when all of it is.

  autoshard convert Llama-3-8B/ weights/ --plan plan.json        for autoshard run plan.json --weights weights/
  autoshard convert runs/checkpoints/llama3-8b/ hf/ --dtype bfloat16    for transformers
  autoshard convert Llama-3-70B/ nxd/ --plan plan.json --to nxd --xser  for neuronx-distributed
  autoshard convert nxd/ hf/                                            and back
  autoshard convert nxd/ step/ --plan plan.json        with the optimizer's state: run plan.json --resume step/

Nothing in a file is executed. Weights keep every bit unless --dtype asks for others."""
LINE_EVERY_S = 30.0
DTYPES = ("bfloat16", "float16", "float32")


def add_arguments(parser: Parser) -> None:
    parser.add_argument("source", type=path, metavar="SOURCE", help="folder with weights")
    parser.add_argument("target", type=path, metavar="TARGET", help="folder to make")
    parser.add_argument("--plan", type=path, metavar="PLAN", help="plan.json: the layout to cut the weights for")
    parser.add_argument(
        "--to",
        type=one_of(*FORMS),
        metavar="FORM",
        help="hf, plan or nxd (default: plan with --plan, else hf)",
    )
    parser.add_argument(
        "--dtype", type=one_of(*DTYPES), metavar="NAME", help=f"{', '.join(DTYPES)} (default: as the weights are)"
    )
    parser.add_argument(
        "--model",
        type=path,
        metavar="MODEL",
        help="name or config.json, where NxD's files have no config.json beside them",
    )
    nxd = parser.add_argument_group("NxD")
    nxd.add_argument("--weights-only", action="store_true", help="leave out the optimizer's state that NxD saved")
    nxd.add_argument("--xser", action="store_true", help="a file for each tensor, as torch-xla serializes")
    nxd.add_argument(
        "--qkv",
        type=one_of(*QKV_STYLES),
        metavar="STYLE",
        default=QKV_STYLES[0],
        help="queries, keys and values: gqa (qkv_proj.weight_q), fused (qkv_proj.weight_qkv), separate (q_proj.weight) "
        f"or coalesced (qkv_proj.weight) (default: {QKV_STYLES[0]})",
    )
    nxd.add_argument(
        "--kv-size-multiplier",
        type=whole(),
        metavar="N",
        help="copies of each key-value head (default: as many as tp needs)",
    )


def run(values: Mapping[str, Any]) -> int:
    if find_spec("numpy") is None:
        raise AutoshardError("autoshard convert needs numpy: pip install 'autoshard[torch]'")
    from autoshard.conversion.convert import convert, open_source
    from autoshard.conversion.folder import check_free

    for name in ("source", "target"):
        if is_remote(values[name]):
            raise AutoshardError(
                f"{name}={values[name]}: convert reads and writes folders; copy it with aws s3 cp first"
            )
    conversion = _conversion(values)
    source, target = Path(values["source"]), Path(values["target"])
    model = conversion.plan.model if conversion.plan is not None else values["model"]
    start = time.monotonic()
    with _terminated_as_interrupted(), _Display() as display:
        check_free(target)
        training = conversion.form == "plan" and not values["weights_only"]
        weights = open_source(source, model, training=training)
        written = convert(weights, target, conversion, display.starting, display.advance)
    seconds = time.monotonic() - start
    rate = format_bytes(written.bytes / seconds)
    say(f"wrote {target}: {written.model}, {written.files} files, {format_bytes(written.bytes)}, {rate}/s")
    if written.step is not None:
        say(f"with the optimizer's state after step {written.step}")
        say(f"next: autoshard run {values['plan']} --resume {target}")
    elif conversion.form == "plan":
        say(f"next: autoshard run {values['plan']} --weights {target}")
    return 0


def _conversion(values: Mapping[str, Any]) -> Conversion:
    from autoshard.conversion.convert import Conversion
    from autoshard.conversion.nxd import NxdOptions

    plan = None if values["plan"] is None else load_plan(values["plan"])
    form = values["to"] or ("hf" if plan is None else "plan")
    options = NxdOptions(values["qkv"], values["xser"], values["kv_size_multiplier"])
    if form == "nxd" and find_spec("torch") is None:
        raise AutoshardError("NxD's files need torch: pip install 'autoshard[torch]'")
    return Conversion(form, plan, values["dtype"], options)


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
    """While the context is open, SIGTERM raises KeyboardInterrupt, so that it leaves as little behind as Ctrl-C
    does."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
