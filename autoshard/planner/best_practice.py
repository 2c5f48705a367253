"""The layout that a vendor advises for a device, beside the one that the search chose."""

from __future__ import annotations

from autoshard.backends.problem import Problem
from autoshard.cost.interval import difference_factors
from autoshard.errors import AutoshardError
from autoshard.layout.strategy import Strategy
from autoshard.planner.search import search
from autoshard.plans.search_result import Candidate, Pins
from autoshard.spec.cluster import Cluster
from autoshard.units import format_seconds, percent

SOURCE = "Neuron documentation, training/best-practices, 16 Oct 2026"


def best_practice(problem: Problem, best: Candidate, fit_probability: float) -> tuple[str, ...]:
    """A sentence that compares the chosen layout with AWS's advice for native PyTorch on Neuron: tensor parallelism
    inside a chip and FSDP over everything else; none where the cluster has no stack of it.

    The advice leaves microbatch, recompute and experts open; they are searched.
    """
    cluster = problem.cluster
    if cluster.stack is None or cluster.world_size == cluster.devices_per_chip:
        return ()
    chip = cluster.devices_per_chip
    where = "over the torus" if cluster.platform.torus is not None else "over the other chips"
    advice = f"best practice: AWS advises tp={chip} inside a chip and FSDP {where} ({SOURCE})"
    if follows(best.strategy, cluster):
        return (f"{advice}; the chosen layout is that",)
    pins = Pins(tp=chip, pp=1, cp=1, zero=3)
    try:
        found = search(*problem[:3], pins, problem.backend, top=0, fit_probability=fit_probability).best
    except AutoshardError as error:
        return (f"{advice}; here: {error}",)
    ratio = found.estimate.step_time_s / best.estimate.step_time_s
    low, high = difference_factors(cluster, best.strategy, found.strategy)
    beside = (
        f"{advice}: predicted {format_seconds(found.estimate.step_time_s)} a step, {100 * (ratio - 1):+.1f} % "
        f"(90 %: {100 * (low * ratio - 1):+.1f}% to {100 * (high * ratio - 1):+.1f}%), fits with "
        f"{percent(found.estimate.fits_probability)} probability; --tp {chip} --pp 1 --cp 1 --zero 3 takes it"
    )
    return (beside,)


def follows(strategy: Strategy, cluster: Cluster) -> bool:
    """Whether a layout is the advice."""
    s = strategy
    return (s.tp, s.pp, s.cp, s.zero, s.dp_replicate) == (cluster.devices_per_chip, 1, 1, 3, 1)
