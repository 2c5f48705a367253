"""Files of torch.save that state other sizes than they have: refused before anything in them is read, without torch."""

import pickle
import zipfile
from pathlib import Path
from struct import pack

import pytest

from autoshard.conversion import torch_read
from autoshard.conversion.torch_read import MAX_DESCRIPTION_BYTES, read_state
from autoshard.errors import AutoshardError

EMPTY = pickle.dumps({}, protocol=2)


def archive(path: Path, description: bytes, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("x/data.pkl", description)
        file.writestr("x/version", b"3\n")
        file.writestr("x/data/0", 64 * b"w")
    return path


def test_a_description_that_unpacks_to_more(tmp_path: Path) -> None:
    """A thousand times as much, and more in a larger file; unpacked, it is a pickle of nothing."""
    path = archive(tmp_path / "bomb.pt", EMPTY[:-1] + 1_000_000 * b"N0" + b".", zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 10_000
    with pytest.raises(AutoshardError) as error:
        read_state(path)
    assert str(error.value) == f"{path} is compressed, which torch.save never does"


def test_records_that_overlap(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.pt", EMPTY)
    data = path.read_bytes()
    sizes = pack("<II", 64, 64)
    at = data.rindex(sizes)  # in the directory
    path.write_bytes(data[:at] + pack("<II", 2 * 10**9, 2 * 10**9) + data[at + 8 :])
    with pytest.raises(AutoshardError) as error:
        read_state(path)
    assert str(error.value) == f"{path} has {len(data)} B, but its records state 2.00 GB"


def test_a_description_of_many_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive(tmp_path / "a.pt", EMPTY[:-1] + 10_000 * b"N0" + b".")
    monkeypatch.setattr(torch_read, "MAX_DESCRIPTION_BYTES", 10_000)
    with pytest.raises(AutoshardError) as error:
        read_state(path)
    assert str(error.value) == f"{path} describes its tensors in 20.0 KB, more than the 10.0 KB that are read"


def test_a_directory_that_is_larger_than_it_may_be(tmp_path: Path) -> None:
    """The end of an archive that says that 1 GB of directory lies before it; a file with holes has as much."""
    path = tmp_path / "a.pt"
    size = 1_000_000_000
    with path.open("wb") as file:
        file.write(b"PK\3\4")
        file.seek(size)
        file.write(b"PK\5\6" + pack("<HHHHIIH", 0, 0, 1, 1, size, 0, 0))
    with pytest.raises(AutoshardError) as error:
        read_state(path)
    assert str(error.value) == (
        f"{path} has a directory of 1.00 GB, more than the {MAX_DESCRIPTION_BYTES / 1e6:.2f} MB that are read"
    )


@pytest.mark.parametrize("content", [b"", EMPTY, b"PK\3\4", b"PK\5\6" + 17 * b"\0"])
def test_what_is_no_archive(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(content)
    with pytest.raises(AutoshardError) as error:
        read_state(path)
    assert str(error.value) == f"{path} is not a whole file of torch.save: cut off, damaged or of another kind"
