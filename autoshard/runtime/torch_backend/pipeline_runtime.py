"""Adapts the runtime of torch.distributed.pipelining for `pipeline.py`; importing torch's takes a second of its own.

`_PipelineScheduleRuntime` is private in torch (the project pins torch): it is the one runtime that takes any valid list
of actions, checks it for deadlock and adds the sends and receives.
"""

from __future__ import annotations

import logging
from copy import copy
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime

if TYPE_CHECKING:
    from autoshard.runtime.torch_backend.pipeline import Entered
    from autoshard.runtime.torch_backend.transfers import Transfers

logging.getLogger(_PipelineScheduleRuntime.__module__).setLevel(logging.CRITICAL)
"""Else torch prints the whole order when an action fails; our message names the action."""


class Runtime(_PipelineScheduleRuntime):
    """torch's runtime, which meets nobody point to point before the first step where ranks cannot."""

    def _warmup_p2p(self, stages: list[Any], has_backward: bool, p2p_done: bool) -> None:
        """Later versions of torch ask every stage whether it knows its shapes; all of ours do."""
        if stages[0].transfers.is_point_to_point:
            super()._warmup_p2p(stages, has_backward, p2p_done)
            return
        static: Any = schedules
        for stage in stages:
            stage._inference_mode = static.InferenceMode.STATIC


class ScheduledStage(PipelineStage):
    """A pipeline stage that holds what it receives from the receive until its backward has read it.

    torch's own stage allocates a buffer for every microbatch of the step before the first one runs, in both directions:
    8 GiB a rank for 128 microbatches of 8,192 x 8,192 split over tp=8 on two virtual stages. This one also reports what
    it is about to do; forwards report themselves.
    """

    submod: Entered
    transfers: Transfers
    """How tensors go to and from its neighbours; set once, by whoever makes the stage."""

    def __init__(self, *given: Any, transfers: Transfers, **named: Any):
        super().__init__(*given, **named)
        self.transfers, self._arriving = transfers, dict[tuple[str, int], list[Any]]()

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> None:
        self.submod.tell("B" if full_backward else "I", bwd_chunk_id)
        super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
        if loss is not None:  # torch keeps it, and its graph would keep what was received
            loss.detach_()

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        self.submod.tell("W", bwd_chunk_id)
        super().backward_weight_one_chunk(bwd_chunk_id, last_backward)

    def _setup_forward_recv_info(self, num_microbatches: int, has_backward: bool) -> None:
        super()._setup_forward_recv_info(1, has_backward)
        first = _without_buffers(self.args_recv_info[0])
        self.args_recv_info = {index: tuple(copy(info) for info in first) for index in range(num_microbatches)}

    def _create_grad_recv_info(self, act_send_info: dict[int, Any]) -> tuple[Any, ...]:
        return _without_buffers(super()._create_grad_recv_info(act_send_info))

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[Any]:
        self._allocate(self.args_recv_info[fwd_chunk_id])
        return self._received(super().get_fwd_recv_ops(fwd_chunk_id), ("F", fwd_chunk_id))

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[Any]:
        self._allocate(self.grad_recv_info[bwd_chunk_id])
        return self._received(super().get_bwd_recv_ops(bwd_chunk_id), ("B", bwd_chunk_id))

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[Any]:
        return self._sent(super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[Any]:
        return self._sent(super().get_bwd_send_ops(bwd_chunk_id))

    def _sent(self, operations: list[Any]) -> list[Any]:
        """The operations that torch still has to send: none where our transfers have sent them."""
        if self.transfers.is_point_to_point:
            return operations
        for one in operations:
            self.transfers.send(one.tensor, one.peer)
        return []

    def _received(self, operations: list[Any], name: tuple[str, int]) -> list[Any]:
        """The operations that torch still has to receive: none where our transfers do. name: of the wait for them."""
        if self.transfers.is_point_to_point:
            return operations
        self._arriving[name] = [self.transfers.receive(one.tensor, one.peer) for one in operations]
        return []

    def _wait(self, name: tuple[str, int]) -> None:
        for work in self._arriving.pop(name, ()):
            work.wait()

    def _get_init_p2p_neighbors_ops(self) -> list[Any]:
        return super()._get_init_p2p_neighbors_ops() if self.transfers.is_point_to_point else []

    def _retrieve_recv_activations(self, fwd_chunk_id: int) -> tuple[torch.Tensor, ...]:
        self._wait(("F", fwd_chunk_id))
        received = super()._retrieve_recv_activations(fwd_chunk_id)
        _without_buffers(self.args_recv_info[fwd_chunk_id])
        return received

    def _retrieve_recv_grads(self, bwd_chunk_id: int) -> tuple[torch.Tensor | None, ...]:
        self._wait(("B", bwd_chunk_id))
        received = super()._retrieve_recv_grads(bwd_chunk_id)
        _without_buffers(self.grad_recv_info[bwd_chunk_id])
        return received

    def _allocate(self, infos: tuple[Any, ...]) -> None:
        for info in infos:
            if not info.is_root_arg:
                info.buffer = torch.empty(info.tensor_meta.shape, dtype=info.tensor_meta.dtype, device=self.device)


def _without_buffers(infos: tuple[Any, ...]) -> tuple[Any, ...]:
    for info in infos:
        info.buffer = None
    return infos


def spelled(own: tuple[Any, ...], rank: int, pp: int) -> list[_Action | None]:
    """The list of our actions (microbatch, chunk) of a rank as torch's (stage, microbatch)."""
    return [_Action.from_str(f"{action.chunk * pp + rank}{action.kind}{action.microbatch}") for action in own]
