"""Pickles from outside are read as plain data; whatever would do more is refused, in one sentence, before it does."""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import subprocess
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.allocations import data_pickle
from autoshard.allocations.data_pickle import read_data
from autoshard.errors import AutoshardError

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.floats(allow_nan=False) | st.text(max_size=300),
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.tuples(inner) | st.dictionaries(st.text(max_size=5), inner)
    ),
    max_leaves=40,
)


@given(PLAIN, st.sampled_from([2, 3, 4, 5]))
def test_plain_data_is_what_pickle_reads(value: Any, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    assert read_data(data, "it") == value == pickle.loads(data)
    assert read_data(pickletools.optimize(data), "it") == value


def test_shared_values_stay_shared() -> None:
    frames = [{"name": "forward"}]
    found = read_data(pickle.dumps([frames, frames], 4), "it")
    assert found[0] is found[1]


class Runs:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


class Reads:
    def __reduce__(self) -> Any:
        return open, ("/etc/passwd",)


class Starts:
    def __reduce__(self) -> Any:
        return subprocess.Popen, (["touch", "ran"],)


class Sets:
    def __init__(self) -> None:
        self.value = 1


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "hostile", [Runs("touch ran"), Reads(), Starts(), Sets(), OrderedDict(a=1), {1, 2}, 1j, Path("x"), eval]
)
def test_what_would_look_something_up_is_refused(
    hostile: Any, protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for value in (hostile, {"segments": [hostile]}):
        with pytest.raises(AutoshardError, match=r"^it is refused: its opcode [A-Z_0-9]+ at byte \d+ makes something"):
            read_data(pickle.dumps(value, protocol), "it")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"cos\nsystem\n(S'touch ran'\ntR.",  # protocol 0
        b"(S'touch ran'\nios\nsystem\n.",  # INST
        b"\x80\x02(cos\nsystem\nX\x01\x00\x00\x00xo.",  # OBJ
        b"\x80\x04\x82\x01.",  # an extension's number
        b"\x80\x04Pevil\n.",  # a persistent id
        b"\x80\x05\x97.",  # a buffer outside
        b"\x80\x04}}b.",  # BUILD on a dict
        b"\x80\x04}\x81.",  # NEWOBJ
        b"\x80\x05\x96\x01\x00\x00\x00\x00\x00\x00\x00x.",  # bytearray
    ],
)
def test_hand_written_pickles_are_refused(data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AutoshardError, match=r"^it is refused: its opcode"):
        read_data(data, "it")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b".",
        b"\x80\x04",
        b"no pickle at all",
        b"\x80\x04N",  # no end
        b"\x80\x04NN.",  # two values
        b"\x80\x04(.",  # a mark as the value
        b"\x80\x04(\x94.",  # a mark in the memo
        b"\x80\x04e.",  # APPENDS on nothing
        b"\x80\x04}K\x01K\x01s.",  # a number as a key
        b"\x80\x04})K\x01s.",  # a tuple as a key: its hash may take for ever
        b"\x80\x04](K\x01u.",  # SETITEMS on a list
        b"\x80\x04}(K\x01e.",  # APPENDS on a dict
        b"\x80\x04h\x05.",  # nothing is in the memo there
        b"\x80\x04\x8d" + b"\xff" * 8 + b"x.",  # a text of 2^64 bytes
        b"\x80\x04X\xff\xff\xff\x7fx.",  # a text of 2 GB that is not there
        b"\x80\x04\x95" + b"\xff" * 8 + b".",  # a frame of 2^64 bytes, then no value
        b"\x80\x04X\x01\x00\x00\x00\xff.",  # no UTF-8
        b"\x80\x04\xc7.",  # no opcode
    ],
)
def test_damaged_pickles_are_one_sentence(data: bytes) -> None:
    with pytest.raises(AutoshardError, match=r"^it is no pickle, or a damaged one$"):
        read_data(data, "it")


def test_a_huge_place_in_the_memo_takes_no_memory() -> None:
    assert read_data(b"\x80\x04K\x07r\xff\xff\xff\x7f.", "it") == 7  # Python's own makes a table of 2^31 places


def test_depth_is_no_recursion() -> None:
    depth = 200_000
    found = read_data(b"\x80\x04" + b"]" * depth + b"a" * (depth - 1) + b".", "it")
    assert found != []
    doubled = b"\x80\x04)" + b"\x94h\x00\x86"  # a tuple of itself twice, and so on: 2^60 leaves, if one followed it
    data = doubled + b"".join(b"\x94h" + bytes([one]) + b"\x86" for one in range(1, 60)) + b"."
    assert type(read_data(data, "it")) is tuple


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_pickle, "MAX_BYTES", 100)
    with pytest.raises(AutoshardError, match=r"^it has 103 bytes; at most 100 are read$"):
        read_data(b"x" * 103, "it")
    monkeypatch.setattr(data_pickle, "MAX_OPCODES", 20)
    with pytest.raises(AutoshardError, match=r"^it has more than 20 opcodes$"):
        read_data(pickle.dumps([None] * 40, 4), "it")


@given(st.binary(max_size=200))
def test_any_bytes_are_data_or_one_sentence(data: bytes) -> None:
    for one in (data, b"\x80\x04" + data, pickle.dumps([{"a": 1}], 4)[:-1] + data):
        try:
            value = read_data(one, "it")
        except AutoshardError:
            continue
        assert type(value) in (dict, list, tuple, str, int, float, bool, type(None))


def test_what_is_read_is_what_python_reads_of_a_file() -> None:
    file = io.BytesIO()
    pickle.dump({"a": [1, 2.5, "x", None, True, (1, 2, 3, 4)]}, file)
    assert read_data(file.getvalue(), "it") == {"a": [1, 2.5, "x", None, True, (1, 2, 3, 4)]}
