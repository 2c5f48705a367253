"""Low-rank adapters (LoRA) that a file trains: in its words, and as a model here has them.

Sources: PEFT's LoraConfig, whose names of layers are ends of modules' names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, NamedTuple

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.interop.written_layout import LORA, WrittenLora
from autoshard.interop.yaml_values import Values
from autoshard.models.stage import check_adapters, linear_layers
from autoshard.spec.lora import Lora
from autoshard.spec.model import ModelSpec

QKV, GATE_UP = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")
FUSED = {
    **dict.fromkeys(("qkv_proj", "query_key_value", "Wqkv", "c_attn", "attention_qkv"), QKV),
    "gate_up_proj": GATE_UP,
    "attention_dense": ("o_proj", "dense"),
    "mlp_fc1": (*GATE_UP, "c_fc", "fc1", "dense_h_to_4h"),
    "mlp_fc2": ("down_proj", "fc2", "dense_4h_to_h"),
}
"""Layers that frameworks have as one, or by another name -> the layers here, of which a model has some."""
OF_EXPERTS = ("gate_proj", "up_proj", "down_proj", "gate_up_proj")
"""Names that layers of experts share with those of other MLPs."""
ALL = ("all", "all-linear")
"""Words for all linear layers."""
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")

PATTERN = "{key} is a pattern: priced with adapters beside all linear layers of blocks"
ALONE = "{key}: no adapters are priced beside {names}"
EXPERTS = "{said}: experts and routers may have adapters too; none are priced beside them"
APART = "{key}: {name} is one layer there; priced with adapters beside each of {names}"
SAVED = "{said}: trained whole there; priced as not trained"
DROPOUT = "{said}: dropout before adapters is not in the price; --dropout lora=P puts it there, with backend torch"
DORA = "{said}: priced as LoRA; DoRA learns lengths of columns too, and computes them in each step"
NXD = "NxD 0.18.0"
LEARN_APART = (
    "{said} with sequence parallelism: {library} does not sum gradients of its adapters over tensor-parallel ranks, "
    "which learn apart; autoshard run sums those of its own"
)
"""Of NxD 0.18.0, as tests/nxd shows on the library, and of Optimum Neuron, as its sources say: neither marks lora_A of
a column-parallel layer, or lora_B of a row-parallel one, as norms are [optimum/neuron/peft/tuners/lora/layer.py,
optimum/neuron/accelerate/optimizer.py, 213224e6]."""
RESUMED = "{said}: rank and layers are those of the adapters that it loads; priced with those that the file says"
ELSEWHERE = "{said}: priced with adapters of one rank in all blocks"
"""Sentences on what is not in the price, or is there as something else."""


@dataclass(frozen=True)
class Fields:
    """Paths of a program's fields on adapters, empty for those that it has not, and what it takes where a file is
    silent.

    r, lora_alpha, dropout, target, dora, rslora, saved: as PEFT's r, lora_alpha, lora_dropout, target_modules,
    use_dora, use_rslora and modules_to_save. resumed: names adapters to go on with. elsewhere: give some layers others,
    or none. usual_r: None for a rank that must be said. usual_alpha: from the rank. usual_names: of layers, or one of
    ALL.
    """

    r: str
    lora_alpha: str
    dropout: str
    target: str
    dora: str = ""
    rslora: str = ""
    saved: str = ""
    resumed: str = ""
    elsewhere: tuple[str, ...] = ()
    usual_r: int | None = None
    usual_alpha: Callable[[int], float | None] = lambda r: None
    usual_dropout: float = 0.0
    usual_names: str = ALL[0]


def read_lora(values: Values, said: str, fields: Fields) -> WrittenLora | None:
    """The adapters that a YAML file trains; None where it leaves their rank or scale open. said: the field that says
    that it trains some, with its value. Raises AutoshardError for values of another kind."""
    r = values.whole(fields.r) or fields.usual_r
    alpha = values.number(fields.lora_alpha)
    if r is not None and alpha is None:
        alpha = fields.usual_alpha(r)
    if r is None or alpha is None:
        return None
    if fields.rslora and values.flag(fields.rslora):
        alpha *= sqrt(r)  # scales by alpha / sqrt(r)
    target = values.get(fields.target)
    names, every, pattern = _targets(fields.usual_names if target is None else target)
    warnings = [PATTERN.format(key=fields.target)] if pattern else []
    warnings += _unpriced(values, fields)
    dropout, told = values.number(fields.dropout), ""
    if rate := fields.usual_dropout if dropout is None else dropout:
        told = f"{fields.dropout}={rate:g}{', its default' if dropout is None else ''}"
    return WrittenLora(said, r, alpha, names, every, fields.target, tuple(warnings), told)


def _targets(said: Any) -> tuple[tuple[str, ...], bool, bool]:
    """(names of layers, whether all linear layers have adapters, whether that stands for a pattern)."""
    if not isinstance(said, str):
        return tuple(map(str, said)) if isinstance(said, list) else (), False, False
    names = tuple(name.strip() for name in said.split(",") if name.strip())
    if said in ALL or not all(map(_NAME.fullmatch, names)):
        return (), True, said not in ALL
    return names, False, False


def _unpriced(values: Values, fields: Fields) -> Iterator[str]:
    """Sentences on what a file says of its adapters that is not in the price."""
    if fields.dora and values.flag(fields.dora):
        yield DORA.format(said=f"{fields.dora}=True")
    for key, sentence in (
        (fields.saved, SAVED),
        (fields.resumed, RESUMED),
        *((key, ELSEWHERE) for key in fields.elsewhere),
    ):
        if key and (value := values.get(key)):
            yield sentence.format(said=f"{key}={', '.join(map(str, value)) if isinstance(value, list) else value}"[:80])


class Adapters(NamedTuple):
    """Adapters of a model; None where they cannot be planned. notes, warnings: sentences on how they differ."""

    lora: Lora | None
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def adapters_of(written: WrittenLora, model: ModelSpec, rate: float = 0.0) -> Adapters:
    """The adapters that a model has here of those that a file trains: none where it has none of the layers. rate:
    probability with which what they read is dropped in the price."""
    if model.graph is not None:  # traced: its layers have their own names
        return Adapters(None, (), (LORA.format(said=written.said),))
    layers = linear_layers(model)
    found, missing, notes = {*(layers if written.every else ())}, [], []
    for name in written.names:
        last = name.rpartition(".")[2] if _NAME.fullmatch(name) else ""
        parts = tuple(part for part in FUSED.get(last, ()) if part in layers)
        found |= {last} & {*layers} or {*parts}
        if last not in layers and len(parts) > 1:
            notes.append(APART.format(key=written.key, name=last, names=", ".join(parts)))
        elif last not in layers and not parts:
            missing.append(name)
    warnings = [ALONE.format(key=written.key, names=", ".join(map(show, missing)))] if missing else []
    lora = Lora(written.r, written.lora_alpha, tuple(sorted(found))) if found else None
    why = None if lora is None else _objection(model, lora)
    if lora is None or why is not None:
        warnings += [f"{LORA.format(said=written.said)}{'' if why is None else f': {why}'}"]
        return Adapters(None, (), tuple(warnings))
    if model.is_moe and (written.every or found & {*OF_EXPERTS}):
        warnings.append(EXPERTS.format(said=written.said))
    if written.drops and not rate:
        warnings.append(DROPOUT.format(said=written.drops))
    return Adapters(lora, tuple(notes), (*warnings, *written.warnings))


def _objection(model: ModelSpec, lora: Lora) -> str | None:
    """The reason why a model cannot have such adapters; None for none."""
    try:
        check_adapters(replace(model, lora=lora))
    except AutoshardError as error:
        return str(error)
    return None
