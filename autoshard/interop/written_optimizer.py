"""The optimizer that a file names: Muon as an option of `autoshard plan`, and sentences on one that works otherwise.

Which matrices Muon updates each framework says a little differently; all leave embeddings and the head to AdamW.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autoshard.files.fields import show
from autoshard.graph.orthogonal import NEWTON_SCHULZ_STEPS
from autoshard.spec.training import MUON

MUONS = (MUON, "dist_muon", "distmuon")
"""What frameworks call Muon, in lower case."""
IN_PARTS = "{said}: each rank of tp={tp} orthogonalises its own parts of matrices there; {priced}"
ON_EACH = "{said}: each {ranks} orthogonalises all matrices there; {priced}"
TOGETHER = "{said}: ranks of tp={tp} orthogonalise each matrix together there, with a sum in each iteration; {priced}"
ON_ONE = "priced with each matrix whole on one rank"
"""Warnings on Muon whose matrices are elsewhere, and the end of each."""


def is_muon(name: object) -> bool:
    """Whether a file's name of its optimizer is one of Muon."""
    return str(name).lower() in MUONS


def optimizer_option(name: object) -> dict[str, Any]:
    """The option of `autoshard plan` for an optimizer that is Muon; nothing for another one."""
    return {"optimizer": MUON} if is_muon(name) else {}


def steps_warning(said: str, steps: object) -> Iterator[str]:
    """A sentence on other Newton-Schulz steps than are priced. said: the field, with its value. steps: that value, None
    where the file is silent."""
    if steps is not None and str(steps) != str(NEWTON_SCHULZ_STEPS):
        yield f"{said}: Muon is priced with {NEWTON_SCHULZ_STEPS} Newton-Schulz steps"


def named(key: str, name: object) -> str:
    """The field of an optimizer with its value, as sentences have it."""
    return f"{key}={show(name)}"
