"""Predictors of step time and memory: autoshard's cost model, a roofline, a regression, published closed forms.

A predictor is a function of a Fold: it learns from `fold.train` and returns a Prediction of each row of `fold.test`, or
None for one that it has no answer to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, log

import numpy as np

from autoshard.bench.metrics import Prediction
from autoshard.bench.ours import autoshard_model
from autoshard.bench.peers import calculon, galvatron, llm_analysis, peer, simumax
from autoshard.bench.rows import Fold, Measured
from autoshard.cost.estimate import model_flops_per_step
from autoshard.graph.recompute import FULL_RECOMPUTE, NO_RECOMPUTE
from autoshard.models.stage import active_count, parameter_count
from autoshard.plugins.table import Table

Formula = Callable[[Measured], "float | None"]
"""Seconds or bytes of a row; None where there is no answer."""
Predictor = Callable[[Fold], Sequence[Prediction | None]]
RIDGE = 1e-2


def roofline(fold: Fold) -> list[Prediction | None]:
    """The model's own FLOPs, with a forward more under full recompute, at the devices' peak: nothing is learned but
    the interval."""
    return with_interval(fold, lambda row: _again(row) * model_flops_per_step(row.model, row.training) / _peak(row))


def six_n_d(fold: Fold) -> list[Prediction | None]:
    """6 FLOPs for each parameter that a token meets and each token (Kaplan et al. 2020) at the middle utilisation of
    the train rows."""
    return _scaled(fold, lambda row: 6 * active_count(row.model) * row.training.tokens_per_step / _peak(row))


def megatron(fold: Fold) -> list[Prediction | None]:
    """Megatron's closed forms: 96 B s l h^2 (1 + s / 6h + V / 16lh) FLOPs with full recompute, three quarters without,
    and the bubble (p - 1) / m v (Narayanan et al. 2021), at the middle utilisation of the train rows; memory by
    Korthikanti et al. 2022."""
    return _scaled(fold, _megatron_s, _megatron_bytes)


def _megatron_s(row: Measured) -> float:
    model, training, strategy = row.model, row.training, row.strategy
    hidden, layers, length = model.hidden_size, model.num_hidden_layers, training.sequence_length
    more = 1 + length / (6 * hidden) + model.vocab_size / (16 * layers * hidden)
    flops = 72 * training.global_batch_size * length * layers * hidden**2 * more * _again(row)
    count = strategy.num_microbatches(training.global_batch_size)
    return flops / _peak(row) * (1 + (strategy.pp - 1) / (count * strategy.num_virtual_stages))


def _megatron_bytes(row: Measured) -> float:
    """18 bytes of state a parameter, 12 of them shared under ZeRO-1; activations s b h (34 + 5 a s / h) a block,
    without the scores for flash, all over t; 2 s b h under full recompute."""
    model, strategy = row.model, row.strategy
    ranks = strategy.dp * strategy.cp
    share = parameter_count(model) / (strategy.tp * strategy.pp)
    by_stage = (18.0, 6 + 12 / ranks, 2 + 16 / ranks, 18 / ranks)
    length, hidden = row.training.sequence_length / strategy.cp, model.hidden_size
    scores = 0.0 if strategy.attention_kernel == "flash" else 5 * model.num_attention_heads * length / hidden
    a_block = 2.0 if strategy.recompute[0] == FULL_RECOMPUTE else (34 + scores) / strategy.tp
    if strategy.recompute[0] not in (FULL_RECOMPUTE, NO_RECOMPUTE):
        a_block = 34 / strategy.tp
    held = model.num_hidden_layers * (1 + (strategy.pp - 1) / (strategy.pp * strategy.num_virtual_stages))
    blocks = held if strategy.pp > 1 else model.num_hidden_layers
    return share * by_stage[strategy.zero] + length * strategy.microbatch_size * hidden * a_block * blocks


def regression(fold: Fold) -> list[Prediction | None]:
    """A linear regression, with a little ridge, of the logarithms of time and memory on those of sizes and degrees."""
    timed = [row for row in fold.train if row.time_s is not None]
    weighed = [row for row in fold.train if row.memory_bytes is not None]
    time = _fit(timed, [row.time_s or 1.0 for row in timed])
    memory = _fit(weighed, [row.memory_bytes or 1.0 for row in weighed]) if len(weighed) > len(timed) / 20 else None
    return with_interval(fold, time, memory)


def _fit(rows: Sequence[Measured], values: Sequence[float]) -> Callable[[Measured], float]:
    features = np.array([_features(row) for row in rows])
    middle, spread = features.mean(0), features.std(0)
    spread[spread == 0] = 1.0
    x = np.column_stack([np.ones(len(rows)), (features - middle) / spread])
    penalty = RIDGE * len(rows) * np.eye(x.shape[1])
    penalty[0, 0] = 0.0
    weights = np.linalg.solve(x.T @ x + penalty, x.T @ np.log(values))
    return lambda row: exp(min(50.0, float(weights[0] + ((np.array(_features(row)) - middle) / spread) @ weights[1:])))


def _features(row: Measured) -> list[float]:
    model, training, strategy = row.model, row.training, row.strategy
    sizes = (
        *(parameter_count(model), active_count(model), training.tokens_per_step, training.sequence_length),
        *(model.hidden_size, model.num_hidden_layers, row.cluster.world_size, _peak(row), row.capacity_bytes),
        *(strategy.tp, strategy.pp, strategy.dp, strategy.cp, strategy.ep, strategy.num_virtual_stages),
        *(strategy.microbatch_size, strategy.num_microbatches(training.global_batch_size)),
    )
    flags = (
        *(strategy.recompute[0] == name for name in (NO_RECOMPUTE, FULL_RECOMPUTE)),
        *(strategy.zero == stage for stage in (0, 2, 3)),
        strategy.attention_kernel == "flash",
        strategy.sequence_parallel,
        strategy.tp > 8,
    )
    return [*(log(max(size, 1e-9)) for size in sizes), *map(float, flags)]


def with_interval(fold: Fold, seconds: Formula, memory: Formula | None = None) -> list[Prediction | None]:
    """Predictions by formulas of a row, with the middle 90 % of the train rows' errors as interval."""
    low, high = np.quantile(_ratios(fold, seconds), [0.05, 0.95]).tolist()
    found: list[Prediction | None] = []
    for row in fold.test:
        time_s = seconds(row)
        needed = None if memory is None else memory(row)
        found.append(None if time_s is None else Prediction(time_s, low * time_s, high * time_s, needed))
    return found


def _ratios(fold: Fold, seconds: Formula) -> list[float]:
    """Measured over predicted, of the train rows that a formula has an answer to."""
    pairs = [(row.time_s, seconds(row)) for row in fold.train if row.time_s is not None]
    return [time_s / said_s for time_s, said_s in pairs if said_s is not None]


def _scaled(fold: Fold, seconds: Formula, memory: Formula | None = None) -> list[Prediction | None]:
    """Predictions as `with_interval` makes them, with seconds times the middle ratio of the train rows."""
    ratios = _ratios(fold, seconds)
    if not ratios:
        return [None] * len(fold.test)
    middle = float(np.median(ratios))

    def scaled(row: Measured) -> float | None:
        time_s = seconds(row)
        return None if time_s is None else middle * time_s

    return with_interval(fold, scaled, memory)


def of_peer(said: Callable[[Measured], peer.Answer | None]) -> Predictor:
    """A peer at the middle ratio of the train rows: each leaves it to the user how far devices are from their best. A
    row is asked for once; said: of an adapter."""
    known: dict[str, peer.Answer | None] = {}

    def answer(row: Measured) -> peer.Answer | None:
        if row.key not in known:
            known[row.key] = said(row)
        return known[row.key]

    def part(which: int) -> Formula:
        return lambda row: None if (one := answer(row)) is None else one[which]

    return lambda fold: _scaled(fold, part(0), part(1))


def _again(row: Measured) -> float:
    """FLOPs with recompute over those without: full recompute is one more forward."""
    return 4 / 3 if row.strategy.recompute[0] == FULL_RECOMPUTE else 1.0


def _peak(row: Measured) -> float:
    return row.cluster.world_size * row.cluster.device.peak_flops_per_s(row.training.precision.fastest_dtype)


PREDICTORS = Table[Predictor](
    "predictors",
    callable,
    "a function of a Fold",
    {
        "autoshard": autoshard_model,
        "regression": regression,
        "megatron": megatron,
        "6ND": six_n_d,
        "roofline": roofline,
        "llm_analysis": of_peer(llm_analysis.said),
        "calculon": of_peer(calculon.said),
        "simumax": of_peer(simumax.said),
        "galvatron": of_peer(galvatron.said),
    },
)
"""By name, those of plug-ins too; a peer's needs the peer."""
