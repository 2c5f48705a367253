"""Marks tests/multiprocess, so that `-m "not multiprocess"` leaves out what starts several torch processes. Two workers
of pytest share two cores: threads of their own would only wait for each other."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests.cases import ALL

# Read when numpy and torch are imported, which is later; processes that tests start have it too.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A slow moment of a shared machine is not a failure.
settings.register_profile("autoshard", deadline=None, max_examples=100 if ALL else 25)
settings.load_profile("autoshard")

MULTIPROCESS = Path(__file__).parent / "multiprocess"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if MULTIPROCESS in item.path.parents:
            item.add_marker(pytest.mark.multiprocess)


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are as wide as in a pipe, wherever the tests run."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory of the test, so that files have short names in errors."""
    monkeypatch.chdir(tmp_path)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says in one line which tests had no browser."""
    without = [one for one in terminalreporter.stats.get("skipped", ()) if "test_browser.py" in one.nodeid]
    if without:
        terminalreporter.write_line(f"no Chromium here: {len(without)} tests of tests/unit/test_browser.py did not run")
