"""JSONL, Parquet, Arrow and saved datasets as training data; every slip in them is told by file and row."""

import json
import pickle
import sys
from pathlib import Path
from struct import pack
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from autoshard.errors import AutoshardError
from autoshard.runtime.data import NOT_LEARNED, DataSource, TokenFile, open_stream, prepare, records
from autoshard.runtime.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer

ROWS = [{"text": "first", "id": 1}, {"text": "  ", "id": 2}, {"text": "zweité", "id": 3}]


def write_jsonl(file: Path, rows: list[Any]) -> Path:
    file.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return file


def write_parquet(file: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=2)
    return file


def write_arrow_stream(file: Path, rows: list[dict[str, Any]]) -> Path:
    """As datasets.save_to_disk does."""
    table = pa.Table.from_pylist(rows)
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return file


def write_arrow_file(file: Path, rows: list[dict[str, Any]]) -> Path:
    table = pa.Table.from_pylist(rows)
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return file


def write_saved_dataset(folder: Path, rows: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True)
    half = len(rows) // 2
    names = [f"data-{part:05d}-of-00002.arrow" for part in range(2)]
    write_arrow_stream(folder / names[0], rows[:half])
    write_arrow_stream(folder / names[1], rows[half:])
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    return folder


def made(path: Path, tokenizer: Tokenizer | None = None, text_field: str | None = None) -> TokenFile:
    return prepare(DataSource(path, tokenizer or ByteTokenizer(), text_field), path.parent / "cache")


def spelled(path: Path, text_field: str | None = None) -> str:
    return ByteTokenizer().decode(made(path, text_field=text_field).tokens())


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.jsonl", write_jsonl),
        ("a.parquet", write_parquet),
        ("a.arrow", write_arrow_stream),
        ("b.arrow", write_arrow_file),
        ("saved", write_saved_dataset),
    ],
)
def test_every_kind_holds_the_same_text(tmp_path: Path, name: str, write: Any) -> None:
    assert spelled(write(tmp_path / name, ROWS)) == "first\n\nzweité"


def test_a_folder_of_tables_is_read_without_its_readme(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "README.md").write_text("no data")
    write_jsonl(folder / "2.jsonl", [{"text": "b"}])
    write_jsonl(folder / "1.jsonl", [{"text": "a"}])
    assert spelled(folder) == "a\n\nb"
    write_parquet(folder / "3.parquet", ROWS)
    with pytest.raises(AutoshardError) as error:
        made(folder)
    assert str(error.value) == f"--data {folder} has files of JSONL and Parquet: name a folder of one kind"


def test_another_column_is_named(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", [{"story": "a"}, {"story": "b"}])
    assert spelled(file, text_field="story") == "a\n\nb"
    with pytest.raises(AutoshardError) as error:
        made(file)
    assert str(error.value) == (
        f"--data {file} has no column 'text', 'input_ids' or 'messages' but story: name one by --text-field"
    )
    write_jsonl(file, [{}, {"text": "a"}])
    with pytest.raises(AutoshardError) as error:
        made(file)
    assert str(error.value) == (
        f"--data {file} has no column 'text', 'input_ids' or 'messages' in its first row, which is empty"
    )


UNLIKE_LABELS = (
    "has labels that do not go with its input_ids: each must be the id at its own place, or -100 where that is not "
    "learned"
)
NO_MASK = "has an attention_mask that does not go with its input_ids: each must be 1, or 0 for padding at an end"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "a"}, {"words": "b"}], "row 2 has no 'text': every row needs a text there (--text-field names it)"),
        ([{"text": None}], "row 1 has NoneType for 'text': every row needs a text there (--text-field names it)"),
        ([{"text": "a"}, ["b"]], "row 2 is not a JSON object"),
        ([{"input_ids": [1, 2]}, {"input_ids": [3, -1]}], "row 2 has input_ids that are no list of token ids"),
        ([{"input_ids": [1, True]}], "row 1 has input_ids that are no list of token ids"),
        (
            [{"input_ids": [1], "labels": [1]}, {"input_ids": [2]}],
            "row 2 has no labels, rows before have them: give all rows theirs",
        ),
        (
            [{"input_ids": [1]}, {"input_ids": [2], "labels": [2]}],
            "row 2 has its labels, rows before have none: give all rows theirs",
        ),
        ([{"input_ids": [1, 2, 3], "labels": [2, 3, -100]}], f"row 1 {UNLIKE_LABELS}"),
        ([{"input_ids": [1, 2], "labels": [1, 2, -100]}], f"row 1 {UNLIKE_LABELS}"),
        ([{"input_ids": [1, 2], "labels": "1"}], f"row 1 {UNLIKE_LABELS}"),
        ([{"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]}], f"row 1 {NO_MASK}"),
        ([{"input_ids": [1, 2, 3], "attention_mask": [1, 1, 2]}], f"row 1 {NO_MASK}"),
        ([{"input_ids": [1, 2, 3], "attention_mask": [1, 1]}], f"row 1 {NO_MASK}"),
        ([{"input_ids": [1, 2, 3], "attention_mask": 1}], f"row 1 {NO_MASK}"),
        ([{"text": " "}], None),
    ],
)
def test_rows_that_will_not_do(tmp_path: Path, rows: list[Any], message: str | None) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", rows)
    with pytest.raises(AutoshardError) as error:
        made(file)
    assert str(error.value) == (f"--data {file} {message}" if message else f"--data {file} holds no text")


def test_a_line_that_is_not_json(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "a"}\n\n{"text": "b"\n')
    with pytest.raises(AutoshardError, match=r"a\.jsonl row 3 is not JSON: Expecting ',' delimiter"):
        made(file)
    file.write_text('{"text": ' + "[" * 100_000)
    with pytest.raises(AutoshardError, match=r"a\.jsonl row 1 is not JSON: "):
        made(file)


HALF = "is half of a character, a lone surrogate; write both halves, or \\ufffd"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b'{"text": "a \\ud83d b"}', f": \\ud83d {HALF}"),
        (b'{"text": "a", "source": ["\\uDE00"]}', f": \\ude00 {HALF}"),
        (b'{"text": "\\ud83d\\ud83d\\ude00"}', f": \\ud83d {HALF}"),
        (b'{"text": "\xed\xa0\xbd"}', ": byte 0xed is not UTF-8; save it as UTF-8"),
        (b'{"text": "a", "tree": ' + 100 * b"[" + 100 * b"]" + b"}", " is nested deeper than 100 levels"),
        (b'{"messages": [{"role": "assistant", "content": "\\ud83d"}]}', f": \\ud83d {HALF}"),
    ],
)
def test_text_that_is_no_text(tmp_path: Path, row: bytes, message: str) -> None:
    file = tmp_path / "a.jsonl"
    whole = b'{"text": "\\ud83d\\ude00", "messages": [{"role": "assistant", "content": "\\\\ud83d"}]}\n'
    field = "messages" if b"messages" in row else "text"
    file.write_bytes(whole.replace(b"messages" if field == "text" else b"text", b"other") + row)
    with pytest.raises(AutoshardError) as error:
        prepare(DataSource(file, ByteTokenizer()), tmp_path / "cache")
    assert str(error.value) == f"--data {file} row 2{message}"


def test_a_byte_behind_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"text": "caf\xe9"}')
    with pytest.raises(AutoshardError) as error:
        made(file)
    assert str(error.value) == f"--data {file} row 1: byte 0xe9 is not UTF-8; save it as UTF-8"


def test_a_row_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MOST_ROW_BYTES", 1000)
    file = write_jsonl(tmp_path / "a.jsonl", [{"text": 985 * "a"}, {"text": 990 * "a"}])
    with pytest.raises(AutoshardError) as error:
        prepare(DataSource(file, ByteTokenizer()), tmp_path / "cache")
    assert str(error.value) == (
        f"--data {file} row 2 has more than the 1.00 KB that are read of a row: each row needs a line of its own"
    )


@pytest.mark.parametrize(("name", "write"), [("a.arrow", pa.ipc.new_stream), ("b.arrow", pa.ipc.new_file)])
def test_a_column_of_text_that_is_no_text(tmp_path: Path, name: str, write: Any) -> None:
    bytes_ = pa.array([b"good", b"\xff"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 2, bytes_.buffers())
    table = pa.table({"text": text})
    with pa.OSFile(str(tmp_path / name), "wb") as sink, write(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(AutoshardError) as error:
        prepare(DataSource(tmp_path / name, ByteTokenizer()), tmp_path / "cache")
    assert str(error.value) == (
        f"--data {tmp_path / name} rows 1 to 2 are damaged: In column 0: Invalid: Invalid UTF8 sequence at string "
        "index 1"
    )


@pytest.mark.parametrize("write", [pa.ipc.new_stream, pa.ipc.new_file])
@pytest.mark.parametrize("offsets", [(0, 4, 2**30), (0, 4, -8), (0, 9, 4)])
def test_offsets_that_lead_out_of_the_file(tmp_path: Path, write: Any, offsets: tuple[int, ...]) -> None:
    """pyarrow would follow them: the process would end without a word."""
    table = pa.table({"text": ["good", "also"]})
    path = tmp_path / "x.arrow"
    with pa.OSFile(str(path), "wb") as sink, write(sink, table.schema) as writer:
        writer.write_table(table)
    good, damaged = pack("<3i", 0, 4, 8), pack("<3i", *offsets)
    assert path.read_bytes().count(good) == 1
    path.write_bytes(path.read_bytes().replace(good, damaged))
    with pytest.raises(AutoshardError, match=rf"^--data {path} (rows 1 to 2 are damaged|is not Arrow): "):
        prepare(DataSource(path, ByteTokenizer()), tmp_path / "cache")


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
@pytest.mark.parametrize("content", ["text", "messages"])
def test_columns_that_are_not_read_may_hold_what_python_has_no_value_for(
    tmp_path: Path, name: str, content: str
) -> None:
    """Python's times have microseconds, pandas writes nanoseconds."""
    said: Any = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    values = [said if content == "messages" else "word"]
    table = pa.table({content: values, "when": pa.array([1_700_000_000_000_000_001], pa.timestamp("ns"))})
    if name == "a.parquet":
        pq.write_table(table, tmp_path / name)
    else:
        with pa.OSFile(str(tmp_path / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    kind = "1 conversations in 1 rows" if content == "messages" else "4 tokens"
    assert kind in prepare(DataSource(tmp_path / name, ByteTokenizer(), sequence_length=99), tmp_path / "cache").made_of


@pytest.mark.parametrize(("name", "kind"), [("a.parquet", "Parquet"), ("a.arrow", "Arrow")])
def test_files_that_are_no_tables(tmp_path: Path, name: str, kind: str) -> None:
    file = tmp_path / name
    file.write_bytes(b"not a table at all")
    with pytest.raises(AutoshardError, match=rf"--data {file} is not {kind}: |cannot read --data {file}: "):
        made(file)


def test_a_truncated_table(tmp_path: Path) -> None:
    file = write_arrow_stream(tmp_path / "a.arrow", [{"text": "word " * 1000}] * 50)
    file.write_bytes(file.read_bytes()[:-100_000])
    with pytest.raises(AutoshardError, match=rf"--data {file} is not Arrow: |cannot read --data {file}: "):
        made(file)


def test_a_dataset_that_was_tokenized_before(tmp_path: Path) -> None:
    rows = [{"input_ids": [5, 600, 7], "attention_mask": [1, 1, 1]}, {"input_ids": [8]}]
    folder = write_saved_dataset(tmp_path / "saved", rows)
    found = made(folder)
    assert found.tokens().tolist() == [5, 600, 7, 8]
    assert found.vocab_size == 601
    assert found.made_of == f"{folder} (saved dataset, 2 files): 4 tokens (tokenized before)"


def test_tokenized_rows_say_what_is_learned_and_what_is_padding(tmp_path: Path) -> None:
    rows = [
        {"input_ids": [5, 6, 7, 0], "labels": [-100, 6, 7, -100], "attention_mask": [1, 1, 1, 0]},
        {"input_ids": [0, 0, 8, 9], "labels": [-100, -100, -100, 9], "attention_mask": [0, 0, 1, 1]},
        {"input_ids": [0, 0], "labels": [-100, -100], "attention_mask": [0, 0]},
    ]
    for write, name in ((write_jsonl, "a.jsonl"), (write_parquet, "a.parquet")):
        found = made(write(tmp_path / name, rows))
        marks = found.learned()
        assert marks is not None
        assert (found.tokens().tolist(), marks.tolist()) == ([5, 6, 7, 8, 9], [0, 1, 1, 0, 1])
        assert found.made_of == f"{tmp_path / name}: 5 tokens (tokenized before, 3 learned)"
    inputs, labels = open_stream(found, global_batch_size=1, sequence_length=4).batch(0)
    assert (inputs.tolist(), labels.tolist()) == ([[5, 6, 7, 8]], [[6, 7, NOT_LEARNED, 9]])


def test_a_dataset_dict_gives_its_training_split(tmp_path: Path) -> None:
    write_saved_dataset(tmp_path / "saved" / "train", ROWS)
    splits = tmp_path / "saved" / "dataset_dict.json"
    splits.write_text(json.dumps({"splits": ["train", "test"]}))
    assert spelled(tmp_path / "saved") == "first\n\nzweité"
    splits.write_text(json.dumps({"splits": ["test"]}))
    with pytest.raises(AutoshardError, match=r"has no split 'train' but \['test'\]: name the folder of one split"):
        made(tmp_path / "saved")


def test_saved_datasets_that_will_not_do(tmp_path: Path) -> None:
    folder = write_saved_dataset(tmp_path / "saved", ROWS)
    for state, message in (
        ({"_data_files": [{"filename": "gone.arrow"}]}, "gone.arrow, listed in state.json, is missing"),
        ({"_data_files": [{"filename": "../other.arrow"}]}, "lists no files of its own folder in _data_files"),
        ({"_data_files": []}, "lists no files of its own folder in _data_files"),
        ({"_indices_data_files": [{}]}, r"stored with an index of its rows: save it after flatten_indices\(\)"),
        ([], "is not a JSON object"),
    ):
        (folder / "state.json").write_text(json.dumps(state))
        with pytest.raises(AutoshardError, match=message):
            made(folder)


class Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return exec, ("raise SystemExit('a pickle was executed')",)


def test_no_pickle_is_ever_executed(tmp_path: Path) -> None:
    # pyarrow before 14.0.1 unpickled what a file names as a Python extension type (CVE-2023-47248)
    bomb = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": pickle.dumps(Bomb())}
    inner = pa.field("inner", pa.string(), metadata=bomb)
    fields = [pa.field("text", pa.string()), pa.field("outer", pa.struct([inner]))]
    table = pa.Table.from_arrays([pa.array(["harmless"]), pa.array([{"inner": "x"}])], schema=pa.schema(fields))
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.OSFile(str(tmp_path / "b.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    for name in ("a.arrow", "a.parquet", "b.arrow"):
        with pytest.raises(AutoshardError) as error:
            made(tmp_path / name)
        assert str(error.value) == (
            f"--data {tmp_path / name} is refused: column inner has a pickled Python type, and data have nothing to run"
        )
    (tmp_path / "a.txt").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(AutoshardError, match=r"is not text in UTF-8|is binary"):
        made(tmp_path / "a.txt")


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_parquet(tmp_path / "a.parquet", ROWS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(AutoshardError) as error:
        made(file)
    assert str(error.value) == f"reading --data {file} needs pyarrow: pip install 'autoshard[data]'"


def test_documents_are_joined_by_the_tokenizers_end_of_text(tmp_path: Path) -> None:
    folder = tmp_path / "words"
    folder.mkdir()
    content = {
        "version": "1.0",
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": {"?": 0, "one": 1, "two": 2, "<end>": 3}, "unk_token": "?"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    data = write_jsonl(tmp_path / "a.jsonl", [{"text": "one two"}, {"text": "two"}])
    for end in ("<end>", {"content": "<end>", "special": True}):
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": end}))
        assert made(data, load_tokenizer(folder)).tokens().tolist() == [1, 2, 3, 2]
    (folder / "tokenizer_config.json").write_text("[]")
    with pytest.raises(AutoshardError, match=r"tokenizer_config\.json is not a JSON object"):
        load_tokenizer(folder)
