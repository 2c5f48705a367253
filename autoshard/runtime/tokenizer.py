"""Turns text into token ids and back: bytes by default, or a Hugging Face tokenizer from disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autoshard.errors import AutoshardError
from autoshard.files.json_file import read_json
from autoshard.files.reached import reached
from autoshard.files.text_file import printable, read_text

if TYPE_CHECKING:
    import tokenizers

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"
_MAX_CONFIG_BYTES = 50_000_000
_MAX_TEMPLATE_BYTES = 1_000_000
_MOST_CHARACTERS = 300
"""Of a reason that is repeated in an error."""
SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


class Tokenizer(Protocol):
    """A tokenizer. vocab_size: every id is below it. digest: differs for tokenizers that encode differently.

    end_of_text: the id that ends a document; None where there is none. padding: the id that fills rows up.
    chat_template: Jinja source; None where there is none. special_tokens: text by name, as templates use them.
    """

    @property
    def name(self) -> str: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def digest(self) -> str: ...

    @property
    def end_of_text(self) -> int | None: ...

    @property
    def padding(self) -> int: ...

    @property
    def chat_template(self) -> str | None: ...

    @property
    def special_tokens(self) -> Mapping[str, str]: ...

    def encode(self, text: str) -> NDArray[np.int32]:
        """The ids of a text, int32 [tokens], without start or end markers."""

    def encode_many(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """The ids of each text, encoded by itself."""

    def encode_places(self, text: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The ids of a text, int32 [tokens], and the characters that each is of, [tokens, 2]: first, one past the
        last."""

    def decode(self, ids: Iterable[int]) -> str: ...


class ByteTokenizer:
    """A tokenizer whose ids are the bytes of UTF-8. It needs no file and can encode every text."""

    name = "bytes"
    vocab_size = 256
    digest = "bytes"
    end_of_text = None
    padding = 0
    chat_template = None
    special_tokens: Mapping[str, str] = {}

    def encode(self, text: str) -> NDArray[np.int32]:
        return np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(np.int32)

    def encode_many(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        return [self.encode(text) for text in texts]

    def encode_places(self, text: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The ids, and of each byte the character that it is part of."""
        ids = self.encode(text)
        first = np.cumsum(ids & 0xC0 != 0x80, dtype=np.int64) - 1  # bytes 10xxxxxx go on with a character
        return ids, np.stack([first, first + 1], axis=1)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids. Bytes that are not UTF-8, which a model may produce, become U+FFFD."""
        return bytes([int(i) for i in ids]).decode("utf-8", "replace")


class HuggingFaceTokenizer:
    """A tokenizer.json, read by the `tokenizers` library; nothing in it is executed."""

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        name: str,
        special_tokens: Mapping[str, str],
        chat_template: str | None,
    ) -> None:
        # A file saved for inference may cut or pad every text to one length.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.name = name
        # The highest id, not the count: ids may have gaps.
        self.vocab_size = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        self.special_tokens, self.chat_template = special_tokens, chat_template
        self.end_of_text = self._id("eos_token")
        known = (one for one in (self._id("pad_token"), self.end_of_text) if one is not None)
        self.padding = next(known, 0)
        content = [tokenizer.to_str(), sorted(special_tokens.items()), chat_template]
        self.digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def encode(self, text: str) -> NDArray[np.int32]:
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        return [np.asarray(one.ids, dtype=np.int32) for one in self._encodings(texts)]

    def encode_places(self, text: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The ids, and the characters that each is of, at least one.

        Some tokenizers leave white space out of the places they tell: a token of nothing else has the last of it.
        """
        (one,) = self._encodings([text])
        places = np.asarray(one.offsets, dtype=np.int64).reshape(-1, 2)
        empty = places[:, 0] == places[:, 1]
        places[:, 0] = np.maximum(places[:, 0] - empty, 0)
        places[:, 1] = np.maximum(places[:, 1], places[:, 0] + 1)
        return np.asarray(one.ids, dtype=np.int32), places

    def _encodings(self, texts: Sequence[str]) -> list[tokenizers.Encoding]:
        with _errors_of_the_library(f"tokenizer {self.name} does not take every text"):
            return self._tokenizer.encode_batch(list(texts), add_special_tokens=False)

    def decode(self, ids: Iterable[int]) -> str:
        return str(self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False))

    def _id(self, name: str) -> int | None:
        return self._tokenizer.token_to_id(self.special_tokens[name]) if name in self.special_tokens else None


def load_tokenizer(path: Path | None = None) -> Tokenizer:
    """The tokenizer in the tokenizer.json at `path` or in that folder; bytes without a path.

    Raises AutoshardError when there is none, the library is missing or the file is not a tokenizer.
    """
    if path is None:
        return ByteTokenizer()
    with reached(f"tokenizer {path}"):
        file = path / TOKENIZER_FILE if path.is_dir() else path
        is_there = file.is_file()
    if not is_there:
        raise AutoshardError(
            f"no tokenizer at {file}: give a Hugging Face {TOKENIZER_FILE}, or the folder that holds it, "
            "or leave --tokenizer out for bytes"
        )
    try:
        import tokenizers
    except ImportError as error:
        raise AutoshardError(f"reading {file} needs the tokenizers library: pip install tokenizers") from error
    with _errors_of_the_library(f"{file} is not a Hugging Face {TOKENIZER_FILE}"):
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    folder = file.parent if file.parent.name not in ("", "..") else file.parent.resolve()  # of `.` and `tokenizer.json`
    name = (folder.name or "tokenizer") if file.name == TOKENIZER_FILE else file.stem
    config = _config(file.with_name(CONFIG_FILE))
    result = HuggingFaceTokenizer(tokenizer, name, _special_tokens(config), _chat_template(file, config))
    if result.vocab_size == 0:
        raise AutoshardError(f"{file} has an empty vocabulary: vocab_size must be 1 or more")
    return result


@contextmanager
def _errors_of_the_library(what: str) -> Iterator[None]:
    """Raise AutoshardError, with the library's words, for what it raises: plain Exception, or where its own code fails
    a BaseException of a module that cannot be imported. what: the begin of the error."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__module__ != "pyo3_runtime":
            raise
        words = " ".join(str(error).split())
        if len(words) > _MOST_CHARACTERS:  # the file may hold long values
            words = f"{words[: _MOST_CHARACTERS // 2]} ... {words[-_MOST_CHARACTERS // 2 :]}"
        raise AutoshardError(f"{what}: {words}") from error


def _config(file: Path) -> dict[str, Any]:
    """The contents of tokenizer_config.json beside the tokenizer; empty where there is no such file."""
    if not file.is_file():
        return {}
    config = read_json(file, "tokenizer config", _MAX_CONFIG_BYTES)
    if not isinstance(config, dict):
        raise AutoshardError(f"{file} is not a JSON object")
    return config


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """Special tokens by name. tokenizer_config.json gives each as a text, or as an object that holds it."""
    values = {name: config.get(name) for name in SPECIAL_TOKENS}
    texts = {name: one.get("content") if isinstance(one, dict) else one for name, one in values.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str) and text}


def _chat_template(file: Path, config: dict[str, Any]) -> str | None:
    """The chat template: from its own file beside the tokenizer, or from the configuration, which holds one text or
    several of which the default is taken. None where there is none."""
    own = file.with_name(TEMPLATE_FILE)
    if own.is_file():
        return read_text(own, f"chat template {printable(own)}", _MAX_TEMPLATE_BYTES)
    value = config.get("chat_template")
    if isinstance(value, list):
        named = [one for one in value if isinstance(one, dict) and one.get("name") == "default"]
        value = named[-1].get("template") if named else None
    return value if isinstance(value, str) else None
