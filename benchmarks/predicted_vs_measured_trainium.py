"""Compares predicted with measured step times on Trainium: `python -m benchmarks.predicted_vs_measured_trainium`.

The rows are published results, benchmarks/data/measured_trainium.csv; each names its source. Those that cannot be
priced, that are doubted, or that train adapters alone are left out here; `benchmarks.predicted_vs_measured` lists them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median

from autoshard.calibration.results.instance_rows import instance_case
from autoshard.calibration.results.rows import Unscored
from autoshard.cost.estimate import Estimate, estimate

DATA = Path(__file__).parent / "data" / "measured_trainium.csv"
Row = dict[str, str]


def predictions(path: Path = DATA) -> Iterator[tuple[Row, Estimate]]:
    """Yields each row that is whole with the cost model's estimate for it."""
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            try:
                case = instance_case(row)
            except Unscored:
                continue
            if case.is_whole:
                yield row, estimate(case.model, case.training, case.cluster, case.strategy, case.software)


def main() -> None:
    errors = []
    print(f"{'row':5} {'model':30} {'sdk':7} {'layout':17} {'measured s':>10} {'predicted s':>11} {'error':>7}")
    for row, expected in predictions():
        measured = float(row["step_time_s"])
        error = expected.step_time_s / measured - 1
        errors.append(abs(error))
        layout = f"tp{row['tp']} pp{row['pp']} dp{row['dp']} s{row['seq_len']}"
        print(
            f"{row['id']:5} {row['model']:30.30} {row['sdk']:7.7} {layout:17} "
            f"{measured:10.2f} {expected.step_time_s:11.2f} {error:+7.1%}"
        )
    print(f"absolute error: mean {mean(errors):.1%}, median {median(errors):.1%}, worst {max(errors):.1%}")


if __name__ == "__main__":
    main()
