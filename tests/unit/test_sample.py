"""Files of weights told apart by samples."""

from pathlib import Path

import pytest

from autoshard.conversion.sample import are_alike, sampled
from autoshard.errors import AutoshardError


def written(folder: Path, **contents: bytes) -> list[Path]:
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in contents]


def test_a_copy_elsewhere_is_the_same(tmp_path: Path) -> None:
    contents = {"a": bytes(range(256)) * 1000, "b": b""}
    told = sampled(written(tmp_path / "one", **contents))
    assert told == sampled(written(tmp_path / "other", **dict(reversed(contents.items()))))
    assert told.startswith("2 files of 256,000 bytes, samples of SHA-256 ")
    assert sampled(written(tmp_path / "small", a=b"1")).startswith("1 file of 1 bytes, ")


@pytest.mark.parametrize("at", [0, 4_095, 120_000, 255_999])
def test_another_byte_in_a_sample(tmp_path: Path, at: int) -> None:
    # 16 samples of 4,096 bytes begin every 251,904 / 15 = 16,793 bytes: the eighth at 117,555, the ninth at 134,348
    content = bytearray(256_000)
    before = sampled(written(tmp_path / "one", a=bytes(content)))
    content[at] = 1
    assert sampled(written(tmp_path / "other", a=bytes(content))) != before


def test_another_name_or_size(tmp_path: Path) -> None:
    told = {
        sampled(written(tmp_path / str(at), **one)) for at, one in enumerate(({"a": b"1"}, {"b": b"1"}, {"a": b"1\0"}))
    }
    assert len(told) == 3


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(AutoshardError, match=r"model\.safetensors cannot be read: No such file or directory"):
        sampled([tmp_path / "model.safetensors"])


@pytest.mark.parametrize(("at", "alike"), [(0, False), (49_999, False), (5_000, True)])
def test_tensors_of_a_file(tmp_path: Path, at: int, alike: bool) -> None:
    # samples of 4,096 bytes begin every (50,000 - 4,096) / 15 = 3,060 bytes: they overlap, so byte 5,000 is in one
    content = bytearray(100_007)
    content[7 + at] = 1
    (path,) = written(tmp_path / "one", a=bytes(content))
    assert not are_alike((path, 7), (path, 50_007), 50_000)
    # those of one in 120,000 begin every 7,727 bytes: byte 5,000 is between two
    content = bytearray(240_000)
    content[at if at != 49_999 else 119_999] = 1
    (path,) = written(tmp_path / "other", a=bytes(content))
    assert are_alike((path, 0), (path, 120_000), 120_000) == alike
