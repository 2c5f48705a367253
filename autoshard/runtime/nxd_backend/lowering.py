"""A stage's program as NxD layers: which layer computes each operator, and which collectives the layer does itself.

Pure Python: the planner asks here whether a plan can be expressed, the backend builds what this returns.

| operators and their sharding                                     | NxD                                           |
|------------------------------------------------------------------|-----------------------------------------------|
| query, key and value projections split over heads                | GQAQKVColumnParallelLinear, gathers its input |
| other products of one input, split over the weight's own dims    | ColumnParallelLinear, gathers its input       |
| a product split over the dims that it sums                       | RowParallelLinear, reduces its output         |
| embedding split over the vocabulary                              | ParallelEmbedding, reduces its output         |
| cross-entropy split over the vocabulary                          | parallel_cross_entropy                        |
| products of an adapter that ranks hold copies of                 | compute locally                               |
| any other operator                                               | computes locally, communicates nothing        |
| any other redistribution over all of tp, or experts over ep      | functions of parallel_layers.mappings         |

Everything else is refused with the operator's name and the nearest sharding that NxD has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoshard.errors import AutoshardError
from autoshard.graph.adapters import RANK
from autoshard.graph.ir import Graph
from autoshard.graph.partition import GatherEinsumStep, OperatorStep, Program, RedistributeStep, is_projection
from autoshard.graph.recompute import read_views
from autoshard.graph.redistribute import Transition
from autoshard.graph.states import INVARIANT, REPLICATED
from autoshard.layout.mesh import TENSOR_PARALLEL_AXES
from autoshard.layout.sharding import operator_choice

QKV, COLUMN, ROW = "GQAQKVColumnParallelLinear", "ColumnParallelLinear", "RowParallelLinear"
EMBEDDING, CROSS_ENTROPY, LOCAL, MAPPING = "ParallelEmbedding", "parallel_cross_entropy", "local", "mapping"

_REDUCES = {("reduce_scatter", "all_gather"): True, ("all_reduce", "identity"): False}
"""(forward, backward) moves that a row-parallel layer does itself -> whether they are sequence parallelism."""
_MAPPINGS = frozenset({"all_gather", "reduce_scatter", "all_reduce", "slice", "identity", "scale"})
"""Kinds of moves that parallel_layers.mappings has for the tensor-parallel group."""


@dataclass(frozen=True)
class Lowered:
    """One layer, function or local operator.

    position: index of its first operator (or redistribution) among the program's steps. inputs: views that are not
    parameters. sequence_parallel: whether the layer gathers, or reduce-scatters, the sequence. kv_size_multiplier:
    number of ranks that hold the same keys and values. transitions: those of a mapping.
    """

    layer: str
    position: int
    steps: tuple[OperatorStep, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sequence_parallel: bool = False
    kv_size_multiplier: int = 1
    transitions: tuple[Transition, ...] = ()


def lower(program: Program) -> tuple[Lowered, ...]:
    """The program's steps as NxD's layers, in order.

    Raises AutoshardError naming the operator whose sharding NxD has no layer for, and the nearest one that it has.
    """
    return _Lowering(program).run()


def tensor_axes(program: Program) -> tuple[str, ...]:
    """The mesh axes that make up NxD's tensor-parallel group."""
    return tuple(axis for axis in program.axes if axis in TENSOR_PARALLEL_AXES)


class _Lowering:
    def __init__(self, program: Program):
        self._program, self._graph, self._tp = program, program.graph, tensor_axes(program)
        self._readers: dict[str, list[int]] = {}
        for index, step in enumerate(program.steps):
            for view in read_views(step):
                self._readers.setdefault(view, []).append(index)
        self._done: set[int] = set()

    def run(self) -> tuple[Lowered, ...]:
        found: list[Lowered] = []
        for index, step in enumerate(self._program.steps):
            if index in self._done:
                continue
            if isinstance(step, GatherEinsumStep):
                found += self._gathered(index, step)
            elif isinstance(step, RedistributeStep):
                found.append(self._redistribution(index, step))
            else:
                found.append(self._operator(index, step))
        return tuple(found)

    def _gathered(self, index: int, step: GatherEinsumStep) -> tuple[Lowered, ...]:
        (transition,) = step.gather.transitions
        if transition.axes != self._tp or transition.source_dim != "seq":
            self._refuse(step.einsums[0], f"gathers its input's {transition.source_dim} over {_and(transition.axes)}")
        if self._is_copied(step.einsums):
            return self._mapping(index, step.gather), *(self._local(index, one) for one in step.einsums)
        return (self._columns(index, step.einsums, step.gather.source, True),)

    def _redistribution(self, index: int, step: RedistributeStep) -> Lowered:
        kinds = [(t.forward, t.backward) for t in step.transitions if t.axes == self._tp]
        readers = self._readers.get(step.target, [])
        behind = [self._column_step(reader, step.target) for reader in readers]
        together = readers == list(range(index + 1, index + 1 + len(readers)))
        if len(kinds) == len(step.transitions) == 1 and kinds[0] == ("identity", "all_reduce") and together:
            columns = [one for one in behind if one is not None]
            if columns and len(columns) == len(behind) and not self._is_copied(columns) and self._is_alike(columns):
                self._done.update(readers)
                return self._columns(index, columns, step.source, False)
        for transition in step.transitions:
            self._check_mapping(index, step, transition)
        return self._mapping(index, step)

    def _mapping(self, index: int, step: RedistributeStep) -> Lowered:
        return Lowered(MAPPING, index, (), (step.source,), (step.target,), transitions=step.transitions)

    def _operator(self, index: int, step: OperatorStep) -> Lowered:
        op = step.operator
        if is_projection(self._graph, op):
            if not self._tp:
                return self._columns(index, self._same_input(index, step), step.inputs[0], False)
            if self._splits(step) <= set(_contracted(self._graph, step)):
                return self._reduced(index, step, ROW, step.inputs[:1])
        if op.kind == "embedding":
            if not self._tp:
                return Lowered(EMBEDDING, index, (step,), step.inputs[:1], (op.output,))
            if self._splits(step) == {"vocab"}:
                return self._reduced(index, step, EMBEDDING, step.inputs[:1])
        if op.kind == "cross_entropy":
            if self._splits(step) not in ({"vocab"}, set()):
                self._refuse(step, "")
            return Lowered(CROSS_ENTROPY, index, (step,), step.inputs, (op.output,))
        return self._local(index, step)

    def _local(self, index: int, step: OperatorStep) -> Lowered:
        graph = self._graph
        data = tuple(
            view
            for view, name in zip(step.inputs, step.operator.inputs, strict=True)
            if graph.tensors[name].role != "parameter"
        )
        return Lowered(LOCAL, index, (step,), data, (step.operator.output,))

    def _columns(self, index: int, steps: Sequence[OperatorStep], source: str, gathers: bool) -> Lowered:
        """One layer for the products of one input. gathers: whether it gathers that input."""
        self._done.update(range(index + 1, index + 1 + len(steps)) if not gathers and self._tp else ())
        graph, outputs = self._graph, tuple(step.operator.output for step in steps)
        is_qkv = self._are_heads(steps)
        multiplier = 1
        for number, step in enumerate(steps):
            for axis in self._tp:
                value = step.choice[axis]
                if value == REPLICATED and is_qkv and number > 0 and axis == "tp1":
                    multiplier = self._program.axes[axis]
                elif value not in _columns_of(graph, step):
                    self._refuse(step, "")
        layer = QKV if is_qkv else COLUMN
        return Lowered(layer, index, tuple(steps), (source,), outputs, gathers, multiplier)

    def _is_copied(self, steps: Sequence[OperatorStep]) -> bool:
        """Whether these are a product of an adapter of whose weight ranks hold copies, as of keys that they share:
        NxD has a layer for it beside queries alone."""
        of_adapter = len(steps) == 1 and RANK in self._graph.tensors[steps[0].operator.inputs[1]].dims
        return of_adapter and any(steps[0].choice[axis] == REPLICATED for axis in self._tp)

    def _is_alike(self, steps: Sequence[OperatorStep]) -> bool:
        """Whether one layer can hold these weights: all of them are learned, or none is."""
        return len({self._graph.tensors[step.operator.inputs[1]].differentiable for step in steps}) == 1

    def _are_heads(self, steps: Sequence[OperatorStep]) -> bool:
        """Whether the steps are a query projection, then key and value projections with the same dims."""
        columns = [_columns_of(self._graph, step) for step in steps]
        if len(columns) != 3 or columns[1] != columns[2]:
            return False
        return columns[0] == ("kvhead", "group", "headdim") and columns[1] == ("kvhead", "headdim")

    def _same_input(self, index: int, step: OperatorStep) -> list[OperatorStep]:
        """This step and the products that follow it directly and read the same input, where there is one
        tensor-parallel rank."""
        found, steps = [step], self._program.steps
        for place in range(index + 1, len(steps)):
            other = steps[place]
            if not isinstance(other, OperatorStep) or other.inputs[0] != step.inputs[0]:
                break
            if not is_projection(self._graph, other.operator) or not self._is_alike((step, other)):
                break
            found.append(other)
            self._done.add(place)
        return found

    def _reduced(self, index: int, step: OperatorStep, layer: str, inputs: tuple[str, ...]) -> Lowered:
        """A layer that sums its partial results itself, where a single redistribution is the only reader of them."""
        output = step.operator.output
        readers = self._readers.get(output, [])
        if len(readers) == 1 and output not in self._program.outputs:
            reduction = self._program.steps[readers[0]]
            if isinstance(reduction, RedistributeStep) and len(reduction.transitions) == 1:
                (transition,) = reduction.transitions
                kinds = (transition.forward, transition.backward)
                to_sequence = transition.target_dim in (None, "seq")
                if transition.axes == self._tp and kinds in _REDUCES and to_sequence:
                    self._done.add(readers[0])
                    return Lowered(layer, index, (step,), inputs, (reduction.target,), _REDUCES[kinds])
        return self._local(index, step)

    def _column_step(self, index: int, view: str) -> OperatorStep | None:
        """The step at `index`, if it is a product of the view and a weight that is split over the weight's own dims;
        else None."""
        step = self._program.steps[index]
        if not isinstance(step, OperatorStep) or not is_projection(self._graph, step.operator):
            return None
        mine = {*_columns_of(self._graph, step), REPLICATED}
        return step if step.inputs[0] == view and self._splits(step) <= mine else None

    def _splits(self, step: OperatorStep) -> set[str]:
        return {step.choice.get(axis, INVARIANT) for axis in self._tp}

    def _check_mapping(self, index: int, step: RedistributeStep, transition: Transition) -> None:
        experts = transition.axes == ("ep",) and transition.forward == "all_to_all"
        over_tp = transition.axes == self._tp and {transition.forward, transition.backward} <= _MAPPINGS
        if not experts and not over_tp:
            reader = next((self._program.steps[i] for i in self._readers.get(step.target, [])), None)
            steps = _operators(reader) if reader is not None else ()
            writers = [one for one in self._program.steps[:index] for one in _operators(one)]
            blamed = steps[0] if steps else writers[-1]
            self._refuse(blamed, f"needs {transition.forward} over {_and(transition.axes)}")

    def _refuse(self, step: OperatorStep, why: str) -> None:
        op = step.operator
        asked = ", ".join(f"{axis}: {step.choice.get(axis, INVARIANT)}" for axis in self._tp)
        rule = operator_choice(op, self._program.axes, True)
        nearest = ", ".join(f"{axis}: {rule[axis]}" for axis in self._tp)
        because = f" ({why})" if why else ""
        raise AutoshardError(
            f"NxD has no layer for {op.name} with {asked}{because}; the nearest that it has is {nearest}"
        )


def _operators(step: object) -> tuple[OperatorStep, ...]:
    if isinstance(step, GatherEinsumStep):
        return step.einsums
    return (step,) if isinstance(step, OperatorStep) else ()


def _contracted(graph: Graph, step: OperatorStep) -> tuple[str, ...]:
    op = step.operator
    out = graph.tensors[op.output].dims
    return tuple(dim for dim in graph.tensors[op.inputs[1]].dims if dim not in out)


def _columns_of(graph: Graph, step: OperatorStep) -> tuple[str, ...]:
    op = step.operator
    out = graph.tensors[op.output].dims
    return tuple(dim for dim in graph.tensors[op.inputs[1]].dims if dim in out)


def _and(axes: Sequence[str]) -> str:
    return " and ".join(axes)
