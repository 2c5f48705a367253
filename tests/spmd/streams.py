"""Hyper-connections in numpy, with their gradients."""

from __future__ import annotations

import numpy as np

from tests.spmd.collectives import Array
from tests.spmd.place import Gradients, Place, Result, contract

TOKENS, STREAMS = ("batch", "seq"), ("batch", "seq", "stream", "embed")


def repeat_streams(place: Place, x: Array) -> Result:
    streams = place.graph.sizes["stream"]
    return np.repeat(x[..., None, :], streams, -2), lambda grad: (grad.sum(-2),)


def mean_streams(place: Place, x: Array) -> Result:
    streams = x.shape[-2]
    return x.mean(-2), lambda grad: (np.repeat(grad[..., None, :], streams, -2) / streams,)


def _sigmoid(x: Array) -> Array:
    found: Array = (1 + np.tanh(x / 2)) / 2
    return found


def stream_weights(place: Place, x: Array, fn: Array, base: Array, scale: Array) -> Result:
    streams, out = place.graph.sizes["stream"], place.output_dims
    weights = (out[-1],)
    products = contract((x, STREAMS), (fn, place.dims(1)), out=out)
    width = x.shape[-1] * x.shape[-2]
    inverse = (np.square(x).sum((-1, -2))[..., None] / width + place.attributes["eps"]) ** -0.5
    z = products * inverse
    kinds = np.repeat(np.arange(scale.shape[-1]), [streams, streams, streams**2][: scale.shape[-1]])
    factors = place.spread(scale[..., kinds], weights, out)
    raw = factors * z + place.spread(base, weights, out)
    slope_eps, has_mix = place.attributes["balance_eps"], scale.shape[-1] > 2
    sigmoid = _sigmoid(raw[..., : 2 * streams])
    above, times = np.zeros(sigmoid.shape[-1]), np.ones(sigmoid.shape[-1])
    above[: streams if has_mix else None], times[streams:] = slope_eps, place.attributes["magnitude"]
    value, slope = times * sigmoid + above, times * sigmoid * (1 - sigmoid)
    tape: list[tuple[int, Array, Array]] = []
    if has_mix:
        square = raw[..., 2 * streams :].reshape(*raw.shape[:-1], streams, streams)
        softmax = np.exp(square - square.max(-1, keepdims=True))
        softmax = softmax / softmax.sum(-1, keepdims=True)
        mix = softmax + slope_eps
        for axis in (-2, *(-1, -2) * (place.attributes["iterations"] - 1)):
            total = mix.sum(axis, keepdims=True) + slope_eps
            mix = mix / total
            tape.append((axis, mix, total))
        value = np.concatenate((value, mix.reshape(*raw.shape[:-1], streams**2)), -1)

    def backward(grad: Array) -> Gradients:
        to_raw = grad[..., : 2 * streams] * slope
        if has_mix:
            to_mix = grad[..., 2 * streams :].reshape(*raw.shape[:-1], streams, streams)
            for axis, made, total in reversed(tape):
                to_mix = (to_mix - (to_mix * made).sum(axis, keepdims=True)) / total
            to_mix = softmax * (to_mix - (to_mix * softmax).sum(-1, keepdims=True))
            to_raw = np.concatenate((to_raw, to_mix.reshape(*raw.shape[:-1], streams**2)), -1)
        tokens = tuple(len(place.axes) + i for i in range(2))
        of_kinds = np.stack([(to_raw * z)[..., kinds == one].sum(-1) for one in range(scale.shape[-1])], -1)
        to_z = to_raw * factors
        to_products = to_z * inverse
        to_inverse = (to_z * products).sum(-1)[..., None, None]
        to_x = contract((to_products, out), (fn, place.dims(1)), out=STREAMS)
        to_x = to_x - to_inverse * inverse[..., None] ** 3 * x / width
        to_fn = contract((to_products, out), (x, STREAMS), out=place.dims(1))
        return to_x, to_fn, to_raw.sum(tokens), of_kinds.sum(tokens)

    return value, backward


def collapse_streams(place: Place, x: Array, weights: Array) -> Result:
    pre = weights[..., : x.shape[-2], None]

    def backward(grad: Array) -> Gradients:
        to_weights = np.zeros_like(weights)
        to_weights[..., : x.shape[-2]] = (grad[..., None, :] * x).sum(-1)
        return grad[..., None, :] * pre, to_weights

    return (pre * x).sum(-2), backward


def expand_streams(place: Place, y: Array, x: Array, weights: Array) -> Result:
    streams = x.shape[-2]
    if weights.shape[-1] <= 2 * streams:
        return _added_streams(y, x, weights[..., -streams:, None], weights)
    post = weights[..., streams : 2 * streams, None]
    mix = weights[..., 2 * streams :].reshape(*weights.shape[:-1], streams, streams)
    value = post * y[..., None, :] + np.swapaxes(mix, -1, -2) @ x

    def backward(grad: Array) -> Gradients:
        to_weights = np.zeros_like(weights)
        to_weights[..., streams : 2 * streams] = (grad * y[..., None, :]).sum(-1)
        to_weights[..., 2 * streams :] = (x @ np.swapaxes(grad, -1, -2)).reshape(*weights.shape[:-1], streams**2)
        return (post * grad).sum(-2), mix @ grad, to_weights

    return value, backward


def _added_streams(y: Array, x: Array, post: Array, weights: Array) -> Result:
    """Without a mix: every stream stays, and y is added to it."""

    def backward(grad: Array) -> Gradients:
        to_weights = np.zeros_like(weights)
        to_weights[..., -x.shape[-2] :] = (grad * y[..., None, :]).sum(-1)
        return (post * grad).sum(-2), grad, to_weights

    return x + post * y[..., None, :], backward
