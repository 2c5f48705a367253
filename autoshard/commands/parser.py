"""The argument parser of the command line: jsonargparse with errors of one line and help without Python's types."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from jsonargparse import ArgumentParser, Namespace

from autoshard.errors import AutoshardError
from autoshard.files.option_values import one_of, shortened
from autoshard.files.text_file import printable, read_text

if TYPE_CHECKING:
    from autoshard.planner.options import Option

MOST_BYTES = 20_000
"""The largest config file that is read, bytes: ten times the size of a recipe."""
OTHER_WORDS = {
    "virtual": "vpp",
    "replicate": "dp-replicate",
    "expert": "ep",
    "experts": "ep",
    "tensor": "tp",
    "pipeline": "pp",
    "context": "cp",
    "data": "dp",
    "sequence": "seq-len",
    "length": "seq-len",
    "micro": "micro-batch",
    "mbs": "micro-batch",
    "per": "micro-batch",
    "batch": "global-batch",
    "gbs": "global-batch",
    "dtype": "precision",
    "bf16": "precision",
    "fp8": "precision",
    "checkpointing": "recompute",
    "remat": "recompute",
    "hardware": "instance",
    "cluster": "instance",
}
"""Words in the names that Megatron, NxD, torchtitan and Hugging Face have for options, and ours; the first one that is
found counts."""
Group = argparse._ArgumentGroup
"""The type that Parser.add_argument_group returns."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Formats help: paragraphs of descriptions as they are written, option texts wrapped with room for long flags."""

    def __init__(self, prog: str, **kwargs: Any) -> None:
        super().__init__(prog, **{"max_help_position": 32, **kwargs})


class Parser(ArgumentParser):
    """An argument parser that raises AutoshardError where argparse would print the usage and exit."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, formatter_class=HelpFormatter, print_config=None, **kwargs)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise AutoshardError(_one_line(message, self)) from None

    def _print_message(self, message: str, file: Any = None) -> None:
        """Without argparse's silence where help or version cannot be written."""
        stream = file or sys.stderr
        stream.write(message)
        stream.flush()

    def parse_path(self, path: Any, *args: Any, **kwargs: Any) -> Namespace:
        """The options in a config file. Raises AutoshardError that names the file."""
        from autoshard.files.yaml_file import parse_yaml

        where = f"--config {printable(path)}"
        # before jsonargparse, which bounds nothing and whose errors are longer
        data = parse_yaml(read_text(path, where, MOST_BYTES, "YAML"), where)
        known = [action.dest for action in self._actions]
        given = data if isinstance(data, dict) else {}
        unknown = [name for name in given if name not in known]
        if unknown:
            told = f"which is not an option here; {_reader(given) or _meant(str(unknown[0]), known)}"
            raise AutoshardError(f"{where} has {shortened(str(unknown[0]))}, {told}")
        try:
            options: Namespace = super().parse_path(path, *args, **kwargs)
        except AutoshardError as error:
            raise AutoshardError(f"{where}: {str(error).removeprefix('--config: ')}") from None
        return options

    def parse_string(self, *args: Any, **kwargs: Any) -> Namespace:
        """The options in the text of a config. A flag is written as true or false; null stands for the default."""
        options: Namespace = super().parse_string(*args, **kwargs)
        for action in self._actions:
            name = action.dest
            if name in options and options[name] is None:
                options[name] = action.default
            elif name in options and action.nargs == 0 and not isinstance(options[name], bool):
                raise AutoshardError(f"{name}: {shortened(str(options[name]))} must be true or false")
        return options


def add_format(parser: Parser | Group, *forms: str) -> None:
    """Adds the option --format; the first of the forms is its default."""
    parser.add_argument(
        "--format",
        type=one_of(*forms),
        metavar="|".join(forms),
        default=forms[0],
        help=f"what is printed (default: {forms[0]})",
    )


def add_overruling(parser: Parser, options: Iterable[Option]) -> None:
    """Adds options of `autoshard plan` to a command that reads a file: one that is not given leaves what the file says,
    so it has no default, and none is required.
    """
    group = parser.add_argument_group("what to train, on what")
    for option in options:
        text = option.help.partition(" (default")[0].replace(" (required)", "")
        group.add_argument(option.flag, type=option.parse, metavar=option.metavar, default=None, help=text)


def _one_line(message: str, parser: argparse.ArgumentParser) -> str:
    """An error message of argparse or jsonargparse in one line, with the flag first."""
    if unknown := re.match(r"unrecognized arguments: (\S+)", message):
        return _unknown_argument(unknown[1], parser)
    if 'expected "command" to be one of {' in message:
        commands = [name for action in _subparsers(parser) for name in action.choices]
        return f"a command is missing: {', '.join(commands)}; see autoshard --help"
    if wrong := re.match(r"argument COMMAND: invalid choice: '?(.*?)'? \(choose from (.*)\)", message):
        return f"{wrong[1]} is not a command; commands: {wrong[2].replace(chr(39), '')}"
    if required := re.match(r"the following arguments are required: (.*)", message):
        names = [_as_typed(name.rpartition(".")[2], parser) for name in required[1].split(", ")]
        return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} missing; see --help"
    if config := re.match(r"""Parser key "config": File does not exist: '(.*)'""", message):
        return f"--config {config[1]} does not exist"
    if message.startswith("Unexpected config: "):
        return "--config: a recipe has options with their values, such as `model: llama3-8b`"
    message = re.sub(
        r'^Parser key "config": ', "--config: ", re.sub(r"^Problems parsing config: ", "--config: ", message)
    )
    message = re.sub(r'^Parser key "([\w.]+)": ', r"\1: ", re.sub(r"^argument ", "", message))
    return " ".join(message.split())


def _as_typed(name: str, parser: argparse.ArgumentParser) -> str:
    """An option's name as users type it: its flag, or what the help calls a positional argument."""
    for action in (action for one in parsers(parser) for action in one._actions if action.dest == name):
        return action.option_strings[-1] if action.option_strings else str(action.metavar or name.upper())
    return name.upper()


def _unknown_argument(given: str, parser: argparse.ArgumentParser) -> str:
    known = [option for one in parsers(parser) for action in one._actions for option in action.option_strings]
    if not given.startswith("-"):
        is_file = re.search(r"\.[A-Za-z]+$", given) is not None
        meant = f"what is written goes to -o {given}" if is_file and "-o" in known else "see --help"
        return f"{given} is one argument too many; {meant}"
    flag = given.partition("=")[0]
    return f"{flag} is not an option here; {_meant(flag, known)}"


def _meant(given: str, known: Sequence[str]) -> str:
    """The option that somebody means with a name that none has, as a question, or where all are told. known: the names
    of all: flags, or those of a config."""
    options = {name.lstrip("-").replace("_", "-"): name for name in known}
    words = given.lower().lstrip("-").replace("_", "-").split("-")
    like = difflib.get_close_matches(given, known, n=1, cutoff=0.75)
    like += [options[option] for word, option in OTHER_WORDS.items() if word in words and option in options]
    like += [options[word] for word in words if word in options]
    return f"did you mean {like[0]}?" if like else "see --help"


def _reader(data: Mapping[str, Any]) -> str:
    """The command that reads a config of several parts, in words; empty for one of options alone."""
    if not any(isinstance(value, dict) for value in data.values()):
        return ""
    return "autoshard sweep takes a grid" if "grid" in data else "autoshard import reads other frameworks' files"


def parsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """The parser itself and the parsers of its subcommands."""
    return [parser, *(one for action in _subparsers(parser) for one in action.choices.values())]


def _subparsers(parser: argparse.ArgumentParser) -> list[argparse._SubParsersAction[argparse.ArgumentParser]]:
    return [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
