"""A mixed-integer linear program as rows and columns, and its solution by HiGHS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from math import inf
from typing import Any, NamedTuple

import numpy as np

from autoshard.errors import AutoshardError

TIME_LIMIT_S = 300.0
"""An emergency exit: which nodes HiGHS has seen by then depends on the machine."""
MOST_NODES = 50
INTEGER = 1e-9
"""How far from an integer a number may be that is one."""


@dataclass
class LinearProgram:
    """Minimise the cost. Every variable lies between 0 and `upper`; mutable while it is built."""

    costs: list[float] = field(default_factory=list)
    uppers: list[float] = field(default_factory=list)
    integers: list[bool] = field(default_factory=list)
    rows: list[tuple[dict[int, float], float, float]] = field(default_factory=list)

    def variable(self, cost: float = 0.0, integer: bool = False, upper: float = 1.0) -> int:
        self.costs.append(cost)
        self.uppers.append(upper)
        self.integers.append(integer)
        return len(self.costs) - 1

    def row(self, coefficients: Mapping[int, float], low: float = -inf, high: float = inf) -> None:
        """Demand low <= sum of coefficients x variables <= high. coefficients: by number of the variable."""
        self.rows.append(({index: value for index, value in coefficients.items() if value}, low, high))

    def at_least(self, variable: int, parts: Mapping[int, float], constant: float = 0.0) -> None:
        """Demand variable >= sum of parts + constant. parts: coefficients by number of the variable."""
        coefficients = {index: -value for index, value in parts.items()}
        coefficients[variable] = coefficients.get(variable, 0.0) + 1.0
        self.row(coefficients, low=constant)


class Minimum(NamedTuple):
    """A solution of a linear program. values: of the best solution that was found; None where there is none. at_least:
    no solution costs less."""

    values: list[float] | None
    at_least: float


def highs() -> Any:
    """The module of HiGHS. Raises AutoshardError where it is not installed."""
    try:
        return import_module("highspy")
    except ImportError:
        raise AutoshardError("operators=solver needs HiGHS: pip install 'autoshard[solver]'") from None


def minimise(program: LinearProgram, relative_gap: float = 0.0) -> Minimum:
    """The optimum, or what is known of it after MOST_NODES nodes. relative_gap: how much better than what is found
    another solution may be.

    Where integers are free to be fractions the optimum often has none: it is then the optimum of integers too, in a
    tenth of the time.

    Raises AutoshardError where HiGHS is not installed, or gives up after TIME_LIMIT_S.
    """
    highspy = highs()
    solver, model, integers = highspy.Highs(), _model(program), np.array(program.integers)
    for name, value in (*_OPTIONS.items(), ("mip_rel_gap", relative_gap), ("presolve", "off")):
        solver.setOptionValue(name, value)
    if not _is_feasible(solver, model):
        return Minimum(None, inf)
    values = np.array(solver.getSolution().col_value)
    if np.abs(values - values.round())[integers].max(initial=0.0) <= INTEGER:
        return Minimum(values.tolist(), float(solver.getInfo().objective_function_value))
    solver.setOptionValue("presolve", "choose")
    kinds = highspy.HighsVarType
    model.integrality_ = [kinds.kInteger if whole else kinds.kContinuous for whole in program.integers]
    if not _is_feasible(solver, model):
        return Minimum(None, inf)
    info = solver.getInfo()
    is_found = info.primal_solution_status == int(highspy.SolutionStatus.kSolutionStatusFeasible)
    return Minimum(list(solver.getSolution().col_value) if is_found else None, float(info.mip_dual_bound))


def _model(program: LinearProgram) -> Any:
    """The program in HiGHS's form, its integers free to be fractions."""
    highspy = highs()
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(program.costs), len(program.rows)
    model.col_cost_ = np.array(program.costs)
    model.col_lower_ = np.zeros(len(program.costs))
    model.col_upper_ = np.array(program.uppers)
    model.row_lower_ = np.array([low for _, low, _ in program.rows])
    model.row_upper_ = np.array([high for _, _, high in program.rows])
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lengths = [len(coefficients) for coefficients, _, _ in program.rows]
    model.a_matrix_.start_ = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    model.a_matrix_.index_ = np.array([index for row, _, _ in program.rows for index in row], dtype=np.int32)
    model.a_matrix_.value_ = np.array([value for row, _, _ in program.rows for value in row.values()])
    return model


def _is_feasible(solver: Any, model: Any) -> bool:
    """Whether a model that HiGHS has now solved, or as good as that, has a solution."""
    kinds_of = highs().HighsModelStatus
    solver.passModel(model)
    solver.run()
    status = solver.getModelStatus()
    if status in (kinds_of.kInfeasible, kinds_of.kUnboundedOrInfeasible):
        return False
    if status not in (kinds_of.kOptimal, kinds_of.kSolutionLimit):
        raise AutoshardError(f"HiGHS gave up on the operators of a block: {solver.modelStatusToString(status)}")
    return True


_OPTIONS: dict[str, object] = {
    "output_flag": False,
    "threads": 1,
    "random_seed": 0,
    "mip_max_nodes": MOST_NODES,
    "mip_abs_gap": 1e-9,
    "mip_feasibility_tolerance": INTEGER,
    "primal_feasibility_tolerance": 1e-9,
    "dual_feasibility_tolerance": 1e-9,
    "time_limit": TIME_LIMIT_S,
}
