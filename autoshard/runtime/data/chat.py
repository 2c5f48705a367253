"""Turns conversations into tokens: the tokenizer's chat template writes the turns, and only answers are learned."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoshard.errors import AutoshardError
from autoshard.runtime.data.records import Record
from autoshard.runtime.processes import python_command
from autoshard.runtime.tokenizer import Tokenizer

MESSAGES_FIELD = "messages"
ANSWERING_ROLE = "assistant"
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The template for tokenizers that have none. A tokenizer without <|im_start|> and <|im_end|> spells them in ordinary
tokens."""
MAX_TIME_S, MAX_MEMORY_BYTES, MAX_CHARACTERS = 30.0, 1_000_000_000, 16_000_000
"""Limits of a template for one conversation: CPU seconds, bytes of its process (enforced on Linux), characters of text.
Guesses, 100 times what the longest conversations need."""
_AHEAD_BYTES = 1 << 18
Segments = list[tuple[str, bool]]


@dataclass(frozen=True)
class Conversation:
    """One conversation as tokens. ids: [tokens]. learned: [tokens], 1 where a token is part of an answer."""

    ids: NDArray[np.int32]
    learned: NDArray[np.uint8]


class ChatTemplate:
    """A Jinja template in a process of its own, which bounds its time and memory.

    source: None takes ChatML. Used in a `with`, or ended when nothing refers to it.
    Raises AutoshardError when it is no template.
    """

    def __init__(self, source: str | None, special_tokens: Mapping[str, str]) -> None:
        if find_spec("jinja2") is None:
            raise AutoshardError("chat data need jinja2: pip install 'autoshard[torch]'")
        self.name = "ChatML" if source is None else "the tokenizer's chat template"
        self._process = subprocess.Popen(
            python_command("from autoshard.runtime.chat_renderer import main; main()"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches this process alone, which ends that one
        )
        self.close = weakref.finalize(self, _end, self._process)
        first = {
            "source": CHATML if source is None else source,
            "special_tokens": dict(special_tokens),
            "answering_role": ANSWERING_ROLE,
            "max_characters": MAX_CHARACTERS,
            "max_memory_bytes": MAX_MEMORY_BYTES,
            "max_time_s": MAX_TIME_S,
        }
        self._send(_json(first))
        self._receive("")

    def segments(self, messages: Sequence[dict[str, Any]], place: str) -> Segments:
        """The conversation as (piece of text, whether it is an answer), up to the end of the last answer. place: named
        in errors."""
        return next(self.segments_of([(place, messages)]))[1]

    def segments_of(
        self, conversations: Iterable[tuple[str, Sequence[dict[str, Any]]]]
    ) -> Iterator[tuple[str, Segments]]:
        """Yields the place and segments of many conversations. The process gets _AHEAD_BYTES of them at a time and
        renders while earlier ones are used."""
        waiting: list[tuple[str, bytes]] = []
        size = 0
        for place, messages in conversations:
            waiting.append((place, _json(messages)))
            size += len(waiting[-1][1])
            if size >= _AHEAD_BYTES:
                yield from self._rendered(waiting)
                waiting, size = [], 0
        yield from self._rendered(waiting)

    def _rendered(self, conversations: list[tuple[str, bytes]]) -> Iterator[tuple[str, Segments]]:
        self._send(b"[" + b",".join(messages for _, messages in conversations) + b"]")
        for place, _ in conversations:
            yield place, [(text, answer) for text, answer in self._receive(f"{place}: ")]

    def _send(self, line: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `_receive` says why it ended
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()

    def _receive(self, place: str) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            late = code == -signal.SIGPROF
            reason = f"takes more than {MAX_TIME_S:g} s of CPU time" if late else f"ended its process with code {code}"
            raise AutoshardError(f"{place}{self.name} {reason}")
        answer = json.loads(line)
        if "refused" in answer:
            raise AutoshardError(f"{place}{self.name} {answer['refused']}")
        return answer["made"]

    def __enter__(self) -> ChatTemplate:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with contextlib.suppress(BrokenPipeError), process:  # closes the pipes and waits
        pass


def chat_template(tokenizer: Tokenizer) -> ChatTemplate:
    """The tokenizer's own chat template, or ChatML where it has none."""
    return ChatTemplate(tokenizer.chat_template, tokenizer.special_tokens)


def conversations(found: Iterable[Record], template: ChatTemplate, tokenizer: Tokenizer) -> Iterator[Conversation]:
    """Yields records as conversations. Raises AutoshardError, naming file and row, for anything but messages with an
    answer."""
    asked = ((record.place, _messages(record)) for record in found)
    for place, segments in template.segments_of(asked):
        yield _conversation(segments, place, tokenizer)


def _conversation(segments: Segments, place: str, tokenizer: Tokenizer) -> Conversation:
    """The conversation as the tokenizer encodes its whole text; a token with a character of an answer is learned."""
    ids, places = tokenizer.encode_places("".join(text for text, _ in segments))
    lengths = [len(text) for text, _ in segments]
    answers = np.cumsum(np.repeat([False, *(answer for _, answer in segments)], [1, *lengths]))
    learned = (answers[places[:, 1]] > answers[places[:, 0]]).astype(np.uint8)
    if not learned[1:].any():
        raise AutoshardError(f"{place} has no answer to learn from")
    learned[0] = 0  # nothing of its own is before it
    return Conversation(ids, learned)


def _json(value: object) -> bytes:
    return json.dumps(value, default=str).encode()


def _messages(record: Record) -> list[dict[str, Any]]:
    messages = record.values.get(MESSAGES_FIELD)
    if not isinstance(messages, list) or not messages:
        raise AutoshardError(f"{record.place} has no list {MESSAGES_FIELD!r} with a message in it")
    for position, message in enumerate(messages, start=1):
        for key in ("role", "content"):
            if not isinstance(message, dict) or not isinstance(message.get(key), str):
                raise AutoshardError(f"{record.place}: message {position} has no text {key!r}")
    if not any(message["role"] == ANSWERING_ROLE for message in messages):
        raise AutoshardError(f"{record.place} has no message of role {ANSWERING_ROLE!r}: there is nothing to learn")
    return messages
