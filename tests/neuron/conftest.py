"""The tests of this folder start processes in which torch finds the twin; this process itself never loads it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from tests.neuron.installed import RELEASE, install

Installed = Callable[..., AbstractContextManager[None]]


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """A context in which processes that are started have the twin, of a version, strict or lenient."""

    @contextmanager
    def context(version: str = RELEASE, strict: bool = True) -> Iterator[None]:
        paths = install(tmp_path_factory.mktemp("installed"), version)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("NEURON_TWIN_STRICT", str(int(strict)))
            patch.setattr(sys, "path", [*paths, *sys.path])
            yield

    return context
