"""Add to a graph what parts of a block read of a residual of several streams, and the next residual."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from autoshard.graph.ir import GraphBuilder
from autoshard.graph.stream_kinds import ONE_STREAM, SEVERAL_STREAMS, STREAM
from autoshard.models.dropping import dropped_branch
from autoshard.models.llama.graph import norm
from autoshard.models.weight_names import Part
from autoshard.spec.hyper_connections import HyperConnections
from autoshard.spec.model import ModelSpec

DIMS = {"fn": f"mix {STREAM} embed", "base": "mix", "scale": "three"}
UNMIXED_DIMS = {"fn": f"prepost {STREAM} embed", "base": "prepost", "scale": "two"}
HEAD_DIMS = {"fn": f"pre {STREAM} embed", "base": "pre", "scale": "one"}
"""Dims of the parameters of a part of a block, of one in a model that mixes no streams, and of the head, which writes
none."""
PARTS = {"attention": ("attn_hc", "input_layernorm"), "mlp": ("ffn_hc", "post_attention_layernorm")}
"""Part of a block -> the names of the module with its streams' weights, and of its norm."""


def stream_sizes(hyper: HyperConnections) -> dict[str, int]:
    """Sizes of the dims that parameters of streams have."""
    streams = hyper.hc_mult
    mixes = {"mix": streams * (streams + 2), "three": 3}
    return {STREAM: streams, "pre": streams, "one": 1} | (
        {"prepost": 2 * streams, "two": 2} if hyper.hc_sinkhorn_iters is None else mixes
    )


def residual_dims(model: ModelSpec) -> tuple[str, ...]:
    """The dims of what passes from block to block."""
    return ONE_STREAM if model.num_streams == 1 else SEVERAL_STREAMS


def repeated(b: GraphBuilder, x: str) -> str:
    """Append the first residual, x [batch, seq, embed] in every stream, and return it."""
    return b.operator("repeat_streams", "model.streams", (x,), SEVERAL_STREAMS, ONE_STREAM)


def mean(b: GraphBuilder, name: str, x: str) -> str:
    """Append the mean of the streams x, and return it."""
    return b.operator("mean_streams", name, (x,), ONE_STREAM, ONE_STREAM)


def collapsed(b: GraphBuilder, model: ModelSpec, name: str, x: str, writes: bool = True) -> tuple[str, str]:
    """Append the weights of a residual's streams for a part of a block, and the sum of the streams, and return both.

    name: of the weights' module. x: [batch, seq, stream, embed]. writes: whether a next residual is made with them.
    """
    hyper = model.hyper_connections
    assert hyper is not None, model
    rows, dims = ("batch", "seq"), _dims(hyper, writes)
    parameters = (b.parameter(f"{name}.{part}", own, matrix=part == "fn") for part, own in dims.items())
    weights = b.operator(
        "stream_weights",
        name,
        (x, *parameters),
        (*rows, dims["base"]),
        rows,
        element_bytes=b.summed_bytes,
        eps=model.norm_eps,
        balance_eps=hyper.hc_eps,
        iterations=hyper.hc_sinkhorn_iters or 0,
        magnitude=hyper.hc_magnitude,
    )
    return weights, b.operator("collapse_streams", f"{name}.collapsed", (x, weights), ONE_STREAM, ONE_STREAM)


def expanded(b: GraphBuilder, model: ModelSpec, name: str, x: str, weights: str, branch: tuple[str, str]) -> str:
    """Append the next residual, of the streams x, their weights and what a part of a block gave, and return it.

    name: of the operator. branch: (what the part gave, the name of its dropout operator).
    """
    b.module = "residual"
    y = dropped_branch(b, model, *branch)
    return b.operator("expand_streams", name, (y, x, weights), SEVERAL_STREAMS, ONE_STREAM)


def mixed(
    b: GraphBuilder, model: ModelSpec, prefix: str, part: str, x: str, inner: Callable[[str], tuple[str, str]]
) -> str:
    """Append a part of a block, and return the next residual. x: the streams. prefix: of the block's names. part: of
    PARTS. inner: appends it to its norm's output [batch, seq, embed], and returns what it gave and the name of its
    dropout operator."""
    weighs, normalizes = PARTS[part]
    b.module = f"{part}_norm"
    weights, h = collapsed(b, model, f"{prefix}.{weighs}", x)
    branch = inner(norm(b, model, f"{prefix}.{normalizes}", h))
    return expanded(b, model, f"{prefix}.{part}_residual", x, weights, branch)


def parts(model: ModelSpec, hub: str, name: str, writes: bool = True) -> Iterator[Part]:
    """The parts of the checkpoint for a module's weights of streams. hub: the start of the checkpoint's names. name:
    ours of the module. writes: as of `collapsed`."""
    hyper = model.hyper_connections
    assert hyper is not None, model
    for part, dims in _dims(hyper, writes).items():
        layout = dims.replace(f"{STREAM} embed", f"({STREAM} embed)")
        yield Part(f"{hub}_{part}", layout, f"{name}.{part}")


def _dims(hyper: HyperConnections, writes: bool) -> dict[str, str]:
    """Dims of the parameters of a module, by name. writes: as of `collapsed`."""
    if not writes:
        return HEAD_DIMS
    return UNMIXED_DIMS if hyper.hc_sinkhorn_iters is None else DIMS
