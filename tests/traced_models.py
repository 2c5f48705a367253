"""tests/multiprocess/odd_model.py as it was traced, for tests that have no torch; test_trace.py traces it again."""

import json
from pathlib import Path

from autoshard.spec.model import ModelSpec

ODD_FILE = Path(__file__).parent / "golden" / "odd_model.json"
ODD = ModelSpec.from_dict(json.loads(ODD_FILE.read_text()))
