"""Reads training data: files to tokens to batches, which are the same in every layout."""

from autoshard.runtime.data.prepare import DataSource, prepare
from autoshard.runtime.data.stream import NOT_LEARNED, DataPosition, TokenStream, held_out, open_stream
from autoshard.runtime.data.token_file import TokenFile, read_token_file

__all__ = [
    "NOT_LEARNED",
    "DataPosition",
    "DataSource",
    "TokenFile",
    "TokenStream",
    "held_out",
    "open_stream",
    "prepare",
    "read_token_file",
]
