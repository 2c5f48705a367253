"""PlanBench from Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autoshard.errors import AutoshardError
from autoshard.files.fields import check_choice, check_integer, show
from autoshard.interface.inputs import path_of

TRACKS = ("predictors", "searchers")
DATA, OUT = "benchmarks/data", "benchmarks/results"


def planbench(
    track: str | None = None,
    *,
    data: str | Path = DATA,
    out: str | Path = OUT,
    entries: Sequence[str] = (),
    evaluations: int | None = None,
    seeds: int | None = None,
    problems: int | None = None,
    quiet: bool = True,
) -> list[Path]:
    """Runs PlanBench and returns the files that it wrote: planbench.{json,md,svg}, and its timings beside them.

    track: "predictors" or "searchers"; None for both. data: folder with the rows and problems. out: folder of the
    results; those of the other track stay. entries: names of one track; else all, those of plug-ins too. evaluations:
    layouts that a searcher prices, at least 10; seeds: runs of each; problems: so many of them. Raises AutoshardError
    for data that is missing, for entries that are none and for other numbers.

    >>> import autoshard
    >>> files = autoshard.planbench("searchers", problems=3)  # doctest: +SKIP
    """
    from autoshard.bench import searchers
    from autoshard.bench.run import run

    if not isinstance(entries, (list, tuple)) or not all(isinstance(name, str) for name in entries):
        raise AutoshardError(f"entries={show(entries)} of planbench must be names, such as ['random']")
    if track is not None:
        check_choice("bench", "track", track, TRACKS)
    elif entries:
        raise AutoshardError("entries are of one track; name it: predictors or searchers")
    for name, value, least in (("evaluations", evaluations, searchers.BUDGETS[0]), ("seeds", seeds, 1)):
        if value is not None:
            check_integer("planbench", name, value, least)
    if problems is not None:
        check_integer("planbench", "problems", problems)
    return run(
        path_of("planbench", "data", data),
        path_of("planbench", "out", out),
        TRACKS if track is None else (track,),
        tuple(dict.fromkeys(entries)),
        searchers.EVALUATIONS if evaluations is None else evaluations,
        searchers.SEEDS if seeds is None else seeds,
        problems,
        (lambda line: None) if quiet else _say,
    )


def _say(line: str) -> None:
    import sys

    sys.stderr.write(f"{line}\n")
