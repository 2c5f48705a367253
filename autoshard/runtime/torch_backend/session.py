"""One rank of a planned run: its stages, its optimizer, and `step`. It receives a plan and nothing else decides."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from autoshard.checkpoint.layout import Shard, rank_shards
from autoshard.graph.operator_kind import DOCUMENT_STARTS, SEQUENCE_KEYS
from autoshard.graph.partition import Program
from autoshard.layout.buckets import tied_parameters
from autoshard.layout.context_parallel import sequence_pieces
from autoshard.models.prediction import NEXT_IDS, NEXT_LABELS
from autoshard.models.stage import published_sizes
from autoshard.plans.plan import Plan
from autoshard.runtime.data.stream import NOT_LEARNED
from autoshard.runtime.not_finite import check_finite
from autoshard.runtime.session import StepResult, Tokens
from autoshard.runtime.torch_backend.compiled import Compiler
from autoshard.runtime.torch_backend.context import in_pieces
from autoshard.runtime.torch_backend.devices import computes, host_group
from autoshard.runtime.torch_backend.dropout import on_device, sequence_keys
from autoshard.runtime.torch_backend.evaluation import Evaluation
from autoshard.runtime.torch_backend.groups import Group, MeshGroups, communicating_axes
from autoshard.runtime.torch_backend.optimizer import ShardedOptimizer, bucket_axes
from autoshard.runtime.torch_backend.optimizer_settings import DTYPES, OptimizerSettings
from autoshard.runtime.torch_backend.parameters import each_parameter, local_piece
from autoshard.runtime.torch_backend.pipeline import Pipeline, StepInputs
from autoshard.runtime.torch_backend.probe import SessionProbe
from autoshard.runtime.torch_backend.sharded_weights import ShardedWeights
from autoshard.runtime.torch_backend.stage_module import StageModule
from autoshard.runtime.torch_backend.sums import Sums
from autoshard.runtime.torch_backend.transfers import Transfers, pair_groups
from autoshard.schedules import SCHEDULES


class Session:
    """Everything of one rank.

    on_action: told what the rank is about to do, for error messages. debug_nan: look at what each operator computes.
    documents: tokens attend inside their own documents alone; each step is told where those begin.
    compiler: of what the stages compute between collectives; None leaves it as it is.
    timeout: how long collectives wait for other ranks; None: as long as torch lets them.
    Without a process group (world size 1) nothing communicates.
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
        documents: bool = False,
        compiler: Compiler | None = None,
        timeout: timedelta | None = None,
    ):
        self._timeout = timeout
        self.plan, self.rank, self.device, self.compiler = plan, rank, device, compiler
        self.label = ""
        """The caller's present work, such as "step 3": part of error messages."""
        self.steps_done = 0
        """Steps of the whole training, those before a resume too: dropout's random numbers depend on it."""
        self.repairs: tuple[str, ...] = ()
        """Repairs of a library's mistakes, in sentences: there are none."""
        self._seed = seed
        self._on_action = on_action
        mesh = plan.mesh
        pipeline_rank, self._index = mesh.coordinates(rank)
        dtype = DTYPES[plan.training.precision.parameter_dtype]
        programs = {s.index: plan.program(s.layers, s.has_embedding, s.has_head, documents) for s in plan.stages}
        self.stages = tuple(stage for stage in plan.stages if stage.pipeline_rank == pipeline_rank)
        strategy = plan.strategy
        self._order = in_pieces(plan.training.sequence_length, sequence_pieces(strategy.context_parallel, strategy.cp))
        self._groups, self._world, tied = self._connect(programs)
        self._host = None if self._world is None else host_group(timeout)
        self._sums = Sums.on(device, self._world, self._host)
        self.modules: dict[int, StageModule] = {}
        tables: dict[Any, torch.Tensor] = {}  # masks may be as large as activations
        for stage in self.stages:
            program = programs[stage.index]
            recompute = strategy.recompute[stage.index]
            sharded = ShardedWeights(program, mesh, self._groups, settings, frozenset(tied), recompute, dtype, device)
            parameters, bucket_of = {}, sharded.bucket_of
            for name, value in each_parameter(plan.model, program, mesh, self._index, seed, dtype, device):
                if name in bucket_of:
                    bucket_of[name].fill(name, value)
                else:
                    parameters[name] = value
            self.modules[stage.index] = StageModule(
                program,
                parameters,
                self._groups,
                recompute,
                SCHEDULES[strategy.schedule].weights_apart,
                debug_nan,
                sharded,
                compiler,
                tables,
            )
        for module in self.modules.values():
            module.router_losses.scale = 1 / plan.num_microbatches
        self.optimizer = ShardedOptimizer(
            self.modules.values(), mesh, self._groups, self._sums, settings, tied, published_sizes(plan.model), compiler
        )
        transfers = None
        if self._groups is not None and strategy.pp > 1:
            pairs = None
            if not plan.cluster.has_p2p:
                pairs = pair_groups(mesh, rank, strategy.num_virtual_stages > 1, timeout)
            transfers = Transfers(self._groups[("pp",)], pairs)
        self._pipeline = Pipeline(plan, self.stages, self.modules, programs, transfers, device, dtype, on_action)
        self._evaluation = Evaluation(plan, pipeline_rank, self.modules, programs, transfers, device, dtype, on_action)

    def step(
        self,
        inputs: Tokens,
        labels: Tokens,
        learning_rate: float,
        keep_gradients: bool = False,
        starts: Tokens | None = None,
    ) -> StepResult:
        """One optimizer step on a global batch: arrays [global_batch, seq], the same on every rank.

        Negative labels are not learned: the loss is the mean over the others, which every rank counts for itself.
        starts: where the document of each token begins in its row; of a session with documents.
        """
        weight = _weight(labels)
        losses = self._pipeline.run(self.local_inputs(inputs, labels, starts), weight)
        self.steps_done += 1
        self._on_action("summing gradients and updating parameters")
        loss = self._total_loss(losses, weight)
        if not computes(self.device):
            loss = 0.0
        check_finite("the loss", loss)
        return StepResult(loss, self.optimizer.step(learning_rate, keep_gradients))

    def evaluate(self, inputs: Tokens, labels: Tokens, starts: Tokens | None = None) -> float:
        """Mean loss over the learned tokens of a global batch, of the next token alone; nothing is learned from it."""
        losses = self._evaluation.run(self.local_inputs(inputs, labels, starts, predicts=False))
        return self._total_loss(losses, _weight(labels))

    @property
    def control(self) -> tuple[torch.device, dist.ProcessGroup | None]:
        """Where, and among whom, ranks tell each other small things beside training; None: all of them."""
        return (self.device, None) if self._host is None else (torch.device("cpu"), self._host)

    def probe(self) -> SessionProbe:
        """The session's view for an audit."""
        return SessionProbe(self.plan, tuple(self.modules.values()), self.optimizer, self._groups, self._pipeline)

    def shards(self) -> tuple[Shard, ...]:
        """The shards whose values `optimizer.state` gives, in its order, as boxes of the whole parameters."""
        return rank_shards(self.plan, self.rank)

    def is_first_holder(self, program: Program, name: str) -> bool:
        """Whether this rank is the first of those that hold this piece of a parameter."""
        state = program.states[name]
        return all(self._index[axis] == 0 for axis, entry in zip(program.axes, state, strict=True) if entry == "I")

    def _connect(self, programs: dict[int, Program]) -> tuple[MeshGroups | None, Group | None, dict[str, Group]]:
        """All process groups; every rank creates all of them in one order. Sums over the whole model take the group in
        which the ranks met, and wait as long as it does: each of gloo's has a thread that wakes up 100 times a second.
        """
        mesh = self.plan.mesh
        if mesh.world_size == 1:
            return None, None, {}
        everything = ("pp", *(axis.name for axis in mesh.axes))
        needed: set[tuple[str, ...]] = {("pp",)} if self.plan.strategy.pp > 1 else set()
        for program in programs.values():
            needed |= communicating_axes(program) | bucket_axes(program, mesh, self.plan.strategy.zero)
        (ranks,) = mesh.groups(everything)
        met = dist.group.WORLD if ranks == sorted(ranks) else None
        if met is None:  # the mesh has them in another order
            needed.add(everything)
        groups = MeshGroups(mesh, self.rank, needed, self._timeout)
        world = groups[everything] if met is None else Group.of(met, ranks, self.rank)
        return groups, world, self._tied_groups(programs)

    def _tied_groups(self, programs: dict[int, Program]) -> dict[str, Group]:
        """Groups of the two ranks that hold the same piece of a parameter of the first and the last stage."""
        shared = tied_parameters(programs[0], programs[len(programs) - 1])
        if not shared:
            return {}
        mine: Group | None = None
        for pipeline in self.plan.mesh.groups(("pp",)):
            ranks = [pipeline[0], pipeline[-1]]
            handle = dist.new_group(ranks, timeout=self._timeout)
            if self.rank in ranks:
                mine = Group.of(handle, ranks, self.rank)
        return {} if mine is None else dict.fromkeys(sorted(shared), mine)

    def local_inputs(
        self, inputs: Tokens, labels: Tokens, starts: Tokens | None = None, predicts: bool = True
    ) -> StepInputs:
        """This rank's pieces of what its stages read of a step, besides each other's output. predicts: whether a
        prediction module's loss counts."""
        values = {"input_ids": torch.from_numpy(inputs), "labels": torch.from_numpy(labels)}
        if self.plan.model.dropout:
            keys = sequence_keys(self._seed, self.steps_done, len(inputs))
            values[SEQUENCE_KEYS] = on_device(keys, self.device)
        if self.plan.model.multi_token_prediction is not None:
            ahead = values["labels"] if predicts else torch.full_like(values["labels"], NOT_LEARNED)
            values |= _further_tokens(values["input_ids"], ahead, starts)
        if starts is not None:
            values[DOCUMENT_STARTS] = torch.from_numpy(starts)
        found: StepInputs = {}
        for module in self.modules.values():
            for name in values.keys() & set(module.input_names):
                found[name] = self._pieces(values[name], module.program, name)
        return found

    def _pieces(self, value: torch.Tensor, program: Program, name: str) -> list[torch.Tensor]:
        """One a microbatch."""
        dims, state = program.graph.tensors[name].dims, program.states[name]
        if "seq" in dims:
            value = value[:, self._order]
        # A copy of its own for each: a view would keep the whole batch on the device.
        return [
            local_piece(piece, dims, state, self.plan.mesh, self._index).clone().to(self.device)
            for piece in value.chunk(self.plan.num_microbatches)
        ]

    def _total_loss(self, losses: list[torch.Tensor], weight: float) -> float:
        """Mean over microbatches, known to every rank: of the last stage's losses, summed over its ranks, times weight,
        and of all routers' losses."""
        total = self._sums.zero()
        if losses:
            program = self.modules[len(self.plan.stages) - 1].program
            state = program.states[program.outputs[0]]
            copies = self.plan.mesh.size(axis for axis, entry in zip(program.axes, state, strict=True) if entry != "P")
            total += weight * self._sums.wide(torch.stack(losses)).sum() / copies / len(losses)
        routing = [loss for module in self.modules.values() for loss in module.router_losses.take()]
        if routing:  # every rank of a stage knows all of them
            routed = self._sums.wide(torch.stack(routing)).sum()
            total += routed / self.plan.mesh.stage_size / self.plan.num_microbatches
        return float(self._sums.over_ranks(total))


def _further_tokens(inputs: torch.Tensor, labels: torch.Tensor, starts: Tokens | None) -> dict[str, torch.Tensor]:
    """The inputs of a prediction module, [batch, seq]: the token behind each place, and the label of that one. A row's
    last place has neither, a document's last no label."""
    ids, ahead = torch.zeros_like(inputs), torch.full_like(labels, NOT_LEARNED)
    ids[:, :-1], ahead[:, :-1] = inputs[:, 1:], labels[:, 1:]
    if starts is not None:
        begins = torch.from_numpy(starts)
        ahead[:, :-1][begins[:, 1:] != begins[:, :-1]] = NOT_LEARNED
    return {NEXT_IDS: ids, NEXT_LABELS: ahead}


def _weight(labels: Tokens) -> float:
    """The kernel divides by all tokens of a microbatch: what turns that into the mean over the step's learned ones."""
    learned = int((labels >= 0).sum())
    assert learned, "a batch without a label"
    return labels.size / learned
