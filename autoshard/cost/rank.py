"""One pipeline rank and what it holds, over rows: of one layout, or of many that have as many stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

from autoshard.cost.rank_load import RankLoad
from autoshard.cost.stage import Parts
from autoshard.cost.zero_sharding import State, Unit
from autoshard.rows import Number
from autoshard.spec.blocks import Blocks


class End(NamedTuple):
    """An end of the model. part: its bytes (kept_bytes, replay_bytes, ...), as cost.part.Part has them."""

    part: Any
    unit: Unit
    has_table: bool
    has_loss: bool

    @property
    def chunks_loss(self) -> bool:
        """Whether it has a loss, in chunks."""
        return self.has_loss and self.unit.chunks_loss

    @property
    def stage(self) -> int:
        """The place of its virtual stage: the first one, or the last one where it has no table."""
        return 0 if self.has_table else -1


class Around(NamedTuple):
    """Blocks around the last one of a kind on a chunk, by kind in the order of Rank.kinds: how many are in front of it,
    -1 of its own kind where the chunk has no such block; how many are behind it, which have run backward by then."""

    in_front: Sequence[Number]
    behind: Sequence[Number]


class NextTo(NamedTuple):
    """Whether a block of a kind is anywhere in the model next to one of a certain kind, by kind in the order of
    Rank.kinds: directly in front of it; so while another one of the certain kind is in front of both; directly behind
    it. between: the places of the kinds of which one is directly in front of it, None for none on its chunk, and one
    directly behind it."""

    in_front: Sequence[bool]
    in_front_later: Sequence[bool]
    behind: Sequence[bool]
    between: Sequence[tuple[int | None, int]]


NEXT_TO_ALIKE = NextTo((True,), (True,), (True,), ((None, 0), (0, 0)))
"""Where blocks are of one kind."""


class LastBlock(NamedTuple):
    """The last block of one kind on a chunk: of its kind the first one to run backward. part: its bytes. there: whether
    the chunk has such a block. behind: (block, how many) of each other kind behind it, which have given back what they
    kept; none with several chunks, see Rank. around: of each chunk that may have such a block; None: as many of its
    kind as the largest chunk has blocks, none of others. opens: whether the head, on its rank, is behind it and no
    block of another kind. next_to: of its kind."""

    part: Any
    there: Any = True
    behind: Sequence[tuple[Any, Number]] = ()
    around: Sequence[Around] | None = None
    opens: Any = True
    next_to: NextTo = NEXT_TO_ALIKE


class Rank(NamedTuple):
    """A kind of pipeline rank, by all that its memory follows from beside the sizes of programs.

    blocks: on the rank. most_blocks: of one of its chunks. only: whether it is the only rank. block: of its first
    chunk, the mean where these are of several kinds. kinds: by kind, in the order of zero_sharding.State.turns, its
    last block on each chunk, one for chunks that are alike. With several chunks nothing behind these counts as given
    back: it is not known which chunk runs backward when most is held. kind_counts: by kind, the blocks of each chunk;
    None with one chunk and where blocks are alike. ends: those that it has. last_block: of its last chunk.
    num_logits: as in cost.stage.Parts. kept_bytes: of all blocks when most is held, from what one block keeps; None
    where all chunks are alike. With the head, while a microbatch is held in it; kept_headless_bytes: while none is;
    None where more is never held then. kept_at_first_bytes: when a backward of its first chunk is through with the
    blocks, in the same way; None where all chunks are alike. The others: as in cost.rank_load.RankLoad.
    """

    blocks: Number
    most_blocks: Number
    in_flight: Number
    embeddings_in_flight: Number
    heads_in_flight: Number
    weights_waiting: Number
    together: Number
    at_first: Number
    more: Number
    passing: Number
    weights_apart: bool
    only: bool
    block: Any
    kinds: Sequence[Sequence[LastBlock]]
    ends: tuple[End, ...]
    hidden_bytes: Number
    last_block: Any = None
    num_logits: Number = 0.0
    kept_bytes: Callable[[Callable[[Any], Number]], Number] | None = None
    kept_headless_bytes: Callable[[Callable[[Any], Number]], Number] | None = None
    kept_at_first_bytes: Callable[[Callable[[Any], Number]], Number] | None = None
    kind_counts: Mapping[int, Any] | None = None

    @property
    def has_loss(self) -> bool:
        """Whether the loss is computed on it."""
        return bool(self.ends) and self.ends[-1].has_loss

    def headless(self) -> Rank:
        """The rank at the moments at which it holds nothing of the head: what is at work then has no such end."""
        return self._replace(
            kept_bytes=self.kept_headless_bytes,
            kept_headless_bytes=None,
            ends=tuple(end for end in self.ends if not end.has_loss),
        )

    def made_of(self, block: Any) -> Rank:
        """The rank with this block in place of each of its own."""
        return self._replace(block=block, kinds=((LastBlock(block),),))


def model_ends(first: Any, last: Any, state: State, tied: bool) -> tuple[End, ...]:
    """The ends of the model. tied: whether both are one part, `first`, on one rank."""
    if tied:
        return (End(first, state.first, True, True),)
    return End(first, state.first, True, False), End(last, state.last, False, True)


def parts_ends(parts: Sequence[Parts], state: State, pp: int) -> tuple[End, ...]:
    """The ends of a model whose virtual stages are made of these parts."""
    tied = parts[0].tied_ends if pp == 1 else None
    return model_ends(tied or parts[0].embedding, parts[-1].head, state, tied is not None)


def ends_of(ends: tuple[End, ...], first: bool, last: bool) -> tuple[End, ...]:
    """The ends that a rank has. first, last: whether it is the first one, the last one."""
    return tuple(end for end in ends if (first and end.has_table) or (last and end.has_loss))


def rank_of(load: RankLoad, state: State) -> Rank:
    """One rank of one layout. state: of its mesh, as the rank has it."""
    first, last = load.has_ends
    ends = model_ends(load.ends[0], load.ends[-1], state, first and last and len(load.ends) == 1) if load.ends else ()
    return Rank(
        load.num_blocks,
        load.most_blocks,
        load.in_flight,
        load.embeddings_in_flight,
        load.heads_in_flight,
        load.weights_waiting,
        load.together,
        load.at_first,
        load.more,
        load.passing,
        load.weights_apart,
        first and last,
        load.chunks[0].block,
        _last_blocks(load),
        ends_of(ends, first, last),
        load.stages[0].hidden_bytes,
        load.chunks[-1].block,
        load.stages[0].num_logits,
        load.kept_bytes if load.held else None,
        load.kept_headless_bytes if load.is_headless else None,
        load.kept_at_first_bytes if load.held else None,
        load.kind_counts if state.kinds and len(load.chunks) > 1 else None,
    )


def _last_blocks(load: RankLoad) -> tuple[tuple[LastBlock, ...], ...]:
    """Rank.kinds of one layout."""
    kinds, of_chunks = [*load.kind_counts], [*zip(*load.kind_counts.values(), strict=True)]
    one, every = len(of_chunks) == 1, load.stages[0].every
    in_order = frozenset[tuple[int, int]]() if every is None else every.in_order

    def of_kind(own: int, kind: int) -> tuple[LastBlock, ...]:
        behind: list[tuple[Any, int]] = []
        arounds = [any_around(own, kinds, counts, in_order) for counts in of_chunks]
        opens = may_open(own, kinds, of_chunks[-1], in_order)
        if one:
            (stage,) = load.stages
            known = dict(dict(stage.behind).get(kind, ()))
            behind = [(stage.blocks[other], count) for other, count in known.items()]
            arounds, opens = [around(own, of_chunks[0], [known.get(other, 0) for other in kinds])], not behind
        parts = {id(stage.blocks[kind]): stage.blocks[kind] for stage in load.stages if kind in stage.blocks}
        beside = NEXT_TO_ALIKE if every is None else next_to(kind, tuple(kinds), every)
        known_around = None if every is None else arounds
        return tuple(LastBlock(part, True, behind, known_around, opens, beside) for part in parts.values())

    return tuple(of_kind(*one) for one in enumerate(kinds))


@lru_cache(maxsize=1024)
def next_to(own: int, kinds: tuple[int, ...], every: Blocks) -> NextTo:
    """NextTo of a kind. kinds: those of a rank, the kind among them. every: the model's blocks."""
    in_front, later = (
        tuple((kind, own) in pairs for kind in kinds) for pairs in (every.neighbours, every.later_neighbours)
    )
    behind = tuple((own, kind) in every.neighbours for kind in kinds)
    places = range(len(kinds))
    between: list[tuple[int | None, int]] = [(None, place) for place in places if behind[place]]
    between += [(one, two) for one, two in product(places, places) if (kinds[one], own, kinds[two]) in every.threes]
    return NextTo(in_front, later, behind, tuple(between))


def around(own: int, counts: Sequence[Number], behind: Sequence[Number]) -> Around:
    """The blocks around the last one of a kind. own: the place of that kind. counts: of all blocks by kind; behind: of
    those behind it."""
    in_front = [count - of_behind for count, of_behind in zip(counts, behind, strict=True)]
    in_front[own] = in_front[own] - 1
    return Around(in_front, behind)


def any_around(own: int, kinds: Sequence[int], counts: Sequence[Number], in_order: Set[tuple[int, int]]) -> Around:
    """The blocks that may be around the last one of a kind on a chunk, of which it is known how many blocks it has of
    each kind, but not in which order: all that are so anywhere in the model. own: the place of that kind. kinds: of the
    model; counts: how many blocks of the chunk are of each. in_order: as Blocks has it."""
    there = counts[own] > 0

    def some(orders: Iterable[tuple[int, int]]) -> list[Number]:
        return [there * count if order in in_order else 0 for count, order in zip(counts, orders, strict=True)]

    in_front, behind = some((kind, kinds[own]) for kind in kinds), some((kinds[own], kind) for kind in kinds)
    in_front[own], behind[own] = counts[own] - 1, 0
    return Around(in_front, behind)


def may_open(own: int, kinds: Sequence[int], counts: Sequence[Number], in_order: Set[tuple[int, int]]) -> Any:
    """Whether the last block of a kind may be the last one of a chunk. Arguments as of `any_around`."""
    others = (one for one in zip(kinds, counts, strict=True) if one[0] != kinds[own])
    only_behind = [count for kind, count in others if (kind, kinds[own]) not in in_order]
    return (counts[own] > 0) & (sum(only_behind) == 0)
