"""What NxD is told for the six published layouts, word for word. REGENERATE=1 writes the file anew."""

from __future__ import annotations

import json
import os
from pathlib import Path

from autoshard.runtime.nxd_backend.configuration import nxd_configuration
from tests.unit.published_plans import published_plans

GOLDEN = Path(__file__).parent / "nxd_configurations.json"


def test_the_published_layouts() -> None:
    ours = {name: nxd_configuration(plan) for name, plan in published_plans().items()}
    if os.environ.get("REGENERATE"):
        GOLDEN.write_text(json.dumps(ours, indent=1) + "\n")
    assert ours == json.loads(GOLDEN.read_text(encoding="utf-8"))
