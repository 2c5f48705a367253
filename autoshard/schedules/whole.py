"""The check that orders are a whole step: each microbatch once through every chunk of every rank, and back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from autoshard.errors import AutoshardError
from autoshard.schedules.action import Order


def check_whole(
    orders: Sequence[Order],
    pp: int,
    num_microbatches: int,
    num_virtual_stages: int,
    of: str = "the schedule",
    weights_apart: bool = True,
) -> None:
    """Raise AutoshardError unless each rank has an order, with the forward and the backward of each microbatch in each
    chunk, in this order.

    of: whose orders they are, in the error. weights_apart: whether a backward may come as `I` and `W`.
    """
    if len(orders) != pp:
        raise AutoshardError(f"{of} has the orders of {len(orders)} ranks; it needs those of pp={pp}")
    for rank, order in enumerate(orders):
        _check_rank(rank, order, num_microbatches, num_virtual_stages, of, weights_apart)


def _check_rank(rank: int, order: Order, num_microbatches: int, num_chunks: int, of: str, weights_apart: bool) -> None:
    legal = {"FB": "F and then B", "FIW": "or F, I and W"} if weights_apart else {"FB": "F and then B"}
    kinds = dict.fromkeys(product(range(num_microbatches), range(num_chunks)), "")
    for kind, microbatch, chunk in order:
        kinds[microbatch, chunk] = kinds.get((microbatch, chunk), "") + kind
    for place, ((microbatch, chunk), found) in enumerate(kinds.items()):
        if place >= num_microbatches * num_chunks:
            raise AutoshardError(
                f"{of} has {found[0]}{microbatch}.{chunk} on rank {rank}; there are {num_microbatches} "
                f"microbatches and {num_chunks} chunks, numbered from 0"
            )
        if found not in legal:
            has = " ".join(f"{kind}{microbatch}.{chunk}" for kind in found) or "nothing"
            raise AutoshardError(
                f"{of} has {has} of microbatch {microbatch} in chunk {chunk} of rank {rank}; a step needs "
                + ", ".join(legal.values())
                + ("; I and W go with weights_apart=True" if found == "FIW" else "")
            )
