"""Texts and yes or no from every rank to every rank, over what a session has for control: bytes, no pickles."""

from __future__ import annotations

import torch
import torch.distributed as dist

from autoshard.runtime.session import Session


def exchange(session: Session, text: str) -> list[str]:
    """Every rank's text, by rank. Collective."""
    if not dist.is_initialized():
        return [text]
    device, group = session.control
    data = torch.frombuffer(bytearray(text.encode() + b"\n"), dtype=torch.uint8).to(device)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([data.numel()], device=device), group=group)
    longest = max(int(size) for size in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8, device=device)
    padded[: data.numel()] = data
    texts = [torch.zeros_like(padded) for _ in sizes]
    dist.all_gather(texts, padded, group=group)
    return [
        one[: int(size)].cpu().numpy().tobytes().decode().removesuffix("\n")
        for one, size in zip(texts, sizes, strict=True)
    ]


def all_true(session: Session, value: bool) -> bool:
    """Whether the value is true on every rank. Collective."""
    if not dist.is_initialized():
        return value
    device, group = session.control
    flag = torch.tensor(int(value), device=device)
    dist.all_reduce(flag, dist.ReduceOp.MIN, group=group)
    return bool(flag)
