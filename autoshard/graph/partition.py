"""Turn a graph, a mesh and a choice for every operator into the static SPMD program of one stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from autoshard.graph.ir import Graph, Operator, Tensor
from autoshard.graph.operators import KINDS
from autoshard.graph.redistribute import Axes, Transition, local_bytes, moves_nothing, redistribute
from autoshard.graph.states import INVARIANT, PARTIAL, REPLICATED, State, without_gradient

Choice = Mapping[str, str]
"""The loop dim that one operator splits along each axis, or `I` / `R` / `P`. An axis that is not named is `I`."""


@dataclass(frozen=True)
class OperatorStep:
    """A step that runs an operator on local tensors; inputs are names of tensors or of their redistributed views."""

    operator: Operator
    inputs: tuple[str, ...]
    choice: Choice


@dataclass(frozen=True)
class RedistributeStep:
    """A step that brings a tensor into another state; the result is a view with a name of its own."""

    source: str
    target: str
    transitions: tuple[Transition, ...]


@dataclass(frozen=True)
class GatherEinsumStep:
    """A step that all-gathers an activation for the matrix products right behind it, which are its only readers.

    Only the local piece is kept for backward, which gathers it again: Megatron's and NxD's sequence parallelism.
    """

    gather: RedistributeStep
    einsums: tuple[OperatorStep, ...]


Step = OperatorStep | RedistributeStep | GatherEinsumStep


@dataclass(frozen=True)
class Program:
    """The SPMD program of one stage: the same steps on every rank, on local tensors.

    states: of every tensor and view. A parameter's is its storage.
    gradient_sync: parameter -> axes over which its gradient is a partial sum until the end of the step.
    without_gradient: redistributed views whose readers pass no gradient on: nothing moves backward.
    outputs: views in the states that the caller asked for.
    gathers_quantized: whether what quantised products read is gathered as they read it.
    """

    graph: Graph
    axes: Axes
    steps: tuple[Step, ...]
    states: Mapping[str, State]
    gradient_sync: Mapping[str, tuple[str, ...]]
    outputs: tuple[str, ...]
    without_gradient: frozenset[str] = frozenset()
    gathers_quantized: bool = False

    def tensor(self, view: str) -> Tensor:
        """The tensor behind a view's name."""
        return self.graph.tensors[view.partition("@")[0]]

    def copied_along(self, view: str) -> tuple[str, ...]:
        """The axes along which ranks have the same elements of a view, such as a parameter."""
        return tuple(axis for axis, entry in zip(self.axes, self.states[view], strict=True) if entry == INVARIANT)

    @cached_property
    def local_bytes(self) -> Mapping[str, int]:
        """Bytes on one rank of every tensor and view that has a state, by name."""
        return {
            view: local_bytes(self.graph, view.partition("@")[0], state, self.axes)
            for view, state in self.states.items()
        }

    @cached_property
    def storages(self) -> Mapping[str, str]:
        """Name of each view that lies in the storage of another one -> name of the one that was computed."""
        found: dict[str, str] = {}
        for step in self.steps:
            if isinstance(step, RedistributeStep) and moves_nothing(step.transitions):
                found[step.target] = found.get(step.source, step.source)
        return found

    @cached_property
    def activation_bytes(self) -> Mapping[str, float]:
        """`local_bytes`, 0 for parameters, which are charged where they live."""
        return {view: 0.0 if self.tensor(view).role == "parameter" else size for view, size in self.local_bytes.items()}


def input_states(graph: Graph, op: Operator, choice: Choice, axes: Axes) -> tuple[State, ...]:
    """States that the operator needs for each of its inputs. choice: what it does along each of the mesh axes."""
    kind = KINDS[op.kind]
    states = []
    for index, name in enumerate(op.inputs):
        tensor = graph.tensors[name]
        state = tuple(kind.input_state(op, tensor.dims, index, choice.get(axis, INVARIANT)) for axis in axes)
        states.append(state if tensor.differentiable else without_gradient(state))
    return tuple(states)


def output_state(graph: Graph, op: Operator, choice: Choice, axes: Axes) -> State:
    """The state of the operator's output right after it ran, before any redistribution. choice: as in
    `input_states`.
    """
    kind = KINDS[op.kind]
    dims = graph.tensors[op.output].dims
    return tuple(kind.output_state(op, dims, choice.get(axis, INVARIANT)) for axis in axes)


def partition(
    graph: Graph,
    axes: Axes,
    choices: Mapping[str, Choice],
    input_states_given: Mapping[str, State] | None = None,
    outputs: Mapping[str, State | None] | None = None,
) -> Program:
    """The program of a graph: its operators, with the redistributions that the choices need in between.

    axes: size of each mesh axis. choices: by operator name.
    input_states_given: states in which inputs arrive; others arrive as their first reader wants them.
    outputs: tensors that leave the stage and the state they leave in (None: as produced).
    Raises NoTransition where a dim does not divide or no redistribution leads to the state that is needed.
    """
    return _Partitioner(graph, axes, choices, input_states_given or {}).run(outputs or {})


class _Partitioner:
    def __init__(self, graph: Graph, axes: Axes, choices: Mapping[str, Choice], given: Mapping[str, State]):
        self._graph, self._axes, self._choices = graph, axes, choices
        self._steps: list[OperatorStep | RedistributeStep] = []
        self._states: dict[str, State] = dict(given)
        self._sync: dict[str, tuple[str, ...]] = {}
        self._uses: dict[str, set[State]] = {}
        self._with_gradient: set[str] = set()
        self._wanted = {op.name: input_states(graph, op, choices[op.name], axes) for op in graph.operators}
        for op in graph.operators:
            for name, state in zip(op.inputs, self._wanted[op.name], strict=True):
                self._uses.setdefault(name, set()).add(state)

    def run(self, outputs: Mapping[str, State | None]) -> Program:
        for op in self._graph.operators:
            choice = self._choices[op.name]
            known = (*op.loop_dims, INVARIANT, REPLICATED, PARTIAL)
            assert all(choice.get(axis, INVARIANT) in known for axis in self._axes), (op, choice)
            wanted = zip(op.inputs, self._wanted[op.name], strict=True)
            views = tuple(self._view(name, state) for name, state in wanted)
            self._with_gradient.update(v for i, v in enumerate(views) if KINDS[op.kind].passes_gradient(op, i))
            self._steps.append(OperatorStep(op, views, choice))
            self._states[op.output] = output_state(self._graph, op, choice, self._axes)
        leaving = tuple(self._view(name, state or self._states[name]) for name, state in outputs.items())
        steps = _fuse_gathers(self._graph, self._steps, leaving)
        moved = {step.target for step in self._steps if isinstance(step, RedistributeStep)}
        without_gradient = frozenset(moved - self._with_gradient - set(leaving))
        return Program(self._graph, self._axes, steps, self._states, self._sync, leaving, without_gradient)

    def _view(self, name: str, state: State) -> str:
        tensor = self._graph.tensors[name]
        if name not in self._states:  # a parameter or input is stored as its first reader wants it
            was_made = tensor.role == "input" and tensor.differentiable  # by ranks that take partial gradients of it
            self._states[name] = state if was_made else without_gradient(state)
        stored = self._states[name]
        if stored == state:
            return name
        if tensor.role == "parameter" and self._may_defer(name, stored, state):
            partial = {a for a, s, t in zip(self._axes, stored, state, strict=True) if s != t}
            self._sync[name] = tuple(axis for axis in self._axes if axis in partial)
            return name
        view = f"{name}@{'.'.join(state)}"
        if view not in self._states:
            self._steps.append(RedistributeStep(name, view, redistribute(self._graph, name, stored, state, self._axes)))
            self._states[view] = state
        return view

    def _may_defer(self, name: str, stored: State, state: State) -> bool:
        """A parameter's I -> R moves nothing forward; its sum waits for the end of the step, once for all microbatches.

        Not when uses differ (tied parameters): the deferred sum would count the other use's gradient several times.
        """
        only_sums = all(s == t or (s, t) == (INVARIANT, REPLICATED) for s, t in zip(stored, state, strict=True))
        return only_sums and len(self._uses[name]) == 1


def _fuse_gathers(
    graph: Graph, steps: list[OperatorStep | RedistributeStep], outputs: tuple[str, ...]
) -> tuple[Step, ...]:
    """Fold an all-gather of an activation into the matrix products right behind it when nothing else reads it. Products
    with weights that are not learned do not read it in backward: nothing is gathered again for them."""
    fused: list[Step] = []
    position = 0
    while position < len(steps):
        step = steps[position]
        if isinstance(step, RedistributeStep) and _gathers_activation(graph, step) and step.target not in outputs:
            readers = [s for s in steps[position:] if isinstance(s, OperatorStep) and step.target in s.inputs]
            behind = steps[position + 1 : position + 1 + len(readers)]
            if behind == readers and all(
                s.inputs[0] == step.target and learns_projection(graph, s.operator) for s in readers
            ):
                fused.append(GatherEinsumStep(step, tuple(readers)))
                position += 1 + len(readers)
                continue
        fused.append(step)
        position += 1
    return tuple(fused)


def with_gathered_kept(program: Program) -> Program:
    """The same program where products keep for backward what was gathered for them, and backward does not gather it
    again. program: with steps that keep the local piece alone."""
    steps: list[Step] = []
    for step in program.steps:
        steps += (step.gather, *step.einsums) if isinstance(step, GatherEinsumStep) else (step,)
    return replace(program, steps=tuple(steps))


def _gathers_activation(graph: Graph, step: RedistributeStep) -> bool:
    kinds = [(t.forward, t.backward) for t in step.transitions]
    tensor = graph.tensors[step.source]
    return kinds == [("all_gather", "reduce_scatter")] and tensor.role != "parameter" and tensor.differentiable


def is_projection(graph: Graph, op: Operator) -> bool:
    """Whether the operator multiplies an activation by a parameter as torch's linear does: x[rows, k] w[columns, k]^T.

    Rows and columns may be several dims each; flattened, it is a product of two matrices.
    """
    if op.kind != "einsum" or graph.tensors[op.inputs[1]].role != "parameter":
        return False
    x, w, out = (graph.tensors[name].dims for name in (*op.inputs, op.output))
    return projected(x, w, out) is not None


def projected(x: tuple[str, ...], w: tuple[str, ...], out: tuple[str, ...]) -> tuple[int, int] | None:
    """How many dims are contracted, and how many are columns, in x[rows, contracted] w[columns, contracted]^T; None for
    operands of another product."""
    contracted = tuple(dim for dim in x if dim not in out)
    rows = tuple(dim for dim in x if dim in out)
    columns = tuple(dim for dim in w if dim not in contracted)
    fits = rows + contracted == x and columns + contracted == w and rows + columns == out
    return (len(contracted), len(columns)) if fits and contracted and columns else None


def learns_projection(graph: Graph, op: Operator) -> bool:
    """Whether the operator is a projection whose parameter is learned: backward reads its input for that gradient."""
    return is_projection(graph, op) and graph.tensors[op.inputs[1]].differentiable
