"""The machines that a migration goes to; apart from what plans it, so that the command line starts fast."""

from __future__ import annotations

from dataclasses import dataclass

INSTANCE = "trn2.48xlarge"


@dataclass(frozen=True)
class Target:
    """The machines that training goes on with. nodes: None: the power of two that comes nearest to the peak FLOP/s of
    those before. lnc, sdk: None: the usual."""

    instance: str = INSTANCE
    nodes: int | None = None
    lnc: int | None = None
    sdk: str | None = None
    stack: str = "auto"
