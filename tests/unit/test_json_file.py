"""Files of JSON that a user names: every way to be broken is one line with its place."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoshard.errors import AutoshardError
from autoshard.files.json_file import read_json
from autoshard.models.huggingface import read_config
from tests.unit.test_huggingface import value_or_error


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "FILE is empty"),
        (b"  \n", "FILE is empty"),
        (b'{"a": 1', "FILE, line 1, column 8: the JSON ends too early; the file was cut off"),
        (b'{\n  "a": "b', "FILE, line 2, column 8: the JSON ends too early; the file was cut off"),
        (b'{"a": 1}}', "FILE, line 1, column 9: not JSON: extra data"),
        (b"{'a': 1}", "FILE, line 1, column 2: not JSON: expecting property name enclosed in double quotes"),
        (b'{"a": 1,\n "b": NaN}', "FILE, line 2, column 7: NaN is not a finite number of a usable size"),
        (b"[-Infinity]", "FILE, line 1, column 2: -Infinity is not a finite number of a usable size"),
        (b"[1, 1e999]", "FILE, line 1, column 5: 1e999 is not a finite number of a usable size"),
        (b"[" + 5000 * b"9" + b"]", f"FILE, line 1, column 2: {60 * '9'}... is not a finite number of a usable size"),
        (b'{"a": {"b": 1, "b": 2}}', "FILE, line 1, column 16: 'b' is given twice in one object; keep one"),
        (
            b'{"x": ["x"], "a": "x",\n"\\u0061": 1}',
            "FILE, line 2, column 1: 'a' is given twice in one object; keep one",
        ),
        (
            b'{"a": "\\ud83d\\ude00 \\\\ud83d", "b":\n "x\\uD83Dx"}',
            "FILE, line 2, column 2: \\ud83d is half of a character, a lone surrogate; write both halves, or \\ufffd",
        ),
        (
            b'{"\\udc00": 1}',
            "FILE, line 1, column 2: \\udc00 is half of a character, a lone surrogate; write both halves, or \\ufffd",
        ),
        (101 * b"[" + 101 * b"]", "FILE, line 1, column 101: nested deeper than 100 levels"),
        (100_000 * b'{"a":', "FILE, line 1, column 501: nested deeper than 100 levels"),
        (b'{"a": "\xff"}', "FILE, line 1: byte 0xff is not UTF-8; save it as UTF-8"),
        (b"[\n" + 1100 * b" " + b"]", "FILE has 1.10 KB, more than the 1.00 KB that are read; is it the right file?"),
    ],
)
def test_a_broken_file_is_told_with_its_place(tmp_path: Path, content: bytes, text: str) -> None:
    file = tmp_path / "file.json"
    file.write_bytes(content)
    limit = 1_000 if len(content) < 2_000 else 1_000_000
    with pytest.raises(AutoshardError) as raised:
        read_json(file, "config", limit)
    assert str(raised.value) == text.replace("FILE", f"config {file}")


def test_a_file_of_200_mb_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    with file.open("wb") as stream:
        stream.truncate(200_000_000)
    with pytest.raises(AutoshardError) as raised:
        read_config(file)
    expected = f"model config {file} has 200 MB, more than the 1.00 MB that are read; is it the right file?"
    assert str(raised.value) == expected


def test_what_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(AutoshardError) as raised:
        read_config(tmp_path / "none.json")
    assert str(raised.value) == f"model config {tmp_path}/none.json does not exist"
    with pytest.raises(AutoshardError) as raised:
        read_json(tmp_path, "plan", 1_000)
    assert str(raised.value) == f"plan {tmp_path} is a directory; name the JSON file in it"
    with pytest.raises(AutoshardError) as raised:
        read_json("/dev/zero", "plan", 1_000)
    assert str(raised.value) == "plan /dev/zero is not a regular file"
    with pytest.raises(AutoshardError, match=r"^plan 'a.x00' cannot be read: .*embedded null"):
        read_json("a\0", "plan", 1_000)
    with pytest.raises(AutoshardError, match=r"cannot be read: File name too long$"):
        read_json(5_000 * "a", "plan", 1_000)


def test_json_at_the_limits_is_read(tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    file.write_bytes(b"\xef\xbb\xbf" + 100 * b"[" + 100 * b"]")  # a byte order mark, and as deep as is allowed
    value = read_json(file, "plan", 1_000)
    for _ in range(99):
        assert isinstance(value, list)
        value = value[0]
    assert value == []
    file.write_text('{"a": [1e308, -0.5, true, null, "[{\\"a\\": NaN"], "b": {"a": {}}}')
    assert read_json(file, "plan", 1_000) == {"a": [1e308, -0.5, True, None, '[{"a": NaN'], "b": {"a": {}}}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200) | st.text(alphabet='{}[]":,\\ntrue1-.eNaN\n', max_size=60).map(str.encode))
def test_any_bytes_are_a_value_or_one_line(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "any.json"
    file.write_bytes(data)
    value, error = value_or_error(lambda: read_json(file, "plan", 1_000))
    if error is None:
        assert json.loads(data) == value
    else:
        assert error.startswith(f"plan {file}")
        assert error.isprintable()
