"""Scores predictions against measurements: `python -m benchmarks.predicted_vs_measured`.

Options --trainium and --gpu take any CSV files with the columns of data/measured_trainium.csv and
data/measured_gpu.csv. A row whose group was fitted is predicted with constants that were fitted without its group; a
row of any other group with those of all groups. `cpu` are this project's own runs on a machine that `autoshard
calibrate` measured. The last line is JSON: {source: scores}; --json prints it alone. Rows that cannot be scored are
listed with the reason. Below the sources, and not in the JSON, `unseen/SOURCE` predicts each source as a stack that
nobody measured: its constants at their priors, those of the devices fitted without it.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import erf, exp, log, sqrt
from pathlib import Path
from statistics import mean, quantiles

from autoshard.calibration.results.collective_rows import CollectiveCase
from autoshard.calibration.results.gpu_rows import Case, as_assumed, gpu_case
from autoshard.calibration.results.instance_rows import InstanceCase, instance_case, row_doubt
from autoshard.calibration.results.machine import hardware
from autoshard.calibration.results.never_measured import Missed, interval_of_sources
from autoshard.calibration.results.pages import collectives_table
from autoshard.calibration.results.published import left_out_of_published
from autoshard.calibration.results.regimes import UNMEASURED, at_least, fitted_layout, interval, regime
from autoshard.calibration.results.rows import Row, read_rows
from autoshard.calibration.results.stack_fit import Values, capacity, estimates
from autoshard.calibration.results.usable import read_results
from autoshard.cost.estimate import Estimate
from autoshard.spec.cluster import Cluster, load_cluster
from benchmarks.calibrated_cpu import calibrated_cpu, on_calibrated_cpu
from benchmarks.fitted import DATA, Fitted, load
from benchmarks.one_error import one_error
from benchmarks.results_page import results_page
from benchmarks.scores import KEYS, Scored, score

Missing = tuple[str, str, str]
"""(row, source, reason) of a row that cannot be scored."""
TRAINIUM = DATA / "measured_trainium.csv"
SIZE = "vocab"
"""What a row may lack (`missing`) with its layout whole: it is missed by 7 to 27 % then, other rows by up to 155 %."""
TRAINIUM_SPREAD = 0.23
"""Half width of the 90 % interval of log time on Trainium where fewer than two groups are there to tell: releases of
the SDK differ by 6 to 27 % on the same layout."""


def gpu_scores(rows: Sequence[Row], fitted: Fitted) -> Iterator[Scored | Missing]:
    """Yields every row, scored or with the reason why not. Rows whose layout is not all stated, or is that of another
    release, get no less than the interval that such rows of other sources show, as nothing is fitted to any of
    them."""
    found = [_gpu_score(row, row.get("source_id") or "unknown", fitted) for row in rows]
    guessed = [one for one in found if isinstance(one, Scored) and not one.is_stated]
    missed = [Missed(one.sources[0], (), log(one.measured_s / one.predicted_s)) for one in guessed if one.measured_s]
    for one in found:
        if isinstance(one, Scored) and not one.is_stated:
            others = interval_of_sources([other for other in missed if other.source != one.sources[0]])
            low_s, high_s = (one.predicted_s * exp(end) for end in (others.low, others.high))
            one = replace(one, low_s=min(one.low_s, low_s), high_s=max(one.high_s, high_s))
        yield one


def unseen_scores(rows: Sequence[Row], fitted: Fitted) -> Iterator[Scored | Missing]:
    """Yields rows of fitted sources once more, predicted as if nothing of their source had been measured."""
    for row in rows:
        source = row.get("source_id") or "unknown"
        if source in fitted.unseen:
            found = _gpu_score(row, source, fitted, unseen=True)
            if isinstance(found, Scored) and found.sources:
                yield found


def _gpu_score(row: Row, source: str, fitted: Fitted, unseen: bool = False) -> Scored | Missing:
    try:
        case = gpu_case({**row, "source_id": source})
        values = fitted.unseen[source] if unseen else fitted.values_for(case)
        expected, *others = [_estimate(one, values) for one in as_assumed(case)]
        steps_s = [one.step_time_s for one in (expected, *others)]
        share = expected.fullest.total_bytes / expected.memory_capacity_bytes
        interval = fitted.unseen_interval_for(case) if unseen else fitted.interval_for(case, regime(case))
        as_unseen = (f"unseen/{source}",) if fitted_layout(case) and case.time_s else ()
        return Scored(
            case.key,
            as_unseen if unseen else tuple(_sources(case)),
            case.group,
            expected.step_time_s,
            min(steps_s) * exp(interval.low),
            max(steps_s) * exp(interval.high),
            case.time_s,
            share,
            case.memory_bytes / capacity(case) if case.memory_bytes else None,
            0.5 * (1 + erf(-log(share) / interval.memory_spread / sqrt(2))),
            case.fits,
            _cluster(case),
            case.strategy,
            case.trusted or row.get("missing") == SIZE,
        )
    except Exception as error:  # a row may hold anything; what goes wrong with it is its reason
        return row.get("row_id") or "?", source, _reason(error)


def _estimate(case: Case, values: Values) -> Estimate:
    return on_calibrated_cpu(case) if case.gpu == "cpu" else estimates([case], values)[0]


def _cluster(case: Case) -> Cluster:
    """The case's devices as the planner knows them."""
    return calibrated_cpu(case) if case.gpu == "cpu" else load_cluster(hardware(case)[0], case.nodes)


def cpu_scores(rows: Sequence[Row], fitted: Fitted) -> Iterator[Scored | Missing]:
    """Yields this project's own runs, scored. Nothing was fitted to them, so the interval of each comes from the errors
    of the others."""
    found = list(gpu_scores(rows, fitted))
    timed = [one for one in found if isinstance(one, Scored) and one.measured_s]
    for one in found:
        if isinstance(one, Scored):
            others = [other for other in timed if other.group != one.group]
            residuals = [log((other.measured_s or 1.0) / other.predicted_s) for other in others]
            own = interval([other.group for other in others], residuals, [None] * len(others))
            known = at_least(own, len(others), fitted.intervals[UNMEASURED])
            one = replace(one, low_s=one.predicted_s * exp(known.low), high_s=one.predicted_s * exp(known.high))
        yield one


def _reason(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return f"missing column {text}" if isinstance(error, KeyError) else text[:200]


def _sources(case: Case) -> Iterator[str]:
    yield case.source
    if case.source == "hagemann" and case.kernel == "flash_attention_2":
        yield "hagemann/flash_attention2"
    if case.source == "mosaic":
        yield f"mosaic/{hardware(case)[1]}"
    if case.source == "dgxc" and not case.low_precision:
        yield "dgxc/bf16"
    if case.source.startswith("ultrascale") and fitted_layout(case):
        yield f"{case.source}/tp<=8 and pp=1"
    if case.trusted:
        yield from _classes(case)


def _classes(case: Case) -> Iterator[str]:
    """Names of the classes of rows, over all sources, that targets are for."""
    family = "cpu" if case.gpu == "cpu" else hardware(case)[1]
    bits = "8 bits" if case.low_precision else "bf16"
    if case.model.is_moe:
        nvl72 = "on NVL72" if case.gpu.startswith("GB") else "in nodes of 8"
        yield f"experts/{bits}" if case.low_precision else f"experts/{bits} {nvl72}"
    elif family == "blackwell":
        yield f"blackwell/dense, {bits}"
    if case.zero >= 2 and not case.model.is_moe:
        yield "fsdp/dense"


def trainium_scores(rows: Sequence[Row]) -> Iterator[Scored | Missing]:
    """Yields Trainium rows, each predicted without its model; the interval of each comes from the errors of the others
    that are whole."""
    asked = [_instance_case(row) for row in rows]
    yield from (one for one in asked if isinstance(one, tuple))
    cases = [one for one in asked if isinstance(one, InstanceCase)]
    published = [_instance_case(row) for row in read_rows(TRAINIUM)]
    found = left_out_of_published(cases, [one for one in published if isinstance(one, InstanceCase)])
    residuals = [log(case.time_s / seconds) for case, seconds in zip(cases, found, strict=True)]
    known = [(one, residual) for one, residual in zip(cases, residuals, strict=True) if one.is_whole]
    for case, seconds in zip(cases, found, strict=True):
        others = [abs(residual) for one, residual in known if one.group != case.group]
        width = quantiles(others, n=20)[17] if len(others) >= 8 else TRAINIUM_SPREAD
        width = max(width, TRAINIUM_SPREAD / 1.5)
        ends = seconds * exp(-width), seconds * exp(width)
        layout, sources = (case.cluster, case.strategy), trainium_sources(case)
        yield Scored(case.key, sources, case.group, seconds, *ends, case.time_s, 0.0, None, 1.0, True, *layout)


def doubtful(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """(row, reason) of those that nothing is fitted to, scored or not."""
    return [(row["id"], reason) for row in rows if (reason := row_doubt(row))]


def trainium_sources(case: InstanceCase) -> tuple[str, ...]:
    """The sources that a case counts for: Trainium and its generation, or the rows that nothing is fitted to; those
    that train adapters alone by themselves."""
    if case.is_whole:
        return "trainium", f"trainium/{case.cluster.layout_rules}"
    return ("trainium/doubtful",) if case.doubt else ("trainium/LoRA",)


def _instance_case(row: Row) -> InstanceCase | Missing:
    try:
        return instance_case(row)
    except Exception as error:  # a row may hold anything; what goes wrong with it is its reason
        return row.get("id") or "?", "trainium", _reason(error)


def compiled_collectives(path: Path) -> list[str]:
    """Lines on how well the constants of the hardware files meet the times of collectives in compiled graphs."""
    found = read_results([], path).collectives
    cases: list[CollectiveCase] = [case for case in found.cases if not case.framework] if found else []
    errors = [log(case.predicted_s(case.cluster) / case.time_s) for case in cases]
    return collectives_table(cases, {"as shipped": errors})


def scoreboard(found: Sequence[Scored | Missing]) -> dict[str, dict[str, float | int | None]]:
    """Source -> its scores."""
    rows: dict[str, list[Scored]] = defaultdict(list)
    unscored: Counter[str] = Counter()
    for one in found:
        if isinstance(one, Scored):
            for source in one.sources:
                rows[source].append(one)
        else:
            unscored[one[1]] += 1
    return {source: score(rows[source], unscored[source]) for source in sorted(rows.keys() | unscored.keys())}


def table(board: dict[str, dict[str, float | int | None]]) -> Iterator[str]:
    """Yields one line for each source; fractions as percent."""
    counts = ("rows", "unscored", "oom_picks")
    width = max((len(source) for source in board), default=6)
    yield f"{'source':{width}} " + " ".join(f"{key:>{max(len(key), 6)}}" for key in KEYS)
    for source, scores in board.items():
        cells = []
        for key in KEYS:
            value = scores[key]
            text = "-" if value is None else str(value) if key in counts else f"{100 * value:.1f}"
            cells.append(f"{text:>{max(len(key), 6)}}")
        yield f"{source:{width}} " + " ".join(cells)


@one_error
def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--trainium", type=Path, default=TRAINIUM)
    parser.add_argument("--gpu", type=Path, default=DATA / "measured_gpu.csv")
    parser.add_argument("--cpu", type=Path, default=DATA / "measured_cpu.csv")
    parser.add_argument("--results", type=Path, help="write the page of targets, misses and their rows, as RESULTS.md")
    parser.add_argument("--json", action="store_true", help="print only the JSON")
    parser.add_argument("--rows", action="store_true", help="print every row")
    options = parser.parse_args(arguments)
    fitted, rows = load(), read_rows(options.gpu)
    found = [*gpu_scores(rows, fitted), *cpu_scores(read_rows(options.cpu), fitted)]
    found += trainium_scores(read_rows(options.trainium))
    board = scoreboard(found)
    unseen = {} if options.json else scoreboard(list(unseen_scores(rows, fitted)))
    if options.results:
        doubts = doubtful(read_rows(options.trainium))
        options.results.write_text(results_page(board, unseen, found, fitted.picks, doubts), encoding="utf-8")
    if not options.json:
        for one in found:
            if not isinstance(one, Scored):
                print(f"not scored: {one[0]} of {one[1]}: {one[2]}")
            elif options.rows:
                measured = f"{one.measured_s:.3f}" if one.measured_s else "-"
                print(f"{one.key:24} {one.group:40} {one.predicted_s:9.3f} {measured:>9} {one.predicted_share:6.2f}")
        print("percent, but for rows, unscored and oom_picks; groups that were fitted are left out of their own fit")
        print("\n".join(table({**board, **unseen})))
        if unseen:
            error = mean(scores["mape"] or 0.0 for scores in unseen.values())
            print(f"a stack that was never measured: {error:.1%} on average over {len(unseen)} stacks")
        print("collectives that were compiled, mean error of the logarithm of their time:")
        print("\n".join(compiled_collectives(DATA / "trainium_collectives.csv")))
    print(json.dumps(board))
    return 0


if __name__ == "__main__":
    sys.exit(main())
