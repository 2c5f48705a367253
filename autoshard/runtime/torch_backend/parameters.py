"""Initialises parameters to the same numbers in every layout, and cuts them to this rank's piece."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from math import log, prod

import torch

from autoshard.graph import xielu
from autoshard.graph.adapters import DOWN, UP, WEIGHT
from autoshard.graph.ir import Tensor
from autoshard.graph.partition import Program
from autoshard.layout.mesh import Mesh
from autoshard.models.deepseek.attention import EXPONENTS, QUERY_SCALE
from autoshard.models.stage import published_sizes
from autoshard.runtime.torch_backend.optimizer_settings import unrounded
from autoshard.spec.hyper_connections import HyperConnections
from autoshard.spec.model import ModelSpec

INIT_STD = 0.02
"""Standard deviation of initial weights: GPT-2's and Llama's initializer_range."""
SLOWEST_AND_FASTEST = (1.0, 16.0)
"""Rates at which the heads of a recurrence forget, a token: Mamba-2's A, here at even distances."""
SCALE_OF_STREAMS = 0.01
"""Initial scale of the weights of streams that nothing mixes, that of transformers."""
_OF_STREAMS = ("hc.scale", "hc_head.scale", "hc.base", "hc_head.base")
_RESIDUAL_PROJECTIONS = tuple(
    f"{name}.weight"
    for name in ("o_proj", "o_b_proj", "out_proj", "down_proj", "c_proj", "w2", "attention.dense", "dense_4h_to_h")
)


def initial_parameter(model: ModelSpec, tensor: Tensor, sizes: Mapping[str, int], seed: int) -> torch.Tensor:
    """The whole parameter in FP32: a function of the seed and its name alone, so that every layout starts alike.

    Projections into the residual stream are scaled by 1/sqrt(2 layers) (GPT-2). Padding is zero.
    """
    published = published_sizes(model)
    shape = [published[dim] for dim in tensor.dims]
    return padded(_published_parameter(model, tensor, shape, seed), [sizes[dim] for dim in tensor.dims])


def padded(value: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The value with zeros behind the end of each dim up to `shape`; the value itself where it has that shape."""
    if list(value.shape) == list(shape):
        return value
    found = value.new_zeros(tuple(shape))
    found[tuple(slice(size) for size in value.shape)] = value
    return found


def _published_parameter(model: ModelSpec, tensor: Tensor, shape: list[int], seed: int) -> torch.Tensor:
    hyper = model.hyper_connections
    if hyper is not None and hyper.hc_sinkhorn_iters is None and tensor.name.endswith(_OF_STREAMS):
        return _of_streams(hyper, tensor.name, shape)
    if model.learns_activation and ".act_fn." in tensor.name:
        return torch.full(shape, xielu.PARTS[tensor.name.rpartition(".")[2]])
    initial = _initial(model, tensor.name)
    if initial == "zeros":
        return torch.zeros(shape)
    if initial == "table":
        return (torch.arange(prod(shape)) % model.num_local_experts).float().view(shape)
    if initial == "ones":
        return torch.ones(shape)
    if initial == "rates":
        if tensor.dims[-1] == "mamba_state":  # Mamba-1's channels all begin with the same
            return torch.arange(1.0, shape[-1] + 1).log().repeat(shape[0], 1)
        return torch.linspace(*SLOWEST_AND_FASTEST, prod(shape)).log().view(shape)
    std = INIT_STD
    if initial == "residual":
        std /= (2 * model.num_hidden_layers) ** 0.5
    if initial == "adapter":  # as far spread as PEFT's, which are even between +-1 / sqrt(width)
        std = (3 * prod(shape[1:])) ** -0.5
    digest = hashlib.sha256(f"{seed} {tensor.name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return torch.randn(shape, generator=generator) * std


def _of_streams(hyper: HyperConnections, name: str, shape: list[int]) -> torch.Tensor:
    """A scale or base of streams that nothing mixes, as transformers begins with: a part reads their mean, but for what
    its weights make of the streams."""
    if name.endswith(".scale"):
        return torch.full(shape, SCALE_OF_STREAMS)
    base = torch.zeros(shape)
    base[: hyper.hc_mult] = -log(hyper.hc_mult - 1)
    return base


def _initial(model: ModelSpec, name: str) -> str:
    """How a parameter is initialised: 'zeros', 'ones', 'rates', 'table' (experts in turn, each token's behind those of
    the one before), 'residual', 'adapter' or 'normal'. Its name decides; a traced model states it."""
    if model.graph is not None:
        return model.graph.parameter_named(name).initial
    if name.endswith((f".{DOWN}{WEIGHT}", f".{UP}{WEIGHT}")):
        return "adapter" if name.endswith(f".{DOWN}{WEIGHT}") else "zeros"
    if model.family.scales_queries and f".{QUERY_SCALE}." in name:
        return "ones" if name.endswith(".bias") else "zeros"
    if name == EXPONENTS:
        return "zeros"
    if name.endswith((".dt_bias", ".D", ".layer_scalar", ".per_expert_scale", "_compress_gate", *_OF_STREAMS[:2])):
        return "ones"
    if name.endswith(".tid2eid"):
        return "table"
    if name.endswith(".ple.conv1d.weight"):  # as transformers begins with
        return "zeros"
    if name.endswith((".bias", "_bias", "_compress_ape", *_OF_STREAMS[2:])):
        return "zeros"
    if name.endswith(".A_log"):
        return "rates"
    if _is_norm(name):
        offset = model.offsets_norm(name.removesuffix(".weight"))
        return "zeros" if offset and not name.endswith("linear_attn.norm.weight") else "ones"
    return "residual" if name.endswith(_RESIDUAL_PROJECTIONS) else "normal"


def _is_norm(name: str) -> bool:
    """Whether the parameter is a norm's weight, by names such as 'model.layers.3.self_attn.q_norm.weight' or
    'transformer.h.0.ln_1.weight'."""
    module = name.split(".")[-2]
    return module.endswith("norm") or module.startswith(("ln_", "norm_"))


def local_piece(
    value: torch.Tensor, dims: tuple[str, ...], state: tuple[str, ...], mesh: Mesh, index: dict[str, int]
) -> torch.Tensor:
    """This rank's piece of a whole tensor; of several axes on one dim, the outer ones cut the larger pieces. state: by
    the mesh's splitting axes."""
    for axis, entry in zip(mesh.stage_axes.items(), state, strict=True):
        if entry in dims:
            name, count = axis
            dim = dims.index(entry)
            length = value.shape[dim] // count
            value = value.narrow(dim, index[name] * length, length)
    return value.contiguous()


def piece_of(
    shape: tuple[int, ...], dims: tuple[str, ...], state: tuple[str, ...], mesh: Mesh, index: Mapping[str, int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(starts, lengths) along each dim of what local_piece cuts out of a parameter of this shape."""
    starts, lengths = [0] * len(dims), list(shape)
    for (name, count), entry in zip(mesh.stage_axes.items(), state, strict=True):
        if entry in dims:
            dim = dims.index(entry)
            lengths[dim] //= count
            starts[dim] += index[name] * lengths[dim]
    return tuple(starts), tuple(lengths)


def each_parameter(
    model: ModelSpec,
    program: Program,
    mesh: Mesh,
    index: dict[str, int],
    seed: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the name and the local piece of each parameter of a stage, one after the other, so that all whole ones
    need not fit into memory at once. dtype: of weights."""
    for tensor in program.graph.parameters():
        whole = initial_parameter(model, tensor, program.graph.sizes, seed)
        piece = local_piece(whole, tensor.dims, program.states[tensor.name], mesh, index)
        yield tensor.name, piece.to(device=device, dtype=dtype if program.graph.rounded(tensor) else unrounded(dtype))


def assemble(
    pieces: Mapping[int, torch.Tensor], dims: tuple[str, ...], state: tuple[str, ...], mesh: Mesh
) -> torch.Tensor:
    """The whole tensor from the pieces of one stage's ranks: the inverse of local_piece. pieces: by global rank."""
    first = next(iter(pieces.values()))
    axes = mesh.stage_axes
    counts = [1] * len(dims)
    for (_, count), entry in zip(axes.items(), state, strict=True):
        if entry in dims:
            counts[dims.index(entry)] *= count
    whole = first.new_empty([size * count for size, count in zip(first.shape, counts, strict=True)])
    for rank, piece in pieces.items():
        _, index = mesh.coordinates(rank)
        target = whole
        for (name, count), entry in zip(axes.items(), state, strict=True):
            if entry in dims:
                dim = dims.index(entry)
                length = target.shape[dim] // count
                target = target.narrow(dim, index[name] * length, length)
        target.copy_(piece)
    return whole
