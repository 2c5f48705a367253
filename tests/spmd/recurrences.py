"""Causal convolution, gated delta rule, Mamba-2's and Mamba-1's state spaces and lightning attention in numpy, token by
token, with their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.spmd.collectives import Array
from tests.spmd.place import Gradients, Place, Result

L2_EPS = 1e-6


def _sigmoid(x: Array) -> Array:
    found: Array = (1 + np.tanh(x / 2)) / 2
    return found


def _softplus(x: Array) -> Array:
    found: Array = np.logaddexp(0, x)
    return found


def _silu(x: Array) -> tuple[Array, Array]:
    """The value and its slope."""
    sigmoid = _sigmoid(x)
    return x * sigmoid, sigmoid * (1 + x * (1 - sigmoid))


def _mesh_first(place: Place, x: Array) -> Array:
    """[tokens in their original order, *mesh, batch, ...] of an array [*mesh, batch, seq, ...]."""
    return np.moveaxis(x, len(place.axes) + 1, 0)[np.argsort(place.order)]


def _back(place: Place, x: Array) -> Array:
    return np.moveaxis(x[place.order], 0, len(place.axes) + 1)


def _over_batch(place: Place, x: Array) -> Array:
    """The sum over the batch of an array [*mesh, batch, ...]."""
    total: Array = x.sum(len(place.axes))
    return total


def causal_conv(place: Place, x: Array, weight: Array, *bias: Array) -> Result:
    tokens, taps, mesh = _mesh_first(place, x), weight.shape[-1], len(place.axes)
    shape = (*weight.shape[:mesh], 1, *weight.shape[mesh:])
    spread = weight.reshape(shape)  # a dim for the batch
    apart: int = place.attributes.get("dilation", 1)

    def back(tap: int) -> int:
        """How many tokens before each token the one is that a tap sees; all, where it lies before the first."""
        return min(len(tokens), int(taps - 1 - tap) * apart)

    def seen(tap: int) -> Array:
        """The token that a tap sees, for each token; zero before the first."""
        behind = back(tap)
        return np.concatenate((np.zeros_like(tokens[:behind]), tokens[: len(tokens) - behind]))

    total = sum(seen(tap) * spread[..., tap] for tap in range(taps))
    for one in bias:
        total = total + one.reshape(shape[:-1])
    total = np.asarray(total)
    value, slope = _silu(total) if place.attributes.get("activates", True) else (total, np.ones_like(total))

    def backward(grad: Array) -> Gradients:
        inner = _mesh_first(place, grad) * slope
        by_x = np.zeros_like(tokens)
        for tap in range(taps):
            behind = back(tap)
            by_x[: len(tokens) - behind] += (inner * spread[..., tap])[behind:]
        by_weight = np.stack([(inner * seen(tap)).sum(0).sum(mesh) for tap in range(taps)], -1)
        return _back(place, by_x), by_weight, *(inner.sum(0).sum(mesh) for _ in bias)

    return _back(place, value), backward


def gated_delta_rule(
    place: Place, q: Array, k: Array, v: Array, b: Array, a: Array, a_log: Array, dt_bias: Array
) -> Result:
    queries, keys, values, raw_beta, raw = (_mesh_first(place, x) for x in (q, k, v, b, a))
    units = [x / np.sqrt(np.square(x).sum(-1, keepdims=True) + L2_EPS) for x in (queries, keys)]
    turned = [x[..., None, :] for x in units]  # [token, ..., head, 1, width]
    most: Any = place.attributes.get("beta_scale", 1.0)
    scale, beta = q.shape[-1] ** -0.5, most * _sigmoid(raw_beta)
    rate, shift = np.expand_dims(np.exp(a_log), len(place.axes)), np.expand_dims(dt_bias, len(place.axes))
    by_channel = rate.ndim < shift.ndim  # a rate a head, [..., head, width], in place of [..., head, group]
    rate = rate[..., None] if by_channel else rate
    time, bound = _softplus(raw + shift), place.attributes.get("lower_bound")
    bounded: Any = None if bound is None else bound * _sigmoid(rate * (raw + shift))
    fading = np.exp(-rate * time if bounded is None else bounded)
    factor = fading[..., None, :, None] if by_channel else fading[..., None, None]  # of states [..., width, width]
    state = np.zeros((*values.shape[1:-1], q.shape[-1], values.shape[-1]))
    states, out = [], np.empty_like(values)
    for token in range(len(values)):
        states.append(state)
        faded = state * factor[token]
        told = np.einsum("...kv,...k->...v", faded, turned[1][token])
        moved = beta[token][..., None] * (values[token] - told)
        state = faded + turned[1][token][..., None] * moved[..., None, :]
        out[token] = np.einsum("...kv,...k->...v", state, turned[0][token]) * scale

    def backward(grad: Array) -> Gradients:
        given, by_state = _mesh_first(place, grad) * scale, np.zeros_like(state)
        by_q, by_k = (np.zeros((*values.shape[:-1], q.shape[-1])) for _ in range(2))
        by_v, by_beta, by_fading = np.empty_like(values), np.empty_like(beta), np.empty_like(fading)
        for token in reversed(range(len(values))):
            query, key = turned[0][token], turned[1][token]
            faded = states[token] * factor[token]
            error = values[token] - np.einsum("...kv,...k->...v", faded, key)
            moved = beta[token][..., None] * error
            after = faded + key[..., None] * moved[..., None, :]
            by_q[token] = np.einsum("...kv,...v->...k", after, given[token])
            by_state = by_state + query[..., None] * given[token][..., None, :]
            by_moved = np.einsum("...kv,...k->...v", by_state, key)
            by_error = beta[token][..., None] * by_moved
            by_k[token] = np.einsum("...kv,...v->...k", by_state, moved)
            by_k[token] -= np.einsum("...kv,...v->...k", faded, by_error)
            by_beta[token] = (by_moved * error).sum(-1)
            by_v[token] = by_error
            by_faded = by_state - key[..., None] * by_error[..., None, :]
            by_fading[token] = (by_faded * states[token]).sum((-1, -3) if by_channel else (-1, -2))
            by_state = by_faded * factor[token]
        of_inputs = []
        for x, unit, by_unit in ((queries, units[0], by_q.sum(-2)), (keys, units[1], by_k.sum(-2))):
            length = np.sqrt(np.square(x).sum(-1, keepdims=True) + L2_EPS)
            of_inputs.append((by_unit - unit * (by_unit * unit).sum(-1, keepdims=True)) / length)
        by_exponent = by_fading * fading
        if bounded is None:
            by_raw, of_log = -by_exponent * rate * _sigmoid(raw + shift), -by_exponent * rate * time
        else:
            by_raw = by_exponent * bounded * (1 - bounded / bound) * rate
            of_log = by_raw * (raw + shift)
        by_log = _over_batch(place, of_log.sum(0))
        return (
            *(_back(place, x) for x in (*of_inputs, by_v, by_beta * beta * (1 - beta / most), by_raw)),
            by_log.sum(-1) if by_channel else by_log,
            _over_batch(place, by_raw.sum(0)),
        )

    return _back(place, out), backward


def state_space_scan(
    place: Place, x: Array, dt: Array, b: Array, c: Array, a_log: Array, d: Array, dt_bias: Array
) -> Result:
    values, raw, told, asked = (_mesh_first(place, one) for one in (x, dt, b, c))
    mesh = len(place.axes)
    rate, skip, shift = (np.expand_dims(one, mesh) for one in (np.exp(a_log), d, dt_bias))
    time = _softplus(raw + shift)
    fading = np.exp(-rate * time)
    state: Any = np.zeros((*values.shape[1:], b.shape[-1]))
    states, out = [], np.empty_like(values)
    for token in range(len(values)):
        states.append(state)
        added = (values[token] * time[token][..., None])[..., None] * told[token][..., None, None, :]
        state = state * fading[token][..., None, None] + added
        out[token] = np.einsum("...hpn,...n->...hp", state, asked[token]) + skip[..., None] * values[token]

    def backward(grad: Array) -> Gradients:
        given, by_state = _mesh_first(place, grad), np.zeros_like(state)
        by_x, by_time, by_fading = np.empty_like(values), np.empty_like(time), np.empty_like(time)
        by_told, by_asked = np.empty_like(told), np.empty_like(asked)
        for token in reversed(range(len(values))):
            scaled = values[token] * time[token][..., None]
            after = states[token] * fading[token][..., None, None] + scaled[..., None] * told[token][..., None, None, :]
            by_asked[token] = np.einsum("...hpn,...hp->...n", after, given[token])
            by_state = by_state + given[token][..., None] * asked[token][..., None, None, :]
            by_scaled = np.einsum("...hpn,...n->...hp", by_state, told[token])
            by_told[token] = np.einsum("...hpn,...hp->...n", by_state, scaled)
            by_x[token] = by_scaled * time[token][..., None] + skip[..., None] * given[token]
            by_time[token] = (by_scaled * values[token]).sum(-1)
            by_fading[token] = (by_state * states[token]).sum((-1, -2))
            by_state = by_state * fading[token][..., None, None]
        by_exponent = by_fading * fading
        by_raw = (by_time - by_exponent * rate) * _sigmoid(raw + shift)
        of_heads = (-by_exponent * rate * time, (given * values).sum(-1), by_raw)
        return (
            *(_back(place, one) for one in (by_x, by_raw, by_told, by_asked)),
            *(_over_batch(place, one.sum(0)) for one in of_heads),
        )

    return _back(place, out), backward


def selective_scan(
    place: Place, x: Array, dt: Array, b: Array, c: Array, a_log: Array, d: Array, dt_bias: Array
) -> Result:
    values, raw, told, asked = (_mesh_first(place, one) for one in (x, dt, b, c))
    mesh = len(place.axes)
    rate, skip, shift = (np.expand_dims(one, mesh) for one in (np.exp(a_log), d, dt_bias))
    time = _softplus(raw + shift)
    fading = np.exp(-rate * time[..., None])
    state: Any = np.zeros(fading.shape[1:])
    states, out = [], np.empty_like(values)
    for token in range(len(values)):
        states.append(state)
        added = (values[token] * time[token])[..., None] * told[token][..., None, :]
        state = state * fading[token] + added
        out[token] = np.einsum("...cn,...n->...c", state, asked[token]) + skip * values[token]

    def backward(grad: Array) -> Gradients:
        given, by_state = _mesh_first(place, grad), np.zeros_like(state)
        by_x, by_time, by_fading = np.empty_like(values), np.empty_like(time), np.empty_like(fading)
        by_told, by_asked = np.empty_like(told), np.empty_like(asked)
        for token in reversed(range(len(values))):
            scaled = values[token] * time[token]
            after = states[token] * fading[token] + scaled[..., None] * told[token][..., None, :]
            by_asked[token] = np.einsum("...cn,...c->...n", after, given[token])
            by_state = by_state + given[token][..., None] * asked[token][..., None, :]
            by_scaled = np.einsum("...cn,...n->...c", by_state, told[token])
            by_told[token] = np.einsum("...cn,...c->...n", by_state, scaled)
            by_x[token] = by_scaled * time[token] + skip * given[token]
            by_time[token] = by_scaled * values[token]
            by_fading[token] = by_state * states[token]
            by_state = by_state * fading[token]
        by_exponent = by_fading * fading
        by_raw = (by_time - (by_exponent * rate).sum(-1)) * _sigmoid(raw + shift)
        of_channels = (-by_exponent * rate * time[..., None], given * values, by_raw)
        return (
            *(_back(place, one) for one in (by_x, by_raw, by_told, by_asked)),
            *(_over_batch(place, one.sum(0)) for one in of_channels),
        )

    return _back(place, out), backward


def lightning_attention(place: Place, q: Array, k: Array, v: Array) -> Result:
    (queries, keys, values), slopes = zip(*(_silu(_mesh_first(place, x)) for x in (q, k, v)), strict=True)
    rates = np.zeros(place.graph.sizes["lightning_head"])
    rates[: len(place.attributes["rates"])] = place.attributes["rates"]
    own = rates[place.indices("lightning_head", q.shape[-2])]  # [*mesh, head]
    fading = np.exp(-np.expand_dims(own, len(place.axes)))[..., None, None]
    state = np.zeros((*values.shape[1:], values.shape[-1]))
    states, out = [], np.empty_like(values)
    for token in range(len(values)):
        state = state * fading + keys[token][..., None] * values[token][..., None, :]
        states.append(state)
        out[token] = np.einsum("...kv,...k->...v", state, queries[token])

    def backward(grad: Array) -> Gradients:
        given, by_state = _mesh_first(place, grad), np.zeros_like(state)
        found = tuple(np.empty_like(x) for x in (queries, keys, values))
        for token in reversed(range(len(values))):
            found[0][token] = np.einsum("...kv,...v->...k", states[token], given[token])
            by_state = by_state + queries[token][..., None] * given[token][..., None, :]
            found[1][token] = np.einsum("...kv,...v->...k", by_state, values[token])
            found[2][token] = np.einsum("...kv,...k->...v", by_state, keys[token])
            by_state = by_state * fading
        return tuple(_back(place, one * slope) for one, slope in zip(found, slopes, strict=True))

    return _back(place, out), backward
