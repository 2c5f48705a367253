"""How a configuration of NxD Training learns: rates, decay, clipping. A plan holds none of it, `autoshard run` takes it
as options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autoshard.errors import AutoshardError
from autoshard.files.text_file import printable, read_text
from autoshard.files.yaml_file import parse_yaml
from autoshard.interop.nxdt import Values
from autoshard.interop.written_layout import MOST_BYTES, number

SCHEDULES = {"LinearAnnealingWithWarmUp": "linear", "CosineAnnealing": "cosine"}
"""Names of NxD Training's schedules and of ours."""
FIXED = {"weight_decay": 0.1, "clip": 1.0}
BETAS = (0.9, 0.95)
"""What `autoshard run` updates weights with, whatever a configuration says (runtime/torch_backend)."""


@dataclass(frozen=True)
class Learning:
    """How a configuration learns.

    options: of `autoshard run`, by flag. differs: sentences on what that cannot say. left_out: keys of the file that
    say nothing of it.
    """

    options: tuple[tuple[str, str], ...]
    differs: tuple[str, ...]
    left_out: tuple[str, ...]


def read_learning(file: str) -> Learning:
    """How the configuration in a file learns. Raises AutoshardError for a file or a value that cannot be read."""
    where = printable(file)
    data = parse_yaml(read_text(file, f"configuration {where}", MOST_BYTES), where)
    if not isinstance(data, dict) or "distributed_strategy" not in data:
        raise AutoshardError(f"{where} is no configuration of NxD Training: it has no distributed_strategy")
    values = Values(data)
    options: dict[str, str] = {}
    steps, scheduled = values.whole("trainer.max_steps"), values.whole("model.optim.sched.max_steps")
    if (end := steps or scheduled) is not None:
        options["--steps"] = str(end)
    if (rate := values.number("model.optim.lr")) is not None:
        options["--learning-rate"] = f"{rate:g}"
    warmup = number("model.optim.sched.warmup_steps", values.get("model.optim.sched.warmup_steps"))
    if warmup is not None:
        options["--warmup-steps"] = str(int(warmup))
    name = values.get("model.optim.sched.name")
    if name is not None:
        options["--lr-schedule"] = SCHEDULES.get(str(name), "constant")
    differs = tuple(_differs(values, name))
    if steps and scheduled and steps != scheduled:
        told = f"the rate falls until step {steps}, where training ends, not until step {scheduled}"
        differs = (f"model.optim.sched.max_steps={scheduled}: {told}", *differs)
    return Learning(tuple(options.items()), differs, values.left_out())


def _differs(values: Values, schedule: object) -> Iterator[str]:
    if schedule is not None and schedule not in SCHEDULES:
        known = ", ".join(SCHEDULES)
        yield f"model.optim.sched.name={str(schedule)[:40]}: a constant rate stands in; with a counterpart: {known}"
    for key in ("min_lr", "constant_steps"):
        if value := number(f"model.optim.sched.{key}", values.get(f"model.optim.sched.{key}")):
            yield f"model.optim.sched.{key}={value:g}: our schedules fall to zero and have no such part"
    decay = values.number("model.optim.weight_decay")
    if decay is not None and decay != FIXED["weight_decay"]:
        yield f"model.optim.weight_decay={decay:g}: autoshard run decays by {FIXED['weight_decay']:g}"
    clip = values.number("trainer.gradient_clip_val")
    if clip is not None and clip != FIXED["clip"]:
        yield f"trainer.gradient_clip_val={clip:g}: autoshard run clips at {FIXED['clip']:g}"
    betas = values.get("model.optim.betas")
    if isinstance(betas, list) and tuple(betas) != BETAS:
        yield f"model.optim.betas={betas}: autoshard run has {list(BETAS)}"
