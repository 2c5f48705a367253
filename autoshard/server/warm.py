"""Plans once when it is imported: what planning reads and imports is then there in each process that is forked."""

from __future__ import annotations

from contextlib import suppress

from autoshard.server.form import FIRST_MODEL
from autoshard.server.work import work

FIRST_QUESTION = {"values": {"model": FIRST_MODEL}, "plan": "", "why": ""}

with suppress(Exception):  # what is wrong is said to whoever asks
    work({"do": "answer", "states": [FIRST_QUESTION], "uploads": {}}, lambda so_far: None)
