"""Rotary positions: frequencies, stretched or not, and the rotation of queries and keys with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, floor, log, pi
from typing import Any

import torch
from einops import rearrange

from autoshard.graph.partition import OperatorStep
from autoshard.runtime.torch_backend import devices
from autoshard.runtime.torch_backend.context import Context
from autoshard.runtime.torch_backend.recomputing_ops import Rotate
from autoshard.spec.rope import DYNAMIC, LONGROPE, PROPORTIONAL


def rope_frequencies(rotary_dim: int, theta: float, scaling: Any, length: int = 1) -> torch.Tensor:
    """Inverse frequencies [rotary_dim / 2]; scaled ones as in transformers' rope utilities. length: tokens of a row."""
    if scaling is not None and scaling.rope_type == DYNAMIC:
        original = scaling.original_max_position_embeddings
        longer = max(length, original) / original
        theta *= (scaling.factor * longer - (scaling.factor - 1)) ** (rotary_dim / (rotary_dim - 2))
    frequencies = 1.0 / theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)
    if scaling is None or scaling.rope_type == DYNAMIC:
        return frequencies
    if scaling.rope_type == LONGROPE:
        is_long = length > scaling.original_max_position_embeddings
        return frequencies / torch.tensor(scaling.long_factor if is_long else scaling.short_factor, dtype=torch.float64)
    if scaling.rope_type == "linear":
        return frequencies / scaling.factor
    if scaling.rope_type == "yarn":
        return _yarn_frequencies(frequencies, rotary_dim, theta, scaling)
    if scaling.rope_type == PROPORTIONAL:
        turned = int(scaling.partial_rotary_factor * rotary_dim // 2)
        frequencies[turned:] = 0
        return frequencies / scaling.factor
    assert scaling.rope_type == "llama3", scaling
    wavelengths = 2 * torch.pi / frequencies
    turns = scaling.original_max_position_embeddings / wavelengths
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    # Both ends alike leave nothing between. 0: long waves, divided by the factor; 1: short waves, kept.
    smooth = blend.nan_to_num(1.0).clamp(0, 1)
    return smooth * frequencies + (1 - smooth) * frequencies / scaling.factor


def _yarn_frequencies(frequencies: torch.Tensor, rotary_dim: int, theta: float, scaling: Any) -> torch.Tensor:
    """Frequencies that turn often over the pre-training's positions as they are, slow ones divided by the factor, and
    those between blended (Peng et al. 2023, YaRN)."""

    def place(turns: float) -> float:
        """The index of the frequency that turns so often over the pre-training's positions."""
        wavelength = scaling.original_max_position_embeddings / turns
        return rotary_dim * log(wavelength / (2 * pi)) / (2 * log(theta))

    first, last = place(scaling.beta_fast), place(scaling.beta_slow)
    if scaling.truncate is None or scaling.truncate:
        first, last = floor(first), ceil(last)
    first, last = max(first, 0), min(last, rotary_dim - 1)
    last = first + 0.001 if first == last else last
    slow = ((torch.arange(len(frequencies), dtype=torch.float64) - first) / (last - first)).clamp(0, 1)
    return slow * frequencies / scaling.factor + (1 - slow) * frequencies


@dataclass(frozen=True)
class Rotation:
    """Rotates `turned` numbers of each head from number `first` on, or all. tables: a function to the cosine and
    sine for a tensor like the given one; of a second one, by whose exp frequencies are multiplied, to new ones each
    time."""

    tables: Callable[..., tuple[torch.Tensor, ...]]
    turned: int | None
    interleaved: bool
    first: int = 0

    def __call__(self, x: torch.Tensor, exponents: torch.Tensor | None = None) -> torch.Tensor:
        """x rotated. exponents: of the factors of frequencies, where these have such."""
        if exponents is None:
            return self.turn(x, *self.tables(x))
        turned: torch.Tensor = _TurnScaled.apply(x, exponents, self)
        return turned

    def turn(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """x rotated with the given tables."""
        if self.turned is not None:
            stop = self.first + self.turned
            turned = self._all(x[..., self.first : stop], cos, sin)
            return torch.cat((x[..., : self.first], turned, x[..., stop:]), -1)
        return self._all(x, cos, sin)

    def _all(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        if self.interleaved:  # pairs of neighbours turn
            turned = Rotate.apply(rearrange(x, "... (pair two) -> ... pair two", two=2), cos, sin)
            return rearrange(turned, "... pair two -> ... (pair two)")
        return Rotate.apply(x, cos, sin)


class _TurnScaled(torch.autograd.Function):
    """The rotation by frequencies that a parameter scales, which has no gradient. Keeps nothing but the parameter: all
    of a stage's operators of this kind together would keep their tables, each its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, exponents: torch.Tensor, rotation: Rotation) -> torch.Tensor:
        ctx.save_for_backward(exponents)
        ctx.rotation = rotation
        return rotation.turn(x, *rotation.tables(x, exponents))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        cos, sin = ctx.rotation.tables(grads[0], *ctx.saved_tensors)
        return ctx.rotation.turn(grads[0], cos, -sin), None, None


def rotation(context: Context, step: OperatorStep, dims: tuple[str, ...], every: int | None = None) -> Rotation:
    """The rotation of tensors with these dims, `seq` among them, by the attributes of the step's operator: rotary_dim,
    theta and scaling, or else frequencies; interleaved; backwards; first_rotary. every: the second dim is another one
    in place of `seq`, whose places are so many tokens apart; None: the attribute of this name, if there is one."""
    op = step.operator
    apart: Any = op.attributes.get("every") if every is None else every
    places = "seq" if apart is None else dims[1]
    if apart is None:
        positions = context.positions(step).double()
    else:
        position, count = context.piece(step, places)
        positions = (torch.arange(context.graph.sizes[places]) * apart).chunk(count)[position].double()
    turned: Any = op.attributes["rotary_dim"]
    given: Any = op.attributes.get("frequencies")
    if given is None:
        theta: Any = op.attributes["theta"]
        frequencies = rope_frequencies(turned, theta, op.attributes["scaling"], context.graph.sizes["seq"])
    else:
        frequencies = torch.tensor(given, dtype=torch.float64)
    if op.attributes.get("backwards"):
        frequencies = -frequencies
    interleaved = bool(op.attributes.get("interleaved"))
    shape = [1] * len(dims)
    shape[dims.index(places)], shape[-1] = len(positions), turned
    shape[-1:] = [turned // 2, 2] if interleaved else [turned]
    named = ("rotary_dim", "theta", "scaling", "frequencies", "interleaved", "backwards")
    scaling = op.attributes.get("scaling")
    factor: float = 1.0 if scaling is None else scaling.rotation_factor  # type: ignore[attr-defined]
    key = ("rope", context.piece(step, places), context.graph.sizes[places], apart, *map(op.attributes.get, named))
    own: dict[Any, tuple[torch.Tensor, ...]] = {}
    wide: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}
    """Positions and frequencies where frequencies are scaled, in the widest dtype of a device."""

    def made(positions: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
        angles = torch.outer(positions, frequencies)
        cos, sin = angles.cos() * factor, angles.sin() * factor
        join = torch.stack if interleaved else torch.cat
        return torch.stack((join((cos, cos), -1), join((-sin, sin), -1)))

    def tables(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        place = (key, x.dtype, x.device)
        if place not in context.tables:  # one for all blocks
            context.tables[place] = made(positions, frequencies).to(device=x.device, dtype=x.dtype)
        return context.tables[place].view(2, *shape).unbind(0)

    def own_tables(x: torch.Tensor, exponents: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        if exponents is not None:
            if x.device not in wide:
                dtype = torch.float64 if devices.has_64_bits(x.device) else torch.float32
                wide[x.device] = positions.to(x.device, dtype), frequencies.to(x.device, dtype)
            there, plain = wide[x.device]
            return made(there, plain * exponents.to(plain.dtype).exp()).to(x.dtype).view(2, *shape).unbind(0)
        kind = (x.dtype, x.device)
        if kind not in own:
            own[kind] = tables(x)
        return own[kind]

    first: Any = op.attributes.get("first_rotary", 0)
    return Rotation(own_tables, None if turned == context.graph.sizes[dims[-1]] else turned, interleaved, first)
