"""The integer program of a graph: one 0-1 variable for each choice of each operator, everything else follows from them.

A tensor flows from the state that its producer gives to the states that its readers want. A redistribution that
several readers want is one variable, so it is priced once, as `partition` issues it once. An all-gather that only
projections right behind it read is not kept for backward but done again, as `partition` fuses it; where readers stand
apart, or something else reads it, it is kept. Exact where nothing is recomputed; under a recompute set, a
redistribution that a replayed and another operator share is taken for the earlier one's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod

from autoshard.cost.working_bytes import operator_bytes, view_bytes
from autoshard.graph.count import backward_collectives, forward_collectives, loop_sizes
from autoshard.graph.ir import Graph, Operator
from autoshard.graph.operators import KINDS
from autoshard.graph.partition import (
    Choice,
    OperatorStep,
    Program,
    RedistributeStep,
    input_states,
    is_projection,
    output_state,
)
from autoshard.graph.redistribute import Axes, NoTransition, Transition, local_sizes, moves_nothing, redistribute
from autoshard.graph.states import REPLICATED, State, without_gradient
from autoshard.layout.buckets import sharing_axes
from autoshard.planner.operators.linear import LinearProgram
from autoshard.planner.operators.prices import Prices, Stored, with_collectives_s
from autoshard.planner.operators.replay import KEPT, Replay
from autoshard.units import MB

Variables = dict[int, float]
"""Coefficients of variables."""


@dataclass(frozen=True)
class OperatorProblem:
    """The choices to solve for in one graph. options: of each operator by name. given: states of the inputs that have
    one. outputs: tensors that leave, and in which state (None: as produced). Every parameter is read once. seconds: of
    each option, where they are known already."""

    graph: Graph
    axes: Axes
    options: Mapping[str, tuple[Choice, ...]]
    given: Mapping[str, State]
    outputs: Mapping[str, State | None]
    prices: Prices
    seconds: Mapping[str, tuple[float, ...]] | None = None

    def seconds_of(self) -> Mapping[str, tuple[float, ...]]:
        """Seconds of each option by operator: of the operator alone and of its parameters, without redistributions."""
        if self.seconds is not None:
            return self.seconds
        replay, seconds = Replay(self.graph, self.prices.recompute), dict[str, tuple[float, ...]]()
        for op in self.graph.operators:
            replayed = replay.is_replayed(replay.position(op))
            seconds[op.name] = tuple(self._choice_s(op, choice, replayed) for choice in self.options[op.name])
        return seconds

    def _choice_s(self, op: Operator, choice: Choice, replayed: bool) -> float:
        program, step = alone(self.graph, self.axes, op, choice)
        learned = (one for one in stored(program, step) if one.learned)
        parameters_s = sum(one.elements * self.prices.parameter_s(one.axes) for one in learned)
        return operator_s(self.prices, program, step, replayed) + parameters_s


@dataclass(frozen=True)
class _Reader:
    """Who wants a tensor, in which states, by which choices. position: of the operator; -1: it leaves the graph.

    saves: backward reads it. passes_gradient: some of its gradient comes from here.
    """

    position: int
    needs: dict[State, Variables]
    is_projection: bool
    saves: bool
    passes_gradient: bool


def alone(graph: Graph, axes: Axes, op: Operator, choice: Choice) -> tuple[Program, OperatorStep]:
    """A program and its step of one operator alone, on inputs that are in the states that it wants."""
    states = input_states(graph, op, choice, axes)
    views = tuple(f"{name}@{index}" for index, name in enumerate(op.inputs))
    known = {**dict(zip(views, states, strict=True)), op.output: output_state(graph, op, choice, axes)}
    return Program(graph, axes, (), known, {}, ()), OperatorStep(op, views, choice)


def operator_s(prices: Prices, program: Program, step: OperatorStep, replayed: bool) -> float:
    """Seconds of an operator's forward, once more where it is replayed, and backward, with the collectives inside."""
    forward, backward = prices.operator_s(program, step)
    forward = with_collectives_s(prices, forward, forward_collectives(program, step))
    backward = with_collectives_s(prices, backward, backward_collectives(program, step))
    return (2 if replayed else 1) * forward + backward


def stored(program: Program, step: OperatorStep) -> Iterator[Stored]:
    """Yields each parameter that an operator reads."""
    graph, axes = program.graph, program.axes
    for view in step.inputs:
        tensor = program.tensor(view)
        if tensor.role == "parameter":
            state = program.states[view]
            sizes = local_sizes(graph, tensor.dims, without_gradient(state), axes)
            shared = tuple(axis for axis, entry in zip(axes, state, strict=True) if entry == REPLICATED)
            if not tensor.differentiable:
                shared = sharing_axes(program, view)
            yield Stored(prod(sizes), shared, tensor.name in graph.matrices, tensor.differentiable)


class OperatorProgram:
    """Builds the linear program; `choices` translates a solution back."""

    def __init__(self, problem: OperatorProblem, memory_price_s_per_byte: float = 0.0, preference_s: float = 0.0):
        """preference_s: what any choice but an operator's first costs besides. Where the problem has no rows of memory
        the program says nothing of it."""
        self.problem, self.linear = problem, LinearProgram()
        self._counts_memory = bool(problem.prices.memory)
        self._graph, self._axes = problem.graph, problem.axes
        self._replay = Replay(problem.graph, problem.prices.recompute)
        self._moves: dict[tuple[tuple[str, ...], int, State, State], tuple[Transition, ...] | None] = {}
        self._memory_price = memory_price_s_per_byte
        self._stores: dict[tuple[str, State, int], int] = {}
        self._local = Program(problem.graph, problem.axes, (), {}, {}, ())
        self._saved: dict[int, Variables] = {}  # store -> MB
        self._state: list[Variables] = [{} for _ in problem.prices.memory]  # row -> MB
        self._working = self.linear.variable(upper=inf)
        seconds = problem.seconds_of()
        self._choices = {op.name: self._choose(op, seconds[op.name], preference_s) for op in problem.graph.operators}
        for tensor in problem.graph.tensors.values():
            if tensor.role != "parameter":
                self._flow(tensor.name)
        if self._counts_memory:
            self._bound_memory()

    def choices(self, values: list[float]) -> dict[str, Choice]:
        chosen = {}
        for name, variables in self._choices.items():
            index = max(range(len(variables)), key=lambda one, own=variables: values[own[one]])  # type: ignore[misc]
            chosen[name] = self.problem.options[name][index]
        return chosen

    def _choose(self, op: Operator, seconds: Sequence[float], preference_s: float) -> list[int]:
        """A variable for each choice: what it and its parameters cost, and its memory."""
        variables = [
            self.linear.variable(cost + (preference_s if index else 0.0), integer=True)
            for index, cost in enumerate(seconds)
        ]
        self.linear.row(dict.fromkeys(variables, 1.0), 1.0, 1.0)
        if self._counts_memory:
            self._charge_memory(op, variables)
        return variables

    def _charge_memory(self, op: Operator, variables: list[int]) -> None:
        """Charge memory for what an operator works in, saves beside its inputs and output, and stores as parameters."""
        working: Variables = {}
        store = self._replay.store(self._replay.position(op))
        for variable, choice in zip(variables, self.problem.options[op.name], strict=True):
            program, step = alone(self._graph, self._axes, op, choice)
            self._charge_parameters(program, step, variable)
            working[variable] = operator_bytes(program, step) / MB
            extra = KINDS[op.kind].extra_saved(op, self._graph, loop_sizes(program, step))
            if size := sum(one.bytes for one in extra):
                self._saved.setdefault(store, {})[variable] = size / MB
        self.linear.at_least(self._working, working)

    def _charge_parameters(self, program: Program, step: OperatorStep, variable: int) -> None:
        """A parameter is stored as its reader wants it; where that is `R`, its gradient is summed once a step."""
        for one in stored(program, step):
            for row, charged in zip(self.problem.prices.memory, self._state, strict=True):
                charged[variable] = charged.get(variable, 0.0) + row.parameter_bytes(one) / MB

    def _flow(self, name: str) -> None:
        """From the producer's states to the readers'."""
        readers = self._readers(name)
        if not readers:
            return
        sources = self._sources(name, readers)
        if sources is None:
            return
        flows = [self._flows_to(name, reader, sources) for reader in readers]
        moves: dict[tuple[State, State], Variables] = {}
        for flow in flows:
            for pair, variable in flow.items():
                if pair[0] != pair[1]:
                    moves.setdefault(pair, {})[variable] = 1.0
        kept: dict[tuple[State, State], Variables | None] = {}
        for pair, variables in moves.items():
            kept[pair] = self._price_move(name, pair, variables, flows, readers)
        if not self._counts_memory:
            return
        for reader, flow in zip(readers, flows, strict=True):
            self._charge_reader(name, reader, flow, kept)
        self._charge_crossing(name, readers, sources)
        self._charge_output(name, sources)

    def _readers(self, name: str) -> list[_Reader]:
        graph, readers = self._graph, []
        for position, op in enumerate(graph.operators):
            saved = KINDS[op.kind].saved_inputs(op, graph)
            for index, read in enumerate(op.inputs):
                if read != name:
                    continue
                needs: dict[State, Variables] = {}
                for variable, choice in zip(self._choices[op.name], self.problem.options[op.name], strict=True):
                    state = input_states(graph, op, choice, self._axes)[index]
                    needs.setdefault(state, {})[variable] = 1.0
                projects = index == 0 and is_projection(graph, op)
                passes = KINDS[op.kind].passes_gradient(op, index)
                readers.append(_Reader(position, needs, projects, index in saved, passes))
        leaving = self.problem.outputs.get(name)
        if leaving is not None:
            readers.append(_Reader(-1, {leaving: {}}, False, False, True))
        return readers

    def _sources(self, name: str, readers: list[_Reader]) -> dict[State, Variables] | None:
        """State -> the choices that give it; None for an input that arrives as its only reader wants it."""
        if name in self.problem.given:
            return {self.problem.given[name]: {}}
        tensor = self._graph.tensors[name]
        if tensor.role == "input":
            assert len(readers) == 1 and not tensor.differentiable, f"{name} must arrive in a given state"
            return None
        op = next(one for one in self._graph.operators if one.output == name)
        sources: dict[State, Variables] = {}
        for variable, choice in zip(self._choices[op.name], self.problem.options[op.name], strict=True):
            sources.setdefault(output_state(self._graph, op, choice, self._axes), {})[variable] = 1.0
        return sources

    def _flows_to(self, name: str, reader: _Reader, sources: dict[State, Variables]) -> dict[tuple[State, State], int]:
        """(from, to) -> 1 where the producer gives the one and this reader wants the other."""
        flows = {
            (source, need): self.linear.variable()
            for source in sources
            for need in reader.needs
            if self._transitions(name, source, need) is not None
        }
        for source, given in sources.items():
            arriving = {variable: 1.0 for pair, variable in flows.items() if pair[0] == source}
            self._equal(arriving, given)
        for need, wanted in reader.needs.items():
            arriving = {variable: 1.0 for pair, variable in flows.items() if pair[1] == need}
            self._equal(arriving, wanted)
        return flows

    def _equal(self, flows: Variables, choices: Variables) -> None:
        """No choices: a constant, 1."""
        constant = 0.0 if choices else 1.0
        self.linear.row({**flows, **dict.fromkeys(choices, -1.0)}, constant, constant)

    def _transitions(self, name: str, source: State, target: State) -> tuple[Transition, ...] | None:
        if source == target:
            return ()
        tensor = self._graph.tensors[name]
        key = (tensor.dims, tensor.element_bytes, source, target)
        if key not in self._moves:
            try:
                self._moves[key] = redistribute(self._graph, name, source, target, self._axes)
            except NoTransition:
                self._moves[key] = None
        return self._moves[key]

    def _price_move(
        self,
        name: str,
        pair: tuple[State, State],
        variables: Variables,
        flows: list[dict[tuple[State, State], int]],
        readers: list[_Reader],
    ) -> Variables | None:
        """Price a redistribution. Returns the expression that is 1 where its result is kept for backward as a tensor of
        its own; None where it always is."""
        transitions = self._transitions(name, *pair)
        assert transitions is not None
        step, prices = RedistributeStep(name, name, transitions), self.problem.prices
        forward = sum(prices.collective_s(*one) for one in forward_collectives(self._local, step))
        backward = sum(prices.collective_s(*one) for one in backward_collectives(self._local, step))
        first = min((reader for reader, own in zip(readers, flows, strict=True) if pair in own), key=_order)
        times = 2 if self._replay.is_replayed(first.position) else 1
        done = self._any_of(variables)
        self.linear.costs[done] += times * forward
        passing = [
            own[pair] for reader, own in zip(readers, flows, strict=True) if pair in own and reader.passes_gradient
        ]
        if passing:
            self.linear.costs[done if len(passing) == len(variables) else self._any_of(passing)] += backward
        kinds = [(one.forward, one.backward) for one in transitions]
        tensor = self._graph.tensors[name]
        if kinds != [("all_gather", "reduce_scatter")] or not tensor.differentiable:
            return None
        self.linear.costs[done] += forward
        events = self._apart(pair, flows, readers)
        if not events:
            return {}
        apart = self.linear.variable(-forward)
        for event in events:
            self.linear.at_least(apart, {event: 1.0})
        self.linear.row({apart: 1.0, **dict.fromkeys(events, -1.0)}, high=0.0)
        return {apart: 1.0}

    def _any_of(self, variables: Iterable[int]) -> int:
        """At least 1 where one of them is, and no more where it costs something."""
        first, *others = variables
        if not others:
            return first
        any_of = self.linear.variable()
        for variable in (first, *others):
            self.linear.at_least(any_of, {variable: 1.0})
        return any_of

    def _apart(
        self, pair: tuple[State, State], flows: list[dict[tuple[State, State], int]], readers: list[_Reader]
    ) -> list[int]:
        """Variables of what keeps an all-gather from being one with its readers: a reader that is no projection, or a
        reader between."""
        reading = [(reader, flow[pair]) for reader, flow in zip(readers, flows, strict=True) if pair in flow]
        events = [flow for reader, flow in reading if not reader.is_projection]
        projections = {reader.position: flow for reader, flow in reading if reader.is_projection}
        for first in projections:
            for last in (position for position in projections if position > first):
                for between in range(first + 1, last):
                    ends = (projections[first], projections[last])
                    events.append(self._all_of(ends, projections.get(between)))
        return events

    def _all_of(self, taken: Iterable[int], but: int | None) -> int:
        """1 exactly where all of `taken` are 1 and `but` is 0."""
        both = self.linear.variable()
        for variable in taken:
            self.linear.at_least(variable, {both: 1.0})
        refused = {} if but is None else {but: -1.0}
        if but is not None:
            self.linear.row({both: 1.0, but: 1.0}, high=1.0)
        self.linear.at_least(both, {**dict.fromkeys(taken, 1.0), **refused}, -1.0)
        return both

    def _charge_reader(
        self,
        name: str,
        reader: _Reader,
        flows: dict[tuple[State, State], int],
        kept: dict[tuple[State, State], Variables | None],
    ) -> None:
        """The views that backward reads, each once however many operators keep it, and buffers of moves at work."""
        charged: dict[State, Variables] = {}
        working: Variables = {}
        for pair, flow in flows.items():
            source, need = pair
            alone = kept.get(pair)
            transitions = self._transitions(name, source, need)
            assert transitions is not None
            if alone is None and not moves_nothing(transitions):
                charged.setdefault(need, {})[flow] = 1.0
            else:
                charged.setdefault(source, {})[flow] = 1.0
            if source != need and (alone is None or alone):
                both = (self._bytes(name, source) + self._bytes(name, need)) / MB
                working[flow] = both
                if alone:  # as large as both only where it is kept apart; see below
                    working[flow] = 0.0
                    self.linear.at_least(self._working, dict.fromkeys(alone, both))
        self.linear.at_least(self._working, working)
        if not reader.saves or not self._graph.tensors[name].differentiable:
            return
        store = self._replay.store(reader.position)
        for pair, flow in flows.items():
            alone = kept.get(pair)
            if pair[0] != pair[1] and alone:
                (apart,) = alone
                self.linear.at_least(self._store(name, pair[1], store), {flow: 1.0, apart: 1.0}, -1.0)
                charged[pair[0]].pop(flow)
                self.linear.at_least(self._store(name, pair[0], store), {flow: 1.0, apart: -1.0})
        for state, variables in charged.items():
            if variables:
                self.linear.at_least(self._store(name, state, store), variables)

    def _charge_crossing(self, name: str, readers: list[_Reader], sources: dict[State, Variables]) -> None:
        """A replayed segment keeps what it reads from outside."""
        crossing = any(self._replay.crosses(name, reader.position) for reader in readers if reader.position >= 0)
        for state, variables in sources.items() if crossing else ():
            self._hold(name, state, KEPT, variables)

    def _charge_output(self, name: str, sources: dict[State, Variables]) -> None:
        producer = next((op for op in self._graph.operators if op.output == name), None)
        if producer is not None and KINDS[producer.kind].saves_output(producer):
            store = self._replay.store(self._replay.position(producer))
            for state, variables in sources.items():
                self._hold(name, state, store, variables)

    def _hold(self, name: str, state: State, store: int, variables: Variables) -> None:
        self.linear.at_least(self._store(name, state, store), variables, 0.0 if variables else 1.0)

    def _store(self, name: str, state: State, store: int) -> int:
        """1 where the tensor is held in this state by this store."""
        key = (name, state, store)
        if key not in self._stores:
            self._stores[key] = self.linear.variable()
            self._saved.setdefault(store, {})[self._stores[key]] = self._bytes(name, state) / MB
        return self._stores[key]

    def _bytes(self, name: str, state: State) -> float:
        known = Program(self._graph, self._axes, (), {name: state}, {}, ())
        return view_bytes(known, name)

    def _bound_memory(self) -> None:
        replay = self.linear.variable(upper=inf)
        for store, charged in self._saved.items():
            if store != KEPT:
                self.linear.at_least(replay, charged)
        for row, state in zip(self.problem.prices.memory, self._state, strict=True):
            total = dict(state)
            for variable, size in self._saved.get(KEPT, {}).items():
                total[variable] = total.get(variable, 0.0) + row.kept * size
            total[replay], total[self._working] = row.replay, row.working
            capacity = row.capacity_bytes / MB
            if capacity < inf:
                self.linear.row({variable: size / capacity for variable, size in total.items()}, high=1.0)
            for variable, size in total.items():
                self.linear.costs[variable] += self._memory_price * size * MB


def _order(reader: _Reader) -> float:
    return inf if reader.position < 0 else reader.position
