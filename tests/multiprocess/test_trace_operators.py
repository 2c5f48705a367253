"""Code of users means in the graph what it means in torch, or is refused in one sentence with its line."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from autoshard.errors import AutoshardError
from autoshard.tracer.trace import trace_module
from autoshard.tracer.tracer import HOW_EXPERTS_TRACE
from tests.multiprocess.test_trace import HOW_TO_ADD, SEQ, check_computes_the_same

WIDTH, HEADS, HEAD, INNER, VOCAB = 32, 4, 8, 64, 50
Shapes = dict[str, tuple[int, ...]]
Step = Callable[[Any, torch.Tensor], torch.Tensor]


class Block(nn.Module):
    """A residual block: x + step(block, x), with parameters of these shapes."""

    def __init__(self, step: Step, shapes: Shapes) -> None:
        super().__init__()
        self.step = step
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.zeros(shape)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.step(self, x)


class Model(nn.Module):
    """Two blocks between a table and a head. before: what is done to the embeddings, with `first` as a parameter."""

    def __init__(
        self,
        step: Step,
        shapes: Shapes,
        before: Step = lambda model, x: x,
        first: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__()
        self.before = before
        self.tokens, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        if first is not None:
            self.first = nn.Parameter(torch.zeros(first))
        self.blocks = nn.ModuleList(Block(step, shapes) for _ in range(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.before(self, self.tokens(ids))
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(x)
        return logits


MLP: Shapes = {"up": (WIDTH, INNER), "down": (INNER, WIDTH)}
ATTENTION: Shapes = {"q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "o": (WIDTH, WIDTH)}
SHARED: Shapes = {**ATTENTION, "k": (WIDTH, WIDTH // 2), "v": (WIDTH, WIDTH // 2)}


def mlp(function: Callable[[torch.Tensor], torch.Tensor]) -> Step:
    return lambda s, x: function(x @ s.up) @ s.down


def heads(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """[batch, heads, tokens, head]"""
    return (x @ weight).unflatten(-1, (-1, HEAD)).transpose(1, 2)


def scores(masked: Callable[[torch.Tensor], torch.Tensor]) -> Step:
    """Attention written out. masked: probabilities of scores."""

    def step(s: Any, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads(x, weight) for weight in (s.q, s.k, s.v))
        return (masked(q @ k.transpose(-1, -2) / HEAD**0.5) @ v).transpose(1, 2).flatten(2) @ s.o

    return step


def hidden(window: int = SEQ) -> torch.Tensor:
    """Which keys a query does not see."""
    return ~torch.ones(SEQ, SEQ, dtype=torch.bool).tril().triu(1 - window)


def added(window: int = SEQ) -> torch.Tensor:
    return torch.zeros(SEQ, SEQ).masked_fill(hidden(window), NONE)


NONE = float("-inf")


def rotated(theta: float) -> Step:
    def step(s: Any, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads(x, weight) for weight in (s.q, s.k, s.v))
        turns = torch.outer(torch.arange(SEQ), theta ** -(torch.arange(0, HEAD, 2) / HEAD))
        cos, sin = turns.cos(), turns.sin()
        q, k = (
            torch.cat([one * cos - other * sin, other * cos + one * sin], -1)
            for one, other in (y.chunk(2, -1) for y in (q, k))
        )
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2) @ s.o

    return step


def neighbours(x: torch.Tensor) -> torch.Tensor:
    """Heads repeated, copies next to each other."""
    return x.repeat_interleave(2, 1)


def tiled(x: torch.Tensor) -> torch.Tensor:
    """Heads repeated, all of them one after the other."""
    return x.unsqueeze(1).expand(-1, 2, -1, -1, -1).flatten(1, 2)


def shared(
    repeat_keys: Callable[[torch.Tensor], torch.Tensor], repeat_values: Callable[[torch.Tensor], torch.Tensor]
) -> Step:
    def step(s: Any, x: torch.Tensor) -> torch.Tensor:
        q, k, v = heads(x, s.q), repeat_keys(heads(x, s.k)), repeat_values(heads(x, s.v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2) @ s.o

    return step


def with_weights(s: Any, x: torch.Tensor) -> torch.Tensor:
    """nn.MultiheadAttention's own forward, which gives the weights of attention where nothing else is said."""
    y = x.transpose(0, 1)
    given = (WIDTH, HEADS, s.in_proj, None, None, None, False, 0.0, s.out, None)
    found: torch.Tensor = F.multi_head_attention_forward(y, y, y, *given, attn_mask=hidden())[0]
    return found.transpose(0, 1)


def normed(norm: Step) -> Step:
    """Attention, and a norm of its result."""

    def step(s: Any, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads(x, weight) for weight in (s.q, s.k, s.v))
        return norm(s, F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)) @ s.o

    return step


EXPERTS, CHOICES = 4, 2
MIXTURE: Shapes = {"router": (WIDTH, EXPERTS), "up": (EXPERTS, WIDTH, INNER), "down": (EXPERTS, INNER, WIDTH)}
Tensors = tuple[torch.Tensor, torch.Tensor]


def by_expert(own: torch.Tensor, weights: torch.Tensor, order: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return (own * weights.flatten()[order].unsqueeze(-1))[places]


def by_token(own: torch.Tensor, weights: torch.Tensor, order: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return own[places].unflatten(0, (-1, CHOICES)) * weights.unsqueeze(-1)


def by_order(own: torch.Tensor, weights: torch.Tensor, order: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return own[order].unflatten(0, (-1, CHOICES)) * weights.unsqueeze(-1)


def mixture(
    route: Callable[[torch.Tensor], Tensors],
    answers: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor] = by_expert,
) -> Step:
    """A mixture of experts written out. route: weights and experts [tokens, choices] of logits. answers: weighed."""

    def step(s: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.flatten(0, 1)
        weights, experts = route(y @ s.router)
        order = torch.argsort(experts.reshape(-1))
        chosen, places = experts.reshape(-1)[order], torch.argsort(order)
        own = F.silu(y[order // CHOICES].unsqueeze(1) @ s.up[chosen]) @ s.down[chosen]
        found = answers(own.squeeze(1), weights, order, places)
        return found.view(-1, CHOICES, WIDTH).sum(1).view(x.shape)

    return step


def top(logits: torch.Tensor, choices: int = CHOICES, largest: bool = True) -> Tensors:
    return torch.topk(logits.softmax(-1), choices, largest=largest)


def changed(weights: Callable[[torch.Tensor], torch.Tensor], experts: Callable[[torch.Tensor], torch.Tensor]) -> Step:
    """A mixture whose top choices are changed."""
    return mixture(lambda logits: (lambda found: (weights(found[0]), experts(found[1])))(top(logits)))


def same(x: torch.Tensor) -> torch.Tensor:
    return x


POSITIONS: dict[str, tuple[tuple[int, ...], Step]] = {
    "positions": ((SEQ, WIDTH), lambda model, x: x + model.first),
    "first positions": ((2 * SEQ, WIDTH), lambda model, x: x + model.first[: x.shape[1]]),
    "all positions as the first": ((SEQ, WIDTH), lambda model, x: x + model.first[: x.shape[1]]),
    "all positions": ((SEQ, WIDTH), lambda model, x: x + model.first),
    "positions of every sequence": ((1, SEQ, WIDTH), lambda model, x: model.first + x),
    "first positions of every sequence": ((1, 2 * SEQ, WIDTH), lambda model, x: x + model.first[:, : x.shape[1]]),
}


LEARNED_POSITIONS = "learned positions are [positions, width], added to the tokens' embeddings"


@pytest.mark.parametrize("name", POSITIONS)
def test_a_parameter_of_positions_is_a_table_of_them(name: str) -> None:
    shape, before = POSITIONS[name]
    check_computes_the_same(lambda: Model(mlp(torch.tanh), MLP, before, shape), "Model")
    graph = trace_module(Model(mlp(torch.tanh), MLP, before, shape), "Model", SEQ).graph
    assert graph is not None
    assert graph.by_name["first"].dims == ("position", "embed")


@pytest.mark.parametrize(
    ("shape", "what", "cure"),
    [
        ((SEQ, 1), f"{SEQ} tokens", LEARNED_POSITIONS),
        ((SEQ, INNER), f"{SEQ} tokens", LEARNED_POSITIONS),
        ((2, 1, 1), "2 sequences", "give it one row"),
    ],
    ids=["a number of each token", "a row of each token", "a number of each sequence"],
)
def test_a_parameter_sized_by_the_trace_is_one_sentence(shape: tuple[int, ...], what: str, cure: str) -> None:
    module = Model(lambda s, x: (torch.tanh(x @ s.up) * s.scale) @ s.down, {**MLP, "scale": shape})
    with pytest.raises(AutoshardError) as error:
        trace_module(module, "Model", SEQ)
    assert str(error.value) == (
        f"cannot plan Model: parameter blocks.0.scale at {line_of(IN_BLOCK)} has a dim for the {what} of the trace, "
        f"and fits no other number of them; {cure}"
    )


def line_of(code: str) -> str:
    """file.py:12 of the first line of this file that has the code."""
    before, _, _ = Path(__file__).read_text().partition(code)
    return f"{Path(__file__).name}:{before.count(chr(10)) + 1}"


HONOURED: dict[str, Callable[[], nn.Module]] = {
    "clamp_max": lambda: Model(mlp(lambda y: (9 * y).clamp_max(0.5)), MLP),
    "steep leaky relu": lambda: Model(mlp(lambda y: F.leaky_relu(y, 1.5)), MLP),
    "a window and a causal mask": lambda: Model(
        scores(lambda y: y.masked_fill(hidden(5), NONE).masked_fill(hidden(), NONE).softmax(-1)), ATTENTION
    ),
    "two windows": lambda: Model(scores(lambda y: (y + added(5) + added(9)).softmax(-1)), ATTENTION),
    "a norm over parts of a projection": lambda: Model(
        mlp(lambda y: F.rms_norm(y.unflatten(-1, (4, 16)), (16,)).flatten(2)), MLP
    ),
    "a norm over all of a projection": lambda: Model(mlp(lambda y: F.rms_norm(y, (INNER,))), MLP),
    "a norm of the one head of keys": lambda: Model(
        shared(lambda k: F.rms_norm(k, (HEAD,)).expand(-1, HEADS, -1, -1), lambda v: v.expand(-1, HEADS, -1, -1)),
        {**ATTENTION, "k": (WIDTH, HEAD), "v": (WIDTH, HEAD)},
    ),
    "a mixture": lambda: Model(mixture(top), MIXTURE),
    "a mixture weighed by token": lambda: Model(mixture(top, by_token), MIXTURE),
    "a mixture whose weights add up to 1": lambda: Model(
        changed(lambda one: one / one.sum(-1, keepdim=True), same), MIXTURE
    ),
}


@pytest.mark.parametrize("name", HONOURED)
def test_what_is_traced_computes_the_same(name: str) -> None:
    check_computes_the_same(HONOURED[name], "Model")


def of_one_block(module: Model) -> nn.Module:
    """The module with its first block in the place of the second, too."""
    module.blocks[1] = module.blocks[0]
    return module


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "one block twice": (
        lambda: of_one_block(Model(shared(neighbours, neighbours), SHARED)),
        (
            "scaled_dot_product_attention: parameter blocks.0.q was read before; a plan can tie the embedding and the "
            "head alone"
        ),
    ),
    "a mask behind the softmax": (
        lambda: Model(scores(lambda y: y.masked_fill(hidden(), NONE).softmax(-1) + added()), ATTENTION),
        "add: attention scores are masked behind their softmax",
    ),
    "two softmaxes": (
        lambda: Model(scores(lambda y: y.masked_fill(hidden(), NONE).softmax(-1).softmax(-1)), ATTENTION),
        "softmax: it takes the softmax of attention's probabilities",
    ),
    "keys and values repeated in two orders": (
        lambda: Model(shared(neighbours, tiled), SHARED),
        ("scaled_dot_product_attention: it repeats the heads of keys in one order and those of values in another"),
    ),
    "numbers that meet themselves in another order": (
        lambda: Model(mlp(lambda y: y * y.unflatten(-1, (8, 8)).transpose(-1, -2).flatten(2)), MLP),
        ("mul: it combines numbers with themselves in another order: [dim=64], [dim=8, dim=8]"),
    ),
    "einsum over tokens": (
        lambda: Model(lambda s, x: torch.einsum("bsd,de->be", x, s.up).unsqueeze(1) @ s.down, MLP),
        "einsum: it sums over the tokens or the sequences of the batch",
    ),
    "the smallest choices": (
        lambda: Model(mixture(lambda logits: top(logits, largest=False)), MIXTURE),
        "topk: a router takes the largest k over the last axis, that of the experts",
    ),
    "a router of tokens in another order": (
        lambda: Model(mixture(lambda logits: top(logits.unflatten(0, (2, -1)).transpose(0, 1).flatten(0, 1))), MIXTURE),
        "topk: the top k has a rule over all experts of a router, for each token of the batch",
    ),
    "a part of the top choices": (
        lambda: Model(mixture(lambda logits: (top(logits, 3)[0][:, 1:], top(logits, 3)[1][:, 1:])), MIXTURE),
        "slice: it takes a part of what a router chose, or gives it another order",
    ),
    "choices of several tokens mixed": (
        lambda: Model(changed(same, lambda one: one.view(CHOICES, -1)), MIXTURE),
        "view: it takes a part of what a router chose, or gives it another order",
    ),
    "weights over all tokens": (
        lambda: Model(changed(lambda one: one / one.sum(0, keepdim=True), same), MIXTURE),
        "sum: the weights of experts have a rule for their sum over the choices of a token, keepdim=True",
    ),
    "weights over all choices": (
        lambda: Model(changed(lambda one: one.flatten() / one.flatten().sum(-1, keepdim=True), same), MIXTURE),
        "sum: the weights of experts have a rule for their sum over the choices of a token, keepdim=True",
    ),
    "experts in another order than weights": (
        lambda: Model(changed(same, lambda one: one.sort(-1)[0]), MIXTURE),
        "sort: it orders the experts' numbers otherwise than those of all tokens in one axis, ascending",
    ),
    "the order of experts": (
        lambda: Model(changed(same, lambda one: one.argsort(-1)), MIXTURE),
        "argsort: it orders the experts' numbers otherwise than those of all tokens in one axis, ascending",
    ),
    "other experts": (
        lambda: Model(changed(same, lambda one: one // 2), MIXTURE),
        "floor_divide: it divides whole numbers, which has a rule for the order of choices by expert, // k",
    ),
    "sums of experts": (
        lambda: Model(changed(same, lambda one: one.cumsum(-1) // 2), MIXTURE),
        "cumsum: it has a rule for the numbers of experts only",
    ),
    "answers that do not come back to their tokens": (
        lambda: Model(mixture(top, by_order), MIXTURE),
        (
            "index: it picks by what a router chose; tokens, weights and answers have a rule, in the order by expert "
            "and back"
        ),
    ),
    "weights of the choices in another order": (
        lambda: Model(
            mixture(top, lambda own, weights, order, places: (own * weights.flatten().unsqueeze(-1))[places]), MIXTURE
        ),
        "mul: answers of experts are weighed by something else than their own weights",
    ),
    "gates of all experts": (
        lambda: Model(lambda s, x: (top(x @ s.up)[1] == 3).sum(-1, keepdim=True) * x, MLP),
        f"eq: it has no rule for what a router chose: {HOW_EXPERTS_TRACE}",
    ),
    "weights of attention that nobody asked for": (
        lambda: Model(lambda s, x: with_weights(s, x), {"in_proj": (3 * WIDTH, WIDTH), "out": (WIDTH, WIDTH)}),
        "baddbmm: it has no rule: nn.MultiheadAttention traces with need_weights=False",
    ),
    "a parameter of all blocks": (
        lambda: Model(lambda s, x: x @ s.up[0] @ s.down, {**MLP, "up": (2, WIDTH, INNER)}),
        "matmul: it takes a part of a parameter; give each part, such as that of a block, its own parameter",
    ),
    "a random number": (
        lambda: Model(mlp(lambda y: torch.tanh(y) * torch.rand(1)), MLP),
        (
            "mul: it computes with random numbers (rand), and a plan has the same operators in each step; draw them "
            "only where self.training is set, which is traced as unset"
        ),
    ),
    "positions that are not learned": (
        lambda: Model(mlp(torch.tanh), MLP, lambda model, x: x + torch.linspace(0, 1, SEQ * WIDTH).view(SEQ, WIDTH)),
        (
            "add: it computes with a constant tensor, which has a rule as rotary positions and as a mask of attention; "
            "positions that are added are learned ones: nn.Embedding(positions, width)"
        ),
    ),
    "answers by expert": (
        lambda: Model(
            mixture(top, lambda own, weights, order, places: own * weights.flatten()[order].unsqueeze(-1)), MIXTURE
        ),
        "view: it takes a part of what a router chose, or gives it another order",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_one_sentence_with_its_line(name: str) -> None:
    make, sentence = REFUSED[name]
    assert refusal(make()) == sentence


def refusal(module: nn.Module) -> str:
    """'operator: sentence' of the error, which has a line of this file and the way to add a rule."""
    with pytest.raises(AutoshardError) as error:
        trace_module(module, "Model", SEQ)
    form = rf"cannot plan Model: (\w+) at {Path(__file__).name}:\d+ \(`.+`, in .+\): (.+); {re.escape(HOW_TO_ADD)}"
    found = re.fullmatch(form, str(error.value))
    assert found, str(error.value)
    return f"{found[1]}: {found[2]}"


IN_BLOCK = "return x + self.step(self, x)"
OVER_HEADS = (
    "norm at {line}: a norm is over one dim, such as the hidden width or a head, and so are its weight and bias; this "
    "one is over [kvhead headdim]"
)
UNNAMED: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "a norm over all heads": (
        lambda: Model(normed(lambda s, x: F.rms_norm(x, (WIDTH,))), ATTENTION),
        IN_BLOCK,
        OVER_HEADS,
    ),
    "a norm with weight over all heads": (
        lambda: Model(normed(lambda s, x: F.rms_norm(x, (WIDTH,), s.scale)), {**ATTENTION, "scale": (WIDTH,)}),
        IN_BLOCK,
        OVER_HEADS,
    ),
    "a projection between the table and the blocks": (
        lambda: Model(mlp(torch.tanh), MLP, lambda model, x: x @ model.first, (WIDTH, WIDTH)),
        "x = self.before(self, self.tokens(ids))",
        (
            "embedding at {line}: the table of tokens must give what the first block reads: x + f(x) between them "
            "works, f(x) does not; this makes [batch seq ffn2] of [batch seq], [vocab ffn2]"
        ),
    ),
    "heads repeated one after the other": (
        lambda: Model(shared(tiled, tiled), SHARED),
        IN_BLOCK,
        (
            "attention at {line}: the queries of one key-value head are neighbours, as repeat_interleave gives them; "
            "this makes [batch seq group kvhead headdim] of [batch seq group kvhead headdim], "
            "[batch seq kvhead headdim], [batch seq kvhead headdim]"
        ),
    ),
}


@pytest.mark.parametrize("name", UNNAMED)
def test_dims_that_the_graph_cannot_name_are_one_sentence_with_the_line(name: str) -> None:
    make, code, sentence = UNNAMED[name]
    with pytest.raises(AutoshardError) as error:
        trace_module(make(), "Model", SEQ)
    assert str(error.value) == sentence.format(line=line_of(code))


@pytest.mark.parametrize("theta", [1e4, 12345.0, 54321.5, 5e5])
def test_rotary_positions_keep_the_base_that_the_code_has(theta: float) -> None:
    graph = trace_module(Model(rotated(theta), ATTENTION), "Model", SEQ).graph
    assert graph is not None
    turns = [dict(op.attributes) for op in graph.block if op.kind == "rope"]
    assert turns == [{"rotary_dim": HEAD, "theta": theta}] * 2
