"""Runs the tracks and keeps what they found: results that are the same each time, and timings apart from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import process_time
from typing import Any

from autoshard.bench import searchers
from autoshard.bench.metrics import Prediction, scores
from autoshard.bench.page import curves_svg, results_page, timings_page
from autoshard.bench.peers.peer import PEERS
from autoshard.bench.predictors import PREDICTORS
from autoshard.bench.problems import read_problems
from autoshard.bench.rows import SPLITS, Fold, Measured, folds, read_measured
from autoshard.cost.values import six_digits
from autoshard.errors import AutoshardError
from autoshard.files.atomic_file import write_text
from autoshard.files.fields import is_finite, show
from autoshard.files.json_file import read_json
from autoshard.plugins.found import installed

RESULTS, TIMINGS = "planbench.json", "planbench_timings.json"
PAGE, TIMINGS_PAGE, CURVES = "planbench.md", "planbench_timings.md", "planbench_searchers.svg"
MOST_BYTES = 50_000_000
FORMAT_VERSION = 2
"""Of the two files with results and timings; 1 had no number, and no means by group."""
BY_SOURCE = "group"
"""The split whose scores are also told a source at a time."""

Json = dict[str, Any]
Say = Callable[[str], None]


def run(
    data: Path,
    out: Path,
    tracks: Sequence[str],
    entries: Sequence[str] = (),
    evaluations: int = searchers.EVALUATIONS,
    seeds: int = searchers.SEEDS,
    problems: int | None = None,
    say: Say = lambda line: None,
) -> list[Path]:
    """Runs tracks and writes results, timings and pages; what other tracks found stays. Returns the files.

    data: folder of rows and problems. out: folder of the results. entries: names, of one track alone; else all, those
    of plug-ins too. problems: how many of them; None for all. Raises AutoshardError for data that is missing or wrong,
    and for an entry that is none.
    """
    if not data.is_dir():
        raise AutoshardError(f"data={data} is no folder; autoshard's own is benchmarks/data of its repository")
    if out.exists() and not out.is_dir():
        raise AutoshardError(f"out={out} is no folder")
    results, timings = (_before(out / name) for name in (RESULTS, TIMINGS))
    for track in tracks:
        if track == "predictors":
            results[track], timings[track] = predict(data, entries, say)
        else:
            names, missing = searchers.entries(entries)
            asked = read_problems(data)[:problems]
            results[track], timings[track] = searchers.compare(asked, names, evaluations, seeds, say)
            results[track]["missing"] = missing
    return write(out, results, timings)


def write(out: Path, results: Json, timings: Json) -> list[Path]:
    """Writes the files of these results and timings into a folder; the same values give the same bytes."""
    with suppress(OSError):  # write_text says what is wrong
        out.mkdir(parents=True, exist_ok=True)
    results, timings = ({**one, "format_version": FORMAT_VERSION} for one in (results, timings))
    results, timings = json.loads(_text(results)), json.loads(_text(timings))  # in the order of the files
    texts = {
        RESULTS: _text(results),
        TIMINGS: _text(timings),
        PAGE: results_page(results),
        TIMINGS_PAGE: timings_page(timings),
    }
    if "searchers" in results:
        texts[CURVES] = curves_svg(results["searchers"])
    for name, text in texts.items():
        write_text(out / name, text, "results")
    return [out / name for name in texts]


def read(out: Path) -> tuple[Json, Json]:
    """(results, timings) of a folder; empty where it has none. Raises AutoshardError for files that are none."""
    return _before(out / RESULTS), _before(out / TIMINGS)


def _before(path: Path) -> Json:
    if not path.exists():
        return {}
    found = read_json(path, "results", MOST_BYTES)
    if not isinstance(found, dict):
        raise AutoshardError(f"{path} is not what autoshard bench writes")
    if found.get("format_version") != FORMAT_VERSION:
        raise AutoshardError(
            f"{path} has format_version {show(found.get('format_version'))}, this autoshard writes {FORMAT_VERSION}; "
            "remove it or name another -o"
        )
    return found


def _text(values: Json) -> str:
    return json.dumps(values, indent=1, sort_keys=True) + "\n"


def predict(data: Path, entries: Sequence[str], say: Say) -> tuple[Json, Json]:
    """(scores, timings) of predictors on every split. entries: names; else all, those of plug-ins too."""
    every = [*PREDICTORS, *(name for name in installed("predictors") if name not in tuple(PREDICTORS))]
    for name in entries:
        if name not in every:
            raise AutoshardError(f"entries: {name} is no predictor; known: {', '.join(every)}")
    missing = [peer.name for peer in PEERS if not peer.is_installed]
    for name in set(entries) & set(missing):
        raise AutoshardError(
            f"entries: {name} needs its package, which is not installed; a checkout on PYTHONPATH does too"
        )
    names = [name for name in entries or every if name not in missing]
    for peer in PEERS:
        if peer.name in names and (why := peer.broken) is not None:
            raise AutoshardError(
                f"entries: {peer.name} is installed and cannot be imported, {why}; install what it needs, or name the "
                "other entries with --entries"
            )
    rows, results, timings, by_source = read_measured(data), Json(), Json(), Json()
    for split in SPLITS:
        parts = folds(rows, split, data)
        results[split], timings[split] = {}, {}
        for name in names:
            begin_s = process_time()
            said: list[Prediction | None] = []
            test: list[Measured] = []
            for part in parts:
                said += _predicted(name, part)
                test += part.test
            cpu_s = process_time() - begin_s
            score = scores(test, said)
            if split == BY_SOURCE:
                for source, one in _of_sources(test, said).items():
                    by_source.setdefault(source, {})[PREDICTORS.said(name)] = one
            rounded = {
                key: six_digits(value) if isinstance(value, float) else value for key, value in score._asdict().items()
            }
            results[split][PREDICTORS.said(name)] = rounded
            timings[split][name] = cpu_s / max(1, len(said))
            say(f"{split}, {name}: {len(said)} rows in {cpu_s:.1f} CPU s")
    peers = {peer.label: peer.version if peer.name in names else None for peer in PEERS}
    scored = {"rows": len(rows), "splits": results, "by_source": by_source, "peers": peers}
    return scored, {"cpu_s_a_prediction": timings}


def _predicted(name: str, part: Fold) -> Sequence[Prediction | None]:
    """The predictions of a fold's test rows. Raises AutoshardError, naming the predictor, where they are none."""
    found = PREDICTORS.call(name, part)
    if not isinstance(found, Sequence):
        raise AutoshardError(f"predictor {name} returned {show(found)}; it must return a list, an entry for each row")
    if len(found) != len(part.test):
        raise AutoshardError(f"predictor {name} returned {len(found)} predictions of {len(part.test)} rows")
    for row, one in zip(part.test, found, strict=True):
        if one is not None and not _is_prediction(one):
            raise AutoshardError(
                f"predictor {name} returned {one!r:.200} of row {row.key}; it wants None or a Prediction of finite "
                "numbers above 0, with low_s at most high_s"
            )
    return found


def _is_prediction(one: object) -> bool:
    if not isinstance(one, Prediction):
        return False
    numbers = one[:3] if one.memory_bytes is None else one
    are_numbers = all(isinstance(value, (int, float)) and is_finite(value) and value > 0 for value in numbers)
    return are_numbers and one.low_s <= one.high_s


def _of_sources(
    test: Sequence[Measured], said: Sequence[Prediction | None]
) -> dict[str, tuple[float | None, float | None, int]]:
    """Source -> (mean error, regret of the pick, rows)."""
    found = {}
    for source in sorted({row.source for row in test}):
        pairs = [(row, one) for row, one in zip(test, said, strict=True) if row.source == source]
        score = scores([row for row, _ in pairs], [one for _, one in pairs])
        error, regret = (None if value is None else six_digits(value) for value in (score.mean_error, score.regret))
        found[source] = (error, regret, score.rows)
    return found
