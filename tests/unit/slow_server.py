"""`autoshard serve` with searches that take seconds: python -m tests.unit.slow_server, for test_browser.py."""

from __future__ import annotations

import sys

from autoshard.cli import main
from autoshard.server import desk
from tests.unit.server_jobs import answer_slowly

if __name__ == "__main__":
    desk.__dict__["work"] = answer_slowly
    sys.exit(main(["serve", "--port", "0"]))
