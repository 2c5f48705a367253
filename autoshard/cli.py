"""The command line: parse, call one function, print. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import atexit
import errno
import gc
import io
import os
import signal
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from itertools import islice
from keyword import iskeyword
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import autoshard
from autoshard.errors import AutoshardError, say_error
from autoshard.files.text_file import printable
from autoshard.planner.collector import uncollected

if TYPE_CHECKING:
    from autoshard.commands.parser import Parser

COMMANDS = (
    "plan",
    "score",
    "explain",
    "compare",
    "validate",
    "audit",
    "memory",
    "report",
    "trace",
    "run",
    "replan",
    "sweep",
    "serve",
    "export",
    "import",
    "convert",
    "migrate",
    "launch",
    "doctor",
    "calibrate",
    "models",
    "instances",
    "plugins",
    "bench",
)
DESCRIPTION = """\
Plan how a large model is sharded over AWS Trainium, prove the plan, run it.

  autoshard plan --model llama3-70b --nodes 16    search a layout, print why, write plan.json
  autoshard run plan.json                         execute it, or rehearse it on this machine

`autoshard COMMAND --help` has the options of a command. Errors go to stderr in one line, with exit code 2."""
USAGE = "autoshard [--version] [--print-completion SHELL] COMMAND ..."
WRITTEN = ("out", "plot")
"""Options that name a file to write."""
USER_ERROR, INTERRUPTED = 2, 128 + signal.SIGINT


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0, 1 (a run FAILED), 2 (a mistake of the user's) or 130 (Ctrl-C)."""
    if arguments is None:
        atexit.register(gc.freeze)  # else Python looks at every value once more at its end: a tenth of a plan's time
    _stand_in_for_closed_streams()
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _unraisable
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):  # a path may hold bytes that are no text
            sys.stdout.reconfigure(errors="backslashreplace")
        code = _run(sys.argv[1:] if arguments is None else list(arguments))
        sys.stdout.flush()
    except AutoshardError as error:
        say_error(error)
        return USER_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader (head, less) has left
        _drop_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _drop_output()
        say_error("the output cannot be written: the disk is full")
        return USER_ERROR
    return code


def _stand_in_for_closed_streams() -> None:
    """`autoshard ... >&-`: Python has no stdout then."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123 - for as long as the process lives


def _unraisable(what: sys.UnraisableHookArgs) -> None:
    """Ctrl-C in a callback of the interpreter's own is lost: it comes once more, a moment later."""
    if what.exc_type is KeyboardInterrupt:
        main_thread = threading.main_thread().ident
        again = threading.Timer(0.01, signal.pthread_kill, (main_thread, signal.SIGINT))
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(what)


def _drop_output() -> None:
    """Python would complain once more when it flushes stdout at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: Sequence[str]) -> int:
    with uncollected() if arguments[:1] == ["plan"] else nullcontext():  # imports and a search leave no garbage
        parsed = build_parser(arguments[0] if arguments else "").parse_args(_recipes_first(arguments))
        values, module = vars(parsed[parsed.command]), command_module(parsed.command)
        _check_written(values, getattr(module, "REWRITES", ()))
        code: int = module.run(values)
    return code


def _check_written(values: Mapping[str, Any], rewrites: Collection[str]) -> None:
    """Raise AutoshardError where a command would write over a file that it reads. rewrites: the options whose file it
    may replace with another one of the same kind."""
    for written in WRITTEN:
        out = values.get(written)
        if not isinstance(out, (str, Path)) or not os.path.isfile(out):  # noqa: PTH113 - a path may hold anything
            continue
        for name, value in values.items():
            for one in value if isinstance(value, (list, tuple)) else (value,):
                files = (str(one), str(one).rpartition(":")[0])  # the latter of my_file.py:MyModel
                if name not in (*WRITTEN, *rewrites) and any(map(partial(_is_file, out), files)):
                    raise AutoshardError(f"--{written} {printable(out)} is what this command reads; name another file")


def _is_file(out: str | Path, file: str) -> bool:
    """Whether a text is another name of a file."""
    return os.path.isfile(file) and os.path.samefile(out, file)  # noqa: PTH113, PTH121 - as above


def _recipes_first(arguments: Sequence[str]) -> list[str]:
    """The same arguments with recipes in front of the command's other options, which overrule what a recipe says."""
    first, others, rest = list[str](), list[str](), iter(arguments[1:])
    for one in rest:
        if one == "--config":
            first += [one, *islice(rest, 1)]
        elif one.startswith("--config="):
            first.append(one)
        else:
            others.append(one)
    return [*arguments[:1], *first, *others]


def command_module(name: str) -> ModuleType:
    """Imported here and not above, so that Ctrl-C is met by `main` from the start."""
    return import_module(f"autoshard.commands.{name}{'_' if iskeyword(name) else ''}")


def build_parser(command: str = "") -> Parser:
    """With all commands; with the options of `command` only, where it is one: building them all takes time. --version
    needs none."""
    from autoshard.commands.completion import PrintCompletion
    from autoshard.commands.parser import Parser

    wanted = {command} if command in COMMANDS else set[str]() if command == "--version" else set(COMMANDS)
    parser = Parser(prog="autoshard", usage=USAGE, description=DESCRIPTION, version=autoshard.__version__)
    parser.add_argument("--print-completion", action=PrintCompletion, build=build_parser)
    subcommands = parser.add_subcommands(dest="command", metavar="COMMAND", title="commands", description=None)
    for name in COMMANDS:
        if name in wanted:
            module = command_module(name)
            child = Parser(usage=module.USAGE, description=module.DESCRIPTION)
            module.add_arguments(child)
            subcommands.add_subcommand(name, child, help=module.SUMMARY)
    return parser
