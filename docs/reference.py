"""Pages of the site that are written elsewhere: README, CONTRIBUTING, results, changes, and the reference.

The Python reference is that of the docstrings, the command line that of the parser, plan.json that of its schema.
mkdocs calls `on_files` (a hook, see mkdocs.yml).
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs/pictures"
COPIED = {
    "index.md": "README.md",
    "extending.md": "CONTRIBUTING.md",
    "results.md": "benchmarks/RESULTS.md",
    "changelog.md": "CHANGELOG.md",
}
"""Page of the site -> the file of the repository that it is."""


def pages() -> dict[str, str]:
    """Path of each page that is made here -> its Markdown."""
    made: dict[str, Callable[[], str]] = {
        "reference/python.md": python_page,
        "reference/commands.md": commands_page,
        "reference/plan.md": plan_page,
    }
    copied = {page: _linked((ROOT / file).read_text(encoding="utf-8")) for page, file in COPIED.items()}
    if not copied["results.md"].startswith("# "):
        copied["results.md"] = "# How wrong the cost model is\n\n" + copied["results.md"]
    return copied | {page: make() for page, make in made.items()}


def _linked(text: str) -> str:
    """The text with links to files of the repository led to their pages and to the pictures; other files are named as
    code. Bars that GitHub's tables escape in code are entities, since here code has its backslashes."""
    page_of = {file: page for page, file in COPIED.items()}
    page_of |= {f"docs/{page.name}": page.name for page in (ROOT / "docs").glob("*.md")}
    page_of |= {f"docs/pictures/{picture.name}": f"pictures/{picture.name}" for picture in PICTURES.iterdir()}

    def link(found: re.Match[str]) -> str:
        words, target = found.groups()
        if target.startswith(("http", "#")):
            return found[0]
        return f"[{words}]({page_of[target]})" if target in page_of else f"{words} (`{target}`)"

    def code(found: re.Match[str]) -> str:
        return f"<code>{escape(found[1], quote=False)}</code>".replace("\\|", "&#124;")

    barred = re.sub(r"`([^`\n]*\\\|[^`\n]*)`", code, text)
    return re.sub(r"\[([^]\n]+)\]\(([^)\n]+)\)", link, barred)


def python_page() -> str:
    """Every public name with its signature and docstring."""
    import autoshard

    lines = ["# Python", "", str(autoshard.__doc__), ""]
    lines += [
        "Errors are `AutoshardError` with one sentence; `NoLayoutFits` is one of them. `**options` are those of",
        "[`autoshard plan`](commands.md#autoshard-plan), with underscores; of `run`, those of",
        "[`autoshard run`](commands.md#autoshard-run).",
        "",
    ]
    found = {name: getattr(autoshard, name) for name in sorted(autoshard.__all__)}
    for title, wanted in (("Functions", inspect.isfunction), ("Values", inspect.isclass)):
        lines += [f"## {title}", ""]
        for name, value in found.items():
            if wanted(value):
                lines += _entry(f"autoshard.{name}", value, "###")
    return _with_code("\n".join(lines))


def _entry(name: str, value: Any, level: str) -> Iterator[str]:
    yield from (f"{level} {name}", "")
    doc = inspect.getdoc(value) or ""
    if not (inspect.isclass(value) and issubclass(value, BaseException)):
        yield from ("```text", _signature(name, value), "```", "")
    yield from (doc, "")
    if inspect.isclass(value):
        for member, found in vars(value).items():
            function = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
            if not member.startswith("_") and inspect.isfunction(function) and function.__doc__:
                sign = f"`{member}`" if isinstance(found, property) else f"`{_signature(member, function)}`"
                yield from (f"* {sign}: {' '.join(str(inspect.getdoc(function)).split())}",)
        yield ""


def _signature(name: str, value: Any) -> str:
    """The name with its arguments; types are left to the docstring."""
    found = inspect.signature(value)
    bare = [one.replace(annotation=inspect.Parameter.empty) for one in found.parameters.values() if one.name != "self"]
    return f"{name}{inspect.Signature(bare)}"


def _with_code(text: str) -> str:
    """The text with examples (`>>> `, up to the next empty line) in fences."""
    return re.sub(r"(^>>> .*(?:\n(?!\n).+)*)", lambda found: f"```pycon\n{found[0]}\n```", text, flags=re.MULTILINE)


def commands_page() -> str:
    """Every command with its help."""
    from autoshard.cli import COMMANDS, build_parser
    from autoshard.commands.parser import parsers

    whole = build_parser()
    lines = ["# Command line", "", "```text", whole.format_help().rstrip(), "```", ""]
    for name, parser in zip(COMMANDS, parsers(whole)[1:], strict=True):
        lines += [f"## autoshard {name}", "", "```text", parser.format_help().rstrip(), "```", ""]
    return "\n".join(lines)


def plan_page() -> str:
    """Every field of plan.json with its meaning."""
    schema = json.loads((ROOT / "autoshard/plans/plan.schema.json").read_text(encoding="utf-8"))
    lines = ["# plan.json", "", _text(schema), "", *_table(schema)]
    for name, part in sorted(schema["$defs"].items()):
        lines += [f"## {name}", "", _text(part), "", *_table(part)]
    return "\n".join(lines)


def _table(part: dict[str, Any]) -> list[str]:
    rows = list(_fields(part, ""))
    return ["| field | type | meaning |", "|---|---|---|", *rows, ""] if rows else []


def _fields(part: dict[str, Any], above: str) -> Iterator[str]:
    for name, field in part.get("properties", {}).items():
        path = f"{above}{name}"
        yield f"| `{path}` | {_type(field)} | {_text(field)} |"
        inner = field.get("items", field)
        if isinstance(inner, dict) and "properties" in inner:
            yield from _fields(inner, f"{path}[]." if inner is not field else f"{path}.")


def _type(field: dict[str, Any]) -> str:
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    if "enum" in field:
        return " or ".join(f"`{json.dumps(one)}`" for one in field["enum"])
    for several in ("anyOf", "oneOf"):
        if several in field:
            return " or ".join(_type(one) for one in field[several])
    found = field.get("type", "any")
    kinds = " or ".join(found) if isinstance(found, list) else str(found)
    return f"{kinds} of {_type(field['items'])}" if isinstance(field.get("items"), dict) else kinds


def _text(field: dict[str, Any]) -> str:
    return escape(str(field.get("description", "")), quote=False).replace("|", "\\|").replace("\n", " ")


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages to the site."""
    from mkdocs.structure.files import File

    for page, text in pages().items():
        files.append(File.generated(config, page, content=text))
    return files
