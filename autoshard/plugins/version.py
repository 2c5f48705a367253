"""Names this very program with what plug-ins are installed."""

from __future__ import annotations

import hashlib
import re
import sys
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from autoshard.plugins.found import GROUPS, every
from autoshard.version import program_version, sources


def version_with_plugins() -> str:
    """'0.1.0+5f2c9a31', or '0.1.0+5f2c9a31.77d1e0c2' with plug-ins: what was computed under another name may differ,
    also where a plug-in was edited."""
    plugins = _plugins_digest(tuple(sys.path))
    return f"{program_version()}.{plugins}" if plugins else program_version()


@lru_cache(maxsize=32)
def _plugins_digest(places: tuple[str, ...]) -> str:
    """Eight hex digits that follow from the plug-ins and from the sources of their packages; '' without any. places:
    sys.path, so that a folder that joins it is looked at."""
    plugins = [plugin for group in GROUPS for plugin in every(group)]
    digest = hashlib.sha256(repr(plugins).encode())
    for name in sorted({re.split("[.:]", plugin.target)[0].strip() for plugin in plugins}):
        for place in _places_of(name):
            for part in sources(place) if place.is_dir() else (place.read_bytes(),):
                digest.update(part)
    return digest.hexdigest()[:8] if plugins else ""


def _places_of(name: str) -> list[Path]:
    """The file of a module, or the folders of a package, that lies in no other; none where there is no such one."""
    try:
        spec = find_spec(name)  # it imports nothing: no other package holds it
    except ValueError:  # it is in sys.modules and came from no file
        return []
    if spec is None:
        return []
    places = spec.submodule_search_locations or ([spec.origin] if spec.has_location and spec.origin else [])
    return [path for path in map(Path, places) if path.exists()]
