"""Options of `autoshard run` beside the plan. No torch here: the command line reads them before anything starts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from autoshard.backends.registry import ANYWHERE, BACKENDS
from autoshard.checkpoint.place import is_remote
from autoshard.errors import AutoshardError
from autoshard.files.fields import LARGEST_SEED, option_instead, own_number, show
from autoshard.files.option_values import number
from autoshard.files.reached import reached
from autoshard.files.urls import check_folder, check_local
from autoshard.runtime.learning_rate import SCHEDULES

PATHS = ("weights", "adapter", "data", "tokenizer", "output", "eval_data")
_LARGEST_FP32 = 3.4e38
DEVICES = ("auto", "cpu", "cuda", "neuron")


def backend_names() -> tuple[str, ...]:
    """Values of --backend of `autoshard run`: "auto", the backend that runs anywhere, then the others."""
    return "auto", *sorted(BACKENDS, key=lambda name: name != ANYWHERE.name)


@dataclass(frozen=True)
class RunOptions:
    """How long, on what, and where results go; never what the plan decides.

    steps: optimizer steps. warmup_steps: steps over which the learning rate rises to learning_rate. lr_schedule: how it
    goes on: constant, or linear or cosine to zero. debug_nan: name the first operator whose result is not finite.
    compile: what ranks compute between collectives, by torch.compile; None: on native Neuron alone, where an operator
    that is not compiled costs more than most operators take.
    processes: at most so many in a rehearsal. data: files of text, JSONL, Parquet or Arrow; None takes English text
    that is on this machine. text_field: the column that holds the text; None is "text", or what the rows are plainly
    made of. packing: several conversations share a row. document_mask: documents that share a row do not see each
    other, and learned positions start anew in each. tokenizer: a tokenizer.json; None takes bytes. output: folder that
    gets one folder for each run. device: where ranks compute; "auto" is cuda where there are enough GPUs, else
    neuron for a plan for Trainium at its size, else cpu. backend: what executes the plan; "auto" is nxd for a plan of
    that backend at its size on Trainium, else torch. timeout_s: silence of a rank that ends the run; None waits for
    ever.
    eval_data, eval_fraction: data that are not learned, from files of their own or the last part of data. The loss on
    eval_batches global batches of them (or as many as there are) is measured at the end, and every eval_every steps.
    weights: a folder that autoshard convert reads or writes, to start from; None starts from random ones. A checkpoint
    to go on from comes first; one of adapters alone stands beside them. adapter: a folder of PEFT, or a checkpoint,
    with adapters beside these weights, to start from too; None starts from new ones where the plan has some.
    profile: watch three steps and write what every rank did in them beside what was planned.
    checkpoint_every: steps from one saved state to the next, and at the end; None saves none. keep: the newest so many
    stay, and those of every keep_every-th step. checkpoint_dir: a folder or s3://bucket/prefix; None is
    checkpoints/<model> in output. resume: "auto" goes on from the newest that is complete in checkpoint_dir, "never"
    starts anew, anything else is the place of a checkpoint or of several; None is "auto" where checkpoint_every or
    checkpoint_dir is given, else "never". checkpoint_sync: training waits for the disk.
    """

    steps: int = 16
    learning_rate: float = 5e-4
    warmup_steps: int = 5
    lr_schedule: str = "constant"
    seed: int = 0
    processes: int = 8
    data: Path | None = None
    tokenizer: Path | None = None
    text_field: str | None = None
    packing: bool = True
    document_mask: bool = False
    eval_every: int | None = None
    eval_data: Path | None = None
    eval_fraction: float | None = None
    eval_batches: int = 8
    profile: bool = False
    output: Path = Path("runs")
    weights: Path | None = None
    adapter: Path | None = None
    checkpoint_every: int | None = None
    checkpoint_dir: str | None = None
    keep: int = 3
    keep_every: int | None = None
    resume: str | None = None
    checkpoint_sync: bool = False
    wandb: bool = False
    wandb_project: str = "autoshard"
    device: str = "auto"
    backend: str = "auto"
    timeout_s: float | None = None
    debug_nan: bool = False
    compile: bool | None = None

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("warmup_steps", 0), ("seed", 0), ("processes", 1), ("eval_batches", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise AutoshardError(f"{name}={value!r} must be a whole number of at least {least}")
        if self.seed > LARGEST_SEED:
            raise AutoshardError(f"seed={show(self.seed)} must be a whole number of at most {LARGEST_SEED:,}")
        if not 0 < self.learning_rate <= _LARGEST_FP32:
            raise AutoshardError(
                f"learning_rate={self.learning_rate!r} must be above 0 and at most {_LARGEST_FP32:g}, what FP32 holds"
            )
        if self.timeout_s is not None and not (self.timeout_s > 0 and math.isfinite(self.timeout_s)):
            raise AutoshardError(f"timeout_s={self.timeout_s!r} must be a finite number above 0")
        if self.device not in DEVICES:
            raise AutoshardError(f"device={self.device!r} is not one of: {', '.join(DEVICES)}")
        if self.backend not in backend_names():
            raise AutoshardError(f"backend={self.backend!r} is not one of: {', '.join(backend_names())}")
        self._check_backend()
        if self.compile and self.debug_nan:
            raise AutoshardError(
                "compile and debug_nan: one makes a function of many operators, the other looks at each"
            )
        if self.lr_schedule not in SCHEDULES:
            raise AutoshardError(f"lr_schedule={self.lr_schedule!r} is not one of: {', '.join(SCHEDULES)}")
        self._check_evaluation()
        self._check_checkpoints()
        if self.weights is None:
            self._check_unsaid(("adapter",), "weights, which it stands beside")
        if not self.wandb:
            self._check_unsaid(("wandb_project",), "wandb, which logs there")
        check_folder("output", self.output)
        for name in ("data", "tokenizer", "eval_data", "weights", "adapter"):
            path = getattr(self, name)
            if path is None:
                continue
            check_local(name, path)
            with reached(f"{name}={path}"):
                if not path.exists():
                    raise AutoshardError(f"{name}={path} does not exist")

    def _check_backend(self) -> None:
        if self.backend == "auto":
            return
        usual = {one.name: one.default for one in fields(self)}
        for name, sentence in BACKENDS[self.backend].refuses.items():
            if getattr(self, name) != usual[name]:
                raise AutoshardError(sentence.format(value=getattr(self, name)))

    def _check_evaluation(self) -> None:
        every, fraction = self.eval_every, self.eval_fraction
        if every is not None and (type(every) is not int or every < 1):
            raise AutoshardError(f"eval_every={every!r} must be a whole number of at least 1")
        if fraction is not None and not 0 < fraction < 1:
            raise AutoshardError(f"eval_fraction={fraction!r} must be between 0 and 1")
        if fraction is not None and self.eval_data is not None:
            raise AutoshardError(f"eval_fraction={fraction} and eval_data={self.eval_data}: give one of them")
        if every is not None and fraction is None and self.eval_data is None:
            raise AutoshardError(f"eval_every={every} needs data to evaluate on: eval_data or eval_fraction")
        if fraction is None and self.eval_data is None:
            self._check_unsaid(("eval_batches",), "eval_data or eval_fraction, which say on what")

    def _check_unsaid(self, names: tuple[str, ...], partner: str) -> None:
        """Raise AutoshardError for one of these options that does nothing without another. partner: that one, and why
        it is needed."""
        usual = {one.name: one.default for one in fields(self)}
        for name in names:
            if getattr(self, name) != usual[name]:
                raise AutoshardError(f"{name}={getattr(self, name)} without {partner}: give both or neither")

    @property
    def uses_checkpoints(self) -> bool:
        """Whether anything is saved or resumed."""
        asked = self.checkpoint_every is not None or self.checkpoint_dir is not None
        return asked or self.resume not in (None, "never")

    @property
    def resumes(self) -> str:
        """`resume` where anything is saved or resumed."""
        return self.resume or "auto"

    def _check_checkpoints(self) -> None:
        for name in ("checkpoint_every", "keep", "keep_every"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise AutoshardError(f"{name}={value!r} must be a whole number of at least 1")
        if self.keep_every is not None and self.keep_every % (self.checkpoint_every or self.keep_every):
            raise AutoshardError(
                f"keep_every={self.keep_every} is no multiple of checkpoint_every={self.checkpoint_every}: there is no "
                f"checkpoint of step {self.keep_every} to keep"
            )
        if self.checkpoint_every is None:
            self._check_unsaid(("keep", "keep_every", "checkpoint_sync"), "checkpoint_every, which saves")
        if self.checkpoint_dir is not None:
            is_remote(self.checkpoint_dir)
        resume = self.resumes
        known = resume in ("auto", "never") or is_remote(resume, "resume")
        with reached(f"resume={resume}"):
            if not known and not Path(resume).is_dir():
                raise AutoshardError(f"resume={resume} is not auto, never or a folder with a checkpoint")


def options_from(values: Mapping[str, Any]) -> RunOptions:
    """The RunOptions for these values. Raises AutoshardError for a name that is none, and a value that is wrong."""
    known = [field.name for field in fields(RunOptions)]
    for name in values:
        if name not in known:
            raise AutoshardError(f"{show(name)} is not an option of run{option_instead(name, known)}")
    hints = get_type_hints(RunOptions)
    kinds = {name: get_args(hints[name]) or (hints[name],) for name in values}
    return RunOptions(**{name: _typed(name, value, kinds[name]) for name, value in values.items()})


def _typed(name: str, value: Any, kinds: tuple[type, ...]) -> Any:
    """The value as a field of these types has it. Raises AutoshardError for one of another type, but for whole numbers,
    which RunOptions checks.
    """
    value = own_number(value)
    if int in kinds or (value is None and NoneType in kinds):
        return value
    if float in kinds:
        if isinstance(value, str):  # YAML reads 5e-4 as text
            try:
                return number(value)
            except ValueError as error:
                raise AutoshardError(f"{name}: {error}") from None
        is_one, wanted = isinstance(value, (int, float)) and not isinstance(value, bool), "a number"
    elif bool in kinds:
        is_one, wanted = isinstance(value, bool), "true or false"
    elif isinstance(value, (str, Path)):
        return Path(value) if Path in kinds else str(value)
    else:
        is_one, wanted = False, "a path" if Path in kinds else "a text"
    if not is_one:
        raise AutoshardError(f"{name}={show(value)} must be {wanted}")
    return value
