"""Objectives of `autoshard plan` beyond the fastest step on one cluster: money, the smallest cluster, a frontier."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from autoshard.backends.registry import check_devices, usual_backend
from autoshard.errors import AutoshardError, NoLayoutFits
from autoshard.planner.answer import Answer, fits_but, unsureness
from autoshard.planner.inputs import inputs_of, precision_names
from autoshard.planner.precisions import best_precision
from autoshard.planner.request import SEARCHED, PlanRequest
from autoshard.planner.watching import goes_on
from autoshard.spec.training import load_precision
from autoshard.units import BILLION, DAY_S, counted, format_count, format_days, format_number, format_seconds, percent

LOGICAL_CORES = (1, 2)
STEPS_OF_AN_OCTAVE = 16
"""Sizes of clusters looked at between one power of two and the next."""


def best_answer(request: PlanRequest) -> Answer:
    """The best answer by the request's objective. Raises AutoshardError where the objective lacks a number,
    NoLayoutFits where no cluster meets it."""
    if request.objective == "nodes":
        return _fewest_nodes(request)
    if request.days is not None:
        raise AutoshardError(
            f"days={request.days:g} is a deadline, and objective={request.objective} has none; use objective=nodes"
        )
    best = _cheapest(request) if request.objective == "cost" else _with_note(request, *_fastest(request))
    return best if request.tokens is None else _with_training(best, request.tokens)


def frontier(request: PlanRequest) -> tuple[Answer, ...]:
    """Answers for the clusters of 1, 2, 4, ... up to --nodes nodes of which none with fewer nodes is as fast; by rising
    number of nodes. Where who watches wants it to end, that is before the cluster whose search was cut short, unless it
    is the first. Raises AutoshardError for what only a single plan has, and where no cluster has an answer."""
    for name, usual in (("tokens", None), ("days", None), ("objective", "time")):
        if getattr(request, name) != usual:
            raise AutoshardError(f"--pareto lists single steps and takes no --{name}; a plan without --pareto does")
    answers: list[Answer] = []
    for larger in _answers(request, _powers_of_two(request.nodes)):
        in_full, step_s = goes_on(), larger.result.best.estimate.step_time_s
        if not answers or (in_full and step_s < answers[-1].result.best.estimate.step_time_s):
            answers.append(larger)
        if not in_full:
            break
    return tuple(answers)


def usd_per_billion_tokens(found: Answer) -> float | None:
    """US dollars that a billion tokens cost with the best layout; None where the price of a node is not known."""
    return found.problem.cluster.usd_per_billion_tokens(found.result.best.estimate.tokens_per_s)


def _fastest(request: PlanRequest) -> tuple[Answer, tuple[Answer, ...]]:
    """(the fastest over what a logical core may be, of those that fit most surely; the others)."""
    tried = [_tried(one) for one in _each_lnc(request)]
    answers = [one for one in tried if isinstance(one, Answer)]
    if not answers:
        raise _none_of(dict(zip((one.lnc for one in _each_lnc(request)), tried, strict=True)))
    best, *others = sorted(answers, key=lambda one: (unsureness(one, request), one.result.best.estimate.step_time_s))
    return best, tuple(others)


def _none_of(refusals: Mapping[int | str | None, Answer | AutoshardError]) -> AutoshardError:
    """One error with the texts of the errors at each lnc; with one text where all are the same."""
    kind = NoLayoutFits if any(isinstance(one, NoLayoutFits) for one in refusals.values()) else AutoshardError
    said = {lnc: str(error) for lnc, error in refusals.items()}
    if len(set(said.values())) == 1:
        return kind(next(iter(said.values())))
    return kind("; ".join(f"at lnc {lnc} {text}" for lnc, text in said.items()))


def _tried(request: PlanRequest) -> Answer | AutoshardError:
    try:
        return best_precision(request)
    except AutoshardError as error:
        return error


def _each_lnc(request: PlanRequest) -> Iterator[PlanRequest]:
    """The request at each lnc that the instance offers where --lnc is auto; else the request itself."""
    if request.lnc != SEARCHED:
        yield request
        return
    default = inputs_of(replace(request, lnc=None))[2]
    for lnc in LOGICAL_CORES:
        at_lnc = replace(request, lnc=lnc)
        if lnc == default.lnc or _exists(at_lnc):
            yield at_lnc


def _exists(request: PlanRequest) -> bool:
    try:
        inputs_of(request)
    except AutoshardError:
        return False
    return True


def _with_note(request: PlanRequest, best: Answer, others: tuple[Answer, ...]) -> Answer:
    if not others:
        return best
    step = best.result.best.estimate.step_time_s
    slower = ", ".join(
        f"{format_seconds(one.result.best.estimate.step_time_s)} at lnc {one.problem.cluster.lnc}"
        f"{fits_but(one, request, best)}"
        for one in others
    )
    note = f"lnc {best.problem.cluster.lnc}: {format_seconds(step)} a step; the fastest layout takes {slower}"
    return replace(best, notes=(*best.notes, note))


def _with_training(best: Answer, tokens: float) -> Answer:
    """The answer with a note of the days and dollars that the whole training takes. tokens: of the training."""
    speed, usd = best.result.best.estimate.tokens_per_s, usd_per_billion_tokens(best)
    costs = "" if usd is None else f" and cost {format_number(usd * tokens / BILLION)} USD"
    time = format_days(tokens / speed / DAY_S)
    note = f"tokens: {format_count(tokens)} take {time} at {format_number(speed)} a second{costs}"
    return replace(best, notes=(*best.notes, note))


def _answers(request: PlanRequest, counts: Iterable[int]) -> Iterator[Answer]:
    """The answer for each number of nodes that has one. Raises the last AutoshardError where none has."""
    tried = (_tried_fastest(replace(request, nodes=nodes)) for nodes in counts)
    refused, is_answered = None, False
    for outcome in tried:
        if isinstance(outcome, Answer):
            is_answered = True
            yield outcome
        else:
            refused = outcome
    if refused is not None and not is_answered:
        raise refused


def _tried_fastest(request: PlanRequest) -> Answer | AutoshardError:
    try:
        return _fastest(request)[0]
    except AutoshardError as error:
        return error


def _powers_of_two(most: int) -> tuple[int, ...]:
    """1, 2, 4, ... and the last."""
    counts = [1]
    while counts[-1] * 2 <= most:
        counts.append(counts[-1] * 2)
    return tuple(dict.fromkeys((*counts, most)))


def _cheapest(request: PlanRequest) -> Answer:
    counts = _powers_of_two(request.nodes)
    cluster = inputs_of(request)[2]
    if cluster.price_per_node_hour_usd is None:
        raise AutoshardError(
            f"objective=cost needs a price, and the hardware file of {cluster.instance} has none; "
            "--price-per-node-hour gives it"
        )
    answers = [*_answers(request, counts)]
    best = min(answers, key=lambda one: (*_doubts(one, request), _usd(one), one.problem.cluster.nodes))
    compared = [one for one in answers if _doubts(one, request) == _doubts(best, request)]
    note = (
        f"objective cost: {_usd(best):,.2f} USD for a billion tokens at {cluster.price_per_node_hour_usd:g} USD a node "
        f"and hour, the least of {', '.join(str(one.problem.cluster.nodes) for one in compared)} nodes"
    )
    cheaper = [one for one in answers if _usd(one) < _usd(best)]
    note += "".join(
        f"; {counted(one.problem.cluster.nodes, 'node')} {_usd(one):,.2f} USD, with a plan {_passed_over(one, request)}"
        for one in cheaper
    )
    return replace(best, notes=(*best.notes, note))


def _usd(found: Answer) -> float:
    """US dollars that a billion tokens cost, where the price of a node is known."""
    return usd_per_billion_tokens(found) or 0.0


def _doubts(found: Answer, request: PlanRequest) -> tuple[bool, int]:
    """What comes before money and nodes: whether no backend runs the plan, and how unsurely it fits."""
    return not _is_run(found, request), unsureness(found, request)


def _passed_over(found: Answer, request: PlanRequest) -> str:
    """The clause on a plan with more `_doubts` than the chosen one."""
    if not _is_run(found, request):
        return "that nothing runs there"
    return f"that fits with {percent(found.result.best.estimate.fits_probability)} probability"


def _fewest_nodes(request: PlanRequest) -> Answer:
    """The smallest of the sizes looked at that is fast enough; those that could not be at the devices' peak are not.
    One whose backend does not run on these devices, or that fits less surely than is asked for, gives way to one of up
    to twice the nodes of which neither is so."""
    if request.tokens is None or request.days is None:
        missing = "--tokens" if request.tokens is None else "--days"
        raise AutoshardError(f"objective=nodes: the fewest nodes that see --tokens in --days; {missing} is missing")
    wanted = request.tokens / (request.days * DAY_S)
    fastest: Answer | None = None
    met: list[Answer] = []
    asked, least = request, _least_nodes(request, wanted)
    refused = f"at the peak of their devices {least:,} nodes would just do"
    for nodes in _sizes(least, request.nodes):
        if met and nodes > 2 * met[0].problem.cluster.nodes:
            break
        best = _tried_fastest(replace(asked, nodes=nodes))
        if not isinstance(best, Answer):
            refused = str(best)
            continue
        speed = best.result.best.estimate.tokens_per_s
        if speed >= wanted:
            met.append(best)
            if not any(_doubts(best, request)):
                break
            if not _is_run(best, request):
                asked = replace(request, backend=usual_backend(best.problem.cluster).name)
        if fastest is None or speed > fastest.result.best.estimate.tokens_per_s:
            fastest = best
    if not met:
        raise NoLayoutFits(_too_slow(request, wanted, fastest, refused))
    chosen = min(met, key=lambda one: (_doubts(one, request), one.problem.cluster.nodes))
    return replace(chosen, notes=(*chosen.notes, _met(request, chosen, met)))


def _met(request: PlanRequest, chosen: Answer, met: Iterable[Answer]) -> str:
    """The note on the cluster that was chosen. met: those that see the tokens in the days."""
    assert request.tokens is not None and request.days is not None
    nodes = chosen.problem.cluster.nodes
    time = format_days(request.tokens / chosen.result.best.estimate.tokens_per_s / DAY_S)
    see = "node sees" if nodes == 1 else "nodes see"
    note = (
        f"objective nodes: {nodes:,} {see} {format_count(request.tokens)} tokens in {time}, "
        f"{format_days(request.days)} allowed; the smallest of the sizes looked at, "
        f"{STEPS_OF_AN_OCTAVE} an octave"
    )
    fewer = [one for one in met if one.problem.cluster.nodes < nodes]
    return note + "".join(
        f"; {counted(one.problem.cluster.nodes, 'node')} would do with a plan {_passed_over(one, request)}"
        for one in fewer[:1]
    )


def _is_run(found: Answer, request: PlanRequest) -> bool:
    """Whether the answer's backend runs on its devices, or is the one that was asked for."""
    if request.backend != "auto":
        return True
    try:
        check_devices(found.problem.cluster, found.problem.backend)
    except AutoshardError:
        return False
    return True


def _least_nodes(request: PlanRequest, wanted_tokens_per_s: float) -> int:
    """The number of nodes whose devices at their peak would just be fast enough."""
    from autoshard.cost.estimate import model_flops_per_step

    plain = replace(request, nodes=1, lnc=None if request.lnc == SEARCHED else request.lnc)
    model, training, cluster, _ = inputs_of(plain)
    flops_per_token = model_flops_per_step(model, training) / training.tokens_per_step
    dtypes = [load_precision(name).fastest_dtype for name in precision_names(plain)]
    node_peak = cluster.devices_per_node * max(map(cluster.device.peak_flops_per_s, dtypes))
    return max(1, int(wanted_tokens_per_s * flops_per_token / node_peak))


def _sizes(least: int, most: int) -> Iterator[int]:
    """Numbers of nodes to try: every number up to 16, then 16 evenly spaced ones an octave."""
    nodes = 1
    while nodes <= most:
        if nodes >= least:
            yield nodes
        octave = 1 << (nodes.bit_length() - 1)
        nodes += max(1, octave // STEPS_OF_AN_OCTAVE)


def _too_slow(request: PlanRequest, wanted: float, fastest: Answer | None, refused: str) -> str:
    """The error where no cluster is fast enough. wanted: tokens a second.

    refused: what was said of the largest cluster that has no layout, or that all are too small.
    """
    tokens, time = format_count(request.tokens or 0), format_days(request.days or 0)
    start = f"no cluster of up to {counted(request.nodes, 'node')} sees {tokens} tokens in {time}"
    if fastest is None:
        return f"{start}: {refused}"
    speed, nodes = fastest.result.best.estimate.tokens_per_s, fastest.problem.cluster.nodes
    return f"{start}, {wanted:,.0f} a second: the fastest, {counted(nodes, 'node')}, does {speed:,.0f}"
