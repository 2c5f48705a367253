"""Audits that were made before, by plan and by the programs that made them: this one and torch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from autoshard.audits.values import RoleAudit
from autoshard.errors import AutoshardError
from autoshard.files.atomic_file import write_text
from autoshard.files.codec import read_value, to_json
from autoshard.files.json_file import read_json
from autoshard.plans.plan import Plan
from autoshard.plans.plan_json import text_digest
from autoshard.plugins.version import version_with_plugins

_MAX_BYTES = 256_000_000


def cache_file(plan: Plan, in_place: bool = False) -> Path:
    """The file in the user's cache folder (XDG_CACHE_HOME, else ~/.cache). in_place: as `audits.run.audit` takes it."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    made_by = f"{version_with_plugins()}-{_torch_version()}{'-in-place' if in_place else ''}"
    return folder / "autoshard" / "audit" / f"{text_digest(plan)[:32]}-{made_by}.json"


def _torch_version() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "none"


def load(path: Path) -> dict[int, RoleAudit]:
    """By rank. Nothing where there is no such file or it does not hold audits."""
    try:
        values = read_json(path, "audits", _MAX_BYTES)
        return {one.role.rank: one for one in read_value(tuple[RoleAudit, ...], values, "audits")}
    except AutoshardError:
        return {}


def save(path: Path, audits: Mapping[int, RoleAudit]) -> None:
    """Keeps nothing where the folder cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(to_json(list(audits.values()))), "audit")
    except (OSError, AutoshardError):
        return
