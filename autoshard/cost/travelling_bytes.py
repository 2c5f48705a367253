"""ZeRO-2 and ZeRO-3: bytes of weights and gradients that travel, at the worst moment of a microbatch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial, reduce
from operator import and_
from typing import Any, NamedTuple

from autoshard.cost.rank import NextTo
from autoshard.cost.zero_sharding import Turns
from autoshard.rows import Number, anywhere, either, largest, smallest, where

FEW_BLOCKS = 3
"""From so many blocks of a chunk on there is one with a block before it and one behind it."""
SUMMED_GRADIENTS = 2
"""Two gradients of one parameter are there at one time: the second one is added to the first one in place."""
PROBABILITY_BYTES = 4
"""The loss works on logits and, where these are narrower, on probabilities in FP32; the gradient of the logits is left
of it."""


class Ends(NamedTuple):
    """Elements of a rank's ends of the model that travel, over rows. first, last: of the embedding, the most that leave
    together, and of the head, 0 for none. tied: 1 where both are one table, which stays whole through backward.

    Of a prediction module, 0 without one: waiting, of the embedding, whose gradient by the module is there until the
    embedding's own backward; leaving, of what is on its way when the model's own loss runs backward; predicting, of the
    bucket that is gathered behind the module's head.

    frozen: elements that are gathered and not trained, of the embedding, and of the head, or of both where they are one
    table.

    chunks_loss: whether losses come in chunks, each of which adds to the gradient of the head: all that a loss works
    with is there with it, and what it keeps. between: what travels of the head apart from its table, between that and
    the blocks; 0 for nothing.
    """

    first: Number
    last: Number
    tied: Number
    waiting: Number = 0.0
    leaving: Number = 0.0
    predicting: Number = 0.0
    chunks_loss: bool = False
    between: Number = 0.0
    frozen_first: Number = 0.0
    frozen_last: Number = 0.0


class Loss(NamedTuple):
    """Bytes beside kept activations, over rows: what the loss works with; what the head works with when the loss is
    over, and behind its table (`Ends.between`); what the loss kept, which is gone when blocks run backward; what is
    still there of the head when its table leaves."""

    working: Number
    head: Number
    between: Number
    kept: Number
    leaving: Number = 0.0


class Between(NamedTuple):
    """The neighbours of a block that is not the last one of its kind on a chunk, while it runs backward, over rows.
    there: whether a block may have such neighbours. asked: elements of what backward asks for first of the block in
    front, 0 for none. leaving: of the last bucket of the block behind, those on their way; None where that is of the
    same kind. given_back: bytes that blocks up to the next one of the same kind no longer keep, at least."""

    there: Any
    asked: Number
    leaving: Number | None
    given_back: Number


class BlocksAround(NamedTuple):
    """The blocks around one while it runs backward, over rows. asked: elements of what backward asks for first of the
    block in front of the last one of a kind, 0 for none. between: of the others of that kind."""

    asked: Number
    between: Sequence[Between]

    def between_bytes(self, own_leaving: Number, sizes: Sizes, asks: Number = 1) -> Number:
        """The most bytes that are there of the blocks around one that is not the last of its kind. own_leaving: as
        Between.leaving, of a block of the kind. asks: 1 where backward asks for the block in front by then, else 0."""
        most: Number = 0.0
        for there, asked, leaving, given_back in self.between:
            on_its_way = sizes.reduced * (own_leaving if leaving is None else leaving)
            most = largest(most, where(there, asks * asked * sizes.whole + on_its_way - given_back, 0.0))
        return most


class FrozenAround(NamedTuple):
    """Elements of blocks that are gathered and not trained, 0 for none, over rows. in_front: of the block in front of
    the head, while that runs backward. behind: of the block behind the embedding, while that runs forward.

    embedding_bytes, head_bytes: beside kept activations, what the embedding works with forward, and the head where most
    of its own matrices are at work."""

    in_front: Number = 0.0
    behind: Number = 0.0
    embedding_bytes: Number = 0.0
    head_bytes: Number = 0.0


class Sizes(NamedTuple):
    """Bytes of a weight and its gradient, of a weight that is gathered, and of a gradient as it is sent."""

    parameter: Number
    whole: Number
    reduced: Number


def loss_work_bytes(logit_bytes: int) -> int:
    """Bytes for each logit that the backward of a loss works with."""
    return logit_bytes + (PROBABILITY_BYTES if logit_bytes < PROBABILITY_BYTES else 0)


def gathered_ahead(
    asked_first: Sequence[Number], own: int, next_to: NextTo, in_front: Sequence[Sequence[Number]]
) -> Number:
    """Elements that are gathered of the block in front while the last one of a kind runs backward, the most of all that
    it may be, on any of several chunks: of another kind than its own, where there is one of its own, only if the model
    has such blocks in this order.

    asked_first: what backward asks for first of a block of each kind. own: the place of that kind. next_to: of it.
    in_front: by chunk as cost.rank.Around has it.
    """
    most: Number = 0.0
    for counts in in_front:
        for place, count in enumerate(counts):
            if next_to.in_front[place] and anywhere(count):
                alone = place == own or next_to.in_front_later[place]
                there = count > 0 if alone else (count > 0) & (counts[own] <= 0)
                most = largest(most, where(there, asked_first[place], 0.0))
    return most


def blocks_around(
    kinds: Sequence[Turns],
    own: int,
    next_to: NextTo,
    in_front: Sequence[Sequence[Number]],
    given_back: Sequence[Number],
) -> BlocksAround:
    """The blocks around those of one kind. kinds: the turns of all kinds. given_back: bytes that a block of each kind
    no longer keeps when it has run backward, at least. The others: as of `gathered_ahead`."""
    found = []
    for front, behind in next_to.between:
        there: Any = False
        for counts in in_front:
            others = {place for place in (front, behind) if place is not None and place != own}
            there = there | reduce(and_, (counts[place] > 0 for place in others), counts[own] > (front == own))
        if anywhere(there):
            asked = 0.0 if front is None else kinds[front].asked_first
            alike = behind == own
            gone = given_back[own] if alike else given_back[own] + given_back[behind]
            found.append(Between(there, asked, None if alike else kinds[behind].last_on_its_way, gone))
    return BlocksAround(gathered_ahead([one.asked_first for one in kinds], own, next_to, in_front), found)


def leaving_before(kinds: Sequence[Turns], next_to: NextTo, behind: Sequence[Sequence[Number]]) -> Number:
    """Elements on their way when a block of a kind begins its backward, the most of several chunks: of the last bucket
    of a block of another kind, which is directly behind it. kinds: the turns of all kinds. next_to: of that kind.
    behind: by chunk, how many blocks of each kind may be there."""
    leaving: Number = 0.0
    for counts in behind:
        for turns, count, may_be in zip(kinds, counts, next_to.behind, strict=True):
            if may_be and anywhere(count):
                leaving = largest(leaving, where(count > 0, turns.last_on_its_way, 0.0))
    return leaving


def block_bytes(
    block: Turns,
    works: Sequence[Number],
    before: Number,
    around: BlocksAround,
    sizes: Sizes,
    hidden_bytes: Number,
) -> Number:
    """Bytes beside kept activations at the worst moment of the blocks of a kind on a chunk, over rows.

    block: what travels. works: what it works on most; what it does but for tiles of scores with all that the largest
    segment saves that runs again, and with what runs again in front, of which moments say what was given back. before:
    elements on their way when its backward begins: of the head, or of the last bucket of a block of another kind.
    around: what is there of other blocks meanwhile.

    A bucket of a block: the block's weights and the next one's, its gradients, those of the one before on their way;
    the smaller one when the larger one of the next block has not arrived. The first block of a backward has none before
    it but the head, the last one none behind it. What leaves is there twice at first, as backward left it and as it is
    sent, and with it the rank's shard of what arrives.
    """
    given = block, works, before, around, sizes, hidden_bytes
    in_turns = partial(either, block.is_last, lambda: _larger_last(*given), lambda: _larger_first(*given))
    return either(block.together, lambda: _together(*given), in_turns)


def in_work_bytes(
    of_blocks: Number,
    ends: Ends,
    sizes: Sizes,
    owners: Number,
    loss: Loss,
    gone_bytes: Number,
    opening: Number,
    closing: Number,
    frozen: FrozenAround = FrozenAround(),  # noqa: B008  a frozen value
) -> Number:
    """Bytes beside kept activations at the worst moment of a microbatch, over rows.

    of_blocks: `block_bytes` of the block that needs most, 0 for none. ends: what travels of these. owners: as in State.
    gone_bytes: of all that is kept, what is gone when the embedding does. opening: elements of the larger
    bucket of the block in front of the head, 0 for none. closing: of the bucket that is on its way when the embedding
    runs backward.

    What is not trained is whole while the head runs backward, and for the embedding's forward, which is over before its
    blocks keep anything of the microbatch; a table that both have, until the backward of all is over.

    What leaves of a table is there twice at first, as backward left it and as it is sent, and with it the rank's shard
    of what arrives; beside the head's what is still there of the head, and before that its weights and gradients of
    logits. What else the head has travels between its table and the blocks: it is gathered while the table is at work,
    which leaves while it is at work itself. When the embedding has its gradient, the last bucket of a block is on its
    way; where the head has the same table, its weights are whole until then, and there are two gradients.

    The loss of a prediction module comes first. When the model's own is at work, the module's has been given back, the
    head has its gradient and the embedding too, and the module's last bucket leaves; the head then gets another
    gradient.
    """
    (parameter, whole, reduced), (loss_work, head_work, _, kept_by_loss, _), (first, last) = sizes, loss, ends[:2]
    on_its_way, before_table = reduced + reduced / owners, closing * reduced
    table_leaves = first * (parameter + on_its_way)
    of_embedding = largest(first * parameter + before_table, table_leaves)
    if anywhere(ends.tied) or anywhere(ends.waiting):
        of_blocks = of_blocks + ends.tied * first * (whole + parameter) + ends.waiting * parameter
        on_table = first * (whole + SUMMED_GRADIENTS * parameter) + before_table
        of_embedding = where(ends.tied > 0, largest(on_table, table_leaves), of_embedding)
    if anywhere(ends.frozen_first):
        of_forward = (ends.frozen_first + frozen.behind) * whole + frozen.embedding_bytes
        of_embedding = largest(of_embedding, where(ends.frozen_first > 0, of_forward, 0.0))
    if anywhere(ends.tied):
        of_blocks = of_blocks + ends.tied * ends.frozen_last * whole
    share, probability = 1 / loss_work_bytes(parameter), PROBABILITY_BYTES
    gathered, leaving = last * (whole + parameter), last * (parameter + on_its_way)
    gradients_of_logits = largest(parameter * share * loss_work, head_work)
    if anywhere(ends.frozen_last):
        gradients_of_logits = largest(gradients_of_logits, frozen.head_bytes)
    of_tables = gathered + ends.tied * first * (whole + parameter)
    of_logits = gradients_of_logits + of_tables
    if ends.chunks_loss:
        gradients_of_logits, probability = loss_work, 0
        of_logits = loss_work + of_tables + kept_by_loss
    predicts = any(map(anywhere, (ends.waiting, ends.leaving, ends.predicting)))
    if predicts:
        waiting, of_module = ends.waiting * parameter, (ends.predicting > 0) * 1.0
        probabilities, module = probability * share * loss_work, waiting + ends.leaving * on_its_way
        on_loss = of_module * (loss_work + probabilities + gathered)
        on_sum = of_module * (gathered + last * (SUMMED_GRADIENTS - 1) * parameter)
        of_logits = largest(largest(of_logits + of_module * last * parameter, on_loss), on_sum) + module
        leaving = leaving + waiting
    of_head = (1 - ends.tied) * opening * whole  # the bucket in front of a table that is the embedding's, too, is none
    if anywhere(ends.between):
        on_others = loss.between + ends.between * (whole + parameter) + last * on_its_way
        of_table = ends.between * whole + largest(of_logits, leaving + loss.between)
        of_alone = of_head + largest(of_logits, leaving + loss.leaving)
        of_head = where(ends.between > 0, largest(of_head + on_others, of_table), of_alone)
    else:
        of_head = of_head + largest(of_logits, leaving + loss.leaving)
    if predicts:
        on_prediction = kept_by_loss - probabilities + gradients_of_logits + gathered + ends.predicting * whole
        of_head = largest(of_head, of_module * on_prediction)
    of_head = of_head + (ends.frozen_last + (1 - ends.tied) * frozen.in_front) * whole
    return largest(largest(of_blocks, of_head), of_embedding - gone_bytes) - kept_by_loss


def _moments(works: Sequence[Number], block: Turns, hidden_bytes: Number) -> Iterator[Number]:
    """Bytes that a block works on early, late, when most is there after that, when more gradients are, with a tile of
    scores if there is one, and when its larger bucket leaves. works: as of block_bytes.

    Early and late one segment has run again, that at the block's end. After that others have run again, too, and what
    that one saved is among what was given back.
    """
    most, with_segment, with_all = works
    for back in (block.back_before, block.back_late):
        yield where(back > 0, with_segment - back * hidden_bytes, smallest(most, with_segment))
    after, later, leaving = (
        where(back > 0, with_all - back * hidden_bytes, most)
        for back in (block.back_after, block.back_later, block.back_leaving)
    )
    in_tile = where(block.back_tiled > 0, with_all + block.tile_bytes - block.back_tiled * hidden_bytes, most)
    yield after
    yield later
    yield where(block.tile_bytes > 0, in_tile, later)
    yield where(block.leaving_tile_bytes > 0, largest(leaving, in_tile), leaving)


def _together(
    block: Turns,
    works: Sequence[Number],
    before: Number,
    around: BlocksAround,
    sizes: Sizes,
    hidden_bytes: Number,
) -> Number:
    """Bytes of a block all of whose gradients leave at its end: of one bucket, or that runs again as a whole. The
    bucket that is asked for first leaves first. Arguments as of block_bytes."""
    (parameter, whole, reduced), rest = sizes, block.all - block.asked_first
    _, late, after, later, in_tile, leaving = _moments(works, block, hidden_bytes)
    first = around.asked * whole + before * reduced
    between = around.between_bytes(block.last_on_its_way, sizes)
    gradients = largest(works[0] + block.early * parameter, late + block.late * parameter)
    behind_late = after + block.after * parameter, later + block.all * parameter, in_tile + block.tiled * parameter
    at_work = reduce(largest, behind_late, gradients) + block.all * whole + largest(first, between)
    leaves = leaving + (around.asked + rest) * whole + block.all * parameter + reduced * block.first_on_its_way
    if not anywhere(rest):
        return largest(at_work, leaves)
    rest_leaves = leaving + around.asked * whole + rest * parameter + reduced * block.last_on_its_way
    return largest(at_work, largest(leaves, where(rest > 0, rest_leaves, 0.0)))


def _larger_first(
    block: Turns,
    works: Sequence[Number],
    before: Number,
    around: BlocksAround,
    sizes: Sizes,
    hidden_bytes: Number,
) -> Number:
    """Bytes of a block whose experts, the larger bucket, leave first. Arguments as of block_bytes."""
    (parameter, whole, reduced), larger, other = sizes, block.larger, block.other
    larger_leaves, at_once = reduced * block.larger_on_its_way, 1 - block.waits
    first = at_once * around.asked * whole + before * reduced
    between = around.between_bytes(block.other_on_its_way, sizes, at_once)
    _, late, after, later, in_tile, leaving = _moments(works, block, hidden_bytes)
    gradients = largest(works[0] + block.early * parameter, late + block.late * parameter)
    of_larger = gradients + block.all * whole + largest(first, between)
    gathered = (other + at_once * around.asked) * whole
    at_leave = leaving + gathered + larger * parameter + larger_leaves
    after = largest(after + (block.after - larger) * parameter, largest(later, in_tile) + other * parameter)
    of_other = after + (other + around.asked) * whole + largest(larger_leaves, before * reduced)
    return largest(largest(of_larger, at_leave), of_other)


def _larger_last(
    block: Turns,
    works: Sequence[Number],
    before: Number,
    around: BlocksAround,
    sizes: Sizes,
    hidden_bytes: Number,
) -> Number:
    """Bytes of a block whose experts, the smaller bucket, leave first. Arguments as of block_bytes.

    The bucket of the block before, or of the head, is on its way until the experts leave, these until the rest does.
    """
    (parameter, whole, reduced), rest = sizes, block.larger
    experts_leave, rest_leaves = reduced * block.other_on_its_way, reduced * block.larger_on_its_way
    early, late, after, later, in_tile, leaving = _moments(works, block, hidden_bytes)
    after = largest(after + (block.after - block.other) * parameter, largest(later, in_tile) + rest * parameter)
    first = around.asked * whole + before * reduced
    between = around.between_bytes(block.larger_on_its_way, sizes)
    gradients = largest(early + block.early * parameter, late + block.late * parameter)
    of_experts = block.all * whole + gradients + largest(first, between)
    gathered = (rest + around.asked) * whole
    of_leaving = late + gathered + block.late * parameter + experts_leave
    of_rest = after + gathered + experts_leave
    at_end = leaving + gathered + rest * parameter + rest_leaves
    at_most = works[0] + rest * whole  # one of the moments before and after has given nothing back
    return reduce(largest, (of_experts, of_leaving, of_rest, at_end, at_most))
