"""Checkpoints of the nxd backend: every layout reads what every other wrote, those of the torch backend too."""

from __future__ import annotations

from pathlib import Path

from tests.nxd.test_conformance import run


def test_fifteen_layouts_read_each_other(tmp_path: Path) -> None:
    for rank in run("checkpoint_workers:reshard", {"folder": str(tmp_path)}, 4):
        assert rank == {"read": 16 * 15, "wrong": []}  # and one process's
