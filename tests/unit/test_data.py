"""Real text, tokens and batches that no layout can change."""

import errno
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.errors import AutoshardError
from autoshard.files.codec import from_json, to_json
from autoshard.runtime.data import (
    NOT_LEARNED,
    DataPosition,
    DataSource,
    TokenStream,
    held_out,
    open_stream,
    prepare,
    read_token_file,
    token_file,
)
from autoshard.runtime.data.files import find_files
from autoshard.runtime.data.shuffle import shuffled
from autoshard.runtime.data.text import text_windows
from autoshard.runtime.data.token_file import TokenWriter
from autoshard.runtime.tokenizer import ByteTokenizer, load_tokenizer


def read(path: Path | None, cache: Path, text_field: str | None = None) -> str:
    """What the bytes of the prepared tokens spell."""
    file = prepare(DataSource(path, ByteTokenizer(), text_field), cache)
    return ByteTokenizer().decode(file.tokens())


def test_the_default_text_is_english_and_on_every_machine(tmp_path: Path) -> None:
    text = read(None, tmp_path)
    assert len(text) > 400_000
    assert text.count(" the ") > 2_000
    file = prepare(DataSource(None, ByteTokenizer()), tmp_path)
    assert re.fullmatch(r"the Python manual: \d+ K tokens \(bytes, 256 ids\)", file.made_of)
    assert open_stream(file, global_batch_size=8, sequence_length=128).rows_per_epoch > 2_400


def test_a_python_without_its_manual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(AutoshardError, match=r"comes without its manual \(pydoc_data\): give a text by --data"):
        read(None, tmp_path)


def test_a_folder_is_read_in_the_order_of_its_paths(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    (folder / "a").mkdir(parents=True)
    (folder / "b.txt").write_text("second")
    (folder / "c.py").write_text("not text")
    (folder / "blank.md").write_text(" \n")
    (folder / "a" / "z.md").write_text("first")
    assert read(folder, tmp_path) == "first\n\nsecond"
    file = prepare(DataSource(folder, ByteTokenizer()), tmp_path)
    assert file.made_of == f"{folder} (3 files): 13 tokens (bytes, 256 ids)"


def test_links_of_a_folder_are_followed_and_no_folder_is_read_twice(tmp_path: Path) -> None:
    folder, other = tmp_path / "texts", tmp_path / "other"
    (other / "deep").mkdir(parents=True)
    folder.mkdir()
    (folder / "a.txt").write_text("first")
    (other / "deep" / "b.txt").write_text("second")
    (folder / "z").symlink_to(other)
    (folder / "y").symlink_to(other)
    (other / "deep" / "up").symlink_to(folder)
    (folder / "c.txt").symlink_to(other / "deep" / "b.txt")
    assert read(folder, tmp_path / "cache") == "first\n\nsecond\n\nsecond"
    (folder / "gone").symlink_to(tmp_path / "no such folder")
    with pytest.raises(AutoshardError) as error:
        read(folder, tmp_path / "cache")
    assert str(error.value) == f"--data {folder / 'gone'} is a link that leads nowhere: mend it or remove it"


def test_a_folder_in_it_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "a.txt").write_text("word")
    scan = os.scandir

    def refuse(path: str | Path) -> object:
        if Path(path).name == "inner":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(AutoshardError) as error:
        read(tmp_path, tmp_path / "cache")
    assert str(error.value) == f"cannot read --data {tmp_path / 'inner'}: Permission denied"


def test_files_of_a_folder_that_may_have_been_meant_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    (folder / "more").mkdir(parents=True)
    (folder / "a.jsonl").write_text('{"text": "a"}')
    (folder / "README.md").write_text("no data")
    source = DataSource(folder, ByteTokenizer())
    assert prepare(source, tmp_path / "cache").made_of == f"{folder} (1 file): 1 tokens (bytes, 256 ids)"
    for name in ("more/b.jsonl.gz", "c.JSON", "d.txt"):  # the tokens stay as they are
        (folder / name).write_bytes(b"")
    named = f"{folder} (1 file): 1 tokens (bytes, 256 ids); not read: c.JSON, d.txt, more/b.jsonl.gz"
    assert prepare(source, tmp_path / "cache").made_of == named
    for number in range(4):
        (folder / f"e{number}.csv").write_bytes(b"")
    several = "c.JSON, d.txt, e0.csv, e1.csv, e2.csv and 2 more"
    assert prepare(source, tmp_path / "cache").made_of.endswith(f"; not read: {several}")


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfword")
    assert read(tmp_path / "a.txt", tmp_path) == "word"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "--data {file} holds no text"),
        (b" \n\n", "--data {file} holds no text"),
        (b"caf\xe9 au lait", "--data {file} is not text in UTF-8: byte 3 of 12 is 0xe9"),
        (b"\xef\xbb\xbfcaf\xe9", "--data {file} is not text in UTF-8: byte 6 of 7 is 0xe9"),
        (b"PK\x03\x00", "--data {file} is binary: it has a zero byte at 3 of 4"),
    ],
)
def test_files_that_are_no_text(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "data.bin"
    file.write_bytes(content)
    with pytest.raises(AutoshardError) as error:
        read(file, tmp_path)
    assert str(error.value) == message.format(file=file)
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "no such file",
            None,
            "{path} does not exist: give a file or folder of .txt, .md, .jsonl, .ndjson, .parquet or .arrow",
        ),
        ("a.txt", b"", "{path} holds no text"),
        ("a.txt", b"\xff", "{path} is not text in UTF-8: byte 0 of 1 is 0xff"),
        ("a.jsonl", b"[]", "{path} row 1 is not a JSON object"),
        ("a.jsonl", b'{"messages": []}', "{path} row 1 has no list 'messages' with a message in it"),
        ("state.json", b"[]", "{path} is not a JSON object"),
    ],
)
def test_errors_name_the_option_that_gave_the_data(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    source = DataSource(tmp_path if name == "state.json" else path, ByteTokenizer(), option="--eval-data")
    with pytest.raises(AutoshardError) as error:
        prepare(source, tmp_path / "cache")
    assert str(error.value) == "--eval-data " + message.format(path=path)


def test_paths_that_hold_nothing(tmp_path: Path) -> None:
    kinds = r"\.txt, \.md, \.jsonl, \.ndjson, \.parquet or \.arrow"
    with pytest.raises(AutoshardError, match=rf"does not exist: give a file or folder of {kinds}"):
        read(tmp_path / "missing", tmp_path)
    with pytest.raises(AutoshardError, match=rf"is neither a regular file nor a folder: give .* of {kinds}"):
        read(Path("/dev/zero"), tmp_path)
    with pytest.raises(AutoshardError, match=rf"has no file ending in {kinds}"):
        read(tmp_path, tmp_path)


@pytest.mark.parametrize("name", ["a.json", "a.CSV", "a.gz"])
def test_a_named_file_of_another_kind_of_data_is_not_taken_for_text(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"text": "alpha"}\n')
    told = f"ends in {Path(name).suffix}, which is not read: rows of JSON end in .jsonl, plain text in .txt"
    with pytest.raises(AutoshardError, match=re.escape(told)):
        read(tmp_path / name, tmp_path)


def test_ndjson_is_jsonl(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.ndjson"):
        (tmp_path / name).write_text('{"text": "alpha"}\n{"text": "beta"}\n')
    assert find_files(tmp_path / "b.ndjson").kind == find_files(tmp_path / "a.jsonl").kind == "JSONL"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"text_field": "body"}, "text_field=body is of a table, and {path} is plain text"),
        ({"packing": False}, "packing=False is of conversations, and {path} has none"),
    ],
)
def test_options_that_text_has_no_use_for(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text("alpha beta")
    with pytest.raises(AutoshardError) as error:
        prepare(DataSource(path, ByteTokenizer(), **options), tmp_path)
    assert str(error.value) == text.format(path=path)
    prepare(DataSource(path, ByteTokenizer(), option="--eval-data", **options), tmp_path)  # the other data may have it


@given(st.text(alphabet="aé\u20ac\U0001f600 \n", min_size=1), st.integers(4, 12))
def test_windows_of_a_text_are_the_text(tmp_path_factory: pytest.TempPathFactory, text: str, window: int) -> None:
    file = tmp_path_factory.mktemp("windows") / "a.txt"
    file.write_bytes(text.encode())
    pieces = list(text_windows(file, "a.txt", window))
    assert "".join(pieces) == text
    assert max(len(piece.encode()) for piece in pieces) <= window + 3 + max(map(len, text.encode().splitlines()))


def test_tokens_are_made_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    first = prepare(DataSource(tmp_path / "a.txt", ByteTokenizer()), tmp_path / "cache")
    written = first.path.with_suffix(".tokens").stat().st_mtime_ns
    again = prepare(DataSource(tmp_path / "a.txt", ByteTokenizer()), tmp_path / "cache")
    assert again == first
    assert first.path.with_suffix(".tokens").stat().st_mtime_ns == written
    (tmp_path / "a.txt").write_text("other")
    assert read(tmp_path / "a.txt", tmp_path / "cache") == "other"


def test_the_digest_is_of_the_tokens_alone(tmp_path: Path) -> None:
    """A file that was moved or touched is the same data; another byte of the same length is not."""
    first, moved = tmp_path / "a.txt", tmp_path / "elsewhere" / "b.txt"
    moved.parent.mkdir()
    first.write_text("some text\nand more")
    os.utime(first, (0, 0))
    original = prepare(DataSource(first, ByteTokenizer()), tmp_path / "cache")
    first.rename(moved)
    assert prepare(DataSource(moved, ByteTokenizer()), tmp_path / "cache").digest == original.digest
    os.utime(moved, (1e9, 1e9))
    touched = prepare(DataSource(moved, ByteTokenizer()), tmp_path / "cache")
    assert touched.digest == original.digest
    stream = open_stream(touched, global_batch_size=1, sequence_length=4)
    assert stream.step_at(open_stream(original, global_batch_size=1, sequence_length=4).position(2)) == 2
    moved.write_text("some text\nand mole")
    assert prepare(DataSource(moved, ByteTokenizer()), tmp_path / "cache").digest != original.digest


def test_damaged_tokens_are_made_again(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    file = prepare(DataSource(tmp_path / "a.txt", ByteTokenizer()), tmp_path)
    file.path.with_suffix(".tokens").write_bytes(b"half")
    assert read_token_file(file.path) is None
    assert read(tmp_path / "a.txt", tmp_path) == "one"
    file.path.write_text("{}")
    assert read(tmp_path / "a.txt", tmp_path) == "one"


@pytest.mark.parametrize("suffix", [".tokens", ".begins"])
def test_tokens_of_the_right_size_and_other_content_are_made_again(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "a.txt").write_text("one")
    source = DataSource(tmp_path / "a.txt", ByteTokenizer(), apart=True)
    file = prepare(source, tmp_path)
    path = file.path.with_suffix(suffix)
    content = path.read_bytes()
    path.write_bytes(bytes(len(content)))
    assert prepare(source, tmp_path) == file
    assert path.read_bytes() == content


def test_tokens_that_were_copied_are_looked_at_once_and_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("one")
    source = DataSource(tmp_path / "a.txt", ByteTokenizer())
    file = prepare(source, tmp_path)
    os.utime(file.path.with_suffix(".tokens"), (1e9, 1e9))
    assert prepare(source, tmp_path) == file
    assert file.path.with_suffix(".tokens").stat().st_mtime == 1e9
    monkeypatch.setattr(token_file, "checksum", None)
    assert prepare(source, tmp_path) == file


def test_a_file_larger_than_the_memory_it_is_read_in(tmp_path: Path) -> None:
    # 20 MB of JSONL and text; the bytes alone, as Python text and tokens, would be 120 MB
    import tracemalloc

    with (tmp_path / "a.jsonl").open("w") as file:
        for row in range(20_000):
            file.write(json.dumps({"text": f"{row:08d}" * 120}) + "\n")
    tracemalloc.start()
    found = prepare(DataSource(tmp_path / "a.jsonl", ByteTokenizer()), tmp_path)
    assert found.num_tokens == 20_000 * 962 - 2
    assert tracemalloc.get_traced_memory()[1] < 40e6
    tracemalloc.stop()


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


def test_a_padding_token_may_have_the_id_0(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "words", {"<pad>": 0, "</s>": 1, "?": 2})
    special = {"pad_token": "<pad>", "eos_token": "</s>"}
    (tmp_path / "words" / "tokenizer_config.json").write_text(json.dumps(special))
    tokenizer = load_tokenizer(tmp_path / "words")
    assert (tokenizer.padding, tokenizer.end_of_text) == (0, 1)


@pytest.mark.parametrize("given", [".", "tokenizer.json", "../words", "../words/inner/.."])
def test_a_tokenizer_has_the_name_of_its_folder(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tokenizer(tmp_path / "words", {"?": 0, "one": 1})
    (tmp_path / "words" / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "words")
    assert load_tokenizer(Path(given)).name == "words"


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
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": {"type": 10_000 * "a"}}))
    with pytest.raises(AutoshardError, match=r"is not a Hugging Face tokenizer\.json: .{1,400}$"):
        load_tokenizer(tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(AutoshardError, match="needs the tokenizers library: pip install tokenizers"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_without_a_token_for_unknown_words(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "words", {"one": 0})
    tokenizer = load_tokenizer(tmp_path / "words")
    for encode in (lambda: tokenizer.encode("two"), lambda: tokenizer.encode_many(["one", "two"])):
        with pytest.raises(
            AutoshardError, match=r"^tokenizer words does not take every text: WordLevel error: Missing"
        ):
            encode()


def test_of_several_chat_templates_the_default_is_taken(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "words", {"?": 0})
    several = [{"name": "rag", "template": "a"}, {"name": ["odd"]}, "none", {"name": "default", "template": "b"}]
    (tmp_path / "words" / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    assert load_tokenizer(tmp_path / "words").chat_template == "b"


def test_labels_are_one_token_later() -> None:
    stream = TokenStream(np.arange(100, dtype=np.int32), global_batch_size=4, sequence_length=7)
    inputs, labels = stream.batch(3)
    assert inputs.shape == labels.shape == (4, 7)
    assert inputs.dtype == labels.dtype == np.int64
    assert (labels == inputs + 1).all()


def test_a_step_is_the_same_from_release_to_release() -> None:
    # Written down once: a resumed run, under any numpy, must see these rows.
    stream = TokenStream(np.arange(1007, dtype=np.int32), global_batch_size=3, sequence_length=9, seed=7)
    assert (stream.rows_per_epoch, stream.tokens_per_step) == (100, 27)
    assert [stream.starts(step).tolist() for step in (0, 32, 33)] == [[833, 553, 963], [773, 903, 33], [853, 133, 263]]


streams = st.builds(
    TokenStream,
    tokens=st.integers(60, 300).map(lambda count: np.arange(count, dtype=np.int32)),
    global_batch_size=st.integers(1, 6),
    sequence_length=st.integers(1, 8),
    seed=st.integers(-(2**70), 2**70),
)


@given(streams, st.integers(0, 3))
def test_an_epoch_takes_every_row_once_and_rows_never_overlap(stream: TokenStream, epoch: int) -> None:
    rows, size = stream.rows_per_epoch, stream.global_batch_size
    steps = range(epoch * rows // size, (epoch + 1) * rows // size + 1)
    starts = np.concatenate([stream.starts(step) for step in steps])
    mine = starts[epoch * rows - steps.start * size :][:rows]
    seen = (mine[:, None] + np.arange(stream.sequence_length + 1)).ravel()
    assert len(set(seen.tolist())) == len(seen) == rows * (stream.sequence_length + 1)
    assert seen.min() >= 0
    assert seen.max() < len(stream.tokens)


@given(st.integers(1, 5000), st.integers(0, 2**64), st.integers(0, 5))
def test_a_shuffle_is_a_permutation(count: int, seed: int, epoch: int) -> None:
    order = shuffled(np.arange(count), count, seed, epoch)
    assert sorted(order.tolist()) == list(range(count))
    assert shuffled(np.array([count - 1]), count, seed, epoch)[0] == order[-1]
    if count >= 20:
        assert shuffled(np.arange(count), count, seed, epoch + 1).tolist() != order.tolist()


@given(streams, st.integers(0, 1000))
def test_a_step_is_a_pure_function(stream: TokenStream, step: int) -> None:
    again = TokenStream(stream.tokens.copy(), stream.global_batch_size, stream.sequence_length, stream.seed)
    stream.batch(step + 5)
    assert (stream.batch(step)[0] == again.batch(step)[0]).all()


@given(streams, st.integers(0, 1000))
def test_a_position_leads_back_to_its_step(stream: TokenStream, step: int) -> None:
    saved = json.loads(json.dumps(to_json(stream.position(step))))
    assert stream.step_at(from_json(DataPosition, saved, "saved")) == step


def test_a_position_in_other_data_is_refused() -> None:
    stream = TokenStream(np.arange(100, dtype=np.int32), 4, 7, seed=1, digest="a")
    position = stream.position(3)
    assert position == DataPosition(12, 1, "a", 7)
    anew = "start anew with the checkpoint as weights and another checkpoint_dir"
    for other, message in (
        (
            replace(position, digest="b"),
            rf"other data or tokenizer, text_field, packing or document_mask \(give those, or {anew}\): the",
        ),
        (
            replace(position, seed=2),
            rf"saved with seed=2, not 1 \(give seed=2, or {anew}\): the order of rows would be another",
        ),
        (
            replace(position, digest="b", sequence_length=15),  # rows of conversations have a digest for each length
            rf"seq_len=15, not 7 \(give a plan with seq_len=15, or {anew}\): the",
        ),
        (replace(position, sequences=13), "13 sequences, is in the middle of a batch of 4"),
    ):
        with pytest.raises(AutoshardError, match=message):
            stream.step_at(other)
    for changed, message in (
        ({"sequences": "12"}, "sequences='12' of the data position must be a whole number from 0 to"),
        ({"sequences": -4}, "sequences=-4 of the data position must be a whole number from 0 to"),
        ({"seed": "1"}, "the data position.seed is '1'; it must be a whole number"),
        (
            {"rows": 1},
            "the data position has a field that is not known: 'rows'; known: sequences, seed, digest, sequence_length",
        ),
        ({"sequence_length": 0}, "the data position.sequence_length is 0; it must be a whole number of at least 1"),
    ):
        with pytest.raises(AutoshardError, match=f"^{message}"):
            from_json(DataPosition, {"sequences": 12, "seed": 1, "digest": "a", **changed}, "the data position")
    with pytest.raises(AutoshardError, match=r"^the data position lacks digest$"):
        from_json(DataPosition, {"sequences": 12, "seed": 1}, "the data position")


def test_rows_held_out_that_no_fraction_of_this_batch_holds_out() -> None:
    tokens = np.arange(8 * 121, dtype=np.int32)
    before, _ = held_out(TokenStream(tokens, 4, 7, digest="a"), 0.1)
    now, _ = held_out(TokenStream(tokens, 8, 7, digest="a"), 0.1)
    with pytest.raises(AutoshardError) as error:
        now.step_at(before.position(2))
    assert str(error.value) == (
        "the data position was saved with 12 rows held out, not 16 (no eval_fraction holds out part of a batch: give "
        "a plan whose batch, now 8, divides 12): the order of rows would be another"
    )


def test_the_fraction_to_give_is_exact_among_many_rows() -> None:
    stream = TokenStream(np.broadcast_to(np.int32(1), 2 * 3_000_001), 1, 1, digest="a")  # one number in memory
    before, _ = held_out(stream, 1 / 3)
    with pytest.raises(AutoshardError) as error:
        stream.step_at(before.position(2))
    (share,) = re.findall(r"give eval_fraction=([\d.]+)\)", str(error.value))
    assert held_out(stream, float(share))[0].step_at(before.position(2)) == 2


def test_an_older_position_does_not_say_how_long_rows_are() -> None:
    stream = TokenStream(np.arange(100, dtype=np.int32), 4, 7, seed=1, digest="a")
    assert stream.step_at(from_json(DataPosition, {"sequences": 12, "seed": 1, "digest": "a"}, "saved")) == 3


def test_seeds_differ() -> None:
    tokens = np.arange(1000, dtype=np.int32)
    orders = {tuple(TokenStream(tokens, 50, 9, seed).starts(0).tolist()) for seed in range(20)}
    assert len(orders) == 20


@pytest.mark.parametrize("count", [2, 3, 20])
def test_the_shuffle_is_even(count: int) -> None:
    # Over 400 epochs each of n rows comes first about 400/n times, within 5 standard deviations.
    first = np.bincount([int(shuffled(np.array([0]), count, 0, epoch)[0]) for epoch in range(400)], minlength=count)
    deviation = (400 * (1 / count) * (1 - 1 / count)) ** 0.5
    assert np.abs(first - 400 / count).max() < 5 * deviation


def test_neighbours_are_parted() -> None:
    # Of 10,000 shuffled rows about 2 are followed by the one that followed it before: the network leaves no runs.
    order = shuffled(np.arange(10_000), 10_000, seed=3, epoch=0)
    assert (np.diff(order) == 1).sum() < 10


def test_a_text_shorter_than_a_batch(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 1031)
    file = prepare(DataSource(tmp_path / "a.txt", ByteTokenizer()), tmp_path)
    with pytest.raises(AutoshardError) as error:
        open_stream(file, global_batch_size=8, sequence_length=128)
    assert str(error.value) == (
        "the text has 1,031 tokens; one batch of 8 sequences x (128 + 1) tokens needs 1,032: "
        "give more text or a smaller batch"
    )


@given(streams, st.floats(0.01, 0.6))
def test_what_is_held_out_is_never_learned(stream: TokenStream, fraction: float) -> None:
    size, row_length = stream.global_batch_size, stream.sequence_length + 1
    if stream.rows_per_epoch < 4 * size:
        return
    learned, other = held_out(stream, fraction)
    assert other.rows_per_epoch == max(1, round(fraction * stream.rows_per_epoch / size)) * size
    assert len(learned.tokens) + len(other.tokens) == len(stream.tokens)
    assert not set(learned.tokens.tolist()) & set(other.tokens.tolist())
    seen = np.concatenate([other.in_order(batch)[0] for batch in range(other.rows_per_epoch // size)])
    assert seen[:, 0].tolist() == other.tokens[::row_length].tolist()
    with pytest.raises(AutoshardError) as error:
        stream.step_at(learned.position(1))
    rows, share = other.rows_per_epoch, other.rows_per_epoch / stream.rows_per_epoch
    assert str(error.value) == (
        f"the data position was saved with {rows} rows held out, not none (give eval_fraction={share}): "
        "the order of rows would be another"
    )
    again, _ = held_out(stream, share)
    assert again.step_at(learned.position(1)) == 1
    with pytest.raises(AutoshardError) as error:
        learned.step_at(stream.position(1))
    assert str(error.value) == (
        f"the data position was saved with no rows held out, not {rows} (leave eval_fraction out): "
        "the order of rows would be another"
    )


def test_holding_out_too_much() -> None:
    with pytest.raises(AutoshardError) as error:
        held_out(TokenStream(np.arange(80, dtype=np.int32), 4, 9), 0.8)
    assert str(error.value) == (
        "eval_fraction=0.8 of 8 rows leaves less than a batch of 4 to learn from: give more data or a smaller batch"
    )


def test_documents_are_kept_apart(tmp_path: Path) -> None:
    """Rows of 6 tokens from "abc", "defgh" and "ij", each but the last with the blank line that ends it."""
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in ("abc", "defgh", "ij")))
    file = prepare(DataSource(tmp_path / "a.jsonl", ByteTokenizer(), apart=True), tmp_path / "cache")
    assert ByteTokenizer().decode(file.tokens()) == "abc\n\ndefgh\n\nij"
    begins = file.begins()
    assert begins is not None
    assert np.flatnonzero(begins).tolist() == [0, 5, 12]
    stream = open_stream(file, global_batch_size=1, sequence_length=5)
    assert stream.documents_in_order(0).tolist() == [[0, 0, 0, 0, 0]]  # type: ignore[union-attr]
    assert stream.in_order(0)[1].tolist() == [[*b"bc\n\n", NOT_LEARNED]]  # nothing tells how a document begins
    stream = replace(stream, tokens=stream.tokens[2:], begins=begins[2:])
    assert stream.documents_in_order(0).tolist() == [[0, 0, 0, 3, 3]]  # type: ignore[union-attr]
    assert stream.in_order(0)[1].tolist() == [[*b"\n\n", NOT_LEARNED, *b"ef"]]


LEARNED, FOLLOWERS = "be marked as learned", "follow another token of its document"


@pytest.mark.parametrize(
    ("marks", "rules"),
    [
        ({"learned": [0] * 12}, LEARNED),
        ({"begins": [1] * 12}, FOLLOWERS),
        ({"learned": [0, 1] * 6, "begins": [0, 1] * 6}, f"{LEARNED} and {FOLLOWERS}"),
    ],
)
def test_data_without_a_label_are_refused(marks: dict[str, list[int]], rules: str) -> None:
    given: dict[str, Any] = {name: np.array(values, dtype=np.uint8) for name, values in marks.items()}
    with pytest.raises(AutoshardError) as error:
        TokenStream(np.arange(12, dtype=np.int32), 2, 2, **given)
    assert str(error.value) == f"the text has no label, which must {rules}: give other text"


def test_a_batch_without_a_label_is_refused() -> None:
    begins = np.array([1, 1, 1, 1, 1, 0], dtype=np.uint8)
    stream = TokenStream(np.arange(6, dtype=np.int32), 1, 2, begins=begins)
    empty, full = sorted(range(2), key=lambda step: int(stream.starts(step)[0]))
    assert stream.batch(full)[1].tolist() == [[NOT_LEARNED, 5]]
    with pytest.raises(AutoshardError) as error:
        stream.batch(empty)
    assert str(error.value) == (
        f"batch {empty + 1} of the text has no label, which must follow another token of its document: give other text "
        "or a larger batch"
    )


def test_windows_of_one_file_are_one_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("line\n" * 1_000_000)
    begins = prepare(DataSource(tmp_path / "a.txt", ByteTokenizer(), apart=True), tmp_path / "cache").begins()
    assert begins is not None
    assert np.flatnonzero(begins).tolist() == [0]


WRITES_TOKENS = """
import sys, time
from pathlib import Path
import numpy as np
from autoshard.runtime.data.token_file import TokenWriter
writer = TokenWriter(Path(sys.argv[1]))
writer.append(np.arange(9, dtype=np.int32), np.ones(9, dtype=np.uint8))
print(flush=True)
time.sleep(600)
"""


def test_parts_of_a_killed_run_are_removed_by_the_next_and_those_of_a_living_one_stay(tmp_path: Path) -> None:
    cache, text = tmp_path / "cache", tmp_path / "text.txt"
    cache.mkdir()
    text.write_text("a text\n" * 99)
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITES_TOKENS, str(cache / f"{name}.json")], stdout=subprocess.PIPE)
        for name in ("dead", "living")
    ]
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.readline()
        writer.stdout.close()
    dead, living = writers
    dead.kill()
    dead.wait()
    elsewhere, old = cache / "other.tokens.7@0123456789ab.part", cache / "older.tokens.7.part"
    for path in (elsewhere, old):
        path.write_bytes(b"1234")
    os.utime(old, (0, 0))
    left = {path.name for path in cache.glob("*.part")}
    assert len([name for name in left if name.startswith("dead.")]) == 2
    prepare(DataSource(text, ByteTokenizer()), cache)
    found = {path.name for path in cache.glob("*.part")}
    living.kill()
    living.wait()
    assert found == {name for name in left if name.startswith("living.")} | {elsewhere.name}


def test_a_part_that_is_removed_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first: list[str] = []

    def lock(file: IO[bytes], operation: int) -> None:
        if not first:
            first.append(file.name)
            Path(file.name).unlink()

    monkeypatch.setattr("autoshard.runtime.data.token_file.fcntl.flock", lock)
    writer = TokenWriter(tmp_path / "key.json")
    writer.append(np.arange(9, dtype=np.int32))
    found = writer.finish(0, 256, "nine tokens")
    writer.discard()
    assert first and found.tokens().tolist() == list(range(9))
    assert not [*tmp_path.glob("*.part")]


def test_tokens_on_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lock(file: IO[bytes], operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("autoshard.runtime.data.token_file.fcntl.flock", lock)
    (tmp_path / "a.txt").write_text("word")
    assert read(tmp_path / "a.txt", tmp_path / "cache") == "word"
