"""NxD's own Llama example, given the backend's weights, has the backend's losses and gradient norms."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.nxd.test_conformance import run

EXAMPLE = Path("examples") / "training" / "llama" / "modeling_llama_nxd.py"


def example_file() -> Path | None:
    """Beside the sources of neuronx_distributed, where these are a checkout."""
    spec = find_spec("neuronx_distributed")
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parents[2] / EXAMPLE
    return file if file.exists() else None


@pytest.mark.parametrize("processes", [1, 2])
def test_the_example_trains_alike(processes: int) -> None:
    file = example_file()
    if file is None:
        pytest.skip(f"neuronx_distributed is not a checkout with {EXAMPLE}")
    for rank in run("llama_example", {"file": str(file)}, processes):
        for example, ours in zip(rank["example"], rank["ours"], strict=True):
            assert example == pytest.approx(ours, rel=1e-5)
