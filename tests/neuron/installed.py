"""The twin as an installed package: what pip would have written beside it, so that torch loads it by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

TWIN = Path(__file__).parent / "twin"
RELEASE, BETA = "2.13.3.0.1", "2.12.3.0.1"
_METADATA = "Metadata-Version: 2.1\nName: torch-neuronx\nVersion: {version}\n"
_ENTRY_POINTS = """[torch.backends]
torch_neuronx = torch_neuronx:_autoload

[torch_dynamo_backends]
neuron = torch_neuronx.neuron_dynamo_backend:backend
"""


def install(folder: Path, version: str = RELEASE) -> tuple[str, str]:
    """Writes the metadata of a version into a folder; returns what belongs into the import path."""
    about = folder / f"torch_neuronx-{version}.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text(_METADATA.format(version=version))
    (about / "entry_points.txt").write_text(_ENTRY_POINTS)
    return str(folder), str(TWIN)


def build(folder: Path) -> None:
    """Compiles the twin where this machine has not yet. folder: for the metadata."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(install(folder))}
    subprocess.run([sys.executable, "-c", "import torch"], env=environment, check=True)


@contextmanager
def present(folder: Path, version: str = RELEASE, strict: bool = True) -> Iterator[None]:
    """Processes that are started here have the twin, of a version, strict or lenient. folder: for the metadata."""
    paths = install(folder, version)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEURON_TWIN_STRICT", str(int(strict)))
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        patch.setenv("XDG_CACHE_HOME", os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"))
        patch.setattr(sys, "path", [*paths, *sys.path])
        yield
