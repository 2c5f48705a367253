"""Code of users means in the graph what it means in torch, or is refused in one sentence with its line."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from autoshard.errors import AutoshardError
from autoshard.tracer.trace import trace_module
from tests.multiprocess.test_trace import HOW_TO_ADD, SEQ, check_computes_the_same

WIDTH, HEADS, HEAD, INNER, VOCAB = 32, 4, 8, 64, 50
Step = Callable[[nn.Module, torch.Tensor], torch.Tensor]


class Block(nn.Module):
    """A residual block: x + step(block, x), with parameters of these shapes."""

    def __init__(self, step: Step, shapes: dict[str, tuple[int, ...]]) -> None:
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
        before: Step = lambda model, x: x,
        first: tuple[int, ...] | None = None,
        **shapes: tuple[int, ...],
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
        return self.head(x)


MLP = {"up": (WIDTH, INNER), "down": (INNER, WIDTH)}
ATTENTION = {"q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "o": (WIDTH, WIDTH)}
SHARED = {**ATTENTION, "k": (WIDTH, WIDTH // 2), "v": (WIDTH, WIDTH // 2)}


def mlp(function: Callable[[torch.Tensor], torch.Tensor]) -> Step:
    return lambda s, x: function(x @ s.up) @ s.down


def heads(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """[batch, heads, tokens, head]"""
    return (x @ weight).unflatten(-1, (-1, HEAD)).transpose(1, 2)


def scores(masked: Callable[[torch.Tensor], torch.Tensor]) -> Step:
    """Attention written out. masked: probabilities of scores."""

    def step(s: nn.Module, x: torch.Tensor) -> torch.Tensor:
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
    def step(s: nn.Module, x: torch.Tensor) -> torch.Tensor:
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
    def step(s: nn.Module, x: torch.Tensor) -> torch.Tensor:
        q, k, v = heads(x, s.q), repeat_keys(heads(x, s.k)), repeat_values(heads(x, s.v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2) @ s.o

    return step


HONOURED: dict[str, Callable[[], nn.Module]] = {
    "clamp_max": lambda: Model(mlp(lambda y: (9 * y).clamp_max(0.5)), **MLP),
    "steep leaky relu": lambda: Model(mlp(lambda y: F.leaky_relu(y, 1.5)), **MLP),
    "a window and a causal mask": lambda: Model(
        scores(lambda y: y.masked_fill(hidden(5), NONE).masked_fill(hidden(), NONE).softmax(-1)), **ATTENTION
    ),
    "two windows": lambda: Model(scores(lambda y: (y + added(5) + added(9)).softmax(-1)), **ATTENTION),
}


@pytest.mark.parametrize("name", HONOURED)
def test_what_is_traced_computes_the_same(name: str) -> None:
    check_computes_the_same(HONOURED[name], "Model")


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a mask behind the softmax": (
        lambda: Model(scores(lambda y: y.masked_fill(hidden(), NONE).softmax(-1) + added()), **ATTENTION),
        "add: attention scores are masked behind their softmax",
    ),
    "two softmaxes": (
        lambda: Model(scores(lambda y: y.masked_fill(hidden(), NONE).softmax(-1).softmax(-1)), **ATTENTION),
        "softmax: it takes the softmax of attention's probabilities",
    ),
    "keys and values repeated in two orders": (
        lambda: Model(shared(neighbours, tiled), **SHARED),
        ("scaled_dot_product_attention: it repeats the heads of keys in one order and those of values in another"),
    ),
    "numbers that meet themselves in another order": (
        lambda: Model(mlp(lambda y: y * y.unflatten(-1, (8, 8)).transpose(-1, -2).flatten(2)), **MLP),
        ("mul: it combines numbers with themselves in another order: [dim=64], [dim=8, dim=8]"),
    ),
    "einsum over tokens": (
        lambda: Model(lambda s, x: torch.einsum("bsd,de->be", x, s.up).unsqueeze(1) @ s.down, **MLP),
        "einsum: it sums over the tokens or the sequences of the batch",
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


@pytest.mark.parametrize("theta", [1e4, 12345.0, 54321.5, 5e5])
def test_rotary_positions_keep_the_base_that_the_code_has(theta: float) -> None:
    graph = trace_module(Model(rotated(theta), **ATTENTION), "Model", SEQ).graph
    assert graph is not None
    turns = [dict(op.attributes) for op in graph.block if op.kind == "rope"]
    assert turns == [{"rotary_dim": HEAD, "theta": theta}] * 2
