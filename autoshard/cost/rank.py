"""One pipeline rank and what it holds, over rows: of one layout, or of many that have as many stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from autoshard.cost.rank_load import RankLoad
from autoshard.cost.stage import Parts
from autoshard.cost.zero_sharding import State, Unit
from autoshard.rows import Number


class End(NamedTuple):
    """An end of the model. part: its bytes (kept_bytes, replay_bytes, ...), as cost.program.Part has them."""

    part: Any
    unit: Unit
    has_table: bool
    has_loss: bool

    @property
    def stage(self) -> int:
        """The place of its virtual stage: the first one, or the last one where it has no table."""
        return 0 if self.has_table else -1


class Rank(NamedTuple):
    """blocks: on the rank. most_blocks: of one of its chunks. only: whether it is the only rank. kinds: its blocks, one
    for each recompute set among its chunks, that of the first chunk first. ends: those that it has. last_block: of its
    last chunk. num_logits: as in cost.stage.Parts. kept_bytes: of all blocks when most is held, from what one block
    keeps; None where all chunks recompute alike. The others: as in cost.rank_load.RankLoad.
    """

    blocks: Number
    most_blocks: Number
    in_flight: Number
    embeddings_in_flight: Number
    heads_in_flight: Number
    weights_waiting: Number
    weights_apart: bool
    only: bool
    kinds: tuple[Any, ...]
    ends: tuple[End, ...]
    hidden_bytes: Number
    last_block: Any = None
    num_logits: Number = 0.0
    kept_bytes: Callable[[Callable[[Any], Number]], Number] | None = None

    @property
    def has_loss(self) -> bool:
        """Whether the loss is computed on it."""
        return bool(self.ends) and self.ends[-1].has_loss


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
        load.weights_apart,
        first and last,
        tuple(kind.block for kind in load.kinds),
        ends_of(ends, first, last),
        load.parts.hidden_bytes,
        load.chunks[-1].block,
        load.parts.num_logits,
        load.kept_bytes if load.held else None,
    )
