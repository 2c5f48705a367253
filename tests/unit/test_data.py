"""Real text, tokens and batches that no layout can change."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.errors import AutoshardError
from autoshard.runtime.data import TokenStream, load_text, load_token_stream
from autoshard.runtime.tokenizer import ByteTokenizer, load_tokenizer


def test_the_default_text_is_english_and_on_every_machine() -> None:
    text = load_text()
    assert text.source == "the Python manual"
    assert len(text.text) > 400_000
    assert text.text.count(" the ") > 2_000
    assert load_text() == text


def test_a_python_without_its_manual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(AutoshardError, match=r"comes without its manual \(pydoc_data\): give a text by --data"):
        load_text()


def test_a_folder_is_read_in_the_order_of_its_paths(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "c.py").write_text("not text")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "z.md").write_text("first")
    assert load_text(tmp_path).text == "first\n\nsecond"
    assert load_text(tmp_path).source == f"{tmp_path} (2 files)"


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfword")
    assert load_text(tmp_path / "a.txt").text == "word"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "--data {file} holds no text"),
        (b" \n\n", "--data {file} holds no text"),
        (b"caf\xe9 au lait", "--data {file} is not text in UTF-8: byte 3 of 12 is 0xe9"),
        (b"PK\x03\x00", "--data {file} is binary: it has a zero byte at 3 of 4"),
    ],
)
def test_files_that_are_no_text(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "data.bin"
    file.write_bytes(content)
    with pytest.raises(AutoshardError) as error:
        load_text(file)
    assert str(error.value) == message.format(file=file)


def test_paths_that_hold_nothing(tmp_path: Path) -> None:
    with pytest.raises(AutoshardError, match=r"does not exist: give a text file or a folder of \.txt, \.md"):
        load_text(tmp_path / "missing")
    with pytest.raises(AutoshardError, match=r"has no file ending in \.txt or \.md"):
        load_text(tmp_path)


def test_bytes_are_tokens() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.encode("aé").tolist() == [0x61, 0xC3, 0xA9]
    assert tokenizer.decode([0x61, 0xC3, 0xA9]) == "aé"
    assert tokenizer.decode([0xC3]) == "\ufffd"
    assert load_tokenizer().name == "bytes"


@given(st.text())
def test_bytes_round_trip(text: str) -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text


def write_tokenizer(folder: Path, vocabulary: dict[str, int]) -> None:
    folder.mkdir()
    content = {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "?"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))


def test_a_hugging_face_tokenizer(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "words", {"?": 0, "one": 1, "two": 2, "ten": 10})
    tokenizer = load_tokenizer(tmp_path / "words")
    assert tokenizer.name == "words"
    assert tokenizer.vocab_size == 11  # the ids 3 to 9 are a gap
    assert tokenizer.encode("two ten four two").tolist() == [2, 10, 0, 2]  # the file's limit of two tokens is not ours
    assert tokenizer.decode([1, 10]) == "one ten"
    assert load_tokenizer(tmp_path / "words" / "tokenizer.json").vocab_size == 11


def test_tokenizers_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AutoshardError) as error:
        load_tokenizer(tmp_path)
    assert str(error.value) == (
        f"no tokenizer at {tmp_path / 'tokenizer.json'}: give a Hugging Face tokenizer.json, "
        "or the folder that holds it, or leave --tokenizer out for bytes"
    )
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(AutoshardError, match=r"tokenizer\.json is not a Hugging Face tokenizer\.json: "):
        load_tokenizer(tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(AutoshardError, match="needs the tokenizers library: pip install tokenizers"):
        load_tokenizer(tmp_path)


def test_labels_are_one_token_later() -> None:
    stream = TokenStream(np.arange(100, dtype=np.int32), global_batch_size=4, sequence_length=7)
    inputs, labels = stream.batch(3)
    assert inputs.shape == labels.shape == (4, 7)
    assert inputs.dtype == labels.dtype == np.int64
    assert (labels == inputs + 1).all()


def test_a_step_is_the_same_from_release_to_release() -> None:
    # Written down once: a resumed run, under any numpy, must see these rows.
    stream = TokenStream(np.arange(1007, dtype=np.int32), global_batch_size=3, sequence_length=9, seed=7)
    assert (stream.rows_per_epoch, stream.steps_per_epoch, stream.tokens_per_step) == (100, 33, 27)
    assert [stream.starts(step).tolist() for step in (0, 32, 33)] == [[83, 463, 753], [413, 953, 893], [553, 573, 863]]


streams = st.builds(
    TokenStream,
    tokens=st.integers(60, 300).map(lambda count: np.arange(count, dtype=np.int32)),
    global_batch_size=st.integers(1, 6),
    sequence_length=st.integers(1, 8),
    seed=st.integers(-(2**70), 2**70),
)


@given(streams, st.integers(0, 3))
def test_rows_of_an_epoch_never_overlap_and_the_next_epoch_differs(stream: TokenStream, epoch: int) -> None:
    steps = range(epoch * stream.steps_per_epoch, (epoch + 1) * stream.steps_per_epoch)
    starts = np.concatenate([stream.starts(step) for step in steps])
    seen = (starts[:, None] + np.arange(stream.sequence_length + 1)).ravel()
    assert len(set(seen.tolist())) == len(seen) == len(steps) * stream.global_batch_size * (stream.sequence_length + 1)
    assert seen.min() >= 0
    assert seen.max() < len(stream.tokens)
    if stream.rows_per_epoch >= 20:
        following = [stream.starts(step).tolist() for step in range(steps.stop, steps.stop + len(steps))]
        assert np.concatenate(following).tolist() != starts.tolist()


@given(streams, st.integers(0, 1000))
def test_a_step_is_a_pure_function(stream: TokenStream, step: int) -> None:
    again = TokenStream(stream.tokens.copy(), stream.global_batch_size, stream.sequence_length, stream.seed)
    stream.batch(step + 5)
    assert (stream.batch(step)[0] == again.batch(step)[0]).all()


def test_seeds_differ() -> None:
    tokens = np.arange(1000, dtype=np.int32)
    orders = {tuple(TokenStream(tokens, 50, 9, seed).starts(0).tolist()) for seed in range(20)}
    assert len(orders) == 20


def test_the_shuffle_is_even() -> None:
    # Over 400 epochs each of 20 rows comes first about 20 times; 5 standard deviations are 22.
    stream = TokenStream(np.arange(40, dtype=np.int32), global_batch_size=20, sequence_length=1)
    first = np.bincount([int(stream.starts(step)[0]) // 2 for step in range(400)], minlength=20)
    assert first.sum() == 400
    assert first.max() <= 42


def test_a_text_shorter_than_a_batch(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 1031)
    with pytest.raises(AutoshardError) as error:
        load_token_stream(tmp_path / "a.txt", ByteTokenizer(), global_batch_size=8, sequence_length=128)
    assert str(error.value) == (
        "the text has 1,031 tokens; one batch of 8 sequences x (128 + 1) tokens needs 1,032: "
        "give more text or a smaller batch"
    )


def test_a_stream_says_what_it_is_made_of() -> None:
    stream, made_of = load_token_stream(None, ByteTokenizer(), global_batch_size=8, sequence_length=128)
    assert re.fullmatch(r"the Python manual: \d+ K tokens \(bytes, 256 ids\)", made_of)
    assert stream.steps_per_epoch > 300
