"""Find the ModelSpec of a model by what a user calls it: a name, a repository or a path."""

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from autoshard.errors import AutoshardError
from autoshard.files.fields import near, show
from autoshard.files.json_file import read_json
from autoshard.files.text_file import printable
from autoshard.models.families import FAMILIES, config_files
from autoshard.models.huggingface import read_config, read_dropout, read_other_parts
from autoshard.plugins.found import installed
from autoshard.spec.dropout import Dropout
from autoshard.spec.model import ModelSpec

FOLDER = Path(__file__).parent
REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*")
"""'meta-llama/Meta-Llama-3-70B'."""
MOST_BYTES = 100_000
USER_MODULE = re.compile(r".*\.py:[A-Za-z_]\w*")


def builtin_models() -> tuple[str, ...]:
    """Names of the configs in models/<family>/configs, sorted."""
    return tuple(_config_files())


def known_models() -> tuple[str, ...]:
    """Names of the built-in models and, behind these, of those of plug-ins, where these load."""
    try:
        others = tuple(_plugin_config_files())
    except AutoshardError:
        others = ()
    return *builtin_models(), *others


def repositories(name: str) -> tuple[str, ...]:
    """The Hugging Face repositories whose config a built-in model has."""
    return tuple(repository for repository, model in _repositories().items() if model == name)


def model_of_repository(repository: str) -> str | None:
    """The built-in model whose config a Hugging Face repository has, in whatever case; None where there is none."""
    return next((name for known, name in _repositories().items() if known.lower() == repository.lower()), None)


def model_named_like(repository: str) -> str | None:
    """The built-in model one of whose repositories has, behind its owner, the longest name that this one's begins with,
    as copies and later versions have it; None where there is none."""
    own = repository.rpartition("/")[2].lower()
    names = {known.rpartition("/")[2].lower(): name for known, name in _repositories().items()}
    alike = [known for known in names if own == known or own.startswith(f"{known}-")]
    return names[max(alike, key=len)] if alike else None


def is_user_module(text: str) -> bool:
    """Whether a text names a class, or a function that makes a module, in a Python file: 'my_file.py:MyModel'."""
    return USER_MODULE.fullmatch(text) is not None


def load_model(name_or_path: str) -> ModelSpec:
    """The model by a user's name for it, without dropout.

    The name is a built-in model's, the path of a Hugging Face config.json (or of a directory with one), or the Hugging
    Face repository of a built-in model; the first of these that exists.

    Raises AutoshardError for an unknown name, with those that are close, and for a file that is not a usable config.
    """
    file = _config_file(name_or_path)
    return _built_in(file) if _config_files().get(Path(file).stem) is file else read_config(file)


def published_dropout(name_or_path: str) -> Dropout:
    """The dropout in the model's published config, by the same names as `load_model`, which gives a model without
    dropout.
    """
    return read_dropout(_config_file(name_or_path))


def left_out(name_or_path: str) -> tuple[str, ...]:
    """Keys of what the model's config describes beside the text model that `load_model` gives, such as vision_config,
    by the same names."""
    return read_other_parts(_config_file(name_or_path))


def _config_file(name_or_path: str) -> Path | str:
    files = _config_files()
    if name_or_path in files:
        return files[name_or_path]
    if _exists(name_or_path):
        if name_or_path.endswith(".py") and Path(name_or_path).is_file():
            raise AutoshardError(
                f"model={show(name_or_path)} is a Python file without the name of a class in it, or of a function that "
                f"makes a module; {printable(name_or_path)}:CLASS has one"
            )
        return name_or_path
    known = _repositories()
    if (name := model_of_repository(name_or_path)) is not None:
        return files[name]
    files = {**files, **_plugin_config_files()}
    if name_or_path in files:
        return files[name_or_path]
    if name_or_path.endswith(".json") or (os.sep in name_or_path and not REPOSITORY.fullmatch(name_or_path)):
        return name_or_path
    close = near(name_or_path, [*files, *known])
    meant = f"; did you mean {' or '.join(close)}?" if close else ""
    listed = f"known: {', '.join(files)}" if not close else f"autoshard models lists the {len(files)} that are"
    raise AutoshardError(
        f"model={show(name_or_path)} is not known{meant} ({listed}; or a path to a Hugging Face config.json; or "
        "my_file.py:MyModel)"
    )


@cache
def _config_files() -> Mapping[str, Path]:
    """The built-in models' config files, by name; they are this version's, so they are looked for once."""
    return {file.stem: file for file in sorted(FOLDER.glob("*/configs/*.json"), key=lambda file: file.stem)}


@cache
def _built_in(file: Path) -> ModelSpec:
    """The model of a config file of this version, read once."""
    return read_config(file)


def _plugin_config_files() -> dict[str, Path]:
    """The config files of the families of plug-ins, by name. Raises AutoshardError where a plug-in does not load."""
    families = [FAMILIES[name] for name in installed("models") if name not in tuple(FAMILIES)]
    return {file.stem: file for family in families for file in config_files(family)}


@cache
def _repositories() -> Mapping[str, str]:
    """Hugging Face repository -> name of the built-in model whose config it has."""
    content = read_json(FOLDER / "repositories.json", "names of repositories", MOST_BYTES)
    assert isinstance(content, dict)
    return {repository: name for name, all_of_it in content.items() for repository in all_of_it}


def _exists(text: str) -> bool:
    try:
        return text != "" and Path(text).exists()
    except (OSError, ValueError):  # too long, or with a null character
        return False
