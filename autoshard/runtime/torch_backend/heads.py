"""Lays out query heads that share keys as more rows of one matrix product, and back."""

from __future__ import annotations

import torch
from einops import rearrange


def rows_of_keys(x: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """x [batch kvhead*group queries columns] as [batch kvhead group*queries columns]. kv_heads: number of key-value
    heads."""
    return rearrange(x, "batch (kvhead group) queries columns -> batch kvhead (group queries) columns", kvhead=kv_heads)


def heads_of_rows(x: torch.Tensor, queries: int) -> torch.Tensor:
    """x [batch kvhead group*queries columns] as [batch kvhead*group queries columns]. queries: rows of one head."""
    return rearrange(x, "batch kvhead (group queries) columns -> batch (kvhead group) queries columns", queries=queries)
