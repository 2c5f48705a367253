"""A hand-written model that is like none of the families.

Attention and MLP side by side behind norms of two kinds, a squared ReLU, a third and narrower branch, a scale on
attention's output, fused projections, rotary positions by hand.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, head: int, inner: int, narrow: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head = heads, kv_heads, head
        self.norm_a, self.norm_b = nn.RMSNorm(width, eps=1e-5), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * head, bias=False)
        self.out = nn.Linear(heads * head, width)
        self.scale = nn.Parameter(torch.ones(width))
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width, bias=False)
        self.branch = nn.Sequential(nn.Linear(width, narrow, bias=False), nn.Tanh(), nn.Linear(narrow, width))

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        a, b = self.norm_a(x), self.norm_b(x)
        sizes = [self.heads * self.head, self.kv_heads * self.head, self.kv_heads * self.head]
        q, k, v = (part.unflatten(-1, (-1, self.head)).transpose(1, 2) for part in self.qkv(a).split(sizes, -1))
        y = F.scaled_dot_product_attention(turn(q, cos, sin), turn(k, cos, sin), v, is_causal=True, enable_gqa=True)
        attended = self.out(y.transpose(1, 2).flatten(2)) * self.scale
        return x + attended + self.down(F.relu(self.up(b)).square()) + self.branch(b)


def turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


class OddModel(nn.Module):
    def __init__(self, width: int = 64, layers: int = 4, vocab: int = 96) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(Block(width, 8, 4, 8, 96, 32) for _ in range(layers))
        self.norm, self.vocabulary = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        angles = torch.outer(torch.arange(4096.0), 1e4 ** (-torch.arange(0, 8, 2) / 8))
        self.cos, self.sin = nn.Buffer(angles.cos(), persistent=False), nn.Buffer(angles.sin(), persistent=False)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x, length = self.tokens(input_ids), input_ids.shape[1]
        for block in self.blocks:
            x = block(x, self.cos[:length], self.sin[:length])
        return self.vocabulary(self.norm(x))
