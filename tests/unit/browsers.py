"""The browser of this machine that tests/unit/test_browser.py uses."""

from __future__ import annotations

import shutil
from importlib.util import find_spec

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None) if find_spec("playwright") else None
"""Its path; None where there is none, or nothing to drive it."""
