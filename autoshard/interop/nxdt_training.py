"""How a configuration of NxD Training learns: rates, decay, clipping. A plan holds none of it, `autoshard run` takes
some of it as options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.text_file import printable, read_text
from autoshard.files.yaml_file import parse_yaml
from autoshard.interop.nxdt import FOLLOWS
from autoshard.interop.script_files import MOST_BYTES
from autoshard.interop.yaml_values import Values

SCHEDULES = {"LinearAnnealingWithWarmUp": "linear", "CosineAnnealing": "cosine"}
"""Names of NxD Training's schedules and of ours."""
FIXED: dict[str, Any] = {"weight_decay": 0.1, "betas": [0.9, 0.95], "eps": 1e-8, "clip": 1.0}
"""What `autoshard run` updates weights with, whatever a configuration says (runtime/torch_backend)."""
_ADAMW: dict[str, Any] = {"weight_decay": 0.01, "betas": [0.9, 0.999], "eps": 1e-8}
USUAL = {"adamw": _ADAMW, "adamw_fp32OptState": {**_ADAMW, "weight_decay": 0.0, "eps": 1e-6}}
"""By model.optim.name: what the optimizer has where a configuration is silent: torch's AdamW, and NxD's
[utils/adamw_fp32_optim_params.py]."""
USUAL_RATE = 1e-3
"""The learning rate of both where a configuration is silent."""
ROUTERS_LOSS = {"hf": (True, 0.02), "megatron": (False, 0.0)}
"""By model_source: output_router_logits and router_aux_loss_coef of experts where a configuration is silent
[NxDT hf_models/mixtral_model.py, megatron/megatron_gpt_model.py]."""
HF_DECAY = 0.01
"""Weight decay of NxD Training's Hugging Face models, whatever a configuration says [NxDT utils/model_utils.py]."""


@dataclass(frozen=True)
class Learning:
    """How a configuration learns.

    options: of `autoshard run`, by flag. router_aux_loss_coef: for ModelSpec, where there are experts. differs:
    sentences on what neither can say. left_out: keys of the file that say nothing of it.
    """

    options: tuple[tuple[str, str], ...]
    router_aux_loss_coef: float
    differs: tuple[str, ...]
    left_out: tuple[str, ...]


def read_learning(file: str) -> Learning:
    """How the configuration in a file learns. Raises AutoshardError for a file or a value that cannot be read."""
    where = printable(file)
    data = parse_yaml(read_text(file, f"configuration {where}", MOST_BYTES), where)
    if not isinstance(data, dict) or "distributed_strategy" not in data:
        raise AutoshardError(f"{where} is no configuration of NxD Training: it has no distributed_strategy")
    values = Values(data, FOLLOWS)
    options: dict[str, str] = {}
    last, scheduled = _steps(values, "trainer.max_steps"), _steps(values, "model.optim.sched.max_steps")
    if (end := last or scheduled) is not None:
        options["--steps"] = str(end)
    rate = values.number("model.optim.lr")
    options["--learning-rate"] = f"{USUAL_RATE if rate is None else rate:g}"
    options["--warmup-steps"] = str(int(values.number("model.optim.sched.warmup_steps") or 0))
    name = values.get("model.optim.sched.name")
    if name is not None:
        options["--lr-schedule"] = SCHEDULES.get(str(name), "constant")
    coefficient = _routers_loss(values)
    differs = tuple(_differs(values, name))
    if coefficient:
        ours = "tokens of one layer and of all replicas are balanced together"
        theirs = "NxD Training's loss balances those of all layers and of one replica"
        differs = (f"router_aux_loss_coef={coefficient:g} of the plan's model: {ours}, {theirs}", *differs)
    if last is None:
        ends = f"at step {end}, the end of model.optim.sched" if end else "at its default: add --steps"
        differs = (f"trainer.max_steps sets no end of NxD Training: the job's is {ends}", *differs)
    return Learning(tuple(options.items()), coefficient, differs, values.left_out())


def _steps(values: Values, key: str) -> int | None:
    """A number of steps; None where there is none, for -1, Lightning's word for no end, and for what refers to nothing.
    [NxDT base.py gives a schedule trainer.max_steps for its own]"""
    if str(values.get(key)) == "-1":
        return None
    steps = values.whole_or_variable(key)
    return None if isinstance(steps, str) else steps


def _routers_loss(values: Values) -> float:
    """router_aux_loss_coef of a plan's model, 0 without such a loss. NxD divides its loss by top_k, a plan's runtime
    does not. [NxD modules/moe/loss_function.py]"""
    if values.get("model.moe") is None:
        return 0.0
    is_added, usual = ROUTERS_LOSS["megatron" if values.get("model_source") == "megatron" else "hf"]
    said, coefficient = values.flag("model.moe.output_router_logits"), values.number("model.moe.router_aux_loss_coef")
    if not (is_added if said is None else said):
        return 0.0
    return (usual if coefficient is None else coefficient) / (values.whole("model.moe.top_k") or 1)


def _differs(values: Values, schedule: object) -> Iterator[str]:
    if schedule is not None and str(schedule) not in SCHEDULES:
        known = ", ".join(SCHEDULES)
        yield f"model.optim.sched.name={str(schedule)[:40]}: a constant rate stands in; with a counterpart: {known}"
    for key in ("min_lr", "constant_steps"):
        if value := values.number(f"model.optim.sched.{key}"):
            yield f"model.optim.sched.{key}={value:g}: our schedules fall to zero and have no such part"
    yield from _decays_otherwise(values)
    yield from _updates_otherwise(values, "betas", values.get("model.optim.betas"))
    yield from _updates_otherwise(values, "eps", values.number("model.optim.eps"))
    clip, ours = values.number("trainer.gradient_clip_val"), f"autoshard run clips at {FIXED['clip']:g}"
    if clip is None:
        yield f"trainer.gradient_clip_val is not set, so NxD Training clips nothing: {ours}"
    elif clip != FIXED["clip"]:
        yield f"trainer.gradient_clip_val={clip:g}: {ours}"


def _decays_otherwise(values: Values) -> Iterator[str]:
    """Sentences on how fast weights decay, and on which: those of `autoshard run` are matrices alone.

    [NxDT lightning_modules/model: do_layer_norm_weight_decay spares norms in hf_models/base_model.py, and nothing in
    megatron/megatron_gpt_model.py]
    """
    decay, key = values.number("model.optim.weight_decay"), "model.do_layer_norm_weight_decay"
    is_set = values.flag(key) or False
    if values.get("model_source") == "megatron":
        yield from _updates_otherwise(values, "weight_decay", decay)
        if is_set:
            yield f"{key}=True: NxD Training decays norms and biases too, autoshard run does not"
        return
    fixed = f"NxD Training's Hugging Face models decay by {HF_DECAY:g}, whatever model.optim.weight_decay says"
    yield f"{fixed}: autoshard run decays by {FIXED['weight_decay']:g}"
    if not is_set:
        yield f"{key} is not True, so NxD Training decays norms too: autoshard run does not"


def _updates_otherwise(values: Values, name: str, said: object) -> Iterator[str]:
    """A sentence where a number of the optimizer is not that of `autoshard run`. said: by the file; None for
    nothing."""
    usual, ours = USUAL.get(str(values.peek("model.optim.name")), _ADAMW)[name], FIXED[name]
    if said is None and usual != ours:
        yield f"model.optim.{name} is not set, so NxD Training has {usual}: autoshard run has {ours}"
    elif said not in (None, ours):
        yield f"model.optim.{name}={said}: autoshard run has {ours}"
