"""Pad heads and inner widths that tensor parallelism does not divide: how many empty ones are added."""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import NamedTuple

from autoshard.layout.degrees import divisors
from autoshard.spec.model import ModelSpec


class Heads(NamedTuple):
    """Numbers of heads of an attention. groups: query heads that share a key-value head."""

    key_value: int
    groups: int

    @property
    def queries(self) -> int:
        return self.key_value * self.groups


def padded_heads(model: ModelSpec, tp: int) -> Heads:
    """The heads of the model's first kind of attention, as `heads_of_kinds` lays them out."""
    return heads_of_kinds(model, tp)[0]


def key_value_heads(model: ModelSpec, tp: int) -> tuple[int, ...]:
    """Key-value heads of each of `model.heads`, as `heads_of_kinds` lays them out: what the mesh's axes follow; without
    attention as many as make tp one axis."""
    return tuple(heads.key_value for heads in heads_of_kinds(model, tp)) or (tp,)


@lru_cache(maxsize=4096)
def heads_of_kinds(model: ModelSpec, tp: int) -> tuple[Heads, ...]:
    """Each of `model.heads` as laid out over tp ranks: the model's own if they divide, else with the fewest empty query
    heads.

    Either tp divides the key-value heads, or they divide tp and the ranks that share one divide its query heads: as in
    NxD's parallel_layers/pad.py, whole key-value heads are added behind the last one, or query heads behind those of
    each key-value head (12 heads on tp=8: 16; 28 query heads over 4 key-value heads on tp=8: 7 become 8, which is 32).
    A traced model is never padded: its operators may make something of nothing.
    """
    kinds = tuple(Heads(one.num_key_value_heads, one.num_query_groups) for one in model.heads)
    return kinds if model.graph is not None else tuple(_padded(own, tp) for own in kinds)


def _padded(own: Heads, tp: int) -> Heads:
    shared = [split for split in divisors(tp)[:-1] if split >= own.key_value]
    candidates = [
        Heads(multiple_of(own.key_value, tp), own.groups),
        *(Heads(split, multiple_of(own.groups, tp // split)) for split in shared),
    ]
    return min(candidates, key=lambda heads: (heads.queries, heads.groups != own.groups, heads.key_value))


def padded_width(model: ModelSpec, width: int, tp: int) -> int:
    """An inner width of the MLP as laid out over tp ranks, with padding; a traced model's width stays."""
    return width if model.graph is not None else multiple_of(width, tp)


def padding_notes(model: ModelSpec, tp: int) -> tuple[str, ...]:
    """Sentences that say how many heads and columns of a layout are padding, and which share of the work that is.

    The vocabulary's padding is left out: every framework pads it. tp: degree of tensor parallelism.
    """
    found = []
    for own, heads in zip(model.heads, heads_of_kinds(model, tp), strict=True):
        if heads.queries == own.num_attention_heads:
            continue
        key_value = own.num_key_value_heads
        also = f" (key-value heads {key_value} to {heads.key_value})" if heads.key_value != key_value else ""
        also = also if own.num_query_groups > 1 else ""
        whose = " of blocks with full attention" if own.kind else ""
        found.append(
            f"{own.num_attention_heads} attention heads{whose} padded to {heads.queries}{also} for tp={tp}: "
            f"{1 - own.num_attention_heads / heads.queries:.1%} of attention's work is padding"
        )
    for field in ("intermediate_size", "shared_expert_intermediate_size", "dense_intermediate_size"):
        width = getattr(model, field)
        whole = padded_width(model, width, tp)
        if whole != width:
            found.append(
                f"{field} {width:,} padded to {whole:,} for tp={tp}: {1 - width / whole:.1%} of its work is padding"
            )
    if (ngrams := model.ngram_embedding) is not None:
        parts = ngrams.split_ngram_parts
        whole = padded_width(model, parts, tp)
        if whole != parts:
            found.append(
                f"split_ngram_parts {parts:,} padded to {whole:,} for tp={tp}: {1 - parts / whole:.1%} of each table "
                "of n-grams is padding"
            )
    return tuple(found)


def multiple_of(count: int, divisor: int) -> int:
    """The smallest multiple of the divisor that is at least `count`."""
    return ceil(count / divisor) * divisor
