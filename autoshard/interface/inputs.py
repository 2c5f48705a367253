"""Values that people give from Python or the command line, as a request to the planner."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Union

from autoshard.errors import AutoshardError
from autoshard.files.fields import check_flag, check_positive, option_instead, own_number, show
from autoshard.files.option_values import whole
from autoshard.planner.options import OPTIONS, request_from
from autoshard.planner.request import TOP, PlanRequest
from autoshard.plans.plan import Plan
from autoshard.spec.cluster import Cluster
from autoshard.spec.lora import Lora
from autoshard.spec.model import ModelSpec

if TYPE_CHECKING:
    from torch import nn

Model = Union[str, Path, Mapping[str, Any], ModelSpec, "nn.Module"]
"""A built-in name, a Hugging Face repository or "my_file.py:MyModel"; the path of a config.json; a config as a dict, or
anything with to_dict() such as transformers' configs; a ModelSpec; a live module, which is traced."""
Instance = str | Cluster | None
"""An instance type, a cluster, or None for the default."""
OF_A_CLUSTER = ("lnc", "hardware", "sdk")
"""Options that a cluster has decided."""


class Options(TypedDict, total=False):
    """Options of `autoshard plan` beside the model and the instance, under the names that `autoshard plan --help`
    explains, with underscores. What is left out, or None, takes its default or is searched."""

    nodes: int | None
    lnc: int | str | None
    hardware: str | Path | None
    sdk: str | None
    seq_len: int | None
    global_batch: int | None
    precision: str | None
    state_dtypes: str | Mapping[str, str] | None
    keep_bf16: str | None
    expert_imbalance: float | str | None
    loss_chunks: int | None
    mtp_num_layers: int | None
    mtp_loss_scaling_factor: float | None
    dropout: float | str | None
    lora: int | str | Lora | None
    optimizer: str | None
    backend: str | None
    device: str | None
    stack: str | None
    operators: str | None
    objective: str | None
    fit_probability: float | None
    time_limit: float | None
    search: str | None
    cost_model: str | None
    evaluations: int | None
    price_per_node_hour: float | None
    tokens: float | None
    days: float | None
    tp: int | None
    pp: int | None
    dp: int | None
    cp: int | None
    ep: int | None
    etp: int | str | None
    dp_replicate: int | str | None
    vpp: int | None
    micro_batch: int | None
    schedule: str | None
    recompute: str | None
    attention_kernel: str | None
    context_parallel: str | None
    zero: int | str | None
    axis_order: str | None


def request_of(model: Model, instance: Instance, options: Mapping[str, Any], top: int = TOP) -> PlanRequest:
    """The request that these values make.

    top: runners-up to keep. Raises AutoshardError for an option that is none, and for a value that it cannot take.
    """
    top = rows("top", top)
    given = checked(options)
    if isinstance(instance, Cluster):
        for name in OF_A_CLUSTER:
            if given.get(name) is not None:
                raise AutoshardError(f"{name}={given[name]} beside a cluster, which has decided that; leave it out")
        nodes = given.setdefault("nodes", instance.nodes)
        if nodes != instance.nodes:
            raise AutoshardError(
                f"nodes={nodes} beside a cluster with nodes={instance.nodes}; leave it out, or give "
                f"cluster.with_nodes({nodes})"
            )
    elif instance is not None:
        given["instance"] = _value("instance", instance)
    asked = request_from({**given, "model": ""}, top)
    asked = replace(asked, model=model_of(model, asked.seq_len), left_out=_left_out(model))
    return replace(asked, cluster=instance) if isinstance(instance, Cluster) else asked


def rows(name: str, value: object) -> int:
    """The value of an argument that counts rows. Raises AutoshardError, naming it, for what is no number of them."""
    try:
        return whole(0)(value)
    except ValueError as error:
        raise AutoshardError(f"{name}: {error}") from None


def check_plan(of: str, plan: object) -> None:
    """Raise AutoshardError for what is no plan. of: the name of the function that takes it."""
    if not isinstance(plan, Plan):
        raise AutoshardError(f"plan={show(plan)} of {of} must be a plan; autoshard.read_plan reads one from its file")


def path_of(of: str, name: str, value: object) -> Path:
    """The value as a path. of, name: the function and its argument, in the AutoshardError for what is none."""
    return Path(path_text(of, name, value))


def path_text(of: str, name: str, value: object) -> str:
    """The value, a path, as it was written. Raises AutoshardError as `path_of`."""
    if not isinstance(value, (str, Path)) or value == "" or "\0" in str(value):
        raise AutoshardError(f"{name}={show(value)} of {of} must be a path")
    return str(value)


def look_s(of: str, quick: object, time_limit: object) -> float:
    """The seconds that a function may look. Raises AutoshardError for values of which one cannot be taken."""
    check_flag(of, "quick", quick)
    seconds = own_number(time_limit)
    check_positive(of, "time_limit", seconds)
    return float(seconds)


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not None, with checked values. Raises AutoshardError, naming the option."""
    for name in options:
        if name not in OPTIONS:
            raise AutoshardError(f"{show(name)} is not an option{option_instead(name, OPTIONS)}")
    return {name: _value(name, value) for name, value in options.items() if value is not None}


def _value(name: str, value: Any) -> Any:
    try:
        return OPTIONS[name].parse(str(value) if isinstance(value, Path) else value)
    except ValueError as error:
        raise AutoshardError(f"{name}: {error}") from None


def model_of(model: Model, seq_len: int | None = None) -> str | ModelSpec:
    """The model as the planner takes it. seq_len: tokens that a live module is traced with.

    Raises AutoshardError for a value that is none of those that Model lists, and for a config that is not supported.
    """
    if isinstance(model, ModelSpec):
        return model
    if isinstance(model, (str, Path)):
        return _value("model", model)  # type: ignore[no-any-return]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from autoshard.tracer.trace import trace_live

        return trace_live(model, seq_len)
    config = _config_of(model)
    if config is None:
        raise AutoshardError(
            f"model={show(model)} must be a name, the path or the contents of a config.json, or a torch module"
        )
    from autoshard.models.huggingface import from_config

    return from_config(config, str(config.get("_name_or_path") or config.get("model_type") or "model"))


def _config_of(model: object) -> Mapping[str, Any] | None:
    """The contents of a config.json, also of a config of transformers; None where it is neither."""
    to_dict = None if isinstance(model, type) else getattr(model, "to_dict", None)
    config: object = to_dict() if callable(to_dict) else model
    return config if isinstance(config, Mapping) else None


def _left_out(model: Model) -> tuple[str, ...]:
    """Keys of the parts that a config has beside the text model that is planned; none of a model by a name, whose
    config is looked up later."""
    if isinstance(model, (ModelSpec, str, Path)):
        return ()
    from autoshard.models.text_part import other_parts

    return other_parts(_config_of(model))
