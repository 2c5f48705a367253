"""The wheel, built from the sdist and installed where only its declared dependencies are, works from another folder."""

import json
import os
import shutil
import stat
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).parents[2]
PACKAGED = (".py", ".pyi", ".json", ".yaml", ".typed", ".css", ".js")


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel, built from a copy, so that nothing is left behind in the working tree and
    nothing stale gets in."""
    source, output = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in ("autoshard", "models", "recipes"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / name, source / name, symlinks=True, ignore=ignore)
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(REPOSITORY / name, source / name)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", output, source, cwd=output)
    return output


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    """The wheel, which `build` made from the sdist."""
    (built,) = distributions.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and, linked from this one, what its metadata asks for; nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    python, site_packages = empty_environment(folder)
    run(sys.executable, "-m", "pip", "--python", python, "install", "-qq", "--no-deps", "--no-index", wheel, cwd=folder)
    (installed,) = metadata.distributions(name="autoshard", path=[str(site_packages)])
    link(dependencies(installed), site_packages)
    return folder


def empty_environment(folder: Path) -> tuple[Path, Path]:
    """(the interpreter, the folder of packages) of a new virtual environment without any."""
    venv.create(folder, symlinks=True, with_pip=False)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    return folder / "bin" / "python", site_packages


def link(wanted: list[metadata.Distribution], site_packages: Path) -> None:
    """Makes these distributions of this environment seen in another."""
    for distribution in wanted:
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            (site_packages / top).symlink_to(str(distribution.locate_file(top)))


def dependencies(root: metadata.Distribution) -> list[metadata.Distribution]:
    """What pip would install with it: requirements of requirements, with the extras that each asks for."""
    found: dict[str, metadata.Distribution] = {}
    seen: set[tuple[str, str]] = set()
    wanted = [(root, "")]
    while wanted:
        distribution, extra = wanted.pop()
        for requirement in map(Requirement, distribution.requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                required = metadata.distribution(requirement.name)
                found[required.name] = required
                new = {(required.name, extra) for extra in {"", *requirement.extras}} - seen
                seen |= new
                wanted += [(required, extra) for _, extra in new]
    return list(found.values())


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | variables
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=clean, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_wheel_holds_every_source_and_data_file_as_a_real_file(wheel: Path) -> None:
    expected = {
        str(path.relative_to(REPOSITORY))
        for folder in ("autoshard", "autoshard/models", "autoshard/recipes")
        for path in (REPOSITORY / folder).rglob("*")
        if path.suffix in PACKAGED or path.name == "py.typed"
    }
    with zipfile.ZipFile(wheel) as archive:
        entries = [entry for entry in archive.infolist() if not entry.filename.startswith("autoshard-")]
    assert sorted(entry.filename for entry in entries) == sorted(expected)  # a folder of modules needs an __init__.py
    assert not [entry.filename for entry in entries if stat.S_ISLNK(entry.external_attr >> 16)]
    assert {"autoshard/models/llama/configs/llama3-70b.json", "autoshard/hardware/trn1.32xlarge.json"} <= expected


PROGRAM = """
import json, sys
from importlib.resources import files

import yaml

import autoshard
from autoshard.models import builtin_models, load_model
from autoshard.spec.cluster import load_cluster

recipes = files("autoshard.recipes")
recipe = yaml.safe_load((recipes / "llama3_70b_trn1_16nodes.yaml").read_text())
print(json.dumps({
    "at": autoshard.__file__,
    "config": json.loads((files("autoshard.models") / "llama/configs/llama3-70b.json").read_text())["hidden_size"],
    "models": len(builtin_models()),
    "hidden_size": load_model(recipe["model"]).hidden_size,
    "world_size": load_cluster(recipe["instance"], recipe["nodes"], recipe["lnc"]).world_size,
    "sweep": (recipes / "sweeps" / "llama3_70b_nodes.yaml").is_file(),
    "torch": "torch" in sys.modules,
}))
"""


def test_models_hardware_and_recipes_are_read_from_another_folder(environment: Path, tmp_path: Path) -> None:
    found = json.loads(run(environment / "bin" / "python", "-W", "error", "-c", PROGRAM, cwd=tmp_path))
    assert Path(found.pop("at")).is_relative_to(environment)
    assert found == {
        "config": 8192,
        "models": len(list((REPOSITORY / "models").glob("*/configs/*.json"))),
        "hidden_size": 8192,
        "world_size": 512,
        "sweep": True,
        "torch": False,
    }
    assert (environment / "bin" / "autoshard").is_file()


def test_wheel_and_sdist_install_without_a_compiler(distributions: Path, wheel: Path, tmp_path: Path) -> None:
    """The wheel is for any machine; the sdist becomes one where every compiler fails."""
    assert wheel.name.endswith("-py3-none-any.whl")
    (sdist,) = distributions.glob("*.tar.gz")
    python, site_packages = empty_environment(tmp_path / "environment")
    link([metadata.distribution("setuptools")], site_packages)
    options = ("-qq", "--no-deps", "--no-index", "--no-build-isolation", sdist)
    pip = (sys.executable, "-m", "pip", "--python", python, "install")
    run(*pip, *options, cwd=tmp_path, CC="false", CXX="false")
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if name.startswith("autoshard/")}
    installed = {str(path.relative_to(site_packages)) for path in (site_packages / "autoshard").rglob("*")}
    assert files <= installed
