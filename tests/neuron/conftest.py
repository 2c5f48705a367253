"""The tests of this folder start processes in which torch finds the twin; this process itself never loads it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.neuron.installed import RELEASE, build, present

Installed = Callable[..., AbstractContextManager[None]]


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """A context in which processes that are started have the twin, of a version, strict or lenient."""
    build(tmp_path_factory.mktemp("built"))

    def context(version: str = RELEASE, strict: bool = True) -> AbstractContextManager[None]:
        return present(tmp_path_factory.mktemp("installed"), version, strict)

    return context
