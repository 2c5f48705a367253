"""Watches the dispatcher while the runtime runs on fake tensors: actions, collectives, FLOPs, storages."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import ProcessGroup

from autoshard.audits.attention import AttentionWork, Reach
from autoshard.audits.known_results import KnownResults
from autoshard.audits.memory_log import MemoryLog
from autoshard.audits.turns import telling
from autoshard.audits.values import ORTHOGONAL, Flops, Transfer
from autoshard.graph.count import Collective
from autoshard.graph.recompute import block_of
from autoshard.graph.recurrent_kinds import RECURRENCES
from autoshard.runtime.torch_backend.onlooker import Onlooker
from autoshard.runtime.torch_backend.turns import Sizes

TAG = "autoshard"
"""Key under which an autograd node knows the operator whose forward made it."""
SYNC = "sync"
"""Text of the log after the last action: gradients are summed, parameters updated."""
GATHERED = "gathered weights of"
"""Before the unit of a bucket: the name of weights that are whole while they are read."""
MADE_OF = "made of"
"""Before the name of a buffer that the optimizer copies or reduces at the end of a step."""
UNCOUNTED = (
    *("combine", "choose_keys", "choose_pools", "choose_means", "choose_blocks", "choose_entries"),
    *("compressed_attention", "stream_weights", "expand_streams"),
    *RECURRENCES,
)
"""Kinds of operators whose products inside are not compared: a plan counts those of einsum and attention."""
ENGINE = "_engine_run_backward"
"""The function of torch in which autograd's engine runs: what calls the dispatcher there is no operator's Python. To a
gradient that waits it adds another one in place where nobody else holds it, but not where a dispatch mode watches."""
_FUNCTIONAL, _C10D = "_c10d_functional", "c10d"
_aten = torch.ops.aten
_MATMULS: dict[Any, Callable[..., float]] = {
    _aten.mm.default: lambda a, b: 2.0 * a.numel() * b.shape[1],
    _aten.mm.out: lambda a, b: 2.0 * a.numel() * b.shape[1],
    _aten.bmm.default: lambda a, b: 2.0 * a.numel() * b.shape[2],
    _aten.addmm.default: lambda c, a, b: 2.0 * a.numel() * b.shape[1],
    _aten.addmm_.default: lambda c, a, b: 2.0 * a.numel() * b.shape[1],
    _aten.baddbmm.default: lambda c, a, b: 2.0 * a.numel() * b.shape[2],
    _aten.baddbmm_.default: lambda c, a, b: 2.0 * a.numel() * b.shape[2],
}


class Running(NamedTuple):
    """An operator at work: its name and kind; of attention, the keys that it reaches.

    name: its name in its own block. inputs, outputs: names of its tensors. sizes: elements of each input, once it ran.
    """

    operator: str
    kind: str
    reach: Reach = Reach()
    name: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()


NOTHING = Running("", "")


@dataclass
class ActionLog:
    """Collectives and FLOPs from the start of one action to the start of the next.

    text: the action, such as 'F0.1'; 'sync' after the last one. first_event: number of the first memory event.
    """

    text: str
    first_event: int
    collectives: Counter[Collective] = field(default_factory=Counter)
    flops: Counter[Flops] = field(default_factory=Counter)


class Recorder(Onlooker):
    """Enter inside `mode`.

    attention: the work of each reach. axes_of_group: mesh axes along which the ranks of a named group differ.
    """

    def __init__(
        self,
        mode: FakeTensorMode,
        attention: Mapping[Reach, AttentionWork],
        axes_of_group: Callable[[str], tuple[str, ...]],
    ) -> None:
        super().__init__()
        self.memory = MemoryLog()
        self._results = KnownResults(mode)
        self._axes = cache(axes_of_group)
        self.actions: list[ActionLog] = []
        self.transfers: Counter[Transfer] = Counter()
        self.state: dict[int, str] = {}
        """By identity of the allocation, what the optimizer keeps in it."""
        self.weight_shards: dict[int, str] = {}
        """The same of shards of parameters that are gathered to be read: whose weights they are."""
        self.gathered_elements: set[int] = set()
        """Elements of those weights when they are whole."""
        self._attention = attention
        self._running: Running | None = None
        self._backward = (-1, NOTHING)
        self._for_each = 1.0  # products of all turns of a loop over those of the turns that run

    def begin(self, text: str) -> None:
        """An action, or the end of the step, begins."""
        self.actions.append(ActionLog(text, self.memory.events + 1))

    def turns(
        self, several: Sequence[Any], sizes: Callable[[Any], Sizes], products: Callable[[Any], int]
    ) -> Iterator[Any]:
        """Yields the turns of a loop that hold as much as all of them; the products of these count for all."""
        some = [several[place] for place in telling(tuple(map(sizes, several)))]
        every, counted, before = sum(map(products, several)), sum(map(products, some)), self._for_each
        self._for_each = before * (every / counted if counted else 1.0)
        try:
            yield from some
        finally:
            self._for_each = before

    def running(self, one: Running, run: Callable[..., Any]) -> Callable[..., Any]:
        """`run` with everything that it does, and its backward, known to be this operator's."""

        def watched(*values: torch.Tensor) -> Any:
            self._running = now = one._replace(sizes=tuple(value.numel() for value in values))
            for value in values:
                self.memory.read(value)
            try:
                result = run(*values)
            finally:  # a replay stops in the middle of its last operator
                self._running, self._for_each = None, 1.0
            self._name_outputs(one, result)
            if torch._C._current_graph_task_id() == -1:
                _tag(result, now)
            return result

        return watched

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:
            return args[0].device  # what the fake kernel finds, which is asked more often than any other
        if func is _aten._local_scalar_dense.default:
            return 1.0  # the gradient norm and the loss, which fake tensors do not know
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]  # as it is when run; the fake kernel allocates
        out = self._results.of(func, args, kwargs or {})
        by_engine = func is _aten.add.Tensor and sys._getframe(1).f_code.co_name == ENGINE
        waiting = self.memory.known(args[0]) if by_engine else None
        running = self._current()
        self._count(func, args, kwargs or {}, out, running)
        for tensor in _tensors(out):
            made = self.memory.see(tensor, len(self.actions) - 1, running.operator, waiting)
            if not made.phase:
                made.phase, made.place = self._phase(), running.name
                made.tensor = self._name(made.phase, running, tensor, args)
        return out

    def _name(self, phase: str, running: Running, made: torch.Tensor, args: Any) -> str:
        """Words on what a new tensor holds, as far as its maker tells; outputs of operators are named later."""
        if phase == "backward":
            sizes = dict(zip(running.sizes, running.inputs, strict=False))
            if made.numel() in sizes:
                return f"gradient of {sizes[made.numel()]}"
            if made.numel() in self.gathered_elements:
                return f"gradients of {block_of(running.name)}, on their way"
        if phase == SYNC and args and isinstance(args[0], torch.Tensor):
            source = self.memory.known(args[0])
            name = "" if source is None else self.state.get(id(source)) or source.tensor
            return f"{MADE_OF} {name.removeprefix(MADE_OF).strip()}" if name else ""
        return ""

    def _name_outputs(self, one: Running, result: Any) -> None:
        """Call what an operator returns as in its graph, unless it is what it was given."""
        for name, tensor in zip(one.outputs, result if isinstance(result, tuple) else (result,), strict=False):
            made = self.memory.known(tensor)
            if made is not None and not made.tensor:
                made.tensor = name

    def _name_gathered(self, out: torch.Tensor, source: torch.Tensor) -> None:
        """Weights that were gathered from this rank's shard and others."""
        shard, whole = self.memory.known(source), self.memory.known(out)
        if shard is not None and whole is not None and id(shard) in self.weight_shards:
            whole.tensor = f"{GATHERED} {self.weight_shards[id(shard)]}"
            self.gathered_elements.add(out.numel())

    def _current(self) -> Running:
        """The operator at work."""
        if self._running is not None or torch._C._current_graph_task_id() == -1:
            return self._running or (Running("", "einsum") if self._weights_apart() else NOTHING)
        node: Any = torch._C._current_autograd_node()
        tag: Running | None = None if node is None else node.metadata.get(TAG)
        task = torch._C._current_graph_task_id()
        if tag is not None:
            self._backward = task, tag
        elif self._backward[0] != task:  # a backward inside an operator's own
            tag = self._backward[1]
        return tag or NOTHING

    def _weights_apart(self) -> bool:
        """Whether gradients of weights, left by a backward, are computed now: matrix products, of no named operator."""
        return bool(self.actions) and self.actions[-1].text[0] == "W"

    def _phase(self) -> str:
        if self.actions and self.actions[-1].text == SYNC:
            return SYNC
        if torch._C._current_graph_task_id() == -1:
            return "backward" if self._weights_apart() else "forward"
        # A replay saves tensors through its hooks; backward itself saves nothing.
        replays = torch._C._autograd._top_saved_tensors_default_hooks(True)
        return "recompute" if replays else "backward"

    def _count(self, func: Any, args: Any, kwargs: Any, out: Any, running: Running) -> None:
        operator, kind, reach = running[:3]
        namespace = _namespace(func)
        if namespace == _FUNCTIONAL:
            name = func._schema.name.partition("::")[2]
            collective = re.sub("_into_tensor|_tensor|_single|_out", "", name)
            size = max(_bytes(args[0]), _bytes(out))
            if (
                collective == "all_to_all" and self._phase() == SYNC
            ):  # of matrices: ranks send as much, and get more or less
                size = _bytes(args[0])
            elif collective == "all_to_all" and len(set(args[1])) > 1:  # one destination, one source: a ring's
                collective = "send_recv"
            self._collective(collective, args[-1], size)
            if collective == "all_gather":
                self._name_gathered(out, args[0])
        elif namespace == _C10D:
            self._c10d(func._schema.name.partition("::")[2], args)
        elif kind in UNCOUNTED:
            return
        elif func in _MATMULS:
            share = self._attention[reach].tile_share if kind == "attention" else 1.0
            self._flops(kind, operator, share * _MATMULS[func](*args))
        elif kind == "attention" and (flops := self._attention[reach].flops(func, args, kwargs)):
            self._flops(kind, operator, flops)

    def _c10d(self, name: str, args: Any) -> None:
        tensors = args[0]
        if name in ("send", "recv_"):
            self.transfers[Transfer("send" if name == "send" else "receive", _bytes(tensors[0]))] += 1
            if name == "recv_":
                self.memory.see(tensors[0], len(self.actions) - 1, "").received = True
            return
        if name == "broadcast_":  # stands in for a transfer, where ranks cannot send
            sends = args[2] == ProcessGroup.unbox(args[1]).rank()
            self.transfers[Transfer("send" if sends else "receive", _bytes(tensors[0]))] += 1
            if not sends:
                self.memory.see(tensors[0], len(self.actions) - 1, "").received = True
            return
        kind = {"allreduce_": "all_reduce"}.get(name, name)
        group = ProcessGroup.unbox(args[1]).group_name
        self._collective(kind, group, max(map(_bytes, tensors)))

    def _collective(self, kind: str, group: str, size: int) -> None:
        if self.actions:
            self.actions[-1].collectives[Collective(self._phase(), kind, self._axes(group), size)] += 1

    def _flops(self, kind: str, operator: str, count: float) -> None:
        if self.actions:
            phase = self._phase()
            key = ORTHOGONAL if phase == SYNC else Flops(phase, kind, operator)
            self.actions[-1].flops[key] += self._for_each * count  # type: ignore[assignment]


def _tag(result: Any, tag: Running) -> None:
    """Write the operator on the autograd nodes that it made: those that no earlier operator wrote on."""
    outputs = result if isinstance(result, tuple) else (result,)
    nodes: list[Any] = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    while nodes:
        node = nodes.pop()
        if node.name().endswith("AccumulateGrad") or TAG in node.metadata:
            continue
        node.metadata[TAG] = tag
        nodes += [following for following, _ in node.next_functions if following is not None]


def _tensors(out: Any) -> list[torch.Tensor]:
    if isinstance(out, torch.Tensor):
        return [out]
    return [one for one in out if isinstance(one, torch.Tensor)] if isinstance(out, (tuple, list)) else []


@cache
def _namespace(func: Any) -> str:
    namespace: str = func.namespace  # which it reads anew from its schema
    return namespace


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
