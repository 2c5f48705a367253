"""Tell how a place for checkpoints is written down: a path, or s3://bucket/prefix. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path

from autoshard.errors import AutoshardError
from autoshard.files.urls import is_url

S3 = "s3://"


def is_remote(location: str | Path, name: str = "checkpoint_dir") -> bool:
    """Whether the place is in S3. Raises AutoshardError for a URL of another kind. name: of the option, in the
    error."""
    if str(location).startswith(S3):
        return True
    if is_url(location):
        raise AutoshardError(f"{name}={location} is no place for checkpoints: name a folder or s3://BUCKET/PREFIX")
    return False
