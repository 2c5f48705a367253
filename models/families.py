"""The modules of a family, each imported when it is first asked for: a plan needs one graph and no weights."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

from autoshard.spec.model_types import FAMILIES, Family

__all__ = ["FAMILIES", "Family", "config_files", "config_of", "graph_of", "weights_of"]


def graph_of(family: Family) -> ModuleType:
    """Module with `embedding(b, model)`, `block(b, model, x, layer, kernel)` and `head(b, model, x)`."""
    return _module(family, "graph")


def config_of(family: Family) -> ModuleType:
    """Module with `read(config, model_type)` to a ModelSpec, `write(model)` back, ARCHITECTURES (model_type -> the
    class of transformers), and where they differ from others' DROPOUT, UNSUPPORTED and QUANTIZATIONS."""
    assert family.is_published, family
    return _module(family, "config")


def weights_of(family: Family) -> ModuleType | None:
    """Module with `block(model, layer)` and `ends(model)`, which list parts of the Hugging Face checkpoint, and where
    there are such `fused_block`, of checkpoints with all experts of a block in one tensor, and LEFT_OUT, prefixes of
    tensors that are not read; None if no such checkpoint is known."""
    return _module(family, "weights") if family.is_published and family.folder else None


def config_files(family: Family) -> list[Path]:
    """The published configs in the folder, sorted: models that are known by the name of the file."""
    if not family.folder:
        return []
    (place, *_) = import_module(family.package).__path__
    return sorted((Path(place) / family.folder / "configs").glob("*.json"))


def _module(family: Family, name: str) -> ModuleType:
    return import_module(f"{family.package}.{family.folder}.{name}" if family.folder else family.package)
