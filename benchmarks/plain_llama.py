"""A Llama in plain PyTorch, and sharded by PyTorch's own parallelize_module: the reference for the runtime's speed."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # the name that torch's own documentation uses
from torch import nn

from autoshard.spec.model import ModelSpec


class Attention(nn.Module):
    def __init__(self, model: ModelSpec):
        super().__init__()
        hidden, self.head_dim = model.hidden_size, model.head_dim
        self.q = nn.Linear(hidden, model.num_attention_heads * self.head_dim, bias=False)
        self.k = nn.Linear(hidden, model.num_key_value_heads * self.head_dim, bias=False)
        self.v = nn.Linear(hidden, model.num_key_value_heads * self.head_dim, bias=False)
        self.o = nn.Linear(model.num_attention_heads * self.head_dim, hidden, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] > k.shape[1])
        y: torch.Tensor = self.o(out.transpose(1, 2).flatten(2))
        return y


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class MLP(nn.Module):
    def __init__(self, model: ModelSpec):
        super().__init__()
        self.gate = nn.Linear(model.hidden_size, model.intermediate_size, bias=False)
        self.up = nn.Linear(model.hidden_size, model.intermediate_size, bias=False)
        self.down = nn.Linear(model.intermediate_size, model.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return y


class Block(nn.Module):
    def __init__(self, model: ModelSpec):
        super().__init__()
        self.attention_norm = nn.RMSNorm(model.hidden_size, model.norm_eps)
        self.attention = Attention(model)
        self.mlp_norm = nn.RMSNorm(model.hidden_size, model.norm_eps)
        self.mlp = MLP(model)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        y: torch.Tensor = x + self.mlp(self.mlp_norm(x))
        return y


class PlainLlama(nn.Module):
    """A Llama whose forward takes token ids and labels [batch, seq] and gives the mean cross-entropy."""

    def __init__(self, model: ModelSpec, seq: int):
        super().__init__()
        assert model.rope_theta is not None
        self.embed = nn.Embedding(model.vocab_size, model.hidden_size)
        self.blocks = nn.ModuleList(Block(model) for _ in range(model.num_hidden_layers))
        self.norm = nn.RMSNorm(model.hidden_size, model.norm_eps)
        self.head = nn.Linear(model.hidden_size, model.vocab_size, bias=False)
        frequencies = 1.0 / model.rope_theta ** (torch.arange(0, model.head_dim, 2) / model.head_dim)
        angles = torch.outer(torch.arange(seq), frequencies).repeat(1, 2)
        self.cos, self.sin = angles.cos(), angles.sin()

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


def with_dtensors(module: PlainLlama, mesh: Any) -> PlainLlama:
    """The module with tensor and sequence parallelism as in torch's tutorial and torchtitan; run it under
    `loss_parallel()`."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    ends = {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    block = {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(
            input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None)
        ),
        "attention.q": ColwiseParallel(),
        "attention.k": ColwiseParallel(),
        "attention.v": ColwiseParallel(),
        "attention.o": RowwiseParallel(output_layouts=Shard(1)),
        "mlp_norm": SequenceParallel(),
        "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "mlp.gate": ColwiseParallel(),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
    }
    parallelize_module(module, mesh, ends)
    for one in module.blocks:
        parallelize_module(one, mesh, block)
    return module
