"""The twin as an installed package: what pip would have written beside it, so that torch loads it by itself."""

from __future__ import annotations

from pathlib import Path

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
