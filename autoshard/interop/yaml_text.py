"""YAML that a person wrote: plain values, or one error of one line that says where."""

from __future__ import annotations

from autoshard.errors import AutoshardError


def parse_yaml(text: str, where: str) -> object:
    """The value of a text of bounded size, in which nothing is executed. where: what an error calls it.

    Raises AutoshardError with line and column for what is not YAML or nests too deeply.
    """
    import yaml

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it cannot be parsed"
        raise AutoshardError(f"{where}{place}: not YAML: {problem}") from None
