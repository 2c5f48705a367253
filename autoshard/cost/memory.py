"""Bytes on one device of a pipeline rank at the worst moment of a step, as named terms that add up.

State lives all the time. The rest is either a microbatch in work or, when the last one is done, buckets of gradients
and parameters on their way: the larger of the two counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from math import inf
from typing import Any, NamedTuple

from autoshard.cost.rank import Around, End, LastBlock, Rank, rank_of
from autoshard.cost.rank_load import RankLoad
from autoshard.cost.stacks import COMPILED, Software
from autoshard.cost.travelling_bytes import (
    SUMMED_GRADIENTS,
    Ends,
    FrozenAround,
    Loss,
    Sizes,
    block_bytes,
    blocks_around,
    gathered_ahead,
    in_work_bytes,
    leaving_before,
    loss_work_bytes,
)
from autoshard.cost.values import RESERVE
from autoshard.cost.zero_sharding import STAYS, State, Turns, Unit
from autoshard.layout.orthogonal import COPIES, ROUND_ELEMENTS
from autoshard.rows import Number, added, anywhere, largest, smallest, where
from autoshard.spec.cluster import Device
from autoshard.spec.training import DTYPE_BYTES, Precision
from autoshard.units import MIB

BUCKET_BYTES = 1024 * MIB
"""Largest buffer that gradients or parameters are joined in for one collective: bucket_size_collectives of NxD
Training."""

REPLAYED_LOGITS = 0.6
"""Share of the buffers of the loss that a head holds whose forward runs again in backward. Set by hand to which
published runs fit."""

MEMORY_TERMS = (
    "parameters",
    "gradients",
    "optimizer state",
    "kept activations",
    "embedding, logits and loss",
    "recompute",
    "working buffers",
    "pipeline buffers",
    "collective buckets",
    RESERVE,
)


class Memory(NamedTuple):
    """Bytes on one rank, over rows: MEMORY_TERMS without the reserve. buckets: all of them; they count as far as
    activations leave no room."""

    parameters: Number
    gradients: Number
    optimizer_state: Number
    kept: Number
    ends: Number
    replay: Number
    working: Number
    boundary: Number
    buckets: Number

    @property
    def lives(self) -> Number:
        """Bytes that are there all the time."""
        return self.parameters + self.gradients + self.optimizer_state

    @property
    def in_work(self) -> Number:
        """Bytes that are there while a microbatch is at work."""
        return added(self.kept, self.ends, self.replay, self.working, self.boundary)

    @property
    def total(self) -> Number:
        """All terms together, without the reserve."""
        return self.lives + largest(self.in_work, self.buckets)


def memory_values(
    load: RankLoad, state: State, precision: Precision, device: Device, software: Software = COMPILED
) -> tuple[float, ...]:
    """Bytes of one rank of one layout, in the order of MEMORY_TERMS. state: of its mesh."""
    state = state.of(load.block_kinds.items())
    memory = rank_memory(rank_of(load, state), state, precision, software)
    # where the first block keeps less than others, blocks keep less, not the embedding that this was charged to
    memory = memory._replace(kept=memory.kept + smallest(0.0, memory.ends), ends=largest(0.0, memory.ends))
    *terms, all_buckets = memory
    buckets = largest(0.0, all_buckets - memory.in_work)
    return (*terms, buckets, device.reserved_memory_bytes + software.reserved_bytes)


def rank_memory(rank: Rank, state: State, precision: Precision, software: Software = COMPILED) -> Memory:
    """Memory of one pipeline rank of one layout, of many, or in numbers with derivatives. state: of their meshes.

    parameters: as forward and backward read them, under ZeRO-3 the rank's share. gradients: their sum over
    microbatches, under ZeRO-2 and -3 the rank's share, else whole; where a backward is one compiled graph and the sum
    has a dtype of its own, with the gradients that it hands over at its end.
    optimizer state: master weights and two moments, or the one of what Muon updates, under ZeRO-1 1/n of them on each
    of the n ranks that sum a gradient. kept activations: of every microbatch in flight, chunk by chunk, less what
    blocks behind the one at work have given back, and what waits for gradients of weights.
    embedding, logits and loss: what the ends of the model keep; where blocks run backward, the loss is over.
    recompute: what is there of what runs again, at the fullest step of a block's backward. working buffers: gradients
    and gathered activations at that step, less what was given back before it; gradients of its weights too unless they
    are handed over at the end, or those of an end's weights; under ZeRO-2 and -3 what travels
    (cost/travelling_bytes.py).
    pipeline buffers: those of `boundary_buffers`; a choice of keys that came with each microbatch in flight, and one on
    its way, as if all stages kept one.
    Where chunks differ, the rank with the head may need most while it holds nothing of the head.
    """
    memory = _memory_of(rank, rank, state, precision, software)
    if rank.kept_headless_bytes is None:
        return memory
    headless = headless_memory(rank, state, precision, software)
    more = headless.total > memory.total
    return Memory(*(where(more, one, other) for one, other in zip(headless, memory, strict=True)))


def headless_memory(rank: Rank, state: State, precision: Precision, software: Software = COMPILED) -> Memory:
    """Memory of the rank with the head while it holds nothing of it but its state."""
    return _memory_of(rank.headless(), rank, state, precision, software)


def _memory_of(at_work: Rank, rank: Rank, state: State, precision: Precision, software: Software) -> Memory:
    """`rank_memory`, with what is at work from a rank that may be headless. rank: the same with all its ends."""
    parameter, reduced = DTYPE_BYTES[precision.parameter_dtype], DTYPE_BYTES[precision.gradient_reduce_dtype]
    travels = anywhere(state.travels)

    activations = _activations_bytes(at_work, software)
    kept = activations + _waiting_bytes(at_work, software) if at_work.weights_apart else activations
    backwards = _backwards(at_work, software, state, parameter)
    replay, working, over, given_back = _in_work(at_work, software, backwards)
    ends = 0.0 if not at_work.ends else _ends_bytes(at_work, software) - over
    if software is not COMPILED:
        working = software.working_scale * working
        if software.sharded_parameters:  # two blocks whole at a time: one in work, the next on its way
            working = working + state.block.parameters * parameter
    if travels:
        gone_bytes = _gone_at_first_bytes(at_work, kept, software)
        travelling = _travelling_bytes(at_work, state, (parameter, reduced), gone_bytes, backwards)
        travelling = added(travelling, -replay, over, given_back)
        working = where(state.travels, largest(working, travelling), working)
    if software is COMPILED and not anywhere(state.block.handed_over):
        gone_bytes = _gone_at_first_bytes(at_work, activations, software)
        for gradient in _end_gradients_bytes(at_work, activations, gone_bytes, parameter):
            at_end = added(gradient, -replay, over, given_back)
            working = where(state.travels, working, largest(working, at_end))
    boundary: Number = 0.0
    if not at_work.only:
        flights = at_work.in_flight, at_work.embeddings_in_flight, at_work.heads_in_flight
        received = at_work.in_flight - at_work.embeddings_in_flight
        choices = (received + smallest(1, received)) * state.choice  # and room for the next one, where any come
        one_graph = state.one_graph or software is not COMPILED  # of others it isn't known, but fitted with that
        boundary = (
            boundary_buffers(*flights, at_work.more, at_work.passing, at_work.has_loss, one_graph) + choices
        ) * at_work.hidden_bytes

    units = [end.unit for end in rank.ends]
    handed_over = _handed_over(rank, state)
    lives = living_bytes(rank.blocks, handed_over, state.block, units, precision, software, state.owners)
    staying = lives.staying
    buckets = smallest(BUCKET_BYTES, staying * reduced) + smallest(BUCKET_BYTES, staying * parameter)
    buckets = where(state.shares, buckets, 0.0)
    if anywhere(lives.orthogonal):
        whole = largest(state.largest_matrix, smallest(ROUND_ELEMENTS, lives.orthogonal))
        buckets = buckets + where(lives.orthogonal > 0, COPIES * parameter * whole, 0.0)
    kept = added(kept, -given_back)
    return Memory(*lives[:3], kept, ends, replay, working, boundary, buckets)


def boundary_buffers(
    in_flight: Number, embeddings: Number, heads: Number, more: Number, passing: Number, at_loss: bool, one_graph: bool
) -> Number:
    """Hidden activations that a rank of several holds for other stages while a block runs backward, or at_loss a head:
    those of `passing_buffers`, and the outputs of all that is in flight behind the block, which are kept for their
    backward.

    Of the microbatch whose block is at work the output is gone, and the gradient of that is what the block works with;
    where a backward is one_graph, it holds both to its end. in_flight, embeddings, heads, more, passing: as in Rank.
    """
    leaving = in_flight - heads
    at_work = smallest(1, leaving)
    of_work = at_work if one_graph else 0 if at_loss else -at_work
    return passing_buffers(in_flight, embeddings, more, passing, one_graph) + leaving + of_work


def passing_buffers(in_flight: Number, embeddings: Number, more: Number, passing: Number, one_graph: bool) -> Number:
    """The part of `boundary_buffers` that is for what comes and for what is on its way. Where a backward is one_graph,
    of whose transfers no audit tells: both, a gradient on its way if there is a stage before. Arguments as there."""
    return more * (1 + smallest(1, in_flight - embeddings)) if one_graph else passing


class Living(NamedTuple):
    """Bytes on a rank that are there all the time: the first three of MEMORY_TERMS. staying: elements whose gradients
    do not travel in every microbatch. orthogonal: elements that Muon updates."""

    parameters: Number
    gradients: Number
    optimizer_state: Number
    staying: Number
    orthogonal: Number


def living_bytes(
    blocks: Number,
    handed_over: Number,
    block: Unit,
    ends: Sequence[Unit],
    precision: Precision,
    software: Software = COMPILED,
    owners: Number = 1,
) -> Living:
    """Weights, gradients and optimizer state of one rank. blocks: as in Rank. handed_over: elements of its blocks whose
    gradients one backward hands over. ends: those that it has. owners: ranks that share what the software shares by
    itself."""
    parameter, summed = (
        DTYPE_BYTES[dtype] for dtype in (precision.parameter_dtype, precision.gradient_accumulation_dtype)
    )
    moment = precision.moment_bytes
    master = 0 if precision.master_dtype is None else DTYPE_BYTES[precision.master_dtype]
    share = 1 / owners if software.sharded_parameters else 1
    share_of_sums = 1 / owners if software.sharded_gradients else share
    count = sum((unit.parameters for unit in ends), blocks * block.parameters)
    owned = sum((unit.owned for unit in ends), blocks * block.owned)
    weights = sums = staying = count
    if block.travelling is not STAYS:
        weights = sum((unit.weights for unit in ends), blocks * block.weights)
        sums = sum((unit.sums for unit in ends), blocks * block.sums)
        staying = count - sum((unit.going for unit in ends), blocks * block.going)
    gradients = sums * (summed * share_of_sums)
    if anywhere(block.handed_over):
        gradients = gradients + sum((unit.handed_over for unit in ends), handed_over) * parameter
    weights = weights + sum((unit.frozen for unit in ends), blocks * block.frozen)
    held = weights * (parameter * share)
    if precision.products is not None:
        held = held + share * sum((unit.copies_bytes for unit in ends), blocks * block.copies_bytes)
    states = owned * (master + 2 * moment)
    orthogonal = sum((unit.one_moment for unit in ends), blocks * block.one_moment)
    if anywhere(orthogonal):
        states = states - orthogonal * moment
    return Living(held, gradients, states, staying, orthogonal)


def _handed_over(rank: Rank, state: State) -> Number:
    """Elements of blocks whose gradients the backward of one chunk hands over at its end, of the chunk with the most.
    state: as the rank has it."""
    if rank.kind_counts is None or not anywhere(state.block.handed_over):
        return rank.most_blocks * state.block.handed_over
    kinds = [[count * state.kinds[kind].handed_over for count in counts] for kind, counts in rank.kind_counts.items()]
    return reduce(largest, map(sum, zip(*kinds, strict=True)))


def _at_once_bytes(rank: Rank, state: State, parameter_bytes: int) -> list[tuple[Number, Number]]:
    """Bytes of gradients of weights that are there at one time, by kind, in the order of Rank.kinds: in backward and
    behind it. -inf for none, as where all travel in every microbatch, which counts them. Where gradients are put off
    they come behind it, one by one, with what is gathered for one: what blocks kept of the microbatch is gone, and what
    waits of it is there."""
    found: list[tuple[Number, Number]] = []
    for elements, in_backward, put_off, gathered in state.at_once or [state.block.gradients_at_once] * len(rank.kinds):
        if not anywhere(elements):
            found.append((-inf, -inf))
            continue
        gradients = where(elements > 0, elements * parameter_bytes, -inf)
        if not rank.weights_apart:
            found.append((gradients, -inf))
            continue
        gone = rank.most_blocks * (rank.block.kept_bytes - rank.block.weights_waiting_bytes)
        later = put_off * parameter_bytes + gathered * rank.hidden_bytes - gone
        found.append((where(in_backward > 0, gradients, -inf), where(in_backward > 0, -inf, later)))
    return found


def _waiting_table_bytes(rank: Rank, state: State, parameter_bytes: int) -> Number:
    """Bytes of the gradient that the head made, which waits for the embedding's, where one rank has both ends with one
    table; none where gradients travel in every microbatch."""
    one_table = [end.unit for end in rank.ends if end.has_table and end.has_loss and not rank.weights_apart]
    return where(state.travels, 0.0, sum(parameter_bytes * _at_one_time(unit) for unit in one_table))


def _at_one_time(unit: Unit) -> Number:
    """Elements of an end's weights whose gradients are there at one time, where they do not travel."""
    return unit.at_once if anywhere(unit.at_once) else unit.parameters


def _ends_bytes(rank: Rank, software: Software) -> Number:
    """Bytes that the ends of the model keep."""
    held, kept = largest(rank.embeddings_in_flight, rank.heads_in_flight), 0.0
    for end in rank.ends:
        kept = kept + held * end.part.kept_bytes
        if rank.weights_apart:
            kept = kept + _added_bytes(rank, held, end.part.kept_bytes, end.part.weights_waiting_bytes)
    if rank.has_loss and software is not COMPILED:
        replayed_head = software.replays_head and _keeps_only_inputs(rank, rank.last_block)
        kept = kept + (REPLAYED_LOGITS if replayed_head else 1.0) * software.logits_bytes * rank.num_logits
    return kept


def _travelling_bytes(
    rank: Rank, state: State, dtypes: tuple[int, int], gone_bytes: Number, backwards: Sequence[Sequence[Backward]]
) -> Number:
    """Bytes that one microbatch needs beside kept activations where units travel: cost/travelling_bytes.py.
    gone_bytes: of `_gone_at_first_bytes`."""
    (parameter, reduced), ends, loss = dtypes, _ends_in_turns(rank), Loss(0.0, 0.0, 0.0, 0.0)
    if rank.has_loss:
        head = rank.ends[-1]
        kept_by_loss = head.part.kept_bytes
        between = head.part.working_bytes - head.unit.travelling.turns.back_after * rank.hidden_bytes
        beside = _head_work_bytes(rank, head) + kept_by_loss, between + kept_by_loss
        loss = Loss(_of_ends(rank, "working_bytes"), *beside, kept_by_loss, _left_of_head(rank, head))
    sizes = Sizes(parameter, state.gathers * parameter, reduced)
    kinds = state.turns or [(True, state.block.travelling.turns)]
    all_turns = [turns for _, turns in kinds]
    of_head = where(ends.between > 0, ends.between, ends.last)
    given_back = [
        largest(0.0, reduce(smallest, (_given_back(rank, one.part, one.part.kept_bytes) for one in chunks)))
        for chunks in rank.kinds
    ]
    of_blocks = opening = closing = frozen_in_front = frozen_behind = 0.0
    for place, ((there, turns), works, chunks) in enumerate(zip(kinds, backwards, rank.kinds, strict=True)):
        last, arounds = chunks[0], chunks[0].around or [Around([rank.most_blocks - 1], [0])]
        on_its_way = last.opens * of_head * (1 + 1 / state.owners)
        # of several chunks the head is on the last one, whose block in front is there meanwhile
        cases = (
            [(arounds, 0.0), (arounds[-1:], on_its_way)] if arounds[1:] and rank.has_loss else [(arounds, on_its_way)]
        )
        kept_bytes = reduce(largest, (where(one.there, one.part.kept_bytes, 0.0) for one in chunks))
        segment_bytes = reduce(largest, (where(one.there, one.part.segment_bytes, 0.0) for one in chunks))
        of_kind = turns.run_again(segment_bytes > 0, kept_bytes <= rank.hidden_bytes)
        most_works = [work + turns.copies_bytes for work in _works(works, turns, rank.hidden_bytes)]
        needed = reduce(
            largest,
            [
                block_bytes(
                    of_kind,
                    most_works,
                    largest(leaving_before(all_turns, last.next_to, [one.behind for one in some]), of_table),
                    blocks_around(all_turns, place, last.next_to, [one.in_front for one in some], given_back),
                    sizes,
                    rank.hidden_bytes,
                )
                for some, of_table in cases
            ],
        )
        if anywhere(turns.frozen_most):
            in_front = [one.in_front for one in arounds]
            ahead = gathered_ahead([one.frozen_first for one in all_turns], place, last.next_to, in_front)
            needed = needed + sizes.whole * largest(of_kind.frozen_most, of_kind.frozen_beside + ahead)
            if anywhere(ends.frozen_last):  # forward, the head's are on their way
                first, again = turns.frozen_forward, largest(turns.frozen_forward, turns.frozen_again)
                of_forward = smallest(first * rank.hidden_bytes + segment_bytes, again * rank.hidden_bytes)
                of_forward = of_forward + sizes.whole * (turns.frozen_closing + (1 - ends.tied) * ends.frozen_last)
                needed = where(last.opens, largest(needed, of_forward), needed)
        runs = there & (reduce(largest, (one.in_front[place] for one in arounds)) >= 0)
        of_blocks = largest(of_blocks, where(runs, needed, 0.0))
        opening = largest(opening, where(runs & last.opens, turns.larger, 0.0))
        closing = largest(closing, where(runs, turns.last_on_its_way, 0.0))
        if anywhere(turns.frozen_most):
            frozen_in_front = largest(frozen_in_front, where(runs & last.opens, turns.frozen_first, 0.0))
            frozen_behind = largest(frozen_behind, where(runs, turns.frozen_opening, 0.0))
    around = FrozenAround(frozen_in_front, frozen_behind)
    for end in rank.ends:
        turns = end.unit.travelling.turns
        if end.has_loss:
            at_work = end.part.working_bytes - turns.frozen_back * rank.hidden_bytes + loss.kept
            around = around._replace(head_bytes=at_work)
        else:
            around = around._replace(embedding_bytes=turns.frozen_forward * rank.hidden_bytes)
    return in_work_bytes(of_blocks, ends, sizes, state.owners, loss, gone_bytes, opening, closing, around)


def _works(backwards: Sequence[Backward], turns: Turns, hidden_bytes: Number) -> list[Number]:
    """Bytes that the last block of a kind works on, the most of all chunks: with its tile of scores; without one, but
    with all that the largest segment saves that runs again; the same with what runs again in front.

    backwards: of that block on each chunk. turns: of the kind. hidden_bytes: of a microbatch's hidden activations.
    """
    untiled = turns.working * hidden_bytes
    found: list[list[Number]] = []
    for one in backwards:
        beside = one.total - one.replay - one.block.working_bytes + untiled
        numbers = one.total, beside + one.segment, beside + one.again
        found.append([where(one.there, number, 0.0) for number in numbers])
    return [reduce(largest, numbers) for numbers in zip(*found, strict=True)]


def _end_gradients_bytes(rank: Rank, activations: Number, gone_bytes: Number, parameter_bytes: int) -> Iterator[Number]:
    """Bytes beside all that is kept when backward has the gradients of an end's weights, for each end of the rank.
    activations: bytes that blocks keep. gone_bytes: of `_gone_at_first_bytes`.

    At the head, its gradient and that of the logits; the loss is over. Where it was put off, it comes, with what is
    gathered for it, when nothing but what waited is left of the microbatch. A loss in chunks makes it chunk by chunk:
    all that it works with is there. Where a prediction module has read the same table, its gradient waits and is added.
    At the embedding, the gradients of its output and of its table, of which a head that has it too made another one; of
    what its blocks kept of the microbatch nothing is left.
    """
    for end in rank.ends:
        unit, kept_by_end = end.unit, end.part.kept_bytes if end.has_loss else 0.0
        predicts = anywhere(unit.head_at_once)
        weights = parameter_bytes * _at_one_time(unit)
        table = parameter_bytes * unit.head_at_once if predicts else weights
        waiting = rank.most_blocks * rank.block.weights_waiting_bytes if rank.weights_apart else 0.0
        if end.chunks_loss:
            yield weights + end.part.working_bytes
            if predicts:
                yield largest(SUMMED_GRADIENTS * table, 2 * table + end.part.working_bytes)
        elif end.has_loss and rank.weights_apart:
            gone = added(activations / rank.in_flight - waiting, kept_by_end - end.part.weights_waiting_bytes)
            yield weights + unit.gathered * rank.hidden_bytes - gone
        elif end.has_loss:
            logits = parameter_bytes / loss_work_bytes(parameter_bytes) * end.part.working_bytes - kept_by_end
            at_work = largest(logits, _head_work_bytes(rank, end))
            yield largest(weights, SUMMED_GRADIENTS * table if predicts else 0.0) + at_work
        if end.has_table:
            gradients = SUMMED_GRADIENTS if end.has_loss else 1
            yield gradients * table + _embedding_work_bytes(rank, end) - (gone_bytes - waiting) - kept_by_end


def _left_of_head(rank: Rank, end: End) -> Number:
    """Bytes of an end with a loss that are there when its table leaves: the input of its norm and a gradient; 0 where
    that is not known, and where blocks read the table, too, or a prediction module does: it does not leave then."""
    given_back = end.unit.travelling.turns.back_leaving
    if end.has_table or anywhere(end.unit.head_at_once) or not anywhere(given_back):
        return 0.0
    left = end.part.working_bytes - given_back * rank.hidden_bytes + end.part.kept_bytes
    return where(given_back > 0, largest(0.0, left), 0.0)


def _embedding_work_bytes(rank: Rank, end: End) -> Number:
    """Bytes that the embedding works with beside its table when it makes the gradient of that: the gradient of its
    output, which under sequence parallelism is gathered. As hidden activations, where that is not known: of a head with
    the same table, and of a prediction module."""
    unit = end.unit
    if end.has_loss or anywhere(unit.head_at_once) or not anywhere(unit.at_once):
        return rank.hidden_bytes
    return end.part.working_bytes - unit.back_at_once * rank.hidden_bytes


def _head_work_bytes(rank: Rank, end: End) -> Number:
    """Bytes that the head works with beside all that is kept when it makes the gradient of its table, where that is
    known: it has the largest weights, but not with a prediction module, whose block may have larger ones."""
    unit = end.unit
    known = anywhere(unit.at_once) and not (end.chunks_loss or anywhere(unit.head_at_once))
    return end.part.working_bytes - unit.back_at_once * rank.hidden_bytes if known else -inf


def _ends_in_turns(rank: Rank) -> Ends:
    """Elements of the rank's ends that travel; those of a head apart from its table are told apart where that is all
    the end has. Tables of an embedding alone, such as that of positions, leave one after the other: the largest counts.
    An end with a prediction module has two tables, of which the embedding's leaves behind the module where its own
    backward is on another rank."""
    ends = Ends(0.0, 0.0, 0.0, chunks_loss=any(end.chunks_loss for end in rank.ends))
    for end in rank.ends:
        going, (_, table, predicting, before, between, *_) = end.unit.going, end.unit.travelling.turns
        predicting = predicting if anywhere(predicting) else 0.0
        predicts, of_module = predicting > 0, where(predicting > 0, table, 0.0)
        if not end.has_table:
            last, leaving = where(predicts, table, going - between), where(predicts, largest(table, predicting), 0.0)
            ends = ends._replace(last=last, leaving=leaving, predicting=predicting, between=between)
        elif end.has_loss:
            tied = where(predicts, 0.0, 1.0)
            of_both = where(predicts, table, going), of_module, tied, of_module, predicting, predicting
            ends = Ends(*of_both, end.chunks_loss)
        else:
            ends = ends._replace(first=reduce(largest, (before, between, going - before - between)))
        frozen = end.unit.travelling.turns.frozen_most
        ends = ends._replace(**{"frozen_last" if end.has_loss else "frozen_first": frozen})
    return ends


def _keeps_only_inputs(rank: Rank, block: Any) -> bool:
    """Whether the block is replayed whole."""
    return bool(block.kept_bytes <= rank.hidden_bytes)


def _kept_by(rank: Rank, block: Any, software: Software) -> Number:
    """Bytes that a block keeps of one microbatch."""
    if software is COMPILED or _keeps_only_inputs(rank, block):
        return block.kept_bytes
    scores = 0.0 if block.segment_bytes else software.score_copies * block.scores_bytes
    return software.activation_scale * (block.kept_bytes + software.norm_copies * rank.hidden_bytes) + scores


def _given_back(rank: Rank, block: Any, kept_bytes: Number) -> Number:
    """Bytes of those that a block keeps of one microbatch that are gone when its backward is over: what waits for
    gradients of weights is not."""
    return kept_bytes - (block.weights_waiting_bytes if rank.weights_apart else 0.0)


def _activations_bytes(rank: Rank, software: Software) -> Number:
    """Bytes that all blocks keep when most is held."""

    def of(block: Any) -> Number:
        return _kept_by(rank, block, software)

    return rank.kept_bytes(of) if rank.kept_bytes else rank.in_flight * rank.most_blocks * of(rank.block)


def _gone_at_first_bytes(rank: Rank, kept: Number, software: Software) -> Number:
    """Bytes that are there when most is held, but not when the embedding runs backward.

    The first chunk has then given back what its blocks kept of one microbatch. Where the rank holds fewer chunk
    activations at that time (`at_first`) than at most, their blocks and their outputs are gone as well.

    kept: bytes that all blocks keep when most is held.
    """
    outputs = (rank.in_flight - rank.at_first) * rank.hidden_bytes
    if rank.kept_at_first_bytes is None:
        return kept / rank.in_flight * (1 + rank.in_flight - rank.at_first) + outputs
    return kept - rank.kept_at_first_bytes(lambda block: _kept_by(rank, block, software)) + outputs


def _waiting_bytes(rank: Rank, software: Software) -> Number:
    """Bytes that wait with gradients of weights of blocks, beside all activations."""
    waiting = rank.most_blocks * rank.block.weights_waiting_bytes
    if rank.kept_bytes:  # chunks differ: which of them activations and gradients are of is not known
        return rank.weights_waiting * waiting
    return _added_bytes(rank, rank.in_flight, rank.most_blocks * _kept_by(rank, rank.block, software), waiting)


def _added_bytes(rank: Rank, held: Number, kept_bytes: Number, waiting_bytes: Number) -> Number:
    """Bytes that gradients of weights which wait add to those of `held` microbatches, when both need most.

    kept_bytes, waiting_bytes: of one microbatch. Held and waiting may be most at different moments: of those that are
    never there together the lesser bytes are not there.
    """
    apart = largest(0, held + rank.weights_waiting - rank.together)
    return rank.weights_waiting * waiting_bytes - apart * smallest(kept_bytes, waiting_bytes)


def _of_ends(rank: Rank, name: str) -> Number:
    """Bytes by which the ends of the model need most: the largest of this number of their parts."""
    found: Number = reduce(largest, (getattr(end.part, name) for end in rank.ends), 0.0)
    return found


class Backward(NamedTuple):
    """Bytes at work when the last block of a kind on a chunk, if it is there, runs backward; or an end of the model.
    over: what the loss of this microbatch no longer keeps. given_back: what the blocks behind no longer keep. segment,
    again: what the largest segment saves that runs again, and Part.again_bytes. later: beside all that is kept, when
    gradients come that were put off; -inf for none."""

    block: Any
    there: Any
    segment: Number
    again: Number
    later: Number
    replay: Number
    working: Number
    over: Number
    given_back: Number

    @property
    def total(self) -> Number:
        """Bytes beside all that is kept when most is held."""
        return added(self.replay, self.working, -self.over, -self.given_back)


def _backwards(rank: Rank, software: Software, state: State, parameter_bytes: int) -> list[list[Backward]]:
    """Bytes at work when the last block of each kind runs backward, by kind, then chunk, as if the loss kept all.

    What the block behind the embedding replays more than others is charged to the embedding: to all blocks of its kind,
    the first one, on the embedding's rank. Where a rank has no block, nothing is at work.
    """
    gradients = _at_once_bytes(rank, state, parameter_bytes)
    table = _waiting_table_bytes(rank, state, parameter_bytes)
    bare = rank.most_blocks == 0
    some_bare = anywhere(bare)

    def backward(last: LastBlock, kind: int) -> Backward:
        part, given_back, working = last.part, 0.0, last.part.working_bytes
        for block, count in last.behind:
            given_back = given_back + count * _given_back(rank, block, _kept_by(rank, block, software))
        runs_again = part.segment_bytes, part.again_bytes, part.replay_bytes
        at_work, later = gradients[kind]
        # of a set of several segments it is not known which ran again at a region's end: the largest of them counts
        there = part.segment_bytes if state.in_regions else part.at_weights_bytes - part.working_bytes
        working = added(working, largest(0.0, at_work + there - part.replay_bytes), table)
        if rank.weights_apart:
            working = working + part.for_weights_bytes
        if not kind and rank.ends:
            of_ends = (_of_ends(rank, name) for name in ("segment_bytes", "again_bytes", "replay_bytes"))
            runs_again = tuple(map(largest, runs_again, of_ends))
        if some_bare:
            runs_again = tuple(where(bare, 0.0, number) for number in runs_again)
            working, later = where(bare, 0.0, working), where(bare, -inf, later)
        return Backward(part, last.there, *runs_again[:2], later, runs_again[2], working, 0.0, given_back)

    return [[backward(last, kind) for last in chunks] for kind, chunks in enumerate(rank.kinds)]


def _in_work(rank: Rank, software: Software, backwards: Sequence[Sequence[Backward]]) -> tuple[Number, ...]:
    """(replay, working, over, given back) of the part that holds most in backward: of a block, or of an end of the
    model."""
    best, *others = (_in_work_with(rank, one, software) for chunks in backwards for one in chunks)
    numbers = best[5:]
    if not others:
        return numbers
    most = where(best.there, best.total, -inf)
    for other in others:
        total = where(other.there, other.total, -inf)
        more = total > most
        numbers = tuple(where(more, number, known) for number, known in zip(other[5:], numbers, strict=True))
        most = largest(most, total)
    return numbers


def _in_work_with(rank: Rank, one: Backward, software: Software) -> Backward:
    later, replayed, working, over, given_back = one[4:]
    if rank.weights_apart:  # what the other blocks of the microbatch in work leave, for what they kept
        left = (rank.most_blocks - 1) * (rank.block.weights_waiting_bytes - rank.block.kept_bytes)
        working = largest(working + largest(0.0, left + given_back), added(later, -replayed, given_back))
    if rank.ends:
        at_ends = _of_ends(rank, "working_bytes")
        if rank.has_loss and not software.keeps_loss:
            loss = rank.ends[-1].part
            over = largest(0.0, loss.kept_bytes - loss.weights_waiting_bytes) if rank.weights_apart else loss.kept_bytes
        at_the_end = at_ends > added(replayed, working, -over, -given_back)
        if anywhere(at_the_end):
            replayed, over, given_back = (where(at_the_end, 0.0, number) for number in (replayed, over, given_back))
            working = where(at_the_end, at_ends, working)
    if software is not COMPILED:
        if _keeps_only_inputs(rank, one.block):
            replayed = software.activation_scale * (replayed + software.norm_copies * rank.hidden_bytes)
        replayed = replayed + (software.score_copies * one.block.scores_bytes if one.block.segment_bytes else 0.0)
    return one._replace(replay=replayed, working=working, over=over, given_back=given_back)
