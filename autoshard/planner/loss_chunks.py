"""Layouts that a loss in chunks makes possible: of which the compiler takes each graph, or that fit.

Chunks cost the product with the vocabulary once more, so the search begins without. It is made again with chunks where
the fastest layout was passed over, for the graph of its head at least, and where no layout fits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil, log2

from autoshard.backends.rules import Problem
from autoshard.errors import AutoshardError
from autoshard.layout.strategy import Strategy
from autoshard.planner.compiling import Compiling, compiling
from autoshard.planner.no_answer import NothingFits
from autoshard.planner.search import Searched
from autoshard.plans.search_result import Pins, SearchResult
from autoshard.precedents.graph_size import head_regions
from autoshard.precedents.will_compile import Verdict, judge
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec
from autoshard.units import format_seconds

MOST_CHUNKS = 64
"""Chunks that a search gives a loss at most: more make products too small. A guess."""
BYTES_OF_LOGIT = 10
"""What the head keeps of a logit and works with beside, at most, in FP32 and with a softcap."""
Found = tuple[Problem, SearchResult, tuple[str, ...]]
"""A problem, its result, and sentences on how it was chosen."""


def faster_in_chunks(problem: Problem, result: SearchResult, search: Callable[[Problem], SearchResult]) -> Found | None:
    """The problem with its loss in the chunks of `chunks_that_compile` for the fastest layout, and the result, where
    that is faster than the one that was chosen without; else None. result: of the problem."""
    passed_over, graphs = result.fastest if isinstance(result, Searched) else None, compiling(problem)
    if graphs is None or passed_over is None or not graphs.refuses(passed_over):
        return None
    chunked = chunks_that_compile(problem, passed_over)
    if chunked is None:
        return None
    try:
        found = search(chunked)
    except AutoshardError:
        return None
    best, before = found.best.estimate, result.best.estimate
    if best.step_time_s >= before.step_time_s or Compiling(chunked).refuses(found.best.strategy):
        return None
    note = (
        f"loss in {chunked.training.loss_chunks} chunks: {format_seconds(best.step_time_s)} a step; of all logits at "
        f"once the fastest layout that is expected to compile takes {format_seconds(before.step_time_s)}"
    )
    return chunked, found, (note,)


def chunks_that_compile(problem: Problem, layout: Strategy) -> Problem | None:
    """The problem with its loss in the fewest chunks, a power of two, with which the compiler is expected to take each
    graph of a layout, or each of its head where it refuses others with any chunks: a layout that differs in those may
    be the next fastest. None where up to MOST_CHUNKS change neither, and where the head has no chunks."""
    of_head: Problem | None = None
    refused = _refuses_head(problem, layout)
    for chunks in _powers(problem.training):
        chunked = _in_chunks(problem, chunks)
        try:
            if not Compiling(chunked).refuses(layout):
                return chunked
            if of_head is None and refused and not _refuses_head(chunked, layout):
                of_head = chunked
        except AutoshardError:  # of `with_chunked_loss`, such as of logits with a bias
            return None
    return of_head


def _refuses_head(problem: Problem, layout: Strategy) -> bool:
    """Whether the compiler is expected to refuse a graph of the head."""
    return any(judge(one).verdict is Verdict.REFUSED for one in head_regions(*problem[:3], layout))


def fitting_in_chunks(error: NothingFits, search: Callable[[Problem], SearchResult]) -> Found | None:
    """The problem with its loss in chunks, and the result, where nothing fits without; None where chunks cannot help.
    error: of the search without. A chunk's logits are no larger than the hidden activations of all tokens that they
    come from. A schedule that is pinned may hold logits of all microbatches at once, as GPipe does.

    Raises NothingFits, with what chunks need and would need, where nothing fits with them either.
    """
    problem = error.problem
    chunks = that_may_fit(problem, error.pins, error.needed_bytes)
    if chunks == 1:
        return None
    chunked = _in_chunks(problem, chunks)
    try:
        found = search(chunked)
    except NothingFits:
        raise
    except AutoshardError:  # of a backend or a head that has no chunks
        return None
    return chunked, found, (f"loss in {chunks} chunks: of all logits at once no layout fits, {error.reason}",)


def that_may_fit(problem: Problem, pins: Pins, needed_bytes: float) -> int:
    """The chunks of the loss with which a layout may fit, where the smallest without needs so many bytes of a device;
    1 where they cannot help."""
    model, training, cluster, _ = problem
    sequences = (pins.microbatch_size or 1) if pins.schedule is None else training.global_batch_size
    saved_bytes = BYTES_OF_LOGIT * sequences * training.sequence_length * model.vocab_size
    is_near = needed_bytes - saved_bytes <= cluster.device.memory_bytes
    return smallest_useful(model, training) if is_near and training.loss_chunks == 1 else 1


def smallest_useful(model: ModelSpec, training: TrainingSpec) -> int:
    """The chunks with which logits of one are no larger than the hidden activations, a power of two."""
    wanted = 2 ** max(0, ceil(log2(model.vocab_size / model.hidden_size)))
    return max((one for one in (1, *_powers(training)) if one <= wanted), default=1)


def _powers(training: TrainingSpec) -> list[int]:
    most = min(MOST_CHUNKS, training.sequence_length)
    return [2**power for power in range(1, most.bit_length())]


def _in_chunks(problem: Problem, chunks: int) -> Problem:
    return problem._replace(training=replace(problem.training, loss_chunks=chunks))
