"""Builds the C++ part of the twin once, and loads it."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

_NAME = "torch_neuronx_twin"
_HERE = Path(__file__).parent
_SOURCES = tuple(_HERE / name for name in ("device.cpp", "group.cpp"))


def load() -> Any:
    """The extension of these sources for this Python and torch: from the user's cache, or built, about 20 s."""
    library = _folder() / f"{_NAME}.so"
    if not library.exists():
        _build(library)
    loader = importlib.machinery.ExtensionFileLoader(_NAME, str(library))
    spec = importlib.util.spec_from_file_location(_NAME, library, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _folder() -> Path:
    content = hashlib.sha256(b"".join(path.read_bytes() for path in (*_SOURCES, _HERE / "twin.h"))).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (
        cache / "autoshard" / f"neuron-twin-{sys.version_info[0]}.{sys.version_info[1]}-{torch.__version__}-{content}"
    )


def _build(library: Path) -> None:
    """Builds in another process, which loads it too, and in a folder of its own: nobody loads what is half written."""
    folder = library.parent.with_name(f"{library.parent.name}.{os.getpid()}")
    folder.mkdir(parents=True)
    build = (
        "import sys; from torch.utils.cpp_extension import load; "
        "load(sys.argv[1], sys.argv[3:], extra_cflags=['-O1'], build_directory=sys.argv[2])"
    )
    command = [sys.executable, "-W", "ignore", "-c", build, _NAME, str(folder), *map(str, _SOURCES)]
    try:
        ran = subprocess.run(
            command,
            env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode:
            raise RuntimeError(f"the twin does not build:\n{ran.stdout}{ran.stderr}")
        library.parent.mkdir(exist_ok=True)
        (folder / library.name).replace(library)
    finally:
        shutil.rmtree(folder)
