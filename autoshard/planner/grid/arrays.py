"""The type of arrays that hold a number for each of many layouts."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any
"""numpy.ndarray: named so that the planner's types do not depend on numpy's stubs."""

KEPT_BYTES = (16 << 20) - (1 << 16)
"""The largest buffer that is kept. With 32 MB, the most that glibc may be told, nothing is faster and some searches
take 30 MB more."""


def keep_freed_memory() -> None:
    """Let the C library keep buffers of up to 16 MB that are freed for those to come. glibc keeps what is no larger
    than the largest one that was freed so far; fresh memory costs a page fault for every 4 KB, a tenth of a search. Of
    the buffer that is freed here only the addresses are taken, no memory."""
    np.empty(KEPT_BYTES, dtype=np.uint8)
