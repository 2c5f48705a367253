"""Everything here runs the real neuronx-distributed on CPU processes; without it, it is skipped with the reason."""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
VARIABLES = {"NXD_CPU_MODE": "1", "PJRT_DEVICE": "CPU", "HOST_WORLD_SIZE": "1", "NXD_LOG_LEVEL": "error"}


EXAMPLE = Path("examples") / "training" / "llama" / "modeling_llama_nxd.py"


@pytest.fixture
def example_file() -> Path:
    """NxD's own Llama, beside the sources of neuronx_distributed where these are a checkout."""
    spec = find_spec("neuronx_distributed")
    assert spec is not None and spec.origin is not None
    file = Path(spec.origin).parents[2] / EXAMPLE
    if not file.exists():
        pytest.skip(f"neuronx_distributed is not a checkout with {EXAMPLE}")
    return file


def _missing() -> str:
    """Why neuronx_distributed cannot be used, "" if it can."""
    if find_spec("neuronx_distributed") is None:
        return "neuronx_distributed is not on PYTHONPATH"
    os.environ.update(VARIABLES)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import_module("neuronx_distributed")
    except ImportError as error:
        return f"neuronx_distributed does not import: {error}"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mine = [item for item in items if item.path.parent == FOLDER]
    reason = _missing() if mine else ""
    for item in mine:
        item.add_marker(pytest.mark.filterwarnings("ignore"))  # the library's own, by the dozen
        if reason:
            item.add_marker(pytest.mark.skip(reason=f"{reason}; tests/nxd/README.md says how to run this"))
