"""tests/multiprocess/odd_model.py as it was traced, for tests that have no torch; test_trace.py traces it again."""

import json
from pathlib import Path

from autoshard.files.codec import from_json
from autoshard.spec.model import ModelSpec

ODD_FILE = Path(__file__).parent / "golden" / "odd_model.json"
ODD = from_json(ModelSpec, json.loads(ODD_FILE.read_text()), "model")
