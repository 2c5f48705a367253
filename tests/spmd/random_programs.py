"""Random graphs, random choices for every operator along every axis, and the numbers to run them on."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np

from autoshard.graph.chunked_loss import with_chunked_loss
from autoshard.graph.ir import Graph, GraphBuilder, Operator
from autoshard.graph.operator_kind import SEQUENCE_KEYS
from autoshard.graph.operators import KINDS
from autoshard.graph.partition import Choice
from autoshard.graph.redistribute import Axes
from autoshard.graph.states import INVARIANT, PARTIAL, REPLICATED
from autoshard.models.mixtral.graph import ROUTES
from tests.spmd.collectives import Array

ELEMENT_BYTES = 8
HIDDEN = "batch seq embed"


def random_choices(graph: Graph, axes: Axes, rng: Random) -> dict[str, Choice]:
    """Any loop dim that still divides, `I`, `R`, or `P` where the operator is linear and its input is partial. A loss
    that is added to another does as that one."""
    chosen: dict[str, Choice] = {}
    produced: dict[str, Operator] = {}
    for op in graph.operators:
        choice: dict[str, str] = {}
        left = {dim: graph.sizes[dim] for dim in op.loop_dims}
        for axis, size in axes.items():
            options = [INVARIANT, REPLICATED, *(dim for dim in op.loop_dims if left[dim] % size == 0)]
            linear = KINDS[op.kind].linear_input
            if linear is not None and _leaves_partial(graph, produced.get(op.inputs[linear]), axis, chosen):
                options += [PARTIAL] * 3
            choice[axis] = rng.choice(options)
            if choice[axis] in left:
                left[choice[axis]] //= size
        other_loss = {"cross_entropy": 2, "linear_cross_entropy": 3}.get(op.kind)
        if other_loss is not None and len(op.inputs) > other_loss:
            choice = dict(chosen[op.inputs[other_loss]])
        chosen[op.name] = choice
        produced[op.output] = op
    return chosen


def _leaves_partial(graph: Graph, producer: Operator | None, axis: str, chosen: dict[str, Choice]) -> bool:
    if producer is None:
        return False
    dims = graph.tensors[producer.output].dims
    return KINDS[producer.kind].output_state(producer, dims, chosen[producer.name][axis]) == PARTIAL


def random_numbers(graph: Graph, seed: int) -> dict[str, Array]:
    """Whole parameters and inputs: indices below the vocabulary, or in tables of tokens below the number of experts,
    inputs of order one, parameters of order a third."""
    numbers = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for tensor in (*graph.inputs(), *graph.parameters()):
        shape = [graph.sizes[dim] for dim in tensor.dims]
        if tensor.differentiable:
            found[tensor.name] = numbers.standard_normal(shape) * (1 / 3 if tensor.role == "parameter" else 1)
        else:
            not_learned = -1 if tensor.name.endswith("labels") else 0
            below = graph.sizes["expert"] if tensor.dims[:1] == ("token",) else _valid_vocab(graph)
            found[tensor.name] = numbers.integers(not_learned, below, shape)
    return found


def _valid_vocab(graph: Graph) -> int:
    valid = [op.attributes["valid_vocab"] for op in graph.operators if "valid_vocab" in op.attributes]
    return min((int(str(size)) for size in valid), default=graph.sizes.get("vocab", 1))


def random_graph(rng: Random) -> Graph:
    return _random_einsums(rng) if rng.random() < 0.4 else _random_transformer(rng)


def unread(graph: Graph) -> list[str]:
    """Tensors that no operator reads: the outputs."""
    read = {name for op in graph.operators for name in op.inputs}
    return [op.output for op in graph.operators if op.output not in read]


def _random_einsums(rng: Random) -> Graph:
    """Any matrix products, sums and norms over abstract dims, each input any tensor so far."""
    letters = "abcde"
    b = GraphBuilder({dim: rng.choice((4, 8)) for dim in letters}, ELEMENT_BYTES)

    def dims() -> str:
        return " ".join(rng.sample(letters, rng.randint(2, 3)))

    tensors = [b.hidden_input(f"x{i}", dims()) for i in range(rng.randint(1, 2))]
    tied = [b.parameter("tied", dims())]
    for i in range(rng.randint(2, 7)):
        name, x = f"t{i}", rng.choice(tensors[-3:])
        kind = rng.random()
        if kind < 0.2:
            same = [one for one in tensors if b.dims(one) == b.dims(x)]
            bias = b.parameter(f"{name}.bias", " ".join(b.dims(x)[rng.randint(0, 2) :][-2:]))
            other = rng.choice((rng.choice(same), bias))
            tensors.append(b.elementwise("add", name, x, other))
        elif kind < 0.3:
            other = rng.choice([one for one in tensors if b.dims(one) == b.dims(x)])
            operands = rng.choice((("gelu", x), ("silu_mul", x, other)))
            tensors.append(b.elementwise(operands[0], name, *operands[1:]))
        elif kind < 0.4:
            tensors.append(_norm(b, rng, name, x))
        else:
            other = rng.choice(
                (*tensors, *tied, b.parameter(f"{name}.weight", dims()), b.parameter(f"{name}.w", dims()))
            )
            tensors.append(_any_einsum(b, rng, name, x, other))
    # a parameter that nothing reads is no part of the graph
    graph = b.build()
    if rng.random() < 0.5 and sum("logits" in op.inputs for op in graph.operators) == 1:
        graph = with_chunked_loss(graph, rng.randint(2, 5))
    read = {name for op in graph.operators for name in op.inputs}
    kept = {name: t for name, t in graph.tensors.items() if name in read or t.role == "activation"}
    return Graph(graph.sizes, kept, graph.operators)


def _any_einsum(b: GraphBuilder, rng: Random, name: str, x: str, w: str) -> str:
    left, right = b.dims(x), b.dims(w)
    loops = list(dict.fromkeys((*left, *right)))
    output = rng.sample(loops, min(len(loops), rng.randint(1, 3)))
    return b.einsum(name, f"{' '.join(left)}, {' '.join(right)} -> {' '.join(output)}", x, w)


def _norm(b: GraphBuilder, rng: Random, name: str, x: str) -> str:
    dims = b.dims(x)
    function = rng.choice(("rms", "layer"))
    affine = [b.parameter(f"{name}.{part}", dims[-1]) for part in ("weight", "bias")[: 1 + (function == "layer")]]
    return b.operator("norm", name, (x, *affine), dims, dims[:-1], function=function, eps=1e-5)


def _random_transformer(rng: Random) -> Graph:
    """Pieces of transformers between hidden activations, in any order; each reads any hidden activation so far."""
    sizes = {
        "batch": rng.choice((2, 4)),
        "seq": rng.choice((4, 8)),
        "embed": rng.choice((4, 8)),
        "kvhead": rng.choice((2, 4)),
        "group": rng.choice((1, 2)),
        "headdim": 4,
        "ffn": rng.choice((4, 8)),
        "vocab": 8,
        "position": 10,
        "expert": rng.choice((2, 4)),
        "capacity": rng.choice((1, 2, 4)),
    }
    b = GraphBuilder(sizes, ELEMENT_BYTES)
    hidden = [b.hidden_input("hidden", HIDDEN)]
    if rng.random() < 0.5:
        hidden.append(_embedding(b, rng))
    for i in range(rng.randint(1, 4)):
        part = rng.choice(
            (
                _gated,
                _tied_mlp,
                _attention,
                _mixture,
                _linear_attention,
                _residual,
                _gated_token,
                _norm_of_hidden,
                _dropped,
            )
        )
        hidden.append(part(b, rng, f"p{i}", rng.choice(hidden[-2:]), rng.choice(hidden)))
    if rng.random() < 0.5:
        table = b.parameter("embed.weight" if rng.random() < 0.7 else "head.weight", "vocab embed")
        logits = b.einsum("logits", f"{HIDDEN}, vocab embed -> batch seq vocab", hidden[-1], table)
        labels = b.index_input("labels", "batch seq")
        loops = ("batch", "seq", "vocab")
        valid = rng.choice((6, 8))
        b.operator(
            "cross_entropy", "loss", (logits, labels), (), loops, element_bytes=b.summed_bytes, valid_vocab=valid
        )
    graph = b.build()
    if rng.random() < 0.5 and sum("logits" in op.inputs for op in graph.operators) == 1:
        graph = with_chunked_loss(graph, rng.randint(2, 5))
    read = {name for op in graph.operators for name in op.inputs}
    kept = {name: t for name, t in graph.tensors.items() if name in read or t.role == "activation"}
    return Graph(graph.sizes, kept, graph.operators)


Part = Callable[[GraphBuilder, Random, str, str, str], str]


def _embedding(b: GraphBuilder, rng: Random) -> str:
    ids = b.index_input("ids", "batch seq")
    loops = ("batch", "seq", "vocab", "embed")
    dims = tuple(HIDDEN.split())
    x = b.operator("embedding", "tokens", (ids, b.parameter("embed.weight", "vocab embed")), dims, loops)
    if rng.random() < 0.5:
        return x
    return b.operator("position_embedding", "positions", (x, b.parameter("wpe", "position embed")), dims, dims)


def _residual(b: GraphBuilder, rng: Random, name: str, x: str, y: str) -> str:
    if rng.random() < 0.3:
        return b.elementwise("silu_mul", name, x, y)
    return b.elementwise("add", name, x, y, *((b.parameter(f"{name}.bias", "embed"),) if rng.random() < 0.5 else ()))


def _gated_token(b: GraphBuilder, rng: Random, name: str, x: str, y: str) -> str:
    """One number for each token, as the shared expert of Qwen 2 has."""
    gate = b.einsum(f"{name}.gate", f"{HIDDEN}, embed -> batch seq", y, b.parameter(f"{name}.w", "embed"))
    return b.elementwise("sigmoid_mul", name, x, gate)


def _dropped(b: GraphBuilder, rng: Random, name: str, x: str, y: str) -> str:
    dims = b.dims(x)
    keys = b.index_input(SEQUENCE_KEYS, "batch")
    return b.operator("dropout", name, (x, keys), dims, dims, rate=rng.choice((0.1, 0.5)))


def _norm_of_hidden(b: GraphBuilder, rng: Random, name: str, x: str, y: str) -> str:
    return _norm(b, rng, name, x)


def _gated(b: GraphBuilder, rng: Random, name: str, x: str, y: str) -> str:
    gate, up = (
        b.einsum(f"{name}.{p}", f"{HIDDEN}, ffn embed -> batch seq ffn", h, b.parameter(f"{name}.{p}.w", "ffn embed"))
        for p, h in (("gate", x), ("up", rng.choice((x, y))))
    )
    act = b.elementwise("silu_mul", f"{name}.act", gate, up)
    return b.einsum(f"{name}.down", f"batch seq ffn, embed ffn -> {HIDDEN}", act, b.parameter(f"{name}.d", "embed ffn"))


def _tied_mlp(b: GraphBuilder, rng: Random, name: str, x: str, y: str) -> str:
    """One weight for the way up and the way down, and for every block that has it."""
    weight = b.parameter("shared.weight", "ffn embed")
    up = b.einsum(f"{name}.up", f"{HIDDEN}, ffn embed -> batch seq ffn", x, weight)
    up = b.elementwise("add", f"{name}.biased", up, b.parameter(f"{name}.bias", "ffn"))
    act = b.elementwise(rng.choice(("gelu", "gelu_erf")), f"{name}.act", up)
    return b.einsum(f"{name}.down", f"batch seq ffn, ffn embed -> {HIDDEN}", act, weight)


def _attention(b: GraphBuilder, rng: Random, name: str, x: str, y: str) -> str:
    heads = {"q": "kvhead group headdim", "k": "kvhead headdim", "v": "kvhead headdim"}
    source = {"q": x, "k": rng.choice((x, y)), "v": x}
    q, k, v = (
        b.einsum(
            f"{name}.{part}",
            f"{HIDDEN}, {dims} embed -> batch seq {dims}",
            source[part],
            b.parameter(f"{name}.{part}.w", f"{dims} embed"),
        )
        for part, dims in heads.items()
    )
    if rng.random() < 0.5:
        q, k = (_rope(b, rng, f"{one}.rope", one) for one in (q, k))
    context = b.operator(
        "attention",
        f"{name}.core",
        (q, k, v),
        ("batch", "seq", "kvhead", "group", "headdim"),
        ("batch", "seq", "kvhead", "group"),
        kernel=rng.choice(("flash", "plain")),
        sliding_window=rng.choice((None, 3)),
    )
    out = b.parameter(f"{name}.o.w", "embed kvhead group headdim")
    expression = f"batch seq kvhead group headdim, embed kvhead group headdim -> {HIDDEN}"
    return b.einsum(f"{name}.o", expression, context, out)


def _rope(b: GraphBuilder, rng: Random, name: str, x: str) -> str:
    dims = b.dims(x)
    turned = rng.choice((2, 4))
    return b.operator("rope", name, (x,), dims, dims[:-1], theta=100.0, scaling=None, rotary_dim=turned)


def _mixture(b: GraphBuilder, rng: Random, name: str, x: str, y: str) -> str:
    router = b.parameter(f"{name}.router", "expert embed")
    logits = b.einsum(f"{name}.gate", f"{HIDDEN}, expert embed -> batch seq expert", y, router)
    dims, slots = ("batch", "seq", "expert"), "expert batch capacity"
    gates = b.operator(
        "top_k_gate",
        f"{name}.top_k",
        (logits,),
        dims,
        dims[:2],
        top_k=rng.choice((1, 2)),
        normalized=rng.random() < 0.5,
    )
    x = b.operator("dispatch", f"{name}.dispatch", (x, gates), (*slots.split(), "embed"), ROUTES)
    w1, w2 = b.parameter(f"{name}.w1", "expert ffn embed"), b.parameter(f"{name}.w2", "expert embed ffn")
    up = b.einsum(f"{name}.up", f"{slots} embed, expert ffn embed -> {slots} ffn", x, w1)
    act = b.elementwise("gelu", f"{name}.act", up)
    answers = b.einsum(f"{name}.down", f"{slots} ffn, expert embed ffn -> {slots} embed", act, w2)
    return b.operator("combine", f"{name}.combine", (answers, gates), tuple(HIDDEN.split()), ROUTES)


def _linear_attention(b: GraphBuilder, rng: Random, name: str, x: str, y: str) -> str:
    """Products of activations with each other, the first summed over the whole sequence."""
    weight = b.parameter(f"{name}.w", "ffn embed")
    keys = b.einsum(f"{name}.keys", f"{HIDDEN}, ffn embed -> batch ffn seq", y, weight)
    state = b.einsum(f"{name}.state", f"batch ffn seq, {HIDDEN} -> batch embed ffn", keys, x)
    return b.einsum(f"{name}.read", f"batch ffn seq, batch embed ffn -> {HIDDEN}", keys, state)
