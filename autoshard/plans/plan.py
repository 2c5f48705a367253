"""The plan: inputs by value, every choice, what was expected of it. The only thing that the runtime receives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

import autoshard
from autoshard.cost.interval import FIT_PROBABILITY
from autoshard.cost.local_shape import strategy_mesh
from autoshard.cost.stage_program import rewrites
from autoshard.cost.values import Estimate
from autoshard.files.codec import Absence, Form, Positive, Text, Whole, read_value, to_json
from autoshard.graph.chunked_loss import with_chunked_loss
from autoshard.graph.ir import Graph, Operator
from autoshard.graph.partition import Choice, Program
from autoshard.graph.redistribute import NoTransition
from autoshard.layout.context_parallel import with_context_parallel
from autoshard.layout.documents import with_documents
from autoshard.layout.mesh import ZERO_AXES, Mesh
from autoshard.layout.sharding import hidden_state, operator_choice, partition_stage
from autoshard.layout.strategy import Strategy
from autoshard.layout.template import template_of
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.plans.rounding import rounded
from autoshard.plans.search_result import EXACT, OPTIMAL, OURS, Candidate, PathSummary, Pins, Rejection
from autoshard.spec.cluster import Cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import DTYPE_BYTES, TrainingSpec


@dataclass(frozen=True)
class Stage:
    """One virtual pipeline stage: the blocks [first_layer, stop_layer), on one pipeline rank.

    index: Its place in the model.
    pipeline_rank: The pipeline rank that runs it.
    chunk: Which of that rank's stages it is.
    first_layer: Its first transformer block, counted from 0.
    stop_layer: One past its last transformer block.
    has_embedding: Whether it begins with the embedding.
    has_head: Whether it ends with norm, vocabulary projection and loss.
    """

    index: Whole
    pipeline_rank: Whole
    chunk: Whole
    first_layer: Whole
    stop_layer: Whole
    has_embedding: bool
    has_head: bool

    @property
    def layers(self) -> range:
        """Blocks of the stage, counted over the whole model."""
        return range(self.first_layer, self.stop_layer)


FIT_FORM = Form(
    to_json,
    lambda data, where: read_value(Positive, data, where),  # validate.py says why it is below 1
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
)


@dataclass(frozen=True)
class SearchSummary:
    """How the strategy was found.

    considered: Whole layouts looked at.
    fitting: Layouts that broke no rule and fit into memory.
    optimality: What the search has proven of the chosen layout, in a sentence.
    fit_probability: With what probability a layout had to fit into memory to be chosen, as far as any does.
    rejections: Why the others were dropped.
    beaten_path: What of the layout is known to have run; absent where nothing is published for devices and backend.
    searcher: What looked for the layout, with the package of a plug-in; absent where it was the exact search.
    cost_model: Whose seconds and bytes it was chosen by, with the package of a plug-in; absent where autoshard's. The
        estimate is autoshard's either way.
    """

    considered: Whole
    fitting: Whole
    optimality: Text = OPTIMAL
    fit_probability: Annotated[float, FIT_FORM] = FIT_PROBABILITY
    rejections: tuple[Rejection, ...] = ()
    beaten_path: Annotated[PathSummary | None, Absence.WRITTEN] = None
    searcher: Annotated[Text, Absence.WRITTEN] = EXACT
    cost_model: Annotated[Text, Absence.WRITTEN] = OURS


@dataclass(frozen=True)
class Plan:
    """A plan: what was asked for, what was chosen, what is expected of it, and why.

    operators: choice of every operator, by the template of its name. search: None where a person chose the layout.
    pins: what the user fixed. notes: what the planner decided by itself, in sentences.
    """

    made_by: str
    model: ModelSpec
    training: TrainingSpec
    cluster: Cluster
    backend: str
    pins: Pins
    strategy: Strategy
    operators: Mapping[str, Choice] = field(hash=False)  # a dict has no hash
    estimate: Estimate
    search: SearchSummary | None
    runners_up: tuple[Candidate, ...]
    notes: tuple[str, ...]

    @cached_property
    def mesh(self) -> Mesh:
        """Axes and order of the ranks."""
        return strategy_mesh(self.model, self.cluster, self.strategy)

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """Virtual stages in model order; stage s runs on pipeline rank s % pp as chunk s // pp."""
        ranges, pp = self.strategy.stage_ranges(), self.strategy.pp
        return tuple(
            Stage(index, index % pp, index // pp, first, stop, index == 0, index == len(ranges) - 1)
            for index, (first, stop) in enumerate(ranges)
        )

    @property
    def num_microbatches(self) -> int:
        """Microbatches that one data-parallel rank runs in a step."""
        return self.strategy.num_microbatches(self.training.global_batch_size)

    @property
    def expert_slots(self) -> float:
        """Slots of each expert over the even share of a sequence's tokens, see TrainingSpec.expert_slots."""
        return self.training.expert_slots(self.strategy.ep)

    @property
    def zero_axes(self) -> tuple[str, ...]:
        """Axes over which the optimizer state is sharded."""
        return tuple(axis for axis in self.mesh.stage_axes if axis in ZERO_AXES) if self.strategy.zero else ()

    @cached_property
    def dim_sizes(self) -> dict[str, int]:
        """Global size of every dim for one microbatch of all data-parallel ranks."""
        strategy, training = self.strategy, self.training
        batch = strategy.microbatch_size * strategy.dp
        return dim_sizes(self.model, batch, training.sequence_length, strategy.tp, self.expert_slots)

    def choices(self, graph: Graph) -> dict[str, Choice]:
        """Operator name -> its choice, looked up by template; nothing is decided here."""
        return {op.name: self.operators[template_of(op.name)] for op in graph.operators}

    def graph(self, layers: Sequence[int], has_embedding: bool, has_head: bool, documents: bool = False) -> Graph:
        """The graph of one microbatch over these blocks. documents: tokens attend inside theirs alone."""
        element_bytes = DTYPE_BYTES[self.training.precision.compute_dtype]
        strategy = self.strategy
        kernel = strategy.attention_kernel
        graph = stage_graph(self.model, self.dim_sizes, layers, has_embedding, has_head, kernel, element_bytes)
        graph = with_context_parallel(graph, strategy.context_parallel, strategy.cp)
        graph = rewrites(self.model, self.training, layers, has_head).of(graph)
        return with_documents(graph) if documents else graph

    def program(self, layers: Sequence[int], has_embedding: bool, has_head: bool, documents: bool = False) -> Program:
        """The program that every rank of a stage with these blocks runs for one microbatch, with the plan's choices.
        Its outputs are the hidden activations or the loss, and an indexer's choice where the next stage sees it, too.

        documents: tokens attend inside theirs alone. Raises NoTransition where a dim does not divide over its axes.
        """
        graph = self.graph(layers, has_embedding, has_head, documents)
        axes = self.mesh.stage_axes
        hidden = hidden_state(axes, self.strategy.sequence_parallel)
        leaving_choice = None if has_head else self.model.choice_behind(layers)
        return partition_stage(graph, axes, self.choices(graph), hidden, leaving_choice)

    @cached_property
    def stage_programs(self) -> tuple[Program, ...]:
        """The program of each virtual stage."""
        return tuple(self.program(stage.layers, stage.has_embedding, stage.has_head) for stage in self.stages)

    @cached_property
    def sample_programs(self) -> tuple[Program, ...]:
        """Programs that together hold each operator template once or twice: embedding, a block of each kind, head.

        One program where embedding and head share a stage (tied parameters are then one), else two.
        """
        if len(self.strategy.stage_layers) == 1:
            return (self.program(self.model.kinds, True, True),)
        return (self.program(self.model.kinds, True, False), self.program(self.model.kinds, False, True))


def made_by() -> str:
    """Program and version, as plan.json says them."""
    return f"autoshard {autoshard.__version__}"


def operators_of_templates(model: ModelSpec, training: TrainingSpec, strategy: Strategy) -> dict[str, list[Operator]]:
    """The operators of each template, in the order of the model: one of each kind of block that has it."""
    graph = stage_graph(model, dim_sizes(model, 1, 1), model.kinds, True, True, strategy.attention_kernel)
    graph = with_context_parallel(graph, strategy.context_parallel, strategy.cp)
    graph = with_chunked_loss(graph, training.loss_chunks)
    found: dict[str, list[Operator]] = {}
    for op in graph.operators:
        found.setdefault(template_of(op.name), []).append(op)
    return found


def operator_templates(model: ModelSpec, training: TrainingSpec, strategy: Strategy) -> dict[str, Operator]:
    """One operator for each template, in the order of the model."""
    return {name: ops[-1] for name, ops in operators_of_templates(model, training, strategy).items()}


def operator_choices(
    model: ModelSpec, training: TrainingSpec, cluster: Cluster, strategy: Strategy
) -> dict[str, Choice]:
    """The choice of every operator template, by the rule of layout/sharding.py."""
    axes = strategy_mesh(model, cluster, strategy).stage_axes
    templates = operator_templates(model, training, strategy)
    return {
        name: operator_choice(op, axes, strategy.sequence_parallel, strategy.etp is not None)
        for name, op in templates.items()
    }


def make_plan(
    model: ModelSpec,
    training: TrainingSpec,
    cluster: Cluster,
    backend: str,
    strategy: Strategy,
    estimate: Estimate,
    search: SearchSummary | None = None,
    runners_up: tuple[Candidate, ...] = (),
    notes: tuple[str, ...] = (),
    pins: Pins | None = None,
    operators: Mapping[str, Choice] | None = None,
) -> Plan:
    """The plan for a strategy that obeys the rules (`search.check_strategy`); estimates keep six significant digits.

    operators: choices by template that are not the rule's as a whole.
    """
    plan = Plan(
        made_by(),
        model,
        training,
        cluster,
        backend,
        pins or Pins(),
        strategy,
        operators or operator_choices(model, training, cluster, strategy),
        rounded(estimate),
        search,
        tuple(Candidate(one.strategy, rounded(one.estimate)) for one in runners_up),
        notes,
    )
    try:
        assert plan.sample_programs
    except NoTransition as error:
        raise AssertionError(f"the rules let a layout through that does not divide: {error}") from error
    return plan
