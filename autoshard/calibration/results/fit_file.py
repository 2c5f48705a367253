"""Writes fits into one hardware file: of training results on an instance type, and of times of its collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp
from pathlib import Path
from typing import Any

from autoshard.calibration.calibration import Leaf, evidence, set_fitted
from autoshard.calibration.results.collective_fit import CollectiveFit, fit_collectives
from autoshard.calibration.results.collective_rows import CollectiveCase
from autoshard.calibration.results.constants import Constant
from autoshard.calibration.results.effects import Effects
from autoshard.calibration.results.instance_fit import NOISE, InstanceFit, fit_instance
from autoshard.calibration.results.instance_rows import InstanceCase
from autoshard.calibration.results.pages import collectives_table, constants_lines, evidence_line, results_lines
from autoshard.calibration.results.usable import Usable
from autoshard.spec.hardware_file import read_cluster, read_content

Content = dict[str, Any]


def add_results(
    contents: Sequence[Content],
    found: Usable[InstanceCase],
    constants: Mapping[Leaf, Constant],
    read_with: Content,
    noise: float = NOISE,
    effects: Effects | None = None,
) -> tuple[InstanceFit, list[str]]:
    """Fits training results and writes the constants into `contents`; returns the fit and lines to print.

    contents: hardware files of devices that are alike. read_with: the hardware file that the results' clusters come
    from. noise: spread of the logarithm of a step time. effects: of the results, fitted besides.
    """
    fit = fit_instance(found.cases, constants, read_with, noise, effects)
    measured = [case.time_s for case in found.cases]
    errors = _errors(fit.predicted_s, measured)
    left_out = None if fit.left_out_s is None else _errors(fit.left_out_s, measured)
    groups = len({case.group for case in found.cases})
    of = evidence(fit.values, found.path.name, found.sha256, groups, (errors, left_out))
    values = {
        leaf: (value, f"{constants[leaf].meaning} ({constants[leaf].prior:g})") for leaf, value in fit.values.items()
    }
    for content in contents:
        set_fitted(content, values, of)
    page = [evidence_line(contents[0]["instance"], of)]
    page += constants_lines(fit.values, {leaf: one.prior for leaf, one in constants.items()})
    return fit, [*page, *results_lines(found.cases, fit)]


def add_collectives(
    content: Content, found: Usable[CollectiveCase], priors: Mapping[Leaf, tuple[float, str]]
) -> tuple[CollectiveFit, list[str]]:
    """Fits times of collectives and writes the constants into `content`; returns the fit and lines to print. content:
    the hardware file that the cases were read with."""
    fit = fit_collectives(found.cases, priors, content)
    groups = len({case.group for case in found.cases})
    errors = [abs(exp(one) - 1) for one in fit.residuals]
    left_out = None if fit.left_out is None else [abs(exp(one) - 1) for one in fit.left_out]
    of = evidence(fit.values, found.path.name, found.sha256, groups, (errors, left_out))
    set_fitted(content, {leaf: (value, _prior(*priors[leaf])) for leaf, value in fit.values.items()}, of)
    columns = {"as fitted": fit.residuals, **({} if fit.left_out is None else {"left out": fit.left_out})}
    page = [evidence_line(content["instance"], of)]
    page += constants_lines(fit.values, {leaf: prior for leaf, (prior, _) in priors.items()})
    return fit, [*page, *collectives_table(found.cases, columns)]


def _prior(value: float, where: str) -> str:
    return f"prior {value:g}: {where}"


def _errors(seconds: Sequence[float], measured: Sequence[float]) -> list[float]:
    return [abs(one / other - 1) for one, other in zip(seconds, measured, strict=True)]


def hardware_content(path: Path, instance: str | None = None) -> Content:
    """The content of a hardware file. Raises AutoshardError where it is not whole, or describes another instance."""
    read_cluster(path, instance, 1, None)
    found: Content = read_content(path)
    return found
