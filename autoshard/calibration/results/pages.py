"""Lines to print about a fit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import mean

from autoshard.calibration.calibration import Leaf
from autoshard.calibration.results.collective_rows import CollectiveCase
from autoshard.calibration.results.instance_fit import InstanceFit
from autoshard.calibration.results.instance_rows import InstanceCase
from autoshard.spec.evidence import Evidence
from autoshard.units import counted


def evidence_line(instance: str, of: Evidence) -> str:
    left_out = "" if of.left_out_error is None else f", {of.left_out_error:.1%} with a result's group left out"
    return (
        f"{instance}: {counted(of.points, 'result')} of {counted(of.groups, 'group')} in {of.data}: "
        f"mean error {of.mean_error:.1%}, worst {of.worst_error:.1%}{left_out}"
    )


def constants_lines(values: Mapping[Leaf, float], priors: Mapping[Leaf, float]) -> Iterator[str]:
    for leaf, value in values.items():
        yield f"  {'.'.join(leaf):<34} {value:<10.4g} (prior {priors[leaf]:.4g})"


def results_lines(cases: Sequence[InstanceCase], fit: InstanceFit) -> Iterator[str]:
    """A line for each result, with the fit's prediction beside it."""
    yield f"  {'result':<10} {'group':<30} {'measured s':>10} {'fitted':>8} {'left out':>8}"
    for index, case in enumerate(cases):
        seconds = [fit.predicted_s[index], *([] if fit.left_out_s is None else [fit.left_out_s[index]])]
        errors = [f"{one / case.time_s - 1:+8.1%}" for one in seconds]
        yield f"  {case.key:<10.10} {case.group:<30.30} {case.time_s:10.3f} {' '.join(errors)}"


def collectives_table(cases: Sequence[CollectiveCase], columns: Mapping[str, Iterable[float]]) -> list[str]:
    """A table of the mean absolute residual by instance, LNC and kind; each of `columns` is one column."""
    by_kind: dict[tuple[str, int, str], list[int]] = defaultdict(list)
    for index, case in enumerate(cases):
        by_kind[case.cluster.instance.split(".")[0], case.cluster.lnc, case.kind].append(index)
    lines = [f"| instance | collective | rows | {' | '.join(columns)} |", "|---|---|---|" + "---|" * len(columns)]
    residuals = [list(column) for column in columns.values()]
    for (instance, lnc, kind), rows in sorted(by_kind.items()):
        name = f"{instance}, lnc {lnc}" if instance == "trn2" else instance
        errors = [f"{mean(abs(column[i]) for i in rows):.2f}" for column in residuals]
        lines.append(f"| {name} | {kind} | {len(rows)} | {' | '.join(errors)} |")
    return lines
