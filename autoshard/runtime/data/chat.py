"""Conversations to tokens: the tokenizer's chat template says what a turn looks like, and answers alone are learned."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoshard.errors import AutoshardError
from autoshard.runtime.data.records import Record
from autoshard.runtime.tokenizer import Tokenizer

MESSAGES_FIELD = "messages"
ANSWERING_ROLE = "assistant"
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""For tokenizers without a template. One that lacks <|im_start|> and <|im_end|> spells them in ordinary tokens."""


@dataclass(frozen=True)
class Conversation:
    """ids, learned: [tokens]; learned is 1 where a token is part of an answer."""

    ids: NDArray[np.int32]
    learned: NDArray[np.uint8]


class ChatTemplate:
    """A Jinja template in a sandbox: it reads messages, and can neither import nor change anything.

    source: None takes ChatML. The template sees no clock, so that the same data are the same tokens tomorrow.
    Raises AutoshardError when it is no template.
    """

    def __init__(self, source: str | None, special_tokens: Mapping[str, str]) -> None:
        try:
            from jinja2 import TemplateError
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError as error:
            raise AutoshardError("chat data need jinja2: pip install 'autoshard[torch]'") from error
        self.name = "ChatML" if source is None else "the tokenizer's chat template"
        self._special_tokens = special_tokens
        environment = ImmutableSandboxedEnvironment(
            autoescape=False,  # the text goes to a tokenizer, not to a browser
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _generation_tag()],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        try:
            self._template = environment.from_string(CHATML if source is None else source)
        except (TemplateError, RecursionError) as error:
            raise AutoshardError(f"the tokenizer's chat template is not a Jinja template: {_line(error)}") from error

    def render(self, messages: Sequence[dict[str, Any]], answer_next: bool = False) -> str:
        """The conversation as text; with answer_next up to where an answer begins. Raises what the template raises."""
        return self._template.render(
            messages=list(messages), add_generation_prompt=answer_next, tools=None, **self._special_tokens
        )

    def segments(self, messages: Sequence[dict[str, Any]], place: str) -> list[tuple[str, bool]]:
        """Pieces of text up to the last answer's end, and whether each is an answer.

        An answer begins where the template would have a model begin it, and ends with the turn, its end marker
        included. place: for errors.
        """
        try:
            found, done = [], ""
            for position, message in enumerate(messages):
                if message["role"] != ANSWERING_ROLE:
                    continue
                before = self.render(messages[:position], answer_next=True)
                after = self.render(messages[: position + 1])
                if not before.startswith(done) or not after.startswith(before):
                    raise AutoshardError(
                        f"{place}: {self.name} writes turn {position + 1} otherwise when it is answered"
                    )
                found += [(before[len(done) :], False), (after[len(before) :], True)]
                done = after
        except AutoshardError:
            raise
        except Exception as error:  # whatever a template does with a row
            raise AutoshardError(f"{place}: {self.name} refuses it: {_line(error)}") from error
        return [(text, answer) for text, answer in found if text]


def chat_template(tokenizer: Tokenizer) -> ChatTemplate:
    """The tokenizer's own, or ChatML where it has none."""
    return ChatTemplate(tokenizer.chat_template, tokenizer.special_tokens)


def conversation(record: Record, template: ChatTemplate, tokenizer: Tokenizer) -> Conversation:
    """Raises AutoshardError, naming file and row, for anything but messages with an answer among them."""
    segments = template.segments(_messages(record), record.place)
    encoded = tokenizer.encode_many([text for text, _ in segments])
    learned = [np.full(len(ids), answer, dtype=np.uint8) for ids, (_, answer) in zip(encoded, segments, strict=True)]
    found = Conversation(np.concatenate(encoded), np.concatenate(learned)) if encoded else None
    if found is None or not found.learned[1:].any():
        raise AutoshardError(f"{record.place} has no answer to learn from")
    found.learned[0] = 0  # nothing of its own is before it
    return found


def _messages(record: Record) -> list[dict[str, Any]]:
    messages = record.values.get(MESSAGES_FIELD)
    if not isinstance(messages, list) or not messages:
        raise AutoshardError(f"{record.place} has no list {MESSAGES_FIELD!r}")
    for position, message in enumerate(messages, start=1):
        for key in ("role", "content"):
            if not isinstance(message, dict) or not isinstance(message.get(key), str):
                raise AutoshardError(f"{record.place}: message {position} has no text {key!r}")
    if not any(message["role"] == ANSWERING_ROLE for message in messages):
        raise AutoshardError(f"{record.place} has no message of role {ANSWERING_ROLE!r}: there is nothing to learn")
    return messages


def _generation_tag() -> Any:
    """{% generation %}, with which some templates mark answers: here it means what is inside it."""
    from jinja2.ext import Extension

    class GenerationTag(Extension):
        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return GenerationTag


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> None:
    raise ValueError(message)


def _line(error: BaseException) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
