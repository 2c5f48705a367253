"""Conversations as data: templates, what of them is learned, and rows that several of them share."""

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.errors import AutoshardError
from autoshard.runtime.data import NOT_LEARNED, DataSource, TokenFile, chat, open_stream, prepare
from autoshard.runtime.data.chat import ChatTemplate, Conversation
from autoshard.runtime.data.packing import OPEN_ROWS, Packer
from autoshard.runtime.tokenizer import ByteTokenizer, load_tokenizer

ASK = {"role": "user", "content": "2+2?"}
ANSWER = {"role": "assistant", "content": "4"}


def turn(role: str, content: str) -> str:
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"


def made(
    file: Path, rows: list[Any], sequence_length: int = 127, packing: bool = True, apart: bool = False
) -> TokenFile:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return prepare(DataSource(file, ByteTokenizer(), None, sequence_length, packing, apart), file.parent / "cache")


def learned_text(file: TokenFile) -> str:
    marks = file.learned()
    assert marks is not None
    return ByteTokenizer().decode(file.tokens()[marks == 1])


def test_answers_alone_are_learned(tmp_path: Path) -> None:
    thanks, welcome = {"role": "user", "content": "thanks"}, {"role": "assistant", "content": "any time"}
    file = made(tmp_path / "a.jsonl", [{"messages": [ASK, ANSWER, thanks, welcome, thanks]}], 255)
    assert learned_text(file) == "4<|im_end|>\nany time<|im_end|>\n"
    text = ByteTokenizer().decode(file.tokens())
    whole = turn("user", "2+2?") + turn("assistant", "4") + turn("user", "thanks") + turn("assistant", "any time")
    assert text == whole + "\0" * (256 - len(whole))  # what comes after the last answer teaches nothing
    assert file.row_length == 256
    size = tmp_path / "a.jsonl"
    assert file.made_of == (
        f"{size}: 1 conversations in 1 rows of 256 tokens, {len(whole) / 256:.0%} full, "
        "31 tokens of answers (ChatML, bytes, 256 ids)"
    )


def test_labels_of_what_is_not_learned(tmp_path: Path) -> None:
    file = made(tmp_path / "a.jsonl", [{"messages": [ASK, ANSWER]}])
    inputs, labels = open_stream(file, global_batch_size=1, sequence_length=127).batch(0)
    answer = ByteTokenizer().encode("4<|im_end|>\n")
    start = len(turn("user", "2+2?") + "<|im_start|>assistant\n") - 1
    assert labels[0, start : start + len(answer)].tolist() == answer.tolist()
    assert (labels[0] != NOT_LEARNED).sum() == len(answer)
    assert inputs[0, start + 1] == ord("4")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"messages": "hello"}, "row 2 has no list 'messages' with a message in it"),
        ({"messages": []}, "row 2 has no list 'messages' with a message in it"),
        ({"messages": [ASK, {"role": "assistant"}]}, "row 2: message 2 has no text 'content'"),
        ({"messages": [{"content": "x"}]}, "row 2: message 1 has no text 'role'"),
        ({"messages": ["x"]}, "row 2: message 1 has no text 'role'"),
        ({"messages": [ASK]}, "row 2 has no message of role 'assistant': there is nothing to learn"),
    ],
)
def test_rows_that_are_no_conversations(tmp_path: Path, row: Any, message: str) -> None:
    with pytest.raises(AutoshardError) as error:
        made(tmp_path / "a.jsonl", [{"messages": [ASK, ANSWER]}, row])
    assert str(error.value) == f"--data {tmp_path / 'a.jsonl'} {message}"


def test_a_long_conversation_keeps_its_last_answer(tmp_path: Path) -> None:
    long = {"role": "user", "content": "why? " * 100}
    file = made(tmp_path / "a.jsonl", [{"messages": [long, ANSWER]}])
    assert file.num_tokens == 128
    assert learned_text(file) == "4<|im_end|>\n"
    assert "1 conversations (1 longer than a row, shortened) in 1 rows" in file.made_of


def test_too_few_conversations(tmp_path: Path) -> None:
    file = made(tmp_path / "a.jsonl", [{"messages": [ASK, ANSWER]}] * 2)
    with pytest.raises(AutoshardError) as error:
        open_stream(file, global_batch_size=8, sequence_length=127)
    assert str(error.value) == (
        "the data fill 2 rows of 127 + 1 tokens; one batch has 8: give more of them or a smaller batch"
    )


def test_packing_can_be_refused(tmp_path: Path) -> None:
    rows = [{"messages": [ASK, ANSWER]}] * 4
    assert made(tmp_path / "a.jsonl", rows, 255).num_tokens == 2 * 256
    assert made(tmp_path / "a.jsonl", rows, 255, packing=False).num_tokens == 4 * 256


def test_conversations_of_a_row_are_kept_apart(tmp_path: Path) -> None:
    """Two of 74 bytes in a row of 160, 12 of padding behind them: three documents."""
    rows = [{"messages": [ASK, ANSWER]}] * 2
    length = len(turn("user", "2+2?") + turn("assistant", "4"))
    file = made(tmp_path / "a.jsonl", rows, 159, apart=True)
    stream = open_stream(file, global_batch_size=1, sequence_length=159)
    (starts,) = stream.documents(0)  # type: ignore[misc]
    assert starts.tolist() == [0] * length + [length] * length + [2 * length] * (159 - 2 * length)
    plain = made(tmp_path / "a.jsonl", rows, 159)
    assert plain.digest != file.digest  # a run goes on with what it began with
    assert open_stream(plain, global_batch_size=1, sequence_length=159).documents(0) is None


lengths = st.lists(st.integers(1, 40), min_size=1, max_size=200)


@given(lengths, st.integers(2, 30), st.booleans())
def test_packing_loses_nothing_and_splits_nothing(lengths: list[int], row_length: int, together: bool) -> None:
    """Conversation n is n + 1 repeated; a longer one than a row keeps a row."""
    packer = Packer(row_length, pad=0, together=together)
    given_ = [Conversation(np.full(n, i + 1, np.int32), np.ones(n, np.uint8)) for i, n in enumerate(lengths)]
    rows = list(packer.pack(given_))
    ids = np.concatenate([row for row, *_ in rows])
    counts = np.bincount(ids, minlength=len(lengths) + 1)[1:]
    assert counts.tolist() == [min(n, row_length) for n in lengths]
    assert all(len(row) == row_length and not marks[row == 0].any() for row, marks, _ in rows)
    assert all(
        len({i for i, (row, *_) in enumerate(rows) if (row == one).any()}) == 1 for one in set(ids.tolist()) - {0}
    )
    assert packer.rows == len(rows)
    assert packer.shortened == sum(n > row_length for n in lengths)
    for row, _, begins in rows:  # where another number is, another conversation begins, or padding
        assert begins.tolist() == [1, *(row[1:] != row[:-1])]
    if not together:
        assert len(rows) == len(lengths)
    elif len(lengths) <= OPEN_ROWS:
        used = sorted(int((row > 0).sum()) for row, *_ in rows)
        assert len(used) < 2 or used[0] + used[1] > row_length  # no two rows could have been one


def template(source: str | None) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})


MISTRAL_LIKE = (
    "{{ bos_token }}{%- for message in messages %}{%- if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{%- elif message.role == 'assistant' %}"
    "{% generation %}{{ ' ' + message['content'] + eos_token }}{% endgeneration %}"
    "{%- else %}{{ raise_exception('only user and assistant roles') }}{%- endif %}{%- endfor %}"
)


def test_a_tokenizers_own_template() -> None:
    assert template(MISTRAL_LIKE).segments([ASK, ANSWER], "row") == [
        ("<s>[INST] 2+2? [/INST]", False),
        (" 4</s>", True),
    ]
    with pytest.raises(
        AutoshardError, match=r"^row: the tokenizer's chat template refuses it: only user and assistant"
    ):
        template(MISTRAL_LIKE).segments([{"role": "tool", "content": "x"}, ANSWER], "row")


def test_a_template_that_rewrites_the_past() -> None:
    source = "{{ messages | length }} {% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(AutoshardError) as error:
        template(source).segments([ASK, ANSWER], "row")
    assert str(error.value) == "row: the tokenizer's chat template writes turn 2 otherwise when it is answered"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ self.__init__.__globals__ }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{% include '/etc/passwd' %}",
        "{{ undefined_name.attribute }}",
        "{{ 1 / 0 }}",
    ],
)
def test_a_malicious_template_gets_an_error(source: str) -> None:
    with pytest.raises(AutoshardError, match=r"^row: the tokenizer's chat template refuses it: "):
        template(source).segments([ASK, ANSWER], "row")


MUCH_MEMORY = "row: the tokenizer's chat template needs more than 0.50 GB of memory"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ 'x' * 10**10 }}", MUCH_MEMORY),
        ("{{ [[]] * 10**9 }}", MUCH_MEMORY),
        ("{{ '%9999999999d' % 1 }}", MUCH_MEMORY),
        ("{{ 'x' | center(10**10) }}", MUCH_MEMORY),
        (
            "{% for i in range(9000) %}{{ 'x' * 1000 }}{% endfor %}",
            "row: the tokenizer's chat template writes more than 5,000,000 characters",
        ),
        (
            "{{ '\\ud83d' }}",
            "row: the tokenizer's chat template writes '\\ud83d', half of a character",
        ),
        (
            "{{ raise_exception('a\\x1b[2Jb\\nc') }}",
            "row: the tokenizer's chat template refuses it: 'a\\x1b[2Jb'",
        ),
        (
            "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
            "row: the tokenizer's chat template refuses it: maximum recursion depth exceeded",
        ),
    ],
)
def test_a_template_that_takes_much(source: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "MAX_MEMORY_BYTES", 500_000_000)
    monkeypatch.setattr(chat, "MAX_CHARACTERS", 5_000_000)
    with template(source) as one, pytest.raises(AutoshardError) as error:
        one.segments([ASK, ANSWER], "row")
    assert str(error.value).startswith(message)
    assert str(error.value).isprintable()


LOOPS = "{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3


@pytest.mark.parametrize("source", [LOOPS, "{{ (10 ** (messages | length * 3 * 10**9)) | string }}"])
def test_a_template_that_takes_long(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops of years, and one operation that no Python code can interrupt."""
    monkeypatch.setattr(chat, "MAX_TIME_S", 0.2)
    with template(source) as one, pytest.raises(AutoshardError) as error:
        one.segments([ASK, ANSWER], "row")
    assert str(error.value) == "row: the tokenizer's chat template takes more than 0.2 s of CPU time"


def test_a_template_that_takes_long_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants are computed when it is compiled."""
    monkeypatch.setattr(chat, "MAX_TIME_S", 0.2)
    with pytest.raises(AutoshardError) as error:
        template("{{ 10 ** (10 ** 10) }}")
    assert str(error.value) == "the tokenizer's chat template takes more than 0.2 s of CPU time"


def test_time_is_counted_for_each_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "MAX_TIME_S", 0.5)
    source = "{{ messages[0].content }}{% for i in range(99999) %}{% endfor %}{% for m in messages[1:] %}4{% endfor %}"
    with template(source) as one:
        for _ in range(60):  # each some 10 ms
            assert one.segments([ASK, ANSWER], "row") == [("2+2?", False), ("4", True)]


def test_the_conversation_that_takes_long_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has several at a time; those before it are there."""
    monkeypatch.setattr(chat, "MAX_TIME_S", 0.2)
    source = "{% if messages[0].content == 'slow' %}" + LOOPS + "{% endif %}"
    source += "{% for m in messages %}{{ m.content }}{% endfor %}"
    rows = [(f"row {row}", [{**ASK, "content": "slow" if row == 3 else "a"}, ANSWER]) for row in (1, 2, 3, 4)]
    found: list[Any] = []
    with template(source) as one, pytest.raises(AutoshardError) as error:
        found.extend(one.segments_of(rows))
    assert str(error.value) == "row 3: the tokenizer's chat template takes more than 0.2 s of CPU time"
    assert found == [(f"row {row}", [("a", False), ("4", True)]) for row in (1, 2)]


@pytest.mark.parametrize("ahead", [1, 300, 10**6])
def test_conversations_come_in_their_order(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "_AHEAD_BYTES", ahead)
    rows = [(f"row {row}", [{**ASK, "content": row * "é"}, {**ANSWER, "content": str(row)}]) for row in range(50)]
    with template("{% for m in messages %}[{{ m.content }}]{% endfor %}") as one:
        found = list(one.segments_of(rows))
    assert found == [(f"row {row}", [(f"[{row * 'é'}]", False), (f"[{row}]", True)]) for row in range(50)]


def test_no_process_is_left_behind() -> None:
    kept, dropped = template(None), template(None)
    processes = [one._process for one in (kept, dropped)]
    with kept:
        assert kept.segments([ASK, ANSWER], "row")
    del dropped
    assert [one.poll() for one in processes] == [-signal.SIGKILL] * 2


def test_no_template_at_all() -> None:
    nested = 30 * "{% for i in messages %}" + 30 * "{% endfor %}"  # Python takes 20 blocks in each other
    for source in ("{% for %}", nested, "{{" + 9999 * "(" + 9999 * ")" + "}}"):
        with pytest.raises(AutoshardError, match=r"^the tokenizer's chat template is not a Jinja template: "):
            template(source)


def test_where_a_tokenizers_template_is_found(tmp_path: Path) -> None:
    vocabulary = {"?": 0, "<pad>": 1, "<eos>": 2}
    content = {"version": "1.0", "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "?"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    config = tmp_path / "tokenizer_config.json"
    assert load_tokenizer(tmp_path).chat_template is None
    config.write_text(json.dumps({"chat_template": "one", "eos_token": "<eos>"}))
    plain = load_tokenizer(tmp_path)
    assert (plain.chat_template, plain.padding, plain.end_of_text) == ("one", 2, 2)
    several = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "two"}]
    config.write_text(json.dumps({"chat_template": several, "pad_token": {"content": "<pad>"}}))
    padded = load_tokenizer(tmp_path)
    assert (padded.chat_template, padded.padding, padded.end_of_text) == ("two", 1, None)
    assert padded.digest != plain.digest
    (tmp_path / "chat_template.jinja").write_text("three")
    assert load_tokenizer(tmp_path).chat_template == "three"


LLAMA_2 = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ],
}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


@pytest.mark.parametrize(
    ("parts", "merges", "spelled", "learned"),
    [
        ({"normalizer": LLAMA_2}, [], "▁ [ 2 + 2 ? ] ▁ 4 </s> ▁ [ 1 ] ▁ 5 </s>", "▁ 4 </s> ▁ 5 </s>"),
        ({"pre_tokenizer": METASPACE}, [], "▁ [ 2 + 2 ? ] ▁ 4 </s> [ 1 ] ▁ 5 </s>", "▁ 4 </s> ▁ 5 </s>"),
        ({"pre_tokenizer": METASPACE}, ["▁4"], "▁ [ 2 + 2 ? ] ▁4 </s> [ 1 ] ▁ 5 </s>", "▁4 </s> ▁ 5 </s>"),
        ({"pre_tokenizer": METASPACE}, ["]▁"], "▁ [ 2 + 2 ? ]▁ 4 </s> [ 1 ]▁ 5 </s>", "]▁ 4 </s> ]▁ 5 </s>"),
        (
            {"pre_tokenizer": BYTE_LEVEL, "post_processor": BYTE_LEVEL},
            [],
            "Ġ [ 2 + 2 ? ] Ġ 4 </s> Ġ [ 1 ] Ġ 5 </s>",
            "Ġ 4 </s> Ġ 5 </s>",
        ),
    ],
)
def test_a_conversation_has_the_tokens_of_its_whole_text(
    tmp_path: Path, parts: dict[str, Any], merges: list[str], spelled: str, learned: str
) -> None:
    """Each piece by itself would begin with a space that the template did not write. A token that holds the end of a
    question and the begin of an answer is learned."""
    tokens = ["<pad>", "</s>", *"▁Ġ[]+?1245", *merges]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    content = {
        "version": "1.0",
        "added_tokens": [{"id": 1, "content": "</s>", "special": True, **flags}],
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [list(one) for one in merges],
        },
        **parts,
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    template = "{% for m in messages %}{{ ' ' + m.content + '</s>' if m.role == 'assistant' else '[%s]' % m.content }}"
    config = {"chat_template": template + "{% endfor %}", "pad_token": "<pad>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    messages = [ASK, ANSWER, {**ASK, "content": "1"}, {**ANSWER, "content": "5"}]
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": messages}))
    file = prepare(DataSource(tmp_path / "a.jsonl", load_tokenizer(tmp_path), None, 31), tmp_path / "cache")
    found, marks = [tokens[one] for one in file.tokens() if one], file.learned()
    assert marks is not None
    assert " ".join(found) == spelled
    assert " ".join(token for token, mark in zip(found, marks, strict=False) if mark) == learned


@given(st.text(alphabet="aé\u20ac\U0001f600\n"))
def test_every_byte_is_of_its_character(text: str) -> None:
    ids, places = ByteTokenizer().encode_places(text)
    assert "".join(text[first] for first, _ in places.tolist()).encode() == b"".join(
        one.encode() * len(one.encode()) for one in text
    )
    assert len(ids) == len(places) and (places[:, 1] == places[:, 0] + 1).all()
