"""Fits the constants of device families and software stacks to results on GPUs, by derivatives of the cost model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from autoshard.calibration.least_squares import Prior, by_size, stepped
from autoshard.calibration.results.constants import FAMILY, FIXED, MEMORY, STACK, Constant, stack_of
from autoshard.calibration.results.derivatives import Dual, variables
from autoshard.calibration.results.gpu_rows import Case
from autoshard.calibration.results.machine import hardware, machine, memory_bytes, sends_beside, stalls, syncs
from autoshard.calibration.results.regimes import fitted_layout
from autoshard.cost import collectives, stage
from autoshard.cost.estimate import Estimate, estimate, fullest_bytes, step_time_s
from autoshard.spec.cluster import Cluster, load_cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec

Values = dict[tuple[str, str], float]
MARGIN = 0.005
"""Margin of the logarithm of memory: a run that fits should be predicted this far below the memory, one that does not
above."""
NOISE = 0.04
"""Spread of the logarithm of a measured time: repeats of BigScience and others differ by 2 to 9 %."""


OUTLIER = 0.15
"""An error of the logarithm of time of this size has half the weight that its size would give it, and larger ones ever
less: published tables hold runs that were several times slower than their own repeats."""


def keys_of(case: Case, memory: bool) -> list[tuple[str, str]]:
    family, stack = hardware(case)[1], stack_of(case.stack)[0]
    if memory:
        return [(stack, name) for name in MEMORY] if stack else []
    return [(family, name) for name in FAMILY] + ([(stack, name) for name in STACK] if stack else [])


def constant(key: tuple[str, str]) -> Constant:
    return {**FAMILY, **STACK, **MEMORY}[key[1]]


def predictions(
    cases: Sequence[Case], values: Values, gradient_keys: Sequence[tuple[str, str]] = (), memory: bool = False
) -> list[Any]:
    """The step time of each case in seconds or, with `memory`, the share of its device's memory that it fills."""
    return _priced(_share_of_memory if memory else step_time_s, cases, values, gradient_keys)


def estimates(cases: Sequence[Case], values: Values) -> list[Estimate]:
    """The estimate of each case."""
    return _priced(estimate, cases, values)


def _share_of_memory(model: ModelSpec, training: TrainingSpec, cluster: Cluster, *layout: Any, **more: Any) -> float:
    return fullest_bytes(model, training, cluster, *layout, **more) / cluster.device.memory_bytes


def _priced(
    price: Callable[..., Any],
    cases: Sequence[Case],
    values: Values,
    gradient_keys: Sequence[tuple[str, str]] = (),
) -> list[Any]:
    """The price of each case on its machine; its numbers are Duals by the logarithms of gradient_keys where there are
    any. price: `estimate`, or a function of the same arguments."""
    logs = np.array([np.log(values.get(key, constant(key).prior)) for key in gradient_keys])
    known: dict[tuple[str, str], Any] = {
        key: Dual(float(np.exp(log)), dual.g * float(np.exp(log)))
        for key, log, dual in zip(gradient_keys, logs, variables(logs), strict=True)
    }

    def constants(owner: str | None, table: dict[str, Constant]) -> dict[str, Any]:
        keys = {name: (owner or "", name) for name in table}
        return {name: known.get(key, values.get(key, table[name].prior)) for name, key in keys.items()}

    if gradient_keys:
        forget()
    machines: dict[Any, Any] = {}
    found = []
    for case in cases:
        family = hardware(case)[1]
        stack = stack_of(case.stack)[0]
        where = (case.gpu, case.memory_gb, case.nodes, case.gpus_per_node, case.network_bytes_per_s)
        facts = (
            case.fused_norm,
            case.cuda_graphs,
            case.overlaps,
            case.allocated_only,
            case.gathers_quantized,
            case.offloaded,
        )
        how = (case.kernel, case.zero, case.low_precision, *facts, syncs(case), stalls(case), sends_beside(case))
        key = (*where, case.stack, *how, case.model.model_type, case.dispatch)
        if key not in machines:
            said = {name: value for (of, name), value in values.items() if of == family}
            of_family = {**FIXED, **said, **constants(family, FAMILY)}
            machines[key] = machine(case, of_family, constants(stack, {**STACK, **MEMORY}))
        cluster, software = machines[key]
        found.append(price(case.model, case.training, cluster, case.strategy, software, dense=case.dense))
    if gradient_keys:
        forget()
    return found


def forget() -> None:
    """Empties the cache of prices. Prices depend on the constants, and a number and a Dual of one value are equal keys;
    programs do not depend on them and stay."""
    for cached in (stage.stage_parts, stage._priced_unit, collectives.collective_law):
        cached.cache_clear()


class Linearised:
    """Residuals log(predicted / measured) and their derivatives at given values of the constants.

    Runs of which only "it fits" is known have as residual how far the predicted memory is on the wrong side, by a
    margin.
    """

    def __init__(self, cases: Sequence[Case], values: Values, memory: bool = False, own: Values | None = None) -> None:
        """own: of one's own results, the constants that are fitted alone, each with its prior. An error then counts no
        less where it is large: all of one's runs may be slower than published ones."""
        self.cases, self.values, self.memory = list(cases), dict(values), memory
        self.far = np.inf if memory or own is not None else OUTLIER
        self.keys = sorted({key for case in cases for key in keys_of(case, memory) if own is None or key in own})
        self.at = np.array([np.log(values.get(key, constant(key).prior)) for key in self.keys])
        self.predicted, self.jacobian = np.zeros(len(cases)), np.zeros((len(cases), len(self.keys)))
        self._linearise()
        measured = [self._measured(case) for case in cases]
        self.residual = np.log(self.predicted / np.array(measured))
        self.only_fits = np.array([memory and case.memory_bytes is None for case in cases])
        self.side = np.array([1.0 if case.fits else -1.0 for case in cases])
        constants = [constant(key) for key in self.keys]
        self.prior = Prior(
            np.log([one.prior if own is None else own[key] for key, one in zip(self.keys, constants, strict=True)]),
            np.array([one.spread for one in constants]),
            np.log([one.most for one in constants]),
        )

    def _linearise(self) -> None:
        """Computes residuals and slopes one family at a time: a prediction depends only on the constants of its own
        family and stack."""
        families = [hardware(case)[1] for case in self.cases]
        for family in dict.fromkeys(families):
            rows = [index for index, one in enumerate(families) if one == family]
            own = [self.cases[index] for index in rows]
            keys = sorted({key for case in own for key in keys_of(case, self.memory)} & {*self.keys})
            columns = [self.keys.index(key) for key in keys]
            found = predictions(own, self.values, keys, self.memory)
            self.predicted[rows] = [one.v for one in found]
            self.jacobian[np.ix_(rows, columns)] = np.array([one.g / one.v for one in found])

    def _measured(self, case: Case) -> float:
        if not self.memory:
            return float(case.time_s or 0)
        return case.memory_bytes / capacity(case) if case.memory_bytes else 1.0

    def solve(self, rows: np.ndarray, weights: np.ndarray, limit: float = 0.4) -> Values:
        """The values that minimise the linearised robust residuals of `rows` plus the priors. weights: of the rows."""
        J, r, w = self.jacobian[rows], self.residual[rows], weights[rows]
        only, side = self.only_fits[rows], self.side[rows]
        at = self.at
        for _ in range(15):
            moved = J @ (at - self.at)
            now = r + moved
            wrong = np.where(only, side * np.maximum(0.0, side * now + MARGIN), now)
            robust = np.where(wrong == 0, 0.0, w * by_size(wrong, NOISE) / NOISE / (1 + (wrong / self.far) ** 2))
            at = stepped(self.at, wrong - moved, J, robust, self.prior, limit)
        return {**self.values, **dict(zip(self.keys, np.exp(at).tolist(), strict=True))}


def capacity(case: Case) -> float:
    """Memory of the case's device, bytes."""
    return memory_bytes(case, load_cluster(hardware(case)[0], case.nodes))


def row_weights(cases: Sequence[Case], power: float = 0.5) -> np.ndarray:
    """Weights [n] of rows: the more rows a set has, the less each counts."""
    counts = Counter(case.source for case in cases)
    return np.array([(30 / max(30, counts[case.source])) ** power for case in cases])


def fit(
    cases: Sequence[Case],
    values: Values | None = None,
    rounds: int = 10,
    memory: bool = False,
    own: Values | None = None,
) -> tuple[Values, Linearised]:
    """Fits the constants to all cases. Also returns the last linearisation, which serves to leave groups out. own: as
    of Linearised."""
    values = dict(values or {})
    weights = row_weights(cases)
    everything = np.ones(len(cases), dtype=bool)
    for _ in range(rounds):
        values = Linearised(cases, values, memory, own).solve(everything, weights)
    return values, Linearised(cases, values, memory, own)


def left_out(line: Linearised) -> dict[str, Values]:
    """Group -> values fitted without it, by one step on the linearisation of the fit of all."""
    weights, labels = row_weights(line.cases), np.array([case.group for case in line.cases])
    return {group: line.solve(labels != group, weights) for group in sorted(set(labels.tolist()))}


def fitted_cases(cases: Iterable[Case], memory: bool) -> list[Case]:
    """The runs that constants are fitted to: see regimes.fitted_layout. Memory is not fitted to mixtures of experts, of
    which the only ones that were measured have dense layers besides, which a model here has not."""
    known = [case for case in cases if fitted_layout(case) and stack_of(case.stack)[0]]
    if not memory:
        return [case for case in known if case.time_s]
    known = [case for case in known if not case.model.is_moe]
    measured = {case.source for case in known if case.memory_bytes}
    failed = {case.source for case in known if not case.fits} - measured
    return [case for case in known if case.memory_bytes or case.source in failed]
