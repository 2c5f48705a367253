"""ZeRO-2 and ZeRO-3: what a rank holds of a part of the model, and how long it moves in every microbatch.

A unit, a block or a table at an end of the model, sends its gradients when a microbatch's backward is through with it;
under ZeRO-3 it gathers its weights before forward and again before backward, and casts them then if its products read
them quantised and they do not travel so. Weights that are not trained are gathered likewise, apart from the others.
Norms and biases stay whole. What of it hides behind work: cost/passes.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from autoshard.cost.backward_release import Moments
from autoshard.cost.collectives import collective_time_s, group_shape
from autoshard.cost.compute import cast_s_per_weight
from autoshard.cost.local_shape import mesh_order
from autoshard.cost.orthogonal import MatricesByAxes, elements_by_axes
from autoshard.cost.part import Part
from autoshard.cost.program import ProgramWork
from autoshard.cost.stage import Parts
from autoshard.layout.mesh import ZERO_AXES, Mesh
from autoshard.rows import Number, anywhere, mean, shares, where
from autoshard.spec.cluster import Cluster
from autoshard.spec.training import DTYPE_BYTES, Precision

Counts = Mapping[tuple[str, ...], float]
"""Elements by the axes over which their gradient is summed."""


class Moved(NamedTuple):
    """Seconds for one microbatch of one unit: to gather weights for a pass, to scatter gradients."""

    gather_s: float
    scatter_s: float


NO_MOMENTS = Moments()


@lru_cache(maxsize=256)
def zero_axes(gradient_axes: tuple[str, ...]) -> tuple[str, ...]:
    """The axes, of those that sum a gradient, that share its optimizer state; tensor-parallel ranks keep copies."""
    return tuple(axis for axis in gradient_axes if axis in ZERO_AXES)


def held_elements(parameters: Counts, matrices: Counts, mesh: Mesh, sharded: bool) -> float:
    """Number of these elements that a rank holds. sharded: whether it shares matrices with those that sum their
    gradients."""
    everything = float(sum(parameters.values()))
    if not sharded:
        return everything
    return everything - sum([count - count / mesh.size(zero_axes(axes)) for axes, count in matrices.items()])


def owned_elements(parameters: Counts, mesh: Mesh, zero: int) -> float:
    """Number of these elements whose optimizer state a rank keeps."""
    if not zero:
        return float(sum(parameters.values()))
    return sum([count / mesh.size(zero_axes(axes)) for axes, count in parameters.items()])


class Turns(NamedTuple):
    """Elements of a unit that travel: all; those of the larger bucket; those of the bucket whose turn is before it.

    The gradients that are there early; those that are there late in the turn of the larger bucket; bytes of
    activations that are freed late, when most is there after that, and when it leaves (cost/backward_release.py), in
    hidden activations of a microbatch.

    is_last: 1 where the larger bucket leaves behind the smaller one, that of few experts, else 0; early is then the
    moment when most is there before experts have their gradients, and back_before what is freed then.
    copies_bytes: of quantised copies that the unit makes of what it has gathered.
    larger_share, other_share: what this rank gets of the larger bucket and of the other one: few share an expert.
    back_end: as back_leaving, when the backward of all is over. waits: 1 where backward is through with experts before
    it asks for the rest of their block, and only then for the next one's experts; else 0.
    working: what the block works with most but for tiles of scores, in hidden activations. back_tiled: as back_after,
    at a step with a tile, where gradients of `tiled` elements are there. tile_bytes: of that tile, of any microbatch;
    leaving_tile_bytes: of a tile that is there when the larger bucket leaves; 0 without. after: the gradients that have
    come when most is there after the late moment. back_later: as back_after, where more have, which count as all.
    together: 1 where all gradients leave at the block's end, as those of one bucket do; else 0. last_on_its_way: of the
    gradients that are being summed when the backward of the next block begins, and what this rank gets of them.
    frozen_all and the like: elements that are gathered and not trained, as `Frozen` has them. frozen_forward: what is
    there most of the unit forward beside what it keeps, frozen_again: where all of it runs again in backward; and
    frozen_back: what is freed when most of them are at work in an end of the model, in hidden activations.
    """

    all: Number
    larger: Number
    other: Number
    early: Number
    late: Number
    back_late: Number
    back_after: Number
    back_leaving: Number
    back_before: Number = 0.0
    is_last: Number = 0.0
    copies_bytes: Number = 0.0
    larger_share: Number = 0.0
    other_share: Number = 0.0
    back_end: Number = 0.0
    waits: Number = 0.0
    working: Number = 0.0
    back_tiled: Number = 0.0
    tile_bytes: Number = 0.0
    leaving_tile_bytes: Number = 0.0
    tiled: Number = 0.0
    after: Number = 0.0
    back_later: Number = 0.0
    together: Number = 0.0
    last_on_its_way: Number = 0.0
    frozen_all: Number = 0.0
    frozen_most: Number = 0.0
    frozen_beside: Number = 0.0
    frozen_first: Number = 0.0
    frozen_opening: Number = 0.0
    frozen_closing: Number = 0.0
    frozen_forward: Number = 0.0
    frozen_again: Number = 0.0
    frozen_back: Number = 0.0

    def run_again(self, some: Any, whole: Any) -> Turns:
        """The turns where backward runs the block's forward again. some: whether any of it, which asks for the rest of
        the block first; whole: whether all at once, whose gradients then leave at its end. Less run again never takes
        more, nor does keeping less: bounds count on it."""
        back_leaving = where(whole, self.back_end, self.back_leaving)
        leaving_tile_bytes = where(whole, 0.0, self.leaving_tile_bytes)
        waits = where(some, 0.0, self.waits)
        together = where(whole, 1.0, self.together)
        at_end = {"back_leaving": back_leaving, "leaving_tile_bytes": leaving_tile_bytes, "together": together}
        if anywhere(self.frozen_all):
            at_once = (where(some, self.frozen_all, number) for number in (self.frozen_most, self.frozen_beside))
            at_end |= dict(zip(("frozen_most", "frozen_beside"), at_once, strict=True))
        return self._replace(waits=waits, **at_end)

    @property
    def larger_on_its_way(self) -> Number:
        """Elements of the larger bucket while its gradients are summed: all of them, and those that this rank gets."""
        return self.larger * (1 + self.larger_share)

    @property
    def other_on_its_way(self) -> Number:
        """The same of the other bucket."""
        return self.other * (1 + self.other_share)

    @property
    def asked_first(self) -> Number:
        """Elements of the bucket that backward asks for first."""
        return where(self.is_last, self.other, self.larger)

    @property
    def first_on_its_way(self) -> Number:
        """Elements of the bucket that backward asks for first, while its gradients are summed."""
        return where(self.is_last, self.other_on_its_way, self.larger_on_its_way)


NO_TURNS = Turns(0, 0, 0, 0, 0, 0.0, 0.0, 0.0)


class Frozen(NamedTuple):
    """Elements of a unit's weights that are not trained, where ZeRO-3 gathers them: all of them; the most that are
    whole or on their way at one time of its backward; the most while some of the block in front are on their way; those
    that come first, while the block behind is at work; those that forward reads first; those that are whole when it
    comes to what it reads last, while some of what is behind the unit are on their way."""

    all: float = 0.0
    most: float = 0.0
    beside: float = 0.0
    first: float = 0.0
    opening: float = 0.0
    closing: float = 0.0


def frozen_in_turns(matrices: Counts, mesh: Mesh, reads: Sequence[tuple[tuple[str, ...], int, int]]) -> Frozen:
    """Experts are shared by fewer ranks than the rest of their block and gathered apart. What backward asks for stays
    until it asks for what is read in front of all of that; meanwhile what forward used before arrives.

    matrices: those that are not trained, by the axes of those that share them. reads: by these axes the first and the
    last step that reads any, in the order of the first ones; without, nothing is known but that each is whole when it
    is read.
    """
    counts = {axes: count for axes, count in matrices.items() if mesh.size(axes) > 1}
    in_order = [(counts[axes], first, last) for axes, first, last in reads if axes in counts]
    if not in_order:
        largest_bucket = max(counts.values(), default=0.0)
        return Frozen(all=largest_bucket, most=largest_bucket)
    elements = [count for count, *_ in in_order]
    closing = sum(count for count, _, last in in_order if last >= in_order[-1][1])
    found = Frozen(all=sum(elements), first=elements[-1], opening=elements[0], closing=closing)
    whole, arriving, in_front = set[int](), set[int](), False
    for place in sorted(range(len(in_order)), key=lambda place: -in_order[place][2]):
        whole = {one for one in whole if in_order[one][1] <= in_order[place][2]} | {place}
        arriving = (arriving | ({place - 1} if place else set())) - whole
        in_front = in_front or not place
        at_once = sum(elements[one] for one in whole | arriving)
        found = found._replace(most=max(found.most, at_once), beside=max(found.beside, in_front * at_once))
    return found


def in_turns(matrices: Counts, mesh: Mesh, times: Moments = NO_MOMENTS, hidden_bytes: float = 1.0) -> Turns:
    """Experts are shared by fewer ranks than the rest of their block and travel apart, in turns with it. Where all is
    shared alike, the one before is the next block's, as large. What tensor-parallel ranks sum besides has buckets of
    its own; the bucket that is read first leaves last."""
    counts, late = (_by_sharers(several, mesh) for several in (matrices, times.late.made))
    if not counts:
        return NO_TURNS
    total, among = sum(counts.values()), max(counts, key=counts.__getitem__)
    larger, larger_share = counts[among], 1 / mesh.size(among)
    other = total - larger or larger
    got = sum([count / mesh.size(axes) for axes, count in counts.items() if axes != among])
    other_share = got / other if other < total else larger_share
    is_last = larger < total and late.get(among, 0) < larger  # the rest of the block is larger than its experts
    leaving = times.end if larger == total or is_last else times.after
    back_late, back_after, back_leaving, back_before, back_end, back_tiled, back_later = (
        moment.given_back / hidden_bytes
        for moment in (times.late, times.after, leaving, times.before, times.over, times.tiled, times.later)
    )
    leaving_tile_bytes = times.tile_bytes if leaving is times.after else 0.0
    made, after = (float(sum(_by_sharers(moment.made, mesh).values())) for moment in (times.tiled, times.after))
    tiled = times.most / hidden_bytes, back_tiled, times.tile_bytes, leaving_tile_bytes, made
    last = next((axes for axes in times.read if mesh.size(zero_axes(axes)) > 1), None)
    last_on_its_way = 0.0 if last is None else matrices[last] * (1 + 1 / mesh.size(zero_axes(last)))
    at_end = after, back_later, float(larger == total), last_on_its_way
    waits = larger < total and not is_last and late.keys() == {among}
    early = sum(_by_sharers((times.before if is_last else times.early).made, mesh).values())
    back = back_late, back_after, back_leaving, back_before
    more = 0.0, larger_share, other_share, back_end, float(waits)
    return Turns(total, larger, other, early, sum(late.values()), *back, float(is_last), *more, *tiled, *at_end)


def end_turns(
    table: Counts, matrices: Counts, mesh: Mesh, times: Moments = NO_MOMENTS, hidden_bytes: float = 1.0
) -> Turns:
    """Elements that travel of an end of the model: all, those of a table, and those of a prediction module's last
    bucket, 0 without a module; of an end without one, early, those whose buckets leave before the largest table's, and
    late, those whose leave behind it, and what is freed when most is there by then, and when the largest table leaves,
    0 where that is not known. table: matrices of the embedding.

    With a module the end has both tables, which are as large as each other. Its block's matrices travel apart from
    them; those that as many ranks share as a table leave last. Where both tables are one it counts as part of it.
    """
    counts, tables = _by_sharers(matrices, mesh), _by_sharers(table, mesh)
    if not counts or not tables:
        return NO_TURNS._replace(all=sum(counts.values()))
    (among, size), *_ = tables.items()
    early, late = (float(sum(_by_sharers(of.made, mesh).values())) for of in (times.ahead, times.between))
    back_after = times.between.given_back / hidden_bytes
    back = {"back_after": back_after, "back_leaving": times.end.given_back / hidden_bytes}
    others = {"other": max(0.0, counts[among] - 2 * size), "early": early, "late": late, **back}
    return NO_TURNS._replace(all=sum(counts.values()), larger=size, **others)


def _by_sharers(matrices: Counts, mesh: Mesh) -> dict[tuple[str, ...], float]:
    """Elements that travel, by the axes of those that share them."""
    sharers: dict[tuple[str, ...], float] = {}
    for axes, count in matrices.items():
        if mesh.size(among := zero_axes(axes)) > 1:
            sharers[among] = sharers.get(among, 0) + count
    return sharers


class Travelling(NamedTuple):
    """One unit on one rank under ZeRO-2 or -3, over rows. weights, sums: elements of weights and of sums of
    gradients that it holds. gather_s, again_s: seconds to gather its weights for forward and for backward. scatter_s:
    to scatter its gradients. cast_s: of each pass, to cast what was gathered. turns: its elements that travel."""

    weights: Number
    sums: Number
    gather_s: Number
    again_s: Number
    scatter_s: Number
    cast_s: Number
    turns: Turns


STAYS = Travelling(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, NO_TURNS)
"""Marks a unit that is held whole: nothing of it travels."""


class Unit(NamedTuple):
    """Elements of a block or an end of the model on one rank, over rows. owned: those whose optimizer state it keeps.
    travelling: STAYS where no row is under ZeRO-2 or -3. copies_bytes: held beside the parameters for products that
    read them quantised; 0.0 where no row has any. frozen: further elements that it holds, which are not trained; 0.0
    where no row has any. chunks_loss: whether the loss that it ends in, if it does in any row, comes in chunks.

    Of gradients beside their sums: handed_over: elements that a backward has all together at its end, a microbatch's
    that do not travel; else at_once: of those that it has at one time, of a block those that do not travel, and
    of an end back_at_once: activations that are gone by then, in hidden activations of a microbatch; head_at_once:
    elements of the head's table where the losses of two modules read it; in_backward: 1 where no schedule puts off
    at_once, such as gradients of experts. Where a schedule puts them off, put_off: those of a block that come at one
    time then; gathered: what is gathered for them, in hidden activations of a microbatch. one_moment: of those owned,
    those that Muon updates. 0.0 in all rows where none has any."""

    parameters: Number
    owned: Number
    travelling: Travelling = STAYS
    copies_bytes: Number = 0.0
    frozen: Number = 0.0
    chunks_loss: bool = False
    handed_over: Number = 0.0
    at_once: Number = 0.0
    back_at_once: Number = 0.0
    head_at_once: Number = 0.0
    in_backward: Number = 0.0
    put_off: Number = 0.0
    gathered: Number = 0.0
    one_moment: Number = 0.0

    @property
    def weights(self) -> Number:
        """Elements of weights that are held on the rank."""
        return self.parameters if self.travelling is STAYS else self.travelling.weights

    @property
    def sums(self) -> Number:
        """Sums of gradients that are held on the rank."""
        return self.parameters if self.travelling is STAYS else self.travelling.sums

    @property
    def gradients_at_once(self) -> tuple[Number, Number, Number, Number]:
        """A block's at_once, in_backward, put_off and gathered."""
        return self.at_once, self.in_backward, self.put_off, self.gathered

    @property
    def going(self) -> Number:
        """Elements that travel in every microbatch."""
        return self.travelling.turns.all

    def take(self, rows: Any) -> Unit:
        """These rows alone, in their order."""
        some = {name: column[rows] for name in MAY_BE_NONE if not isinstance(column := getattr(self, name), float)}
        held = self._replace(parameters=self.parameters[rows], owned=self.owned[rows], travelling=STAYS, **some)
        if self.travelling is STAYS:
            return held
        numbers = (column[rows] for column in self.travelling[:-1])
        turns = Turns(*(column[rows] for column in self.travelling.turns))
        return held._replace(travelling=Travelling._make((*numbers, turns)))


MAY_BE_NONE = (
    "copies_bytes",
    "frozen",
    "handed_over",
    "at_once",
    "back_at_once",
    "head_at_once",
    "in_backward",
    "put_off",
    "gathered",
    "one_moment",
)
"""Fields of Unit that are a plain 0.0 where no row has any."""


class State(NamedTuple):
    """Parameters of the model on the ranks of a mesh, over rows: a block, the end on the first rank and that on the
    last one; where these are one rank and share their table, both are in `first`.

    kinds: the units of the model's kinds of blocks, where it has several; `block` is then of its first one, or the mean
    of those that `of` was asked for. turns: of each of these, whether it is there, and what of it travels. at_once: of
    each of these, at_once, in_backward, put_off and gathered.
    shares: whether other ranks keep the rest of a rank's optimizer state, so that gradients and parameters travel in
    buckets. owners: how many ranks share a table. gathers: 1 under ZeRO-3, else 0. travels: which rows are under ZeRO-2
    or -3; False where none is. choice: bytes of an indexer's choice for a byte of the hidden activations with which
    stages send it; all transfers count as if it went with them, both ways. one_graph: whether a backward of a stage is
    one graph, which gives nothing back of what it is given. in_regions: whether a block's at_once is of all its
    operators, and there when its backward has most. largest_matrix: elements of the largest matrix that Muon updates.
    """

    block: Unit
    first: Unit
    last: Unit
    shares: Any
    owners: Number
    gathers: Number
    travels: Any
    kinds: Mapping[int, Unit] = {}
    turns: Sequence[tuple[Any, Turns]] = ()
    at_once: Sequence[tuple[Number, Number, Number, Number]] = ()
    choice: Number = 0.0
    one_graph: bool = False
    in_regions: bool = False
    largest_matrix: Number = 0.0

    def of(self, kinds: Iterable[tuple[int, Number]]) -> State:
        """The state as a stage or a rank with these blocks has it, (kind, how many): `block` is their mean."""
        if not self.kinds:
            return self
        units, counts = zip(*((self.kinds[kind], count) for kind, count in kinds), strict=True)
        turns = tuple((share > 0, unit.travelling.turns) for share, unit in zip(shares(counts), units, strict=True))
        at_once = [unit.gradients_at_once for unit in units]
        return self._replace(block=mean_unit(units, counts), turns=turns, at_once=at_once)

    def take(self, rows: Any) -> State:
        """These rows alone, in their order."""
        others, travels = self.shares[rows], False if self.travels is False else self.travels[rows]
        some_travel = anywhere(travels)

        def taken(unit: Unit) -> Unit:
            return unit.take(rows) if some_travel else unit._replace(travelling=STAYS).take(rows)

        kinds = {kind: taken(unit) for kind, unit in self.kinds.items()}
        same = next((kind for kind, unit in self.kinds.items() if unit is self.block), None)
        block = taken(self.block) if same is None else kinds[same]
        first, last = taken(self.first), taken(self.last)
        more: dict[str, Any] = {
            "choice": self.choice[rows] if anywhere(self.choice) else 0.0,
            "largest_matrix": self.largest_matrix[rows] if anywhere(self.largest_matrix) else 0.0,
            "one_graph": self.one_graph,
            "in_regions": self.in_regions,
        }
        if not some_travel:
            return State(block, first, last, others, 1, 0, False, kinds, **more)
        owners, gathers = self.owners[rows], self.gathers[rows]
        return State(block, first, last, others, owners, gathers, travels, kinds, **more)


class Contents(NamedTuple):
    """A block or an end of the model on one rank: elements by the axes over which their gradient is summed once a step;
    of these, matrices, which ZeRO-2 and -3 share; how many parameters these are; moments of its backward; of the
    matrices, those that products read quantised; further elements, which are not trained; whether it ends in a loss in
    chunks; elements of the head's table where two losses read it; further matrices, which are not trained, by the axes
    of the ranks that share them under ZeRO-3; of the matrices, those that Muon updates."""

    parameters: Counts = {}
    matrices: Counts = {}
    num_tensors: float = 0
    moments: Moments = NO_MOMENTS
    quantized: Counts = {}
    frozen: float = 0
    chunks_loss: bool = False
    head_gradients: float = 0
    frozen_matrices: Counts = {}
    orthogonal: MatricesByAxes = {}


def contents_of(part: Part | ProgramWork) -> Contents:
    """Contents of a part of a stage, or of its program."""
    return Contents(*(getattr(part, name) for name in Contents._fields))


class ModelContents(NamedTuple):
    """Contents of a block of each kind, and of the first and the last rank's end. table: matrices of the embedding.
    tied: what both ends have, where they are two ranks: its gradients are summed over these besides."""

    blocks: Mapping[int, Contents]
    first: Contents
    last: Contents = Contents()
    table: Counts = {}
    tied: Counts = {}


def model_contents(
    blocks: Mapping[int, Part] | Mapping[int, ProgramWork],
    embedding: Part | ProgramWork,
    head: Part | ProgramWork,
    tied: Part | ProgramWork | None,
    together: bool,
) -> ModelContents:
    """Contents of a model. blocks: one of each kind. tied: embedding and head on one rank, where they share a table.
    together: whether they are on one rank."""
    of_blocks, first = {kind: contents_of(block) for kind, block in blocks.items()}, contents_of(embedding)
    if tied is None:
        return ModelContents(of_blocks, first, contents_of(head), first.matrices)
    if together:
        return ModelContents(of_blocks, contents_of(tied), table=first.matrices)
    last = contents_of(head)
    twice = {axes: first.parameters.get(axes, 0) + last.parameters.get(axes, 0) for axes in tied.parameters}
    shared = {axes: count - tied.parameters[axes] for axes, count in twice.items() if count > tied.parameters[axes]}
    return ModelContents(of_blocks, first, last, first.matrices, shared)


def parts_contents(parts: Sequence[Parts], pp: int) -> ModelContents:
    """Contents of a model whose virtual stages are made of these parts."""
    blocks = {kind: block for stage in parts for kind, block in stage.blocks.items()}
    return model_contents(blocks, parts[0].embedding, parts[-1].head, parts[0].tied_ends, pp == 1)


def parts_state(
    parts: Sequence[Parts],
    zero: int,
    precision: Precision,
    mesh: Mesh,
    cluster: Cluster,
    hands_over: str | None = None,
) -> State:
    """The state of a mesh on which stages are made of these parts. hands_over: as in `mesh_state`."""
    contents = parts_contents(parts, mesh.pp)
    state = mesh_state(contents, parts[0].hidden_bytes, zero, precision, mesh, cluster, hands_over)
    return state._replace(choice=parts[0].choice_bytes / parts[0].hidden_bytes)


def mesh_state(
    contents: ModelContents,
    hidden_bytes: float,
    zero: int,
    precision: Precision,
    mesh: Mesh,
    cluster: Cluster,
    hands_over: str | None = None,
) -> State:
    """The state of one mesh. hidden_bytes: of the microbatch for which the moments of the contents are.

    hands_over: as Software has it; None: as the cluster does."""
    owners, hands_over = mesh.size(ZERO_AXES), hands_over or cluster.hands_over
    zero = zero if owners > 1 else min(zero, 1)  # a rank alone shares nothing: nothing of it travels
    tied = not contents.last.parameters
    more_bytes = 0.0
    if precision.products is not None:
        element_bytes = DTYPE_BYTES[precision.parameter_dtype]
        more_bytes = precision.products.held_bytes(element_bytes, zero) - element_bytes

    def gradients_of(of: Contents, staying: float, is_block: bool) -> tuple[float, ...]:
        if hands_over == "nothing":
            return ()
        if hands_over == "stages":
            return (staying * precision.sums_apart,)
        (back, made), gathered = of.moments.weights, of.moments.gathered / hidden_bytes
        if not is_block:
            of_end = float(sum(made.values())), back / hidden_bytes, float(of.head_gradients)
            return 0.0, *of_end, 0.0, 0.0, gathered
        in_regions = hands_over == "regions"
        if zero < 2:
            at_once = staying if in_regions else float(sum(made.values()))
        else:  # such as of experts that no two ranks have; norms and biases are few
            counts = of.matrices if in_regions else made
            at_once = float(sum([count for axes, count in counts.items() if mesh.size(zero_axes(axes)) == 1]))
        put_off = (at_once, 0.0) if in_regions else (float(of.moments.put_off), gathered)
        return 0.0, at_once, 0.0, 0.0, float(not (in_regions or of.moments.puts_off)), *put_off

    def unit(of: Contents, is_block: bool = False, reads_table_once: bool = False) -> Unit:
        one = held(of, is_block, reads_table_once)
        if not of.orthogonal:
            return one
        return one._replace(one_moment=owned_elements(elements_by_axes(of.orthogonal), mesh, zero))

    def held(of: Contents, is_block: bool, reads_table_once: bool) -> Unit:
        counts, matrices, _, times, quantized, frozen, chunks_loss, *_ = of
        parameters, owned = float(sum(counts.values())), owned_elements(counts, mesh, zero)
        shared = sum(count for axes, count in quantized.items() if zero == 3 and mesh.size(zero_axes(axes)) > 1)
        copies_bytes = (sum(quantized.values()) - shared) * more_bytes
        shared_by = {axes: mesh.size(axes) if zero == 3 else 1 for axes in of.frozen_matrices}
        frozen += sum(count / shared_by[axes] for axes, count in of.frozen_matrices.items())
        others = copies_bytes, float(frozen), chunks_loss
        if zero < 2:
            return Unit(parameters, owned, STAYS, *others, *gradients_of(of, parameters, is_block))
        gather_s, scatter_s = moved(matrices, zero, precision, mesh, cluster, quantized, of.frozen_matrices)
        again_s = 0.0 if reads_table_once else gather_s
        weights, sums = (held_elements(counts, matrices, mesh, zero >= stage) for stage in (3, 2))
        of_matrices = (matrices, mesh, times, hidden_bytes)
        turns = in_turns(*of_matrices) if is_block else end_turns(contents.table, *of_matrices)
        if zero == 3 and of.frozen_matrices:
            in_turn = frozen_in_turns(of.frozen_matrices, mesh, times.frozen)
            turns = turns._replace(
                **{f"frozen_{name}": number for name, number in in_turn._asdict().items()},
                frozen_forward=times.forward[0] / hidden_bytes,
                frozen_again=times.forward[1] / hidden_bytes,
                frozen_back=times.on_frozen.given_back / hidden_bytes,
            )
        cast_s = 0.0
        if shared and casts_gathered(precision):
            assert precision.products is not None
            cast_s = shared * cast_s_per_weight(precision, cluster.device)
            turns = turns._replace(copies_bytes=shared * precision.products.copies_bytes)
        travelling = Travelling(weights, sums, gather_s, again_s, scatter_s, cast_s, turns)
        return Unit(parameters, owned, travelling, *others, *gradients_of(of, parameters - turns.all, is_block))

    kinds = {kind: unit(block, is_block=True) for kind, block in contents.blocks.items()}
    first = unit(contents.first, reads_table_once=not tied)  # an embedding's backward does not read its table
    ends = first, unit(contents.last)
    several = kinds if len(kinds) > 1 else {}
    block, gathers = next(iter(kinds.values())), int(zero == 3)
    one_graph, in_regions = hands_over == "stages", hands_over == "regions"
    state = State(block, *ends, owners > 1, owners, gathers, zero >= 2, several)
    every = (*contents.blocks.values(), contents.first, contents.last)
    largest_matrix = max((work.largest for one in every for work in one.orthogonal.values()), default=0.0)
    return state._replace(one_graph=one_graph, in_regions=in_regions, largest_matrix=largest_matrix)


def mean_unit(units: Sequence[Unit], counts: Sequence[Number]) -> Unit:
    """A block as the mean of blocks of several kinds on one stage or rank, over rows; of its turns it has only how many
    elements travel, and nothing of the gradients that it has at one time. counts: how many are of each kind; where
    there are none, the first one stands for all."""
    if len(units) == 1:
        return units[0]
    share = shares(counts)
    parameters, owned = mean(share, [unit.parameters for unit in units]), mean(share, [unit.owned for unit in units])
    names = ("copies_bytes", "frozen", "handed_over", "one_moment")
    others = {name: mean(share, [getattr(unit, name) for unit in units]) for name in names}
    travelling = [unit.travelling for unit in units]
    if travelling[0] is STAYS:
        return Unit(parameters, owned, **others)
    turns = NO_TURNS._replace(all=mean(share, [moved.turns.all for moved in travelling]))
    *numbers, _ = zip(*travelling, strict=True)
    means = (mean(share, values) for values in numbers)
    return Unit(parameters, owned, Travelling._make((*means, turns)), **others)


def moved(
    matrices: Counts,
    zero: int,
    precision: Precision,
    mesh: Mesh,
    cluster: Cluster,
    quantized: Counts,
    frozen: Counts = MappingProxyType({}),
) -> Moved:
    """Seconds of a unit with these matrices under ZeRO-2 or -3. quantized: of them, those that products read so.
    frozen: further ones, which are not trained."""
    counts = tuple((axes, count, quantized.get(axes, 0)) for axes, count in matrices.items())
    return _moved(counts, tuple(frozen.items()), zero, precision, mesh_order(mesh), cluster)


@lru_cache(maxsize=4096)
def _moved(
    matrices: tuple[tuple[tuple[str, ...], int, int], ...],
    frozen: tuple[tuple[tuple[str, ...], int], ...],
    zero: int,
    precision: Precision,
    order: tuple[tuple[str, int], ...],
    cluster: Cluster,
) -> Moved:
    gather_s = scatter_s = 0.0
    parameter, reduced = (DTYPE_BYTES[dtype] for dtype in (precision.parameter_dtype, precision.gradient_reduce_dtype))
    for axes, count, quantized in matrices:
        shape = group_shape(order, tuple(sorted(zero_axes(axes))), cluster)
        if shape.size > 1:
            scatter_s += collective_time_s("reduce_scatter", count * reduced, shape, cluster)
            size = count * parameter + quantized * gathered_difference_bytes(precision)
            gather_s += collective_time_s("all_gather", size, shape, cluster) if zero == 3 else 0.0
    for axes, count in frozen if zero == 3 else ():
        gather_s += collective_time_s("all_gather", count * parameter, group_shape(order, axes, cluster), cluster)
    return Moved(gather_s, scatter_s)


def casts_gathered(precision: Precision) -> bool:
    """Whether ranks that share weights cast them themselves whenever they have gathered them for a pass."""
    return precision.products is not None and not precision.products.travels_cast


def gathered_difference_bytes(precision: Precision) -> float:
    """Bytes by which a weight that products read quantised is larger than others when it is gathered."""
    products = precision.products
    return 0.0 if products is None else products.gathered_bytes - DTYPE_BYTES[precision.parameter_dtype]
