"""Runs NxD's optimizer: AdamW, ZeRO-1 with FP32 masters where the plan asks for it, and what NxD 0.18.0 leaves out.

Gradients of a bias behind replicated keys and values are summed here. Where keys and values are replicated, the
gradient norm counts them once; NxD counts each copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
import torch_xla.core.xla_model as xm
from neuronx_distributed.parallel_layers import parallel_state as state
from neuronx_distributed.trainer.trainer import initialize_parallel_optimizer
from torch import distributed as dist
from torch import nn

from autoshard.runtime.not_finite import check_finite
from autoshard.runtime.nxd_backend.layers import Held
from autoshard.runtime.torch_backend.optimizer_settings import OptimizerSettings

State = list[tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Owned:
    """One parameter of NxD's layers on this rank. sizes: the shape of each named piece; the parameter holds these one
    after another. decays: whether weight decay applies to it."""

    parameter: nn.Parameter
    held: Held
    sizes: tuple[tuple[int, ...], ...]
    decays: bool


@dataclass(frozen=True)
class Bucket:
    """This rank's shard of one parameter's master, flat and in place. publish: copies it to every rank (collective)."""

    master: torch.Tensor
    publish: Callable[[], None]


class NxdOptimizer:
    """The optimizer of one rank.

    config: neuronx_distributed_config's value. multiplier: copies of keys and values within a tensor-parallel group.
    """

    def __init__(self, config: dict[str, Any], owned: Sequence[Owned], settings: OptimizerSettings, multiplier: int):
        self._config, self._settings = config, settings
        learned = [one for one in owned if one.held.learned]
        decayed = [one for one in learned if one.decays]
        plain = [one for one in learned if not one.decays]
        chosen = [(group, decay) for group, decay in ((decayed, settings.weight_decay), (plain, 0.0)) if group]
        self.owned = [one for group, _ in chosen for one in group]
        self._frozen = [one for one in owned if not one.held.learned]
        groups = [{"params": [one.parameter for one in group], "weight_decay": decay} for group, decay in chosen]
        defaults: dict[str, Any] = {"lr": settings.learning_rate, "betas": settings.betas, "eps": settings.eps}
        if settings.zero:
            defaults["optimizer_dtype"] = settings.master_dtype
        self._nxd = initialize_parallel_optimizer(config, torch.optim.AdamW, groups, **defaults)
        self._copies = {id(one.parameter): float(one.held.copies) for one in self.owned}
        self._experts = {id(one.parameter) for one in self.owned if one.held.is_expert}
        self._stash: dict[int, torch.Tensor] = {}
        self._keeps = False
        self._summed: dict[int, torch.Tensor] = {}
        self._counts_once = multiplier > 1
        self._norm: torch.Tensor | None = None
        self._scale = 1.0
        if settings.zero:
            for zero in self._zeros():
                zero._get_params_and_grad_norm = self._norm_of(zero, zero._get_params_and_grad_norm)
        elif self._counts_once:
            self._nxd.optimizer.register_step_pre_hook(lambda *unused: self._clip())

    def step(self, learning_rate: float, keep_gradients: bool = False) -> float:
        """Sums and clips gradients, updates weights, clears gradients; returns the gradient norm before clipping."""
        self._keeps, self._stash, self._summed = keep_gradients, {}, {}
        for group in self._nxd.param_groups:
            group["lr"] = learning_rate
        for one in self.owned:
            if one.held.sums == "kv":
                dist.all_reduce(_gradient(one.parameter), group=state.get_kv_shared_group())
        self._nxd.step()
        norm = float(self._norm if self._norm is not None else self._nxd.grad_norm)
        check_finite("the gradient norm", norm)
        if keep_gradients and not self._settings.zero:
            scale = min(1.0, self._settings.max_gradient_norm / (norm + 1e-6))
            self._summed = {id(one.parameter): _gradient(one.parameter) / scale for one in self.owned}
        self.zero_grad()
        return norm

    def zero_grad(self) -> None:
        self._nxd.zero_grad(set_to_none=True)

    def gradients(self) -> dict[str, torch.Tensor]:
        """Summed gradients of the last step that kept them, local pieces by parameter name (collective)."""
        shards = self._stash if self._settings.zero else self._summed
        return self._by_name(lambda one: shards[id(one.parameter)])

    def masters(self) -> dict[str, torch.Tensor]:
        """Master weights, local pieces by parameter name (collective); what is not learned is its own master."""
        masters = {id(one.parameter): shard for one, shard, _ in self._shards()}
        frozen = {name: value for one in self._frozen for name, value in _pieces(one, one.parameter.detach())}
        return {**self._by_name(lambda one: masters[id(one.parameter)].detach()), **frozen}

    def state(self, learned_only: bool = False) -> State:
        """This rank's flat shards of (master, first moment, second moment) for each learned parameter, then of the
        others (weights,), whole and in the dtype of masters, or () with learned_only. Only after the first step."""
        learned: State = [
            (master.detach().flatten(), moments["exp_avg"].flatten(), moments["exp_avg_sq"].flatten())
            for _, master, moments in self._shards()
        ]
        if learned_only:
            return [*learned, *(() for _ in self._frozen)]
        dtype = self._settings.master_dtype
        return [*learned, *((one.parameter.detach().flatten().to(dtype),) for one in self._frozen)]

    @property
    def buckets(self) -> list[Bucket]:
        """The masters in the order of `state`, to be written to from outside."""
        learned = [
            Bucket(master.data.view(-1), partial(self._publish, one, master.data)) for one, master, _ in self._shards()
        ]
        return [*learned, *(Bucket(one.parameter.data.view(-1), lambda: None) for one in self._frozen)]

    def sharing_groups(self) -> list[None]:
        """A list of None, one for each shard of `state`, because every rank reads its own."""
        return [None] * (len(self.owned) + len(self._frozen))

    def load_state(self, shards: Sequence[tuple[torch.Tensor, ...]], steps: int) -> None:
        """Continues after `steps` steps from shards that `state` gave then, in any layout (collective)."""
        count = len(self.owned)
        for (one, master, moments), values in zip(self._shards(), shards[:count], strict=True):
            weights, first, second = (value.to(master).view_as(master) for value in values)
            master.data.copy_(weights)
            moments["step"] = torch.tensor(float(steps), dtype=torch.float32)
            moments["exp_avg"], moments["exp_avg_sq"] = first.clone(), second.clone()
            self._publish(one, master.detach())
        for one, (weights,) in zip(self._frozen, shards[count:], strict=True):
            one.parameter.data.copy_(weights.view_as(one.parameter))

    def _publish(self, one: Owned, master: torch.Tensor) -> None:
        if self._settings.zero:
            one.parameter.data.copy_(self._gathered(one, master).view_as(one.parameter))

    def shard_runs(self) -> list[tuple[Owned, int, int]]:
        """Each parameter with the elements [start, stop) of it, flat, in this rank's shard of `state`; the end may be
        padding."""
        found = []
        for one, master, _ in self._shards():
            position = self._shard_position(one)
            found.append((one, position * master.numel(), (position + 1) * master.numel()))
        return [*found, *((one, 0, one.parameter.numel()) for one in self._frozen)]

    def _shards(self) -> list[tuple[Owned, torch.Tensor, dict[str, Any]]]:
        """Each parameter with this rank's shard of its master and the shard's moments."""
        if not self._settings.zero:
            optimizer = self._nxd.optimizer
            return [(one, one.parameter, optimizer.state[one.parameter]) for one in self.owned]
        found = {}
        for zero in self._zeros():
            for group, shards in zip(zero.param_groups, zero.base_optimizer.param_groups, strict=True):
                for parameter, shard in zip(group["params"], shards["params"], strict=True):
                    found[id(parameter)] = (shard, zero.base_optimizer.state[shard])
        return [(one, *found[id(one.parameter)]) for one in self.owned]

    def _zeros(self) -> list[Any]:
        """NxD's ZeRO-1 optimizers: two where experts are spread over ranks."""
        zero = self._nxd.optimizer
        if hasattr(zero, "ep_zero_optimizer"):
            return [zero.non_ep_zero_optimizer, zero.ep_zero_optimizer]
        return [zero]

    def _norm_of(self, zero: Any, original: Callable[[float], Any]) -> Callable[[float], Any]:
        def norm(norm_type: float) -> Any:
            pairs = [
                (parameter, shard)
                for group, shards in zip(zero.param_groups, zero.base_optimizer.param_groups, strict=True)
                for parameter, shard in zip(group["params"], shards["params"], strict=True)
                if shard.grad is not None
            ]
            if self._keeps:
                self._stash.update((id(parameter), shard.grad.clone()) for parameter, shard in pairs)
            if not self._counts_once:
                return original(norm_type)
            total = self._squares([(id(parameter), shard.grad) for parameter, shard in pairs])
            xm.all_reduce(xm.REDUCE_SUM, [total], groups=zero.sharding_groups)
            return [shard for _, shard in pairs], total.sqrt()

        return norm

    def _squares(self, gradients: Sequence[tuple[int, torch.Tensor]]) -> torch.Tensor:
        """The sum of squares over tensor, expert and pipeline ranks, each element counted once. gradients: (number of
        its parameter, gradient)."""
        device = gradients[0][1].device
        total, of_experts = (torch.zeros(1, dtype=torch.float32, device=device) for _ in range(2))
        for key, gradient in gradients:
            squares = torch.linalg.vector_norm(gradient, dtype=torch.float32) ** 2 / self._copies[key]
            (of_experts if key in self._experts else total).add_(squares)
        dist.all_reduce(of_experts, group=state.get_expert_model_parallel_group())
        total += of_experts
        dist.all_reduce(total, group=state.get_tensor_model_parallel_group())
        dist.all_reduce(total, group=state.get_pipeline_model_parallel_group())
        return total

    def _clip(self) -> None:
        """Clips gradients without ZeRO-1, between NxD's sums and the update."""
        gradients = [(id(one.parameter), one.parameter.grad) for one in self.owned if one.parameter.grad is not None]
        self._norm = self._squares(gradients).sqrt()
        scale = (self._settings.max_gradient_norm / (self._norm + 1e-6)).clamp(max=1.0)
        for _, gradient in gradients:
            gradient.mul_(scale)

    def _by_name(self, shard_of: Callable[[Owned], torch.Tensor]) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        for one in self.owned:
            whole = shard_of(one)
            if self._settings.zero:
                whole = self._gathered(one, whole)
            found.update(_pieces(one, whole))
        return found

    def _gathered(self, one: Owned, shard: torch.Tensor) -> torch.Tensor:
        """The whole parameter from its shards, without NxD's padding rows."""
        if len(self._sharding_ranks(one)) > 1:
            shard = xm.all_gather(shard, groups=self._sharding_groups(one))
        return shard.flatten()[: one.parameter.numel()]

    def _sharding_ranks(self, one: Owned) -> list[int]:
        return next(list(ranks) for ranks in self._sharding_groups(one) if dist.get_rank() in ranks)

    def _sharding_groups(self, one: Owned) -> Any:
        return self._zeros()[-1 if one.held.is_expert else 0].sharding_groups

    def _shard_position(self, one: Owned) -> int:
        return self._sharding_ranks(one).index(dist.get_rank()) if self._settings.zero else 0


def _pieces(one: Owned, whole: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Each named piece that a parameter holds. whole: its values."""
    flat, start = whole.flatten(), 0
    for name, sizes in zip(one.held.names, one.sizes, strict=True):
        yield name, flat[start : start + prod(sizes)].view(sizes)
        start += prod(sizes)


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    gradient = parameter.grad if parameter.grad is not None else parameter.main_grad  # type: ignore[attr-defined]
    assert isinstance(gradient, torch.Tensor)
    return gradient
