"""Files of YAML and TOML that a user names: bounded in size, depth and in what aliases repeat, one line an error."""

import os
from pathlib import Path

import pytest

from autoshard.cli import main
from autoshard.errors import AutoshardError
from autoshard.files.text_file import read_text
from autoshard.files.toml_file import parse_toml
from autoshard.files.yaml_file import parse_yaml, read_yaml


def aliases(levels: int) -> str:
    """Each list repeats the one before it nine times: 9^levels values."""
    lists = [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, levels)]
    return "\n".join(["a0: &a0 [x, x, x, x, x, x, x, x, x]", *lists, f"model: *a{levels - 1}"])


def merges(levels: int) -> str:
    """As aliases, of the pairs that each object takes over."""
    objects = [f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 9)}]}}" for level in range(1, levels)]
    return "\n".join(["a0: &a0 {x: y}", *objects])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\n---\nb: 2\n", "FILE, line 2, column 1: a second document begins; a file of one is read"),
        ("a: [", "FILE, line 1, column 5: not YAML: expected the node content, but found '<stream end>'"),
        ("a: !!python/object:os.system x", "FILE, line 1, column 4: not YAML: could not determine a constructor"),
        ("- [1]\n- 2001-99-99", "FILE: not YAML: it cannot be parsed"),
        (101 * "[" + 101 * "]", "FILE, line 1, column 101: nested deeper than 100 levels"),
        (101 * "- ", "FILE, line 1, column 201: nested deeper than 100 levels"),
        (5_000 * "{a: ", "FILE, line 1, column 401: nested deeper than 100 levels"),
        ("a: &a [1, *a]", "FILE, line 1, column 11: *a is inside of what it repeats"),
        ("a: &a\n  b: {<<: *a}", "FILE, line 2, column 11: *a is inside of what it repeats"),
        ("tp: 8\npp: 4\ntp: 2", "FILE, line 3, column 1: 'tp' is given twice in one object; keep one"),
        ("a: [{b: 1, b: 2}]", "FILE, line 1, column 12: 'b' is given twice in one object; keep one"),
        ("1: a\n0x1: b", "FILE, line 2, column 1: 1 is given twice in one object; keep one"),
        ("a: &a {b: 1}\nc: {b: 2, <<: *a, b: 3}", "FILE, line 2, column 19: 'b' is given twice in one object; "),
        ("? [1]\n: a", "FILE, line 1, column 3: not YAML: found unhashable key"),
        ("? !!set {}\n: a", "FILE, line 1, column 3: not YAML: found unhashable key"),
        ("a: *b", "FILE, line 1, column 4: not YAML: found undefined alias 'b'"),
        ("a: " + 301 * "9", "FILE, line 1, column 4: a number of 301 characters; 300 are read"),
        ("a: 1" + 200 * ":00", "FILE, line 1, column 4: a number of 601 characters; 300 are read"),
        (
            aliases(12),
            "FILE, line 6, column 40: aliases repeat more than 1,000,000 values and characters; write out what is ",
        ),
        (merges(12), "FILE, line 7, column 20: aliases repeat more than 1,000,000 values and characters; "),
        (
            f"a: &a {9_999 * 'x'}\nb: [{101 * '*a, '}]",  # 2 + 10,000 + 2, and 99 times 10,000
            "FILE, line 2, column 397: aliases repeat more than 1,000,000 values and characters; write out what is ",
        ),
    ],
)
def test_yaml_that_is_refused(text: str, message: str) -> None:
    with pytest.raises(AutoshardError) as error:
        parse_yaml(text, "FILE")
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_yaml_that_is_read() -> None:
    text = "base: &base {tp: 8, pp: 4}\nruns: [*base, {<<: *base, pp: 2}]\nlist: " + 99 * "[" + "1" + 99 * "]"
    values = parse_yaml(text, "FILE")
    assert isinstance(values, dict)
    assert values["runs"] == [{"tp": 8, "pp": 4}, {"tp": 8, "pp": 2}]
    assert parse_yaml("", "FILE") is None
    text = "a: &a {x: 1, y: 1}\nb: &b {<<: *a, y: 2}\nc: {<<: [*b, *a], y: 3, =: 4}\nd: {<<: *b, '1': 5, 1: 6}"
    assert parse_yaml(text, "FILE") == {
        "a": {"x": 1, "y": 1},
        "b": {"x": 1, "y": 2},
        "c": {"x": 1, "y": 3, "=": 4},
        "d": {"x": 1, "y": 2, "1": 5, 1: 6},
    }
    many = 99 * "*a, "
    assert parse_yaml(f"a: &a {9_900 * 'x'}\nb: [{many}]", "FILE")  # 980,199 values and characters


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = ", "FILE: not TOML: Invalid value (at end of document)"),
        ("a = " + 5_000 * "[", "FILE: nested deeper than 100 levels"),
        ("a = " + 101 * "[" + 101 * "]", "FILE: nested deeper than 100 levels"),
        ("[" + 100 * "a." + "a]", "FILE: nested deeper than 100 levels"),
        ("x = 1\n" + 300_000 * "a ." + "a = 1", "FILE: nested deeper than 100 levels"),
        (100_000 * """'a b'."a\\\" b" . """ + "a = 1", "FILE: nested deeper than 100 levels"),
        (500_001 * '"', "FILE: not TOML: Expected '=' after a key in a key/value pair (at line 1, column 3)"),
        (500_000 * '\\"', "FILE: not TOML: Invalid statement (at line 1, column 1)"),
        ("a = {" + 100 * "'a'." + "b = 1}", "FILE: nested deeper than 100 levels"),
    ],
)
def test_toml_that_is_refused(text: str, message: str) -> None:
    with pytest.raises(AutoshardError) as error:
        parse_toml(text, "FILE")
    assert str(error.value) == message


def test_toml_that_is_read() -> None:
    key = ".".join(100 * "a")
    assert parse_toml(f"{key} = 1\nb = '{'x' * 1000}'", "FILE")["b"] == 1000 * "x"
    names = [f"layers.{layer}" for layer in range(126)]
    assert parse_toml(f"[parallelism]\nparts = [{names}]", "FILE") == {"parallelism": {"parts": [names]}}


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    for path, message in (
        (pipe, "is not a regular file"),
        (Path("/dev/zero"), "is not a regular file"),
        (tmp_path, "is a directory; name the YAML file in it"),
        (Path("/dev/null"), "is not a regular file"),
        (tmp_path / "missing", "does not exist"),
    ):
        with pytest.raises(AutoshardError) as error:
            read_yaml(path, "sweep", 1000)
        assert str(error.value) == f"sweep {path} {message}"


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text(1000 * "x")
    assert read_text(file, "FILE", 1000) == 1000 * "x"
    with pytest.raises(AutoshardError) as error:
        read_text(file, "FILE", 999)
    assert str(error.value) == "FILE has 1.00 KB, more than the 999 B that are read; is it the right file?"


@pytest.mark.parametrize("command", ["plan --config", "sweep", "score", "import"])
def test_aliases_that_repeat_each_other(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bomb.yaml"
    file.write_text(aliases(12))
    assert main([*command.split(), str(file)]) == 2
    error = capsys.readouterr().err
    assert f"{file}, line 6, column 40: aliases repeat more than 1,000,000 values and characters" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", ["score", "import"])
def test_a_layout_that_never_ends(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe that nobody writes to would be waited for; /dev/zero would fill the memory."""
    for path in ("/dev/zero", tmp_path / "pipe"):
        if path != "/dev/zero":
            os.mkfifo(path)
        assert main([command, str(path)]) == 2
        assert capsys.readouterr().err == f"autoshard: error: layout {path} is not a regular file\n"


def test_a_deep_layout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "deep.toml"
    file.write_text("a = " + 50_000 * "[")
    assert main(["import", str(file)]) == 2
    assert capsys.readouterr().err == f"autoshard: error: {file}: nested deeper than 100 levels\n"
