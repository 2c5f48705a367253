"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from autoshard.errors import AutoshardError
from autoshard.files.atomic_file import write_text


def test_a_file_is_replaced(tmp_path: Path) -> None:
    for text in ("one", "two"):
        write_text(tmp_path / "a.json", text, "plan")
        assert (tmp_path / "a.json").read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_what_a_killed_process_left_is_in_nobodys_way(tmp_path: Path) -> None:
    """A container gives its processes the same numbers each time."""
    (tmp_path / f".a.json.{os.getpid()}.tmp").write_text("hal")
    write_text(tmp_path / "a.json", "whole", "plan")
    assert (tmp_path / "a.json").read_text() == "whole"


@pytest.mark.parametrize("path", [None, 5, b"plan.json", [], 1.5])
def test_what_is_no_path(path: Any) -> None:
    with pytest.raises(AutoshardError) as refused:
        write_text(path, "text", "report")
    assert (
        str(refused.value) == f"report {'a list of 0' if path == [] else repr(path)} cannot be written: it is no path"
    )


def test_a_name_that_is_no_text_stands_in_a_page_by_its_bytes(tmp_path: Path) -> None:
    write_text(tmp_path / "page.html", os.fsdecode(b"pl\xffan.json"), "page")
    assert (tmp_path / "page.html").read_text() == "pl\\udcffan.json"
