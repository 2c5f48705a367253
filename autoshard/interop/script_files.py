"""Other scripts that one runs: those beside it are read, as its parts or in its place. Nothing is executed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from autoshard.errors import AutoshardError
from autoshard.files.text_file import read_text
from autoshard.interop.launch_script import MOST_CHARACTERS, READS, Place, Values, commands, values_of

MOST_FILES = 4
"""Files that one script is read with, and scripts that it may start."""
DEEPEST = 20
"""Folders above a file that are looked through, at most."""
MOST_BYTES = 1_000_000
"""Of a file with a layout; those of frameworks have some thousand."""
MOST_BYTES_OF_SCRIPT = 200_000
"""Of a script, with its parts; those of frameworks have less than twenty thousand, and each word takes time."""
RUNNERS = ("exec", "bash", "sh", "zsh", "env", "time", "nohup", "srun", "sbatch", "mpirun", "mpiexec")
"""Commands that start another one, which may stand behind their options."""
_KEYWORDS = ("if", "then", "elif", "else", "do", "while", "until", "!", "{", "(")
_SCRIPT = re.compile(r"(?:[^\s/]*/)*[\w.+-]+\.(?:sh|bash|slurm|sbatch)")
_OWN_FOLDER = re.compile(r"""\$\(\s*dirname\s[^()]*\)|\$\{BASH_SOURCE[^{}]*%/\*\}""")
"""The folder that a script lies in, as it says that itself."""
_ASSIGNS = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_EXPORTS = re.compile(r"^[ \t]*(?:export|declare[ \t]+-x|typeset[ \t]+-x)[ \t]+([^\n;&|]*)", re.MULTILINE)
_EXPORTS_ALL = re.compile(
    r"^[ \t]*set(?:[ \t]+-?\w{1,20})*?[ \t]+(?:-\w{0,9}a\w{0,9}|-\w{0,9}o[ \t]+allexport)(?=[\s;&|]|$)", re.MULTILINE
)
_NAME = re.compile(r"(?<![\w$\"'={/.-])[A-Za-z_]\w*(?==|[ \t]|$)")


class Started(NamedTuple):
    """A script that another one starts. name: of its file, or its path where that lies elsewhere. text: its own, behind
    lines that give it the variables it gets; None where it is not beside the other. place: it is started in."""

    name: str
    text: str | None
    place: Place


def above(folder: Path) -> list[Path]:
    """The folders that a folder lies in, from the innermost on; none where it cannot be read."""
    try:
        return list(folder.resolve().parents)[:DEEPEST]
    except OSError:
        return []


def named_file(name: str, folder: str) -> Path | None:
    """The file that another one names, whose own folder is `folder`: there, in a folder above, or in the current one;
    None where there is none."""
    places = (Path(folder), *above(Path(folder)), Path())
    try:
        return next((one / name for one in places if (one / name).is_file()), None)
    except (OSError, ValueError):  # too long, or with a null character
        return None


def with_parts(text: str, place: Place) -> tuple[str, tuple[str, ...]]:
    """(a script with the files in it that it runs as parts of itself and that lie beside it, their names)."""
    names: list[str] = []
    for _ in range(MOST_FILES):
        values = values_of(text, place)
        for found in READS.finditer(text):
            name = _beside(found[1], values, place)
            part = None if name is None or len(names) == MOST_FILES else _text(name, place)
            if name is not None and part is not None and len(text) + len(part) <= MOST_BYTES_OF_SCRIPT:
                names.append(name)
                text = f"{text[: found.start()]}{part}\n{text[found.end() :]}"
                break
        else:
            break
    return text, tuple(dict.fromkeys(names))


def started(text: str, place: Place) -> Iterator[Started]:
    """The scripts that a script starts, in its order, each once with the same arguments."""
    values = values_of(text, place)
    known: set[tuple[str, tuple[str, ...]]] = set()
    for words in commands(values.text):
        prefix, name, arguments = _command(words, values)
        if not name or (name, arguments) in known or len(known) == MOST_FILES:
            continue
        known.add((name, arguments))
        own = _beside(name, values, place)
        body = None if own is None else _text(own, place)
        given = "".join(f"export {variable}={value}\n" for variable, value in _exported(values, prefix))
        if body is not None:
            for every in ('"$@"', '"$*"', "$@", "$*"):
                body = body.replace(every, " ".join(arguments))
        yield Started(own or name, None if body is None else given + body, place._replace(arguments=arguments))


def _command(words: list[str], values: Values) -> tuple[dict[str, str], str, tuple[str, ...]]:
    """(variables that a command gets of its own, the script that it starts or nothing, the words behind that)."""
    prefix: dict[str, str] = {}
    runs = False
    for index, word in enumerate(words):
        assigned = _ASSIGNS.fullmatch(word)
        if assigned is not None and not word.startswith("-"):
            prefix[assigned[1]] = values.filled(assigned[2], {})
        elif word in RUNNERS:
            runs = True
        elif _SCRIPT.fullmatch(values.filled(word, {})) and (runs or "/" in word):
            rest = tuple(values.filled(one, {}) for one in words[index + 1 :])
            return prefix, values.filled(word, {}), rest
        elif not runs and word not in _KEYWORDS:
            break
    return prefix, "", ()


def _exported(values: Values, prefix: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yields the variables that a script hands on to those that it starts, and their values; a variable that has none
    is its own."""
    if _EXPORTS_ALL.search(values.text):
        names = [*values.variables]
    else:
        names = [name for found in _EXPORTS.findall(values.text) for name in _NAME.findall(found)]
    for name in dict.fromkeys((*names, *prefix)):
        value = prefix.get(name, values.known.get(name, "$"))
        is_plain = len(value) <= MOST_CHARACTERS and not set(value) & set("$'`\n")
        yield name, f"'{value}'" if is_plain else f"${name}"


def _beside(path: str, values: Values, place: Place) -> str | None:
    """The name of a file in the script's own folder, as a script names it; None for one elsewhere."""
    said = values.filled(_OWN_FOLDER.sub(lambda _: place.folder, path.strip("\"'")), {}).replace('"', "")
    name = said.removeprefix(f"{place.folder}/").removeprefix("./")
    return name if re.fullmatch(r"[\w.+-]+", name) and place.folder else None


def _text(name: str, place: Place) -> str | None:
    """The text of a file in the script's own folder; None where there is none that can be read."""
    try:
        return read_text(Path(place.folder, name), name, MOST_BYTES_OF_SCRIPT)
    except AutoshardError:
        return None
