"""Rotary positions in numpy."""

from __future__ import annotations

import numpy as np

from autoshard.spec.rope import RopeScaling
from tests.spmd.collectives import Array
from tests.spmd.place import Place, Result


def rotated(
    place: Place, x: Array, dims: tuple[str, ...], every: int | None = None, exponents: Array | None = None
) -> Result:
    """x with rotary positions, by the attributes of the place's operator. dims: of x, `seq` among them. Numbers that
    are no pairs of neighbours in the graph are made so, and back. every: the second dim is of places so many tokens
    apart; None: the attribute of this name, if there is one. exponents: by whose exp each frequency is multiplied."""
    every = place.attributes.get("every") if every is None else every
    if place.attributes.get("interleaved") or place.attributes.get("first_rotary"):
        first, turned = place.attributes.get("first_rotary", 0), place.attributes["rotary_dim"]
        order = np.arange(x.shape[-1])
        own = order[first : first + turned]
        if place.attributes.get("interleaved"):
            own = np.concatenate((own[::2], own[1::2]))
        order = np.concatenate((own, order[:first], order[first + turned :]))
        value, backward = _halves(place, x[..., order], dims, every, exponents)
        back = np.argsort(order)
        return value[..., back], lambda grad: tuple(
            one[..., back] for one in backward(grad[..., order]) if one is not None
        )
    return _halves(place, x, dims, every, exponents)


def _halves(place: Place, x: Array, dims: tuple[str, ...], every: int | None, exponents: Array | None) -> Result:
    at = len(place.axes) + 1
    half = place.attributes["rotary_dim"] // 2
    theta, scaling = float(place.attributes["theta"]), place.attributes["scaling"]
    frequencies = _frequencies(half, theta, scaling, place.graph.sizes["seq"])
    if every is None:
        assert dims[1] == "seq", dims
        places = place.positions(x.shape[at])
    else:
        places = place.indices(dims[1], x.shape[at]) * every
    if exponents is not None:
        frequencies = frequencies * np.exp(exponents)[..., None, :]
    angles = places[..., None] * frequencies
    angles = place.spread(np.concatenate((angles, angles), -1), (dims[1], dims[-1]), dims)
    factor = 1.0 if scaling is None else scaling.rotation_factor
    cos, sin = np.cos(angles) * factor, np.sin(angles) * factor
    if place.attributes.get("backwards"):
        sin = -sin

    def turn(x: Array, sin: Array) -> Array:
        first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        turned = x[..., : 2 * half] * cos + np.concatenate((-second, first), -1) * sin
        return np.concatenate((turned, rest), -1)

    return turn(x, sin), lambda grad: (turn(grad, -sin),)


def _frequencies(half: int, theta: float, scaling: RopeScaling | None, length: int) -> Array:
    """Of each pair of numbers; 'llama3' divides those of long waves by the factor, with a ramp to short ones. length:
    of a row."""
    if scaling is not None and scaling.rope_type in ("dynamic", "longrope"):
        assert scaling.original_max_position_embeddings
        is_long = length > scaling.original_max_position_embeddings
        if scaling.rope_type == "longrope":
            divisors: Array = np.array(scaling.long_factor if is_long else scaling.short_factor)
            return theta ** (-np.arange(half) / half) / divisors
        ratio = length / scaling.original_max_position_embeddings if is_long else 1.0
        theta = theta * (scaling.factor * ratio - scaling.factor + 1) ** (half / (half - 1))
        return theta ** (-np.arange(half) / half)
    frequencies: Array = theta ** (-np.arange(half) / half)
    if scaling is None:
        return frequencies
    if scaling.rope_type == "yarn":
        return frequencies * _yarn(half, theta, scaling)
    if scaling.rope_type == "linear":
        return frequencies / scaling.factor
    if scaling.rope_type == "proportional":
        assert scaling.partial_rotary_factor
        return frequencies * (np.arange(half) < int(scaling.partial_rotary_factor * half)) / scaling.factor
    assert scaling.low_freq_factor and scaling.high_freq_factor and scaling.original_max_position_embeddings
    turns = scaling.original_max_position_embeddings * frequencies / (2 * np.pi)
    ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = np.minimum(np.maximum(ramp, 0), 1)
    return frequencies * (kept + (1 - kept) / scaling.factor)


def _yarn(half: int, theta: float, scaling: RopeScaling) -> Array:
    """Of each frequency, its share that is left: from 1 for those that turn beta_fast times, to 1 / factor."""
    assert scaling.original_max_position_embeddings and scaling.beta_fast and scaling.beta_slow
    turns = np.array([scaling.beta_fast, scaling.beta_slow])
    ends = half * np.log(scaling.original_max_position_embeddings / (2 * np.pi * turns)) / np.log(theta)
    first, last = max(np.floor(ends[0]), 0), min(np.ceil(ends[1]), 2 * half - 1)
    slow: Array = np.clip((np.arange(half) - first) / max(last - first, 0.001), 0, 1)
    return slow / scaling.factor + 1 - slow
