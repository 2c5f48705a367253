"""Uploaded configs and plans: bytes under the digest of their content, forgotten when there are too many."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from autoshard.errors import AutoshardError

MOST_BYTES, MOST_IN_ALL = 4_000_000, 64_000_000


def name_of(content: bytes) -> str:
    """The name that a content has in addresses."""
    return f"upload:{hashlib.sha256(content).hexdigest()[:32]}"


class Uploads:
    """Mutable: the uploads, those that were used longest ago first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, bytes] = OrderedDict()

    def add(self, content: bytes) -> str:
        """The name of the content from now on. Raises AutoshardError for more than MOST_BYTES."""
        if len(content) > MOST_BYTES:
            raise AutoshardError(f"an upload may have at most {MOST_BYTES:,} bytes")
        name = name_of(content)
        self._kept[name] = content
        self._kept.move_to_end(name)
        while sum(map(len, self._kept.values())) > MOST_IN_ALL:
            self._kept.popitem(last=False)
        return name

    def get(self, name: str) -> bytes:
        """The content. Raises AutoshardError where it is not known (any more)."""
        if name not in self._kept:
            raise AutoshardError(f"{name} is not known here, or not any more: upload the file again")
        self._kept.move_to_end(name)
        return self._kept[name]
