"""NxD's own Llama example, given the backend's weights, has the backend's losses and gradient norms."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nxd.test_conformance import run


@pytest.mark.parametrize("processes", [1, 2])
def test_the_example_trains_alike(processes: int, example_file: Path) -> None:
    for rank in run("llama_example", {"file": str(example_file)}, processes):
        for example, ours in zip(rank["example"], rank["ours"], strict=True):
            assert example == pytest.approx(ours, rel=1e-5)
