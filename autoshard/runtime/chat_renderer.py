"""The process that renders a chat template, which is somebody else's program: sandboxed, bounded in time and memory.

The sandbox keeps a template from files and from Python; only a process of its own bounds what it costs: one expression
can ask for 10 GB, and three loops in each other for a year. Requests and replies are lines of JSON. Nothing heavy is
imported, so that the memory limit is the template's.
"""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

RENDERER = ("source", "special_tokens", "answering_role", "max_characters")
"""Fields of the first request, beside max_memory_bytes and max_time_s."""


class GenerationTag(Extension):
    """Jinja's {% generation %}, with which some templates mark answers; here it renders what is inside it."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class RefusedError(Exception):
    """Raised for a template that does something wrong; its text follows the template's name."""


class Renderer:
    """A Jinja template in a sandbox: it reads messages and can neither import nor change anything.

    It sees no clock, so that the same data give the same tokens tomorrow. answering_role: the role whose messages are
    learned. max_characters: of one conversation's text.
    """

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], answering_role: str, max_characters: int
    ) -> None:
        self._special_tokens, self._answering_role = special_tokens, answering_role
        self._source, self._max_characters = source, max_characters
        environment = self._environment = ImmutableSandboxedEnvironment(
            autoescape=False,  # the text goes to a tokenizer, not to a browser
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise

    def compile(self) -> None:
        """Compiles the template, before the first conversation. Raises RefusedError when it is no template."""
        try:
            self._template = self._environment.from_string(self._source)
        except MemoryError:
            raise
        except Exception as error:  # Jinja's own, and what Python says to code that a template became
            raise RefusedError(f"is not a Jinja template: {_line(error)}") from None

    def segments(self, messages: Sequence[Mapping[str, Any]]) -> list[tuple[str, bool]]:
        """The conversation as (piece of text, whether it is an answer), up to the end of the last answer.

        An answer begins where the template would have a model begin it, and ends with the turn, its end marker
        included. Raises RefusedError where the template does not write a conversation like that.
        """
        found, done = [], ""
        for position, message in enumerate(messages):
            if message["role"] != self._answering_role:
                continue
            before = self._render(messages[:position], answer_next=True)
            after = self._render(messages[: position + 1])
            if not before.startswith(done) or not after.startswith(before):
                raise RefusedError(f"writes turn {position + 1} otherwise when it is answered")
            found += [(before[len(done) :], False), (after[len(before) :], True)]
            done = after
        return [(text, answer) for text, answer in found if text]

    def _render(self, messages: Sequence[Mapping[str, Any]], answer_next: bool = False) -> str:
        """The conversation as text; with answer_next, up to where an answer begins."""
        try:
            text = self._template.render(
                messages=list(messages), add_generation_prompt=answer_next, tools=None, **self._special_tokens
            )
        except MemoryError:
            raise
        except Exception as error:  # whatever a template does with a row
            raise RefusedError(f"refuses it: {_line(error)}") from None
        if len(text) > self._max_characters:
            raise RefusedError(f"writes more than {self._max_characters:,} characters")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RefusedError(f"writes {text[error.start]!a}, half of a character") from None
        return text


def main() -> None:
    """Answers the lines of stdin: first the template and its limits, then lists of conversations, one answer each."""
    first = json.loads(sys.stdin.readline())
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, first["max_memory_bytes"])  # macOS takes it and does not keep it
    renderer = Renderer(*(first[name] for name in RENDERER))
    _answer(first, renderer.compile)
    for line in sys.stdin:
        for messages in json.loads(line):
            _answer(first, renderer.segments, messages)


def _answer(limits: Mapping[str, Any], work: Callable[..., object], *arguments: object) -> None:
    """Runs `work` and prints its answer. Work that takes more CPU time than allowed ends the process, by SIGPROF, which
    nothing here handles."""
    signal.setitimer(signal.ITIMER_PROF, limits["max_time_s"])
    try:
        text = json.dumps({"made": work(*arguments)})
    except RefusedError as error:
        text = json.dumps({"refused": str(error)})
    except MemoryError:
        text = json.dumps({"refused": f"needs more than {limits['max_memory_bytes'] / 1e9:.2f} GB of memory"})
    signal.setitimer(signal.ITIMER_PROF, 0)
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()  # each by itself: the next one may end the process


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> None:
    raise ValueError(message)


def _line(error: BaseException) -> str:
    """The first line of an error, cut short enough to show: a template may have written it."""
    text = str(error).strip()[:300] or type(error).__name__
    line = text.splitlines()[0].rstrip(".")
    return line if line.isprintable() else ascii(line)
