"""The modules of a family, each imported when it is first asked for: a plan needs one graph and no weights."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.plugins.found import RAISED, in_one_line
from autoshard.spec.model_types import FAMILIES, Family

__all__ = ["FAMILIES", "Family", "check_modules", "config_files", "config_of", "graph_of", "weights_of"]

OURS = __name__.rpartition(".")[0]
NEEDED = {"graph": ("embedding", "block", "head"), "config": ("read",)}
"""Module of a family -> the functions without which it makes no plan."""


def graph_of(family: Family) -> ModuleType:
    """Module with `embedding(b, model)`, `block(b, model, x, layer, kernel)` and `head(b, model, x)`."""
    return _module(family, "graph")


def config_of(family: Family) -> ModuleType:
    """Module with `read(config, model_type)` to a ModelSpec, `write(model)` back, ARCHITECTURES (model_type -> the
    class of transformers), and where they differ from others' DROPOUT, UNSUPPORTED and QUANTIZATIONS."""
    assert family.is_published, family
    return _module(family, "config")


def weights_of(family: Family) -> ModuleType | None:
    """Module with `block(model, layer)` and `ends(model)`, which list parts of the Hugging Face checkpoint, of a traced
    model of its module's tensors, and where there are such `fused_block`, of checkpoints with all experts of a block in
    one tensor, LEFT_OUT, prefixes of tensors that are not read, `left_out(model)`, those that depend on the model, and
    `saved_as(tensor)`, transformers' name of a tensor where it writes another one than the publisher and reads both;
    None if no such checkpoint is known."""
    return _module(family, "weights") if family.folder else None


def config_files(family: Family) -> list[Path]:
    """The published configs in the folder, sorted: models that are known by the name of the file."""
    if not family.folder:
        return []
    places = getattr(_imported(family, family.package), "__path__", None)
    if not places:
        raise AutoshardError(
            f"folder={show(family.folder)} of a plug-in's family needs a package to lie in, and "
            f"package={show(family.package)} is a module alone; folder='' is of such a one"
        )
    return sorted((Path(next(iter(places))) / family.folder / "configs").glob("*.json"))


def check_modules(family: Family) -> None:
    """Raise AutoshardError where a plug-in's family has a module that does not import, or lacks a function."""
    config_files(family)
    config_of(family)
    graph_of(family)


def _module(family: Family, name: str) -> ModuleType:
    """A module of a family. Raises AutoshardError where it is a plug-in's, and does not import or lacks a function."""
    module = _imported(family, f"{family.package}.{family.folder}.{name}" if family.folder else family.package)
    if lacking := [function for function in NEEDED.get(name, ()) if not hasattr(module, function)]:
        raise AutoshardError(
            f"module {module.__name__} of a plug-in's family has no function {lacking[0]}; it needs one"
        )
    return module


def _imported(family: Family, name: str) -> ModuleType:
    try:
        return import_module(name)
    except RAISED as error:
        if family.package == OURS:
            raise
        raise AutoshardError(
            f"package={show(family.package)} of a plug-in's family does not load: {in_one_line(error)}"
        ) from error
