"""The documentation works: each command and code block is executed, or at least parsed, and the site builds."""

from __future__ import annotations

import doctest
import importlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

import autoshard
from autoshard.cli import COMMANDS, build_parser, command_module, main
from autoshard.commands.parser import Parser
from autoshard.spec.hardware_file import packaged_instances
from docs import draw

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PARSED = "<!-- parsed only: "
"""Before a block that is too heavy for a test or needs what a test has not; the rest of the line says why."""
BLOCK = re.compile(r"(?P<before>[^\n]*)\n(?P<fence>```+)(?P<info>[^\n]*)\n(?P<text>.*?)\n(?P=fence)", re.DOTALL)
LANGUAGES = {"console", "python", "yaml", "text"}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page. executed: whether it is more than parsed."""

    language: str
    title: str | None
    text: str
    executed: bool

    @property
    def commands(self) -> list[list[str]]:
        """The words after `autoshard` of its commands, without what a shell does after them."""
        lines = [line[2:].partition(" || ")[0] for line in self.text.splitlines() if line.startswith("$ ")]
        return [shlex.split(line)[1:] for line in lines]

    @property
    def shown(self) -> str:
        """What stands below its only command: what that prints. '' where nothing does."""
        return self.text.partition("\n")[2] if len(self.commands) == 1 else ""


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    found = []
    for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
        language, _, rest = match["info"].partition(" ")
        title = re.search(r'title="([^"]+)"', rest)
        assert language in LANGUAGES, f"{page.name}: a block is of {language or 'no language'}"
        found.append(Block(language, title and title[1], match["text"], not match["before"].startswith(PARSED)))
    return found


def shell_lines(text: str) -> list[str]:
    """The indented lines of a text that are commands of autoshard; a backslash joins lines."""
    whole = re.sub(r"\\\n\s*", "", text)
    return re.findall(r"^ {2,4}(autoshard [a-z][^\n]*)$", whole, flags=re.MULTILINE)


def parse(words: list[str]) -> None:
    """Parses a command as the command line would. Raises AutoshardError where it would not be taken."""
    build_parser(words[0]).parse_args(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_a_page_works(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, in an empty folder: commands through `main`, Python in one namespace, YAML as the file in its title.
    Where a page shows what a command prints, it prints that, to the letter."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    names: dict[str, Any] = {}
    for block in blocks(page):
        if block.language == "yaml":
            assert yaml.safe_load(block.text)
            if block.title is not None:
                (tmp_path / block.title).write_text(block.text)
        elif block.language == "python":
            code = compile(block.text, page.name, "exec")
            if block.executed:
                exec(code, names)
        for words in block.commands if block.language == "console" else []:
            parse(words)
            if block.executed:
                code_of_doctor = words[0] == "doctor"  # it says what this machine lacks
                with redirect_stdout(io.StringIO()) as said, redirect_stderr(said):
                    ended = main(words)
                assert ended == 0 or code_of_doctor, words
                assert block.shown in ("", said.getvalue().rstrip("\n")), words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_is_parsed(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = shell_lines(page.read_text(encoding="utf-8"))
    for block in blocks(page):
        found += [shlex.join(["autoshard", *words]) for words in block.commands if block.language == "console"]
    for line in found:
        parse(shlex.split(line)[1:])
    assert found or page.name not in ("README.md", "tutorial.md")


ONE_FILE_A_COMMAND = "commands"
"""A folder whose README explains its files by what they are named after."""


@pytest.mark.parametrize("page", sorted((ROOT / "autoshard").rglob("README.md")), ids=lambda page: page.parent.name)
def test_a_folder_tells_of_each_of_its_files(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    files = [file.name for file in sorted(page.parent.glob("*.py")) if file.name != "__init__.py"]
    patterns = re.findall(r"`([\w*.]+\.py)`", text)
    untold = [name for name in files if not any(fnmatch(name, pattern) for pattern in patterns)]
    if page.parent.name not in ("autoshard", ONE_FILE_A_COMMAND):
        assert untold == []


@pytest.mark.parametrize("page", sorted((ROOT / "autoshard").rglob("README.md")), ids=lambda page: page.parent.name)
def test_a_folder_has_the_files_that_its_page_names(page: Path) -> None:
    named = set(re.findall(r"`(\w+\.py)`", page.read_text(encoding="utf-8")))
    assert named <= {path.name for folder in (page.parent, ROOT / "tests") for path in folder.rglob("*.py")}


def test_the_readme_has_the_errors_of_the_results() -> None:
    results = (ROOT / "benchmarks/RESULTS.md").read_text(encoding="utf-8")
    row = r"^\| {} \| step time[^|]*\|[^|]*\| ([\d.]+) %"
    trn1, unmeasured = (
        float(re.findall(row.format(source), results, flags=re.MULTILINE)[0])
        for source in ("trainium/trn1", "stacks never measured")
    )
    page = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"Its mean is {trn1:.0f} % on trn1" in page
    assert f"{unmeasured:.0f} % for a software stack that nobody measured" in page


def test_the_readme_has_the_seconds_of_random_plans() -> None:
    """Those of benchmarks/results/planner_problems.json."""
    found = json.loads((ROOT / "benchmarks/results/planner_problems.json").read_text(encoding="utf-8"))["summary"]
    page = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"{found['problems']} random plans on two cores took {found['cpu_s_median']:.1f} CPU seconds" in page
    assert f"in the middle and less than two for {100 * found['within_most']:.0f} %" in page
    assert f"up to {found['cpu_s_most']:.0f}. A machine" in page


def test_the_readme_has_the_distances_of_other_software() -> None:
    """Those of benchmarks/results/as_planned.md."""
    found = (ROOT / "benchmarks/results/as_planned.md").read_text(encoding="utf-8")
    distance, inside = map(float, re.findall(r"^Mean of sources: ([\d.]+)%, (\d+)% inside", found, re.MULTILINE)[0])
    page = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"with the same layouts are {distance:.0f} % away from it, and three in four of them inside" in page
    assert round(inside / 25) == 3


def test_the_readme_names_every_instance() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"^\* `--instance` is (.*?)^\* ", text, flags=re.MULTILINE | re.DOTALL)[0]
    assert {*re.findall(r"`([a-z0-9.-]+)`", named)} == {*packaged_instances(), "p5.48xlarge"}


def test_the_readme_explains_the_page_that_it_shows(tmp_path: Path) -> None:
    """What it quotes of the page under "How to read a plan" stands on that page; a plan edited by hand is refused with
    the sentence that it has."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    quoted, _, explained = text.partition("## How to read a plan")
    for words in re.findall(r"\* \*\*(?:Layout|Runners-up)\.?\*\*[^`]*`([^`]+)`", explained):
        assert words in quoted, words
    plan = autoshard.plan("llama3-70b", nodes=16)
    values = json.loads(plan.save(tmp_path / "plan.json").read_text(encoding="utf-8"))
    values["stages"][3]["first_layer"] += 1
    (tmp_path / "plan.json").write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(autoshard.AutoshardError) as error:
        autoshard.read_plan(tmp_path / "plan.json")
    assert f"autoshard: error: {error.value}".replace(f"{tmp_path}{os.sep}", "") in explained


def test_the_pictures_show_plans_of_today() -> None:
    """`python -m docs.draw` makes them anew."""
    pytest.importorskip("PIL")
    words = draw.shows()
    assert {path.stem for path in draw.PICTURES.iterdir()} == {*words} == {*draw.DRAWN}
    for name in words:
        assert draw.shown(draw.PICTURES / f"{name}.png") == words[name]
        assert f"(docs/pictures/{name}.png)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_options_in_the_code_exist() -> None:
    """Those of a command in backticks, as `plan --pareto`, in docstrings and comments."""
    for path in (ROOT / "autoshard").rglob("*.py"):
        for command, option in re.findall(r"`(?:autoshard )?([a-z]+) (--[a-z-]+)", path.read_text(encoding="utf-8")):
            if command in COMMANDS:
                parser = Parser()
                command_module(command).add_arguments(parser)
                assert f"{option} " in parser.format_help(), f"{path.name}: {command} {option}"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_of_help_is_parsed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for line in shell_lines(command_module(name).DESCRIPTION):
        parse(shlex.split(re.split(r" \| | {2,}", line)[0])[1:])


def test_make_targets_that_pages_name_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for page in PAGES:
        assert set(re.findall(r"`?\bmake ([a-z-]+)`", page.read_text(encoding="utf-8"))) <= targets


def modules_with_examples() -> list[str]:
    """Modules of the package with an example in a docstring."""
    files = [path for path in sorted((ROOT / "autoshard").rglob("*.py")) if "/models/" not in str(path)]
    found = [path for path in files if re.search(r"^\s*>>> ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in found]
    return [name.removesuffix(".__init__") for name in names]


def not_run_elsewhere() -> list[str]:
    """Those modules whose examples test_interface.py does not run."""
    text = (Path(__file__).parent / "test_interface.py").read_text(encoding="utf-8")
    return [name for name in modules_with_examples() if f'"{name.removeprefix("autoshard.interface.")}"' not in text]


@pytest.mark.parametrize("module", not_run_elsewhere())
def test_every_example_of_a_docstring_works(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted and not result.failed


def test_the_version_is_the_same_everywhere() -> None:
    """Of the package, the citation and the newest entry of the changes; on a tag also the tag's."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    (newest, *_) = re.findall(r"^## ([\d.]+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert cited["version"] == newest == autoshard.__version__
    git = subprocess.run(["git", "tag", "--points-at", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    for tag in re.findall(r"^v(\d.*)$", git.stdout, flags=re.MULTILINE):
        assert tag == autoshard.__version__


def test_the_tutorial_says_how_long_the_first_plan_took() -> None:
    """Its sentences have the numbers of benchmarks/results/first_plan.json."""
    found = json.loads((ROOT / "benchmarks/results/first_plan.json").read_text(encoding="utf-8"))
    install, plan = found["steps"]["pip install"], found["steps"]["first plan"]
    text = " ".join((ROOT / "docs/tutorial.md").read_text(encoding="utf-8").split())
    assert f"takes {install['cpu_s']:.1f} seconds of a processor and installs {found['packages']} packages" in text
    assert f"the first plan, of a 70B on 16 nodes, takes {plan['cpu_s']:.1f}." in text
    assert f"that was {install['s'] + plan['s']:.0f} seconds of the clock" in text


def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"})
    assert built.returncode == 0, built.stdout + built.stderr
    html = {path.relative_to(tmp_path / "site").as_posix(): path.read_text() for path in tmp_path.rglob("*.html")}
    assert {"index.html", "reference/python/index.html", "reference/plan/index.html"} <= set(html)
    for name in vars(autoshard)["__all__"]:
        assert f"autoshard.{name}" in html["reference/python/index.html"]
    for name in COMMANDS:
        assert f'id="autoshard-{name}"' in html["reference/commands/index.html"]
    assert "strategy" in html["reference/plan/index.html"]
    pictures = {path.name for path in draw.PICTURES.iterdir()}
    assert {*re.findall(r'<img [^>]*src="pictures/([^"]+)"', html["index.html"])} == pictures
    assert pictures == {path.name for path in (tmp_path / "site/pictures").iterdir()}
    for name, text in html.items():
        assert r"\|" not in text, name
    for page, text in html.items():
        outside = re.findall(r'(?:src|rel="stylesheet" href)="(https?://[^"]+)"', text)
        assert not outside, f"{page} loads {outside}"
