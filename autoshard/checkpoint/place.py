"""Tell how a place for checkpoints is written down: a path, or s3://bucket/prefix. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path

S3 = "s3://"


def is_remote(location: str | Path) -> bool:
    return str(location).startswith(S3)
