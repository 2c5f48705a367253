"""How many of many similar cases are tried by default. AUTOSHARD_CASES=all tries all."""

import os
from collections.abc import Sequence
from typing import TypeVar

ALL = os.environ.get("AUTOSHARD_CASES") == "all"
Case = TypeVar("Case")


def tried(cases: Sequence[Case], most: int) -> list[Case]:
    """So many of the cases, evenly spread, the first among them; all if they are fewer, or where all are asked for."""
    if ALL or len(cases) <= most:
        return list(cases)
    return [cases[place * len(cases) // most] for place in range(most)]
