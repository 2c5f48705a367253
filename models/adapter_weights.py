"""Lists the adapters of a model's weights, and where files of PEFT hold them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from autoshard.errors import AutoshardError
from autoshard.graph.adapters import DOWN, RANK, UP, WEIGHT
from autoshard.models.weight_names import Part
from autoshard.models.weights import checkpoint_parts, parameter_dims
from autoshard.spec.model import ModelSpec

OUTERMOST = "base_model.model."
"""The start of names in PEFT's files, before the model's own."""
_ATTENTION = ".self_attn."
_GATE = f"{_ATTENTION}gate_proj{WEIGHT}"


@dataclass(frozen=True)
class Adapter:
    """The adapter of a weight with the dims `dims`, to which it adds scale * up down.

    down: name of its lora_A [rank, *contracted]. up: name of its lora_B [*given, rank].
    """

    dims: tuple[str, ...]
    down: str
    contracted: tuple[str, ...]
    up: str
    given: tuple[str, ...]
    rank: int
    scale: float


@dataclass(frozen=True)
class PeftLayout:
    """The layout of a folder of PEFT with a model's adapters.

    parts: of its file. target_modules: names of modules by their last parts, in full of a model with experts.
    fan_in_fan_out: whether the weights of these modules are [what they contract, what they give], as those of GPT-2.
    """

    parts: tuple[Part, ...]
    target_modules: tuple[str, ...]
    fan_in_fan_out: bool


def adapters(model: ModelSpec) -> dict[str, Adapter]:
    """Adapters by the names of their weights; none of a model without them."""
    if model.lora is None:
        return {}
    dims, _ = parameter_dims(model)
    found = {}
    for name, own in dims.items():
        down, up = (f"{module_of(name)}.{matrix}{WEIGHT}" for matrix in (DOWN, UP))
        if down in dims:
            found[name] = Adapter(own, down, dims[down][1:], up, dims[up][:-1], model.lora.r, model.lora.scale)
    return found


def layers_of(model: ModelSpec, modules: Collection[str]) -> tuple[str, ...]:
    """Names of a model's layers, as target_modules of its adapters has them, whose weights lie in published modules of
    these names; sorted."""
    parts = checkpoint_parts(model.without_adapters)
    return tuple(sorted({_last(part.parameter) for part in parts if module_of(part.tensor) in modules}))


def peft_layout(model: ModelSpec, otherwise: str) -> PeftLayout:
    """The layout of a model's adapters in PEFT's files.

    otherwise: what works where there is none, in errors.
    Raises AutoshardError for an adapter of a part of a published tensor, where PEFT's are of whole ones, and for one
    whose module transformers may have by another name than checkpoints do.
    """
    published, known = checkpoint_parts(model.without_adapters), adapters(model)
    held = Counter(part.tensor for part in published)
    parts, modules, turned = list[Part](), set[str](), False
    for part in published:
        if (adapter := known.get(part.parameter)) is None:
            continue
        module = module_of(part.tensor)
        if held[part.tensor] > 1 or part.at or len(part.groups) != 2:
            why = f"lies in {part.tensor} with others, and PEFT has none of parts of a tensor"
            raise _none_of(model, part, f"{why}: {otherwise}")
        if _may_be_renamed(model, part):
            why = f"lies in {part.tensor}, which PEFT may know by another name"
            raise _none_of(model, part, f"{why}: {otherwise}")
        given, contracted = part.groups
        if {*contracted} != {*adapter.contracted}:
            given, contracted, turned = contracted, given, True
        name = f"{OUTERMOST}{module}"
        parts += (
            Part(f"{name}.{DOWN}{WEIGHT}", f"{RANK} ({' '.join(contracted)})", adapter.down),
            Part(f"{name}.{UP}{WEIGHT}", f"({' '.join(given)}) {RANK}", adapter.up),
        )
        modules.add(module)
    targets = modules if model.is_moe else {_last(module) for module in modules}
    return PeftLayout(tuple(parts), tuple(sorted(targets)), turned)


def _may_be_renamed(model: ModelSpec, part: Part) -> bool:
    """Whether transformers, whose names of modules PEFT has, may call a weight's module otherwise than checkpoints do.
    Beside experts it does in a third of the families (5.23), and PEFT 0.21 takes the names of MLPs there for those of
    experts; so it does with gates of attention in LFM3."""
    return part.parameter.endswith(_GATE) or (model.is_moe and _ATTENTION not in part.tensor)


def _none_of(model: ModelSpec, part: Part, why: str) -> AutoshardError:
    """What is said of an adapter that PEFT's files do not hold. part: of its weight. why: behind its name."""
    return AutoshardError(f"lora of {model.name}: {_last(part.parameter)} {why}")


def module_of(name: str) -> str:
    """The module of a weight."""
    return name.removesuffix(WEIGHT)


def _last(name: str) -> str:
    """The last part of a module's name."""
    return module_of(name).rpartition(".")[2]
