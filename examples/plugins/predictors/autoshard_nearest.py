"""Predicts the time of a step as that of the most similar known run, scaled by its FLOPs and devices.

    autoshard bench predictors --entries autoshard,nearest

A predictor is a function of a Fold: it learns from `fold.train` and returns a Prediction of each row of `fold.test`.
"""

from math import log

from autoshard.bench.predictors import with_interval
from autoshard.models.stage import active_count


def work(row):
    return active_count(row.model) * row.training.tokens_per_step / row.cluster.world_size


def place(row):
    strategy = row.strategy
    sizes = (row.model.hidden_size, row.cluster.world_size, strategy.tp, strategy.pp, strategy.microbatch_size)
    return [log(size) for size in sizes] + [2.0 * (row.cluster.instance == name) for name in ("a100-80gb", "h100-80gb")]


def nearest(fold):
    known = [(place(row), row.key, row.time_s / work(row)) for row in fold.train if row.time_s is not None]

    def seconds(row):
        here = place(row)
        others = (one for one in known if one[1] != row.key)
        distance = lambda one: sum((a - b) ** 2 for a, b in zip(one[0], here, strict=True))  # noqa: E731
        return min(others, key=distance)[2] * work(row)

    return with_interval(fold, seconds)
