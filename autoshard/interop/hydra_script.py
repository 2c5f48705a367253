"""Read scripts that start a program with Hydra's overrides as the configuration that the program gets: that of the file
beside them, with their overrides. Nothing is executed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.text_file import printable, read_text
from autoshard.files.yaml_file import parse_yaml, read_yaml
from autoshard.interop.hyperpod import ENVELOPE, INSTANCE
from autoshard.interop.launch_script import Place, Values, commands, told_values, values_of
from autoshard.interop.script_files import MOST_BYTES, above
from autoshard.interop.shell_conditions import unconditional

SECTIONS = ("model", "trainer", "distributed_strategy", "data")
"""Parts of a configuration that say something of a layout."""
LAUNCHERS = {
    "training": ("conf", "training", "the NeMo Framework Launcher"),
    ENVELOPE: ("recipes_collection", "recipes", "SageMaker HyperPod"),
}
"""Parts in which a launcher has such a configuration, by whose name an override such as training=llama/llama3_70b names
its file: the folder of all configurations, that of these within it, and whose they are."""
DEEPEST = 20
"""Parts of a field's path, at most."""
DEVICES = "trainer.devices"
_PATH = r"[A-Za-z_][\w.-]*"
_OVERRIDE = re.compile(rf"(\+{{1,2}}|~)?({_PATH})(?:@[\w.]+)?(?:=(.*))?", re.DOTALL)
_MARK = re.compile(
    rf"""(?<![\w.$/-])["']?(?:\+{{1,2}}|~)?(?:(?:{"|".join(LAUNCHERS)})=\w
    |(?:(?:{"|".join(LAUNCHERS)})\.)?(?:{"|".join(SECTIONS)})\.[\w.]+=)"""
    r"|--config-name\b",
    re.VERBOSE,
)
"""The begin of an override of such a part, or a flag of Hydra's."""
_OF_RECIPE = re.compile(rf"[+~]*(?:{ENVELOPE}\.|{INSTANCE}=)")
_FLAGS = {
    **dict.fromkeys(("--config-path", "-cp"), "path"),
    **dict.fromkeys(("--config-name", "-cn"), "name"),
    **dict.fromkeys(("--config-dir", "-cd"), "path"),
}
_OF_PROGRAM = re.compile(r"@hydra\w*(?:\.main)?\(([^()]*)\)")
_LISTED = re.compile(
    r"""^[ \t]*(?:export[ \t]+|declare[ \t]+(?:-a[ \t]+)?)?([A-Za-z_]\w*)\+?=("(?:\\.|[^"\\])*"|'[^']*'|\([^()]*\))""",
    re.MULTILINE | re.DOTALL,
)
"""A line that gives a variable several words, in quotes or as an array, or adds some to it."""
MOST_WORDS = 10_000
"""Of a command with what its variables stand for."""
_NAME = re.compile(r"\$\{?([A-Za-z_]\w*)(?:\[[@*]\])?\}?")


@dataclass(frozen=True)
class Configured:
    """The configuration that a script's program gets. data: its fields. environment: the script's variables that have
    one value. notes, warnings: on how it was found, and on what in it is not sure."""

    data: dict[str, Any]
    environment: Mapping[str, str]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def is_hydra_script(text: str) -> bool:
    """Whether a script has overrides of a configuration as NeMo and NxD Training have it. Raises AutoshardError for no
    script."""
    return _MARK.search(text) is not None and next(_launches(text), None) is not None


def configured(text: str, place: Place) -> Configured:
    """The configuration that the first such program of a script gets.

    Raises AutoshardError where it takes fields of a file that is not here, and the script does not say them.
    """
    values = values_of(text, place)
    program, words = next(chain(_launches(values.text), _launches(text)))
    used: dict[str, str] = {}
    found = _expanded(words, values, used)
    outside = values._replace(text=unconditional(values.text))
    sure = {one for _, some in _launches(outside.text) for one in _expanded(some, outside, {})}
    flags, overrides = _parted(found)
    program = values.filled(program, {})
    data, file = _base(program, flags, overrides, place)
    if file is None:
        data.setdefault("name", Path(program).stem)
    for word in overrides:
        if ENVELOPE not in data or _OF_RECIPE.match(word):  # the rest is on the cluster, some of it by a group's name
            _override(data, word)
    warnings = []
    if unread := [word for word in found if word.startswith("$")]:
        told = "variables to which the script gives no value, or several; overrides in them are not read"
        warnings.append(f"{printable(', '.join(unread))[:100]}: {told}")
    if perhaps := [word for word in overrides if word not in sure and _matters(word)]:
        said = printable(", ".join(perhaps))[:200]
        warnings.append(f"in a condition of the script, taken as if it held: {said}")
    note = f"the configuration is {printable(file or '')}, with {len(overrides)} overrides of the script"
    if file is None:
        note = f"{_whose(program, flags)} is not here: fields that the script leaves out have the framework's defaults"
    return Configured(data, values.known, (note, *told_values(used | values.decided)), tuple(warnings))


def _launches(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yields (a program, the words behind it) for the commands of a script that have overrides of such parts, or the
    name of a file with them."""
    lists = _lists(text)
    quoted = (one for several in lists.values() for one in several if ".py" in one)
    for words in chain(commands(text), *map(_commands_in, quoted)):
        at = next((index for index, word in enumerate(words) if word.endswith(".py")), len(words))
        behind = words[at + 1 :]
        named = {found[1] for word in behind if (found := _NAME.fullmatch(word))}
        texts = (one for name in named for one in lists.get(name, ()))
        if any(_MARK.match(word) for word in behind) or any(_MARK.search(one) for one in texts):
            yield words[at], behind


def _commands_in(quoted: str) -> Iterator[list[str]]:
    """The commands in a text in quotes; none where it is none."""
    try:
        yield from commands(quoted[1:-1])
    except AutoshardError:
        return


def _lists(text: str) -> dict[str, list[str]]:
    """Variable -> the texts in quotes and arrays that a script gives it."""
    lists: dict[str, list[str]] = {}
    for name, several in _LISTED.findall(text):
        lists.setdefault(name, []).append(several)
    return lists


def _expanded(words: list[str], values: Values, used: dict[str, str]) -> list[str]:
    """The words of a command with their variables filled in, and for a variable that stands for several words these.
    Variables in words that a layout may be said by are added to `used`. Raises AutoshardError for too many words."""
    lists, expanded = _lists(values.text), list[str]()
    for word in words:
        named = _NAME.fullmatch(word)
        several = [] if named is None else lists.get(named[1], [])
        parts = [one for some in several for inside in _commands_in(some) for one in inside if one != word]
        for one in parts or [word]:
            own: dict[str, str] = {}
            filled = values.filled(one, own)
            if _matters(filled):
                used.update({name: value for name, value in own.items() if "/" not in value})
            is_list = one.startswith("$") and not filled.startswith("$")
            expanded += filled.split() if is_list else [filled]
        if len(expanded) > MOST_WORDS:
            raise AutoshardError(f"a command of more than {MOST_WORDS:,} words, which nobody writes")
    return expanded


def _matters(word: str) -> bool:
    return bool(_MARK.match(word)) and not re.match(r"\+*model\.(optim|tokenizer|data\.data_prefix)", word)


def _parted(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """(flags of Hydra's on its file, overrides)."""
    flags: dict[str, str] = {}
    overrides = []
    following = ""
    for word in words:
        flag, _, value = word.partition("=")
        if following:
            flags[following], following = word, ""
        elif flag in _FLAGS and value:
            flags[_FLAGS[flag]] = value
        elif flag in _FLAGS:
            following = _FLAGS[flag]
        elif (found := _OVERRIDE.fullmatch(word)) and (found[3] is not None or found[1] == "~"):
            overrides.append(word)
    return flags, overrides


def _base(
    program: str, flags: dict[str, str], overrides: list[str], place: Place
) -> tuple[dict[str, Any], Path | None]:
    """(the configuration of the file that a program takes, that file); empty and None where it is not here."""
    folders = list(dict.fromkeys(_folders(program, place)))
    if chosen := next((word for word in overrides if word.partition("=")[0] in LAUNCHERS), None):
        overrides.remove(chosen)
        part, _, option = chosen.partition("=")
        return _of_launcher(part, option, [*folders, *above(Path(place.folder))])
    flags |= {**_of_program(program, folders), **flags}
    name, path = flags.get("name"), flags.get("path", "")
    file = None if name is None else _found(folders, path, name)
    if file is not None:
        return _read(file), file
    said = {word.lstrip("+").partition("=")[0] for word in overrides}
    needed = ("model.tensor_model_parallel_size", "model.pipeline_model_parallel_size")
    if not said >= {*needed}:
        raise AutoshardError(
            f"it takes fields from {_whose(program, flags)}, which is not here, and does not say "
            f"{next(one for one in needed if one not in said)}: give that file, or put it there"
        )
    return {}, None


def _of_launcher(part: str, option: str, folders: list[Path]) -> tuple[dict[str, Any], Path]:
    """(a launcher's configuration with the file that an override chooses for a part, that file). The rest of it says
    the instance alone. Raises AutoshardError where the file is not here."""
    every, own, launcher = LAUNCHERS[part]
    file = _found(folders, every, f"{own}/{option}")
    if file is None:
        said, told = printable(f"{part}={option}")[:80], printable(f"{every}/{own}/{option}.yaml of {launcher}")[:150]
        raise AutoshardError(f"{said} is {told}, which is not here: give that file instead")
    rest = None if part != ENVELOPE else _found(folders, every, "config")
    instance = {} if rest is None else {INSTANCE: _read(rest).get(INSTANCE)}
    return {part: _read(file), **instance}, file


def _whose(program: str, flags: Mapping[str, str]) -> str:
    """The name of the configuration file that a program takes, as far as a script says it."""
    said = "/".join(flags[part] for part in ("path", "name") if part in flags)
    return printable(said or f"the file of {Path(program).name}")[:100]


def _folders(program: str, place: Place) -> Iterator[Path]:
    """Yields the folders that a program may lie in: the one that the script says, from where the script is, and folders
    of that name above it."""
    said, own = Path(program).parent, Path(place.folder)
    if "$" not in program:
        yield own / said
    yield own
    last = said.name if "$" not in said.name else ""
    yield from (one / last for one in above(own) if last)


def _found(folders: list[Path], path: str, name: str) -> Path | None:
    for folder in folders:
        for one in (name, f"{name}.yaml"):
            file = folder / path / one
            try:
                if file.suffix in (".yaml", ".yml") and file.is_file():
                    return file
            except (OSError, ValueError):  # too long, or with a null character
                return None
    return None


def _of_program(program: str, folders: list[Path]) -> dict[str, str]:
    """The flags on its file that a program has of its own, where it is here."""
    for folder in folders:
        try:
            text = read_text(folder / Path(program).name, program, MOST_BYTES)
        except AutoshardError:
            continue
        if found := _OF_PROGRAM.search(text):
            given = dict(re.findall(r"config_(path|name)\s*=\s*[\"']([^\"'\n]{1,200})[\"']", found[1]))
            return {str(key): str(value) for key, value in given.items()}
    return {}


def _read(file: Path) -> dict[str, Any]:
    data = read_yaml(file, "configuration", MOST_BYTES)
    if not isinstance(data, dict):
        raise AutoshardError(f"{printable(file)} must hold named fields")
    return data


def _override(data: dict[str, Any], word: str) -> None:
    """Change a configuration as an override of Hydra's says. Raises AutoshardError for a field of what has none."""
    found = _OVERRIDE.fullmatch(word)
    assert found is not None
    path, value = found[2], _value(found[3])
    parts = path.split(".")
    if len(parts) > DEEPEST:
        raise AutoshardError(f"{path[:60]}... has more than {DEEPEST} parts")
    if path == DEVICES and str(value).startswith("$"):
        return  # counted by the script where it runs
    for part in parts[:-1]:
        inner = data.get(part)
        if inner is None and found[1] == "~":
            return
        if inner is None:
            inner = data[part] = {}
        if not isinstance(inner, dict):
            raise AutoshardError(f"{printable(word)[:60]}: {part} holds a value, no fields")
        data = inner
    if found[1] == "~":
        data.pop(parts[-1], None)
    else:
        data[parts[-1]] = value


def _value(text: str | None) -> object:
    """The value of an override: as YAML would have it, but for what would be fields of a text."""
    if text is None:
        return None
    try:
        value = parse_yaml(text, "override") if text else ""
    except AutoshardError:
        return text
    return text if isinstance(value, dict) and not text.startswith("{") else value
