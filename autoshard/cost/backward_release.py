"""A block's backward gives activations back while gradients of weights come: when which are there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from autoshard.graph.count import operator_steps, parameter_elements
from autoshard.graph.partition import GatherEinsumStep, Program, is_projection
from autoshard.graph.recompute import in_block
from autoshard.layout.buckets import sharing_axes


class Moment(NamedTuple):
    """The activations that are gone and the gradients that have come at a moment of a block's backward.

    given_back: bytes of activations that are not there, of all that was kept or is run again and the most that one step
    works with besides, without tiles. made: matrices whose gradients are there, elements by the axes over which they
    are summed.
    """

    given_back: float
    made: Mapping[tuple[str, ...], int]


NO_MOMENT = Moment(0.0, {})


class WithGradients(NamedTuple):
    """A step that has the gradients of its weights. place: of the step. activation_bytes: of activations, those that
    are there then beside what it works with at most; gradient_bytes: of these gradients, those beyond the largest ones
    of all steps. Neither is above 0.
    """

    place: int
    activation_bytes: float
    gradient_bytes: float


class Moments(NamedTuple):
    """The moments of a block's backward at which most may be held.

    early: one step works with most; nothing has been given back. late: the last gradient of experts or of an MLP, or
    of a block that has neither. after: most activations after that. later: the most when more gradients have come than
    then, which count as all of them. end: the step of the last gradient of all is over; of an end of the model, that of
    the operator of `weights`, if there is one in front of it. before: most activations up to
    the late moment; of this one and `after` one has given nothing back. weights: the operator whose weights have most
    elements has their gradients, which are all that is made if each operator's are added to their sum at once; those of
    this one alone. tiled: as `after`, of the steps that have a tile of scores; tile_bytes: of that tile, of a
    microbatch of any size; 0 without.
    most: bytes that the fullest step works with, without tiles. puts_off: whether a schedule may put off the gradients
    of `weights`; those of experts it may not. between: of an end of the model, most activations after the operator of
    `weights`, whose matrices are not in `made`; nothing where that reads all. ahead: the same before that operator.
    put_off: elements of the largest weight whose gradient a schedule may put off; gathered: bytes of what is gathered
    again to make it. read: the axes over which gradients of matrices are summed, in the order in which a block reads
    them: what is read first leaves last. over: the backward of all is over. in_front: places of the steps that `after`,
    `later`, `tiled` and `end` are the most of, and the most that these work with, each. frozen: of matrices that are
    not trained, by the axes of the ranks that may share them, the first and the last step that reads any, in the order
    of the first ones; forward: the most bytes that are there at a step forward, beside what is kept, where there are
    such matrices: where nothing runs again and where all does; of an end of the model, on_frozen: the operator that
    reads most of them.
    """

    early: Moment = NO_MOMENT
    late: Moment = NO_MOMENT
    after: Moment = NO_MOMENT
    end: Moment = NO_MOMENT
    before: Moment = NO_MOMENT
    weights: Moment = NO_MOMENT
    tiled: Moment = NO_MOMENT
    tile_bytes: float = 0.0
    most: float = 0.0
    puts_off: bool = True
    between: Moment = NO_MOMENT
    ahead: Moment = NO_MOMENT
    later: Moment = NO_MOMENT
    put_off: int = 0
    gathered: float = 0.0
    read: tuple[tuple[str, ...], ...] = ()
    frozen: tuple[tuple[tuple[str, ...], int, int], ...] = ()
    forward: tuple[float, float] = (0.0, 0.0)
    on_frozen: Moment = NO_MOMENT
    over: Moment = NO_MOMENT
    in_front: tuple[tuple[tuple[int, ...], float], ...] = ()

    def again_bytes(self, held: Sequence[float]) -> float:
        """Bytes that are there at steps of `in_front` for what runs again, more than if nothing did: as if that were at
        their fullest. held: as of `moments`, under a recompute set."""
        return max([0.0, *(max(held[step] for step in steps) - most for steps, most in self.in_front)])


def moments(
    program: Program,
    held: Sequence[float],
    tiles: Sequence[float],
    begins: Sequence[float],
    over: float,
    forward: tuple[float, float] = (0.0, 0.0),
) -> Moments:
    """The moments of one block's backward, whatever the recompute set: what runs again is given back at the same steps
    as what was kept.

    held: bytes at the backward of each step, less what was given back before, without its tile. tiles: bytes of each
    step's tile of scores, 0 for none. Of several steps with a tile, the most of each number is taken. begins, over: as
    held, when the backward of each step begins, and when that of all is over. forward: as in Moments.
    """
    read = [_matrices(program, index) for index in range(len(program.steps))]
    late, frozen = _first_of_mlp(program, read), _frozen_reads(program)
    most, elements = max(held, default=0.0), parameter_elements(program)
    largest, weights, puts_off = _of_largest_operator(program, held, most, elements)
    put_off, gathered = _largest_projection(program, elements)
    if late is None:

        def beside(steps: slice) -> Moment:
            others = {name for names in read[steps] for name in names}.difference(*read[largest : largest + 1])
            return Moment(most - max(held[steps]), _by_axes(program, others, elements)) if others else NO_MOMENT

        end_of_table = Moment(most - begins[largest - 1], weights.made) if largest else NO_MOMENT
        of_weights = Moments(
            end=end_of_table, weights=weights, most=most, puts_off=puts_off, put_off=put_off, gathered=gathered
        )
        others = beside(slice(largest)), beside(slice(largest + 1, None))
        on_frozen = max((held[place] for place in _largest(_frozen_weights(program), elements)), default=0.0)
        return of_weights._replace(
            between=others[0],
            ahead=others[1],
            frozen=frozen,
            forward=forward,
            on_frozen=Moment(most - on_frozen, {}),
        )
    first = max(range(len(held)), key=held.__getitem__)
    after = max(range(late), key=held.__getitem__, default=late)
    before = max(range(late, len(held)), key=held.__getitem__)

    def made(since: int) -> dict[tuple[str, ...], int]:
        return _by_axes(program, {name for names in read[since:] for name in names}, elements)

    end = next(index for index, names in enumerate(read) if names)
    since = max([index + 1 for index in range(after) if read[index]], default=0)
    later = max(held[:since]) if since else held[end]
    tiled = [(held[index], tile, -index) for index, tile in enumerate(tiles[:late]) if tile]
    in_tile, tile_bytes, place = map(max, zip(*tiled, strict=True)) if tiled else (most, 0.0, 0)
    in_front = (*range(since, late),), (*range(since),), tuple(-index for *_, index in tiled), (end - 1,) * (end > 0)
    return Moments(
        Moment(0.0, made(first)),
        Moment(most - held[late], made(late)),
        Moment(most - held[after], made(after)),
        Moment(most - (begins[end - 1] if end else held[end]), made(0)),
        Moment(most - held[before] if held[after] == most else 0.0, made(before)),
        weights,
        Moment(most - in_tile, made(-int(place))) if tiled else NO_MOMENT,
        tile_bytes,
        most,
        puts_off,
        later=Moment(most - later, made(0)),
        put_off=put_off,
        gathered=gathered,
        frozen=frozen,
        forward=forward,
        read=tuple(dict.fromkeys(program.gradient_sync.get(name, ()) for names in read for name in names)),
        over=Moment(most - over, made(0)),
        in_front=tuple((steps, max(held[step] for step in steps)) for steps in in_front if steps),
    )


def _of_largest_operator(
    program: Program, held: Sequence[float], most: float, elements: Mapping[str, int]
) -> tuple[int, Moment, bool]:
    """The place of the operator of Moments.weights; that; and puts_off. held: bytes at each step, less what was given
    back before. most: bytes at the fullest one."""
    place = max(_largest_operators(program, elements), key=held.__getitem__, default=None)
    if place is None:
        return 0, NO_MOMENT, True
    puts_off = any(is_projection(program.graph, one.operator) for one in operator_steps(program.steps[place]))
    made = _by_axes(program, _learned_weights(program)[place], elements)
    return place, Moment(most - held[place], made), puts_off


def _largest_projection(program: Program, elements: Mapping[str, int]) -> tuple[int, float]:
    """Moments.put_off and Moments.gathered. elements: of each weight. Each gradient that was put off is added to its
    sum before the next one is made."""
    learned, found = {tensor.name for tensor in program.graph.learned()}, [(0, 0.0)]
    for step in program.steps:
        gathered = float(program.local_bytes[step.gather.target]) if isinstance(step, GatherEinsumStep) else 0.0
        several = (one for one in operator_steps(step) if is_projection(program.graph, one.operator))
        found += [(elements[one.inputs[1]], gathered) for one in several if one.inputs[1] in learned]
    return max(found)


def with_gradients(program: Program, elements: Mapping[str, int]) -> list[WithGradients]:
    """The steps with weights that are learned. elements: of each weight.

    What a step gathers for several products has a gradient as large, of which its own part is left when those of the
    weights come: the gradient is summed first.
    """
    found = []
    for place, names in enumerate(_learned_weights(program)):
        step, summed_bytes = program.steps[place], 0.0
        if isinstance(step, GatherEinsumStep):
            summed_bytes = program.local_bytes[step.gather.source] - program.local_bytes[step.gather.target]
        if names:
            gradient_bytes = sum(elements[name] * program.tensor(name).element_bytes for name in names)
            found.append(WithGradients(place, summed_bytes, gradient_bytes))
    most = max((one.gradient_bytes for one in found), default=0.0)
    return [one._replace(gradient_bytes=one.gradient_bytes - most) for one in found]


def _largest_operators(program: Program, elements: Mapping[str, int]) -> list[int]:
    """The places of the steps whose weights have most elements. elements: of each weight."""
    return _largest(_learned_weights(program), elements)


def _largest(weights: Sequence[set[str]], elements: Mapping[str, int]) -> list[int]:
    """The places of the steps of which these weights have most elements."""
    counts = [sum(elements[name] for name in names) for names in weights]
    most = max(counts, default=0)
    return [place for place, count in enumerate(counts) if count == most]


def _learned_weights(program: Program) -> list[set[str]]:
    """The weights that each step reads and that are learned."""
    learned = {tensor.name for tensor in program.graph.learned()}
    return [{view for one in operator_steps(step) for view in one.inputs} & learned for step in program.steps]


def _by_axes(program: Program, names: Iterable[str], elements: Mapping[str, int]) -> dict[tuple[str, ...], int]:
    """Elements of some parameters, by the axes over which their gradients are summed."""
    counts: dict[tuple[str, ...], int] = {}
    for name in names:
        axes = program.gradient_sync.get(name, ())
        counts[axes] = counts.get(axes, 0) + elements[name]
    return counts


def _matrices(program: Program, index: int) -> tuple[str, ...]:
    names = (view for step in operator_steps(program.steps[index]) for view in step.inputs)
    return tuple(name for name in names if name in program.graph.matrices and program.tensor(name).differentiable)


def _frozen_weights(program: Program) -> list[set[str]]:
    """The matrices that each step reads and that are not learned."""
    frozen = {one.name for one in program.graph.parameters() if not one.differentiable} & program.graph.matrices
    return [{view for one in operator_steps(step) for view in one.inputs} & frozen for step in program.steps]


def _frozen_reads(program: Program) -> tuple[tuple[tuple[str, ...], int, int], ...]:
    """Moments.frozen."""
    found: dict[tuple[str, ...], tuple[int, int]] = {}
    for place, names in enumerate(_frozen_weights(program)):
        for axes in (sharing_axes(program, name) for name in names):
            found[axes] = found.get(axes, (place, 0))[0], place
    return tuple((axes, *places) for axes, places in found.items())


def _first_of_mlp(program: Program, read: Sequence[tuple[str, ...]]) -> int | None:
    """The first step that reads an expert's weight, but not the router's; without experts, one of the MLP; of a block
    that has neither, any matrix. None of an end of the model."""
    dims = {name: program.tensor(name).dims for names in read for name in names}
    experts = [
        i for i, names in enumerate(read) if any("expert" in dims[name] and len(dims[name]) > 2 for name in names)
    ]
    mlp = [i for i, names in enumerate(read) if names and operator_steps(program.steps[i])[0].operator.module == "mlp"]
    others = [i for i, names in enumerate(read) if names] if any(map(in_block, program.graph.operators)) else []
    return next(iter(experts or mlp or others), None)
