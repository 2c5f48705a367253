"""Checkpoints of the nxd backend: every layout reads what every other wrote, those of the torch backend too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nxd.cases import RESHARDED
from tests.nxd.test_conformance import run


@pytest.mark.parametrize("model", RESHARDED)
def test_layouts_read_each_other(model: str, tmp_path: Path) -> None:
    layouts = len(RESHARDED[model])
    for rank in run("checkpoint_workers:reshard", {"folder": str(tmp_path), "model": model}, 4):
        assert rank == {"read": (layouts + 1) * layouts, "wrong": []}  # and one process's
