"""The tests of this folder start processes in which torch finds the twin; this process itself never loads it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.neuron.installed import RELEASE, install

Installed = Callable[..., AbstractContextManager[None]]


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """A context in which processes that are started have the twin, of a version, strict or lenient."""
    paths = install(tmp_path_factory.mktemp("built"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    subprocess.run([sys.executable, "-c", "import torch"], env=environment, check=True)  # builds it, the first time

    @contextmanager
    def context(version: str = RELEASE, strict: bool = True) -> Iterator[None]:
        paths = install(tmp_path_factory.mktemp("installed"), version)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("NEURON_TWIN_STRICT", str(int(strict)))
            patch.setenv("PYTHONPATH", os.pathsep.join(paths))
            patch.setenv("XDG_CACHE_HOME", os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"))
            patch.setattr(sys, "path", [*paths, *sys.path])
            yield

    return context
