"""One rank of a planned run on neuronx-distributed: the same face as the torch backend's session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from neuronx_distributed.parallel_layers import parallel_state as state
from neuronx_distributed.trainer.trainer import initialize_parallel_model, neuronx_distributed_config
from neuronx_distributed.utils import mark_step
from torch import distributed as dist

from autoshard.checkpoint.boxes import boxes_of_run
from autoshard.checkpoint.layout import Piece, Shard, parameter_shapes
from autoshard.errors import AutoshardError
from autoshard.graph.ir import Graph
from autoshard.graph.partition import Program
from autoshard.layout.context_parallel import sequence_pieces
from autoshard.plans.plan import Plan
from autoshard.runtime.not_finite import check_finite
from autoshard.runtime.nxd_backend import configuration
from autoshard.runtime.nxd_backend.layers import mark
from autoshard.runtime.nxd_backend.library import (
    check_groups,
    check_key_value_groups,
    is_cpu_mode,
    mend_cpu_mode,
    mend_folded_groups,
)
from autoshard.runtime.nxd_backend.model import NxdBlock, NxdModel, RecomputedSection, sections_of
from autoshard.runtime.nxd_backend.optimizer import NxdOptimizer, Owned
from autoshard.runtime.nxd_backend.traps import kv_size_multiplier, nxd_repairs
from autoshard.runtime.session import StepResult, Tokens
from autoshard.runtime.torch_backend.context import in_pieces
from autoshard.runtime.torch_backend.groups import MeshGroups
from autoshard.runtime.torch_backend.optimizer_settings import DTYPES, OptimizerSettings
from autoshard.runtime.torch_backend.parameters import local_piece

CLASSES = {"NxdBlock": NxdBlock, "RecomputedSection": RecomputedSection}


@dataclass(frozen=True)
class StageParameters:
    """A virtual stage of this rank: the program whose parameters it holds."""

    program: Program


class NxdSession:
    """Everything of one rank. The process group exists: NxD makes its own of it.

    on_action: told what the rank is about to do, for error messages.
    timeout: how long groups besides NxD's own wait for other ranks.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        device: torch.device,
        settings: OptimizerSettings,
        seed: int,
        on_action: Callable[[str], None] = lambda action: None,
        debug_nan: bool = False,
        timeout: timedelta | None = None,
    ):
        if debug_nan:
            raise AutoshardError("debug_nan looks at each operator, which --backend nxd cannot; use --backend torch")
        self.repairs = nxd_repairs(plan, is_cpu_mode())
        """Repairs of NxD's mistakes that apply to this plan, in sentences."""
        self.plan, self.rank, self.device = plan, rank, device
        self.compiler = None
        """Neuron compiles by itself."""
        self.label = ""
        self.steps_done = 0
        self._on_action = on_action
        mesh, strategy = plan.mesh, plan.strategy
        pipeline_rank, self._index = mesh.coordinates(rank)
        self.stages = tuple(stage for stage in plan.stages if stage.pipeline_rank == pipeline_rank)
        self._order = in_pieces(plan.training.sequence_length, sequence_pieces(strategy.context_parallel, strategy.cp))
        self._hosts = None if is_cpu_mode() else dist.new_group(timeout=timeout, backend="gloo")
        self.modules = {
            s.index: StageParameters(plan.program(s.layers, s.has_embedding, s.has_head)) for s in self.stages
        }
        if is_cpu_mode():
            mend_cpu_mode()
        if state.model_parallel_is_initialized():  # by another session of this process
            state.destroy_model_parallel()
            state.destroy_kv_group()
        self._config = _with_classes(neuronx_distributed_config(**configuration.neuronx_distributed_config(plan)))
        state.initialize_kv_group(kv_size_multiplier(plan))  # here: it is collective, and not every rank has blocks
        mend_folded_groups(plan)
        check_groups(plan)
        if kv_size_multiplier(plan) > 1:
            check_key_value_groups(plan)
        dtype = DTYPES[plan.training.precision.parameter_dtype]
        groups = MeshGroups(mesh, rank, {("cp",)} if strategy.cp > 1 and is_cpu_mode() else (), timeout)
        self._model: Any = initialize_parallel_model(
            self._config, lambda: NxdModel(plan, rank, groups, seed, dtype, is_cpu_mode())
        )
        owned = self._owned()
        self._config["sequence_parallel"] = any(one.held.sums == "tp" for one in owned)
        self.optimizer = NxdOptimizer(self._config, owned, settings, kv_size_multiplier(plan))

    def step(
        self,
        inputs: Tokens,
        labels: Tokens,
        learning_rate: float,
        keep_gradients: bool = False,
        starts: Tokens | None = None,
    ) -> StepResult:
        """One optimizer step on a global batch: arrays [global_batch, seq], the same on every rank.

        Negative labels are not learned: the loss is the mean over the others. starts: None, documents are not kept
        apart.
        """
        assert starts is None, "a run that keeps documents apart is refused"
        self._on_action("forwards and backwards")
        loss = self._run(inputs, labels)
        self._on_action("summing gradients and updating parameters")
        check_finite("the loss", loss)
        norm = self.optimizer.step(learning_rate, keep_gradients)
        mark_step()
        return StepResult(loss, norm)

    def evaluate(self, inputs: Tokens, labels: Tokens, starts: Tokens | None = None) -> float:
        """Mean loss over the learned tokens of a global batch; nothing is learned from it."""
        self._on_action("evaluation")
        if self.plan.strategy.num_virtual_stages > 1:  # NxD's inference schedule has no virtual stages
            loss = self._run(inputs, labels)
            self.optimizer.zero_grad()
            return loss
        with torch.no_grad():
            return self._run(inputs, labels, learns=False)

    def is_first_holder(self, program: Program, name: str) -> bool:
        """Whether this rank is the first of those that hold this piece of a parameter."""
        entries = zip(program.axes, program.states[name], strict=True)
        return all(self._index[axis] == 0 for axis, entry in entries if entry == "I")

    @property
    def control(self) -> tuple[torch.device, dist.ProcessGroup | None]:
        """Where, and among whom, ranks tell each other small things: by the hosts, or each size would be compiled."""
        return torch.device("cpu"), self._hosts

    def probe(self) -> None:
        """NxD runs modules of its own, which cannot be watched operator by operator."""

    def shards(self) -> tuple[Shard, ...]:
        """The shards whose values `optimizer.state` gives, in its order, as boxes of the whole parameters."""
        published = parameter_shapes(self.plan.model)
        program = self._program()
        found = []
        for one, start, stop in self.optimizer.shard_runs():
            pieces: list[Piece] = []
            offset = -start
            for name, sizes in zip(one.held.names, one.sizes, strict=True):
                size = prod(sizes)
                first, last = max(0, -offset), min(size, stop - start - offset)
                at = offset + first
                writes = self._writes(program, name)
                for box in boxes_of_run(sizes, first, last):
                    whole = box.within(self._offsets(program, name))
                    kept = whole.common(type(whole)((0,) * len(sizes), published[name]))
                    if kept is not None:
                        pieces.append(Piece(name, kept, at, writes))
                    at += box.elements
                offset += size
            found.append(Shard(stop - start, tuple(pieces), 2 if one.held.learned else 0))  # AdamW's
        return tuple(found)

    def _run(self, inputs: Tokens, labels: Tokens, learns: bool = True) -> float:
        """Forwards, and backwards if it learns -> the mean loss of the step, on every rank."""
        learned = labels >= 0
        weights = learned * np.float32(labels.size / learned.sum())
        batch = {"input_ids": inputs, "labels": np.maximum(labels, 0), "weights": weights}
        local = {name: self._local(values, name) for name, values in batch.items()}
        number = self.plan.num_microbatches
        if self.plan.strategy.pp > 1:
            run = self._model.run_train if learns else self._model.run_eval
            return float(run(**local))
        total = torch.zeros((), dtype=torch.float32, device=self.device)
        for microbatch in zip(*(values.chunk(number) for values in local.values()), strict=True):
            loss = self._model(*microbatch)
            if learns:
                (loss / number).backward()
            total += loss.detach() / number
            mark_step()  # what is behind it is a graph of its own: the same for every microbatch
        ranks = self.plan.strategy.dp * self.plan.strategy.cp
        dist.all_reduce(total, group=state.get_data_parallel_group())
        dist.all_reduce(total, group=state.get_context_model_parallel_group())
        return float(total / ranks)

    def _local(self, values: npt.NDArray[Any], name: str) -> torch.Tensor:
        """This rank's sequences of every microbatch, one microbatch behind the other."""
        plan = self.plan
        dims, axes = ("batch", "seq"), plan.mesh.stage_axes
        state_of = {"dp": "batch", "ep": "batch", "cp": "seq"}
        states = tuple(state_of.get(axis, "I") for axis in axes)
        pieces = torch.from_numpy(values).chunk(plan.num_microbatches)
        local = [local_piece(piece[:, self._order], dims, states, plan.mesh, self._index) for piece in pieces]
        return torch.cat(local).to(self.device)

    def _owned(self) -> list[Owned]:
        """The parameters as they are after NxD moved and wrapped the modules."""
        program, tp = self._program(), self.plan.strategy.tp
        matrices = {name for module in self.modules.values() for name in module.program.graph.matrices}
        found: dict[int, Owned] = {}
        for module in self._model.local_modules():
            for section in sections_of(module):
                for held in section.held:
                    parameter = section.get_parameter(held.attribute)
                    mark(parameter, held, tp)
                    sizes = tuple(self._sizes(program, name) for name in held.names)
                    found[id(parameter)] = Owned(parameter, held, sizes, held.names[0] in matrices)
        return list(found.values())

    def _program(self) -> Program:
        """All programs of this rank as one table of parameters."""
        programs = [module.program for module in self.modules.values()]
        tensors = {name: one for program in programs for name, one in program.graph.tensors.items()}
        states = {name: one for program in programs for name, one in program.states.items()}
        graph = Graph(programs[0].graph.sizes, tensors, ())
        return replace(programs[0], graph=graph, states=states)

    def _sizes(self, program: Program, name: str) -> tuple[int, ...]:
        return self._box(program, name)[1]

    def _offsets(self, program: Program, name: str) -> tuple[int, ...]:
        return self._box(program, name)[0]

    def _box(self, program: Program, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        dims = program.graph.tensors[name].dims
        sizes = [program.graph.sizes[dim] for dim in dims]
        offsets = [0] * len(dims)
        for (axis, count), entry in zip(program.axes.items(), program.states[name], strict=True):
            if entry in dims:
                place = dims.index(entry)
                sizes[place] //= count
                offsets[place] += self._index[axis] * sizes[place]
        return tuple(offsets), tuple(sizes)

    def _writes(self, program: Program, name: str) -> bool:
        """Whether the rank is the first of those that hold the same elements in its optimizer, or at all."""
        tensor = program.graph.tensors[name]
        dims, sharded = tensor.dims, self.plan.zero_axes if tensor.differentiable else ()
        entries = zip(program.axes, program.states[name], strict=True)
        return all(self._index[axis] == 0 for axis, entry in entries if entry not in dims and axis not in sharded)


def _with_classes(config: dict[str, Any]) -> dict[str, Any]:
    """Class names of our modules as classes, where NxD wants them."""
    recomputed = config["activation_checkpoint_config"]
    pipeline = config["pipeline_config"]
    return {
        **config,
        "activation_checkpoint_config": recomputed and [CLASSES[name] for name in recomputed],
        "pipeline_config": pipeline
        and {**pipeline, "transformer_layer_cls": CLASSES[pipeline["transformer_layer_cls"]]},
    }
