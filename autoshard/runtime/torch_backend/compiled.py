"""Compiles the segments of a stage between its collectives, each to one function.

torch.compile never sees a collective: it would move and rewrite torch's, and ours are parts of autograd functions. A
run of operators that compute on local tensors alone becomes one function of plain tensors; the collectives between such
runs stay what and where they are. Segments that compute the same, such as those of equal blocks, share one function:
weights and tables are its arguments. Operators that communicate, or leave something for later (masks of attention and
dropout, routers' losses, gradients of weights under zero-bubble schedules), run uncompiled.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from time import perf_counter
from types import FunctionType
from typing import Any

import torch

from autoshard.errors import AutoshardError
from autoshard.plans.stage_sections import Instruction, Section, Wiring, compiled_runs, is_rotation
from autoshard.runtime.torch_backend.rotation import Rotation

Tensors = tuple[torch.Tensor, ...]


class Compiler:
    """The compiler of one rank, for all of its stages.

    on_action: called with what is about to be compiled. backend: of torch.compile. whole_stages: a stage
    is one segment, its collectives inside. segments: how many there are, of
    which `distinct` are compiled. functions: how many others are compiled. compile_time_s: seconds that their first
    calls took.
    """

    def __init__(
        self,
        on_action: Callable[[str], None] = lambda action: None,
        backend: str = "inductor",
        whole_stages: bool = False,
    ):
        self._on_action, self._backend, self._whole = on_action, backend, whole_stages
        self._functions: dict[Hashable, _Function] = {}
        self._shared: dict[Hashable, Callable[..., Any]] = {}
        self.segments, self.functions, self.compile_time_s = 0, 0, 0.0
        configure()

    @property
    def compiles_all(self) -> bool:
        """Whether attention, the gradient's norm and the optimizer are compiled, too, each block by itself: on a GPU or
        a CPU they are kernels of torch's own, and the compiler takes graphs of any size."""
        return self._backend == "neuron"

    @property
    def attends(self) -> bool:
        """Whether attention is compiled where it is a function of its inputs alone."""
        return self.compiles_all

    @property
    def names(self) -> tuple[str, str]:
        """Who compiles, and how to run without."""
        return ("neuron", "run with --no-compile") if self.compiles_all else ("inductor", "run without --compile")

    @property
    def distinct(self) -> int:
        return len(self._functions)

    @property
    def size(self) -> str:
        """How many segments there are and how many were compiled, in words."""
        return f"{self.segments} segments between collectives, {self.distinct} of them distinct"

    def to_dict(self) -> dict[str, float]:
        counts = {"segments": self.segments, "distinct": self.distinct, "functions": self.functions}
        operators = sum(function.operators for function in self._functions.values())
        return {**counts, "operators": operators, "compile_time_s": self.compile_time_s}

    def section(self, section: Section) -> Section:
        """The section with each run of operators that do not communicate compiled into one instruction."""
        found: list[Instruction] = []
        for run, is_compiled in compiled_runs(section, by_block=self.compiles_all, whole=self._whole):
            found += [self._instruction(run)] if is_compiled else run
        return replace(section, instructions=tuple(found))

    def _instruction(self, run: Sequence[Instruction]) -> Instruction:
        wiring = Wiring.of(run)
        name = f"{run[0].name} to {run[-1].name}"
        return Instruction(name, wiring.inputs, wiring.outputs, self._segment(run, wiring), wiring.released)

    def _segment(self, run: Sequence[Instruction], wiring: Wiring) -> _Function:
        """A run of operators as one function from the tensors named in its wiring as inputs to the outputs."""
        self.segments += 1
        kind = self.segments if self._whole else wiring.kind  # redistributions say too little of what they do to share
        if kind not in self._functions:
            rotations = [one.run for one in run if is_rotation(one)]
            computes = [one.run.turn if is_rotation(one) else one.run for one in run]
            steps = [(one.name, *pair) for one, *pair in zip(run, computes, wiring.reads, strict=True)]
            self._functions[kind] = _Function(self, steps, rotations, wiring.leaving)
        return self._functions[kind]

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, which is compiled when it is first called, in training and in evaluation."""
        # Opaque to Dynamo, which knows little of autograd functions; they are traced where autograd itself runs them.
        return self._own(torch._dynamo.nonstrict_trace(function))

    def function(self, name: str, function: Callable[..., Any], kind: Hashable = None) -> Callable[..., Any]:
        """A function that has no gradient and may write into its arguments, compiled when it is first called.

        kind: the same for functions that compute the same, which share one; None: of this one alone. The compiler
        leaves it as it is where it does not compile all.
        """
        if not self.compiles_all:
            return function
        if kind not in self._shared:
            self.functions += 1
            self._shared[kind] = self._at_first(name, function)
        return self._shared[kind] if kind is not None else self._shared.pop(kind)

    def _at_first(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        compiled, known = self._own(function), False

        def run(*values: Any) -> Any:
            nonlocal known
            if known:
                return compiled(*values)
            known = True
            with self.at_work(name):
                return compiled(*values)

        return run

    def annotated(self, operator: str) -> AbstractContextManager[None]:
        """Names the operator in the nodes of a graph that is being traced, where the device's compiler reads them."""
        if not self.compiles_all:
            return nullcontext()
        from torch.fx.traceback import annotate

        found: AbstractContextManager[None] = annotate({"operator": operator})
        return found

    def _own(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: torch.Tensor) -> Any:
            return function(*values)

        # torch keeps what it compiled by code object, and a few versions of each: every function needs code of its own
        own = FunctionType(call.__code__.replace(), call.__globals__, "segment", None, call.__closure__)
        options: dict[str, Any] = {"emulate_precision_casts": True} if self._backend == "inductor" else {}
        return torch.compile(own, fullgraph=True, dynamic=False, backend=self._backend, options=options)

    @contextmanager
    def at_work(self, name: str) -> Iterator[None]:
        self._on_action(f"compiling {name}")
        begin = perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
        self.compile_time_s += perf_counter() - begin
        self._on_action(f"behind compiling {name}")


class _Function:
    """One compiled function. steps: of each operator its name, its function, and the places of its inputs among all
    values (inputs, tables of the rotations, results so far)."""

    def __init__(
        self,
        compiler: Compiler,
        steps: Sequence[tuple[str, Callable[..., Any], tuple[int, ...]]],
        rotations: Sequence[Rotation],
        leaving: tuple[int, ...],
    ):
        self._compiler, self._steps, self._rotations = compiler, steps, rotations
        self._tables: Tensors | None = None
        self._known: set[bool] = set()
        self.operators = len(steps)

        def operators(*values: torch.Tensor) -> Tensors:
            found = list(values)
            for number, (name, compute, reads) in enumerate(steps):
                with compiler.annotated(f"{number} {name}"):
                    result = compute(*[found[place] for place in reads])
                found += result if isinstance(result, tuple) else (result,)
            return tuple(found[place] for place in leaving)

        self._compiled = compiler.compiled(operators)

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        if self._tables is None:
            like = next(value for value in inputs if value.is_floating_point())
            self._tables = tuple(table for rotation in self._rotations for table in rotation.tables(like))
        values = (*inputs, *self._tables)
        if torch.is_grad_enabled() in self._known:
            found: Tensors = self._compiled(*values)
            return found
        return self._first(values)

    def _first(self, values: Tensors) -> Tensors:
        """Runs the first call, which compiles backward, too, where gradients are computed."""
        names = dict.fromkeys((self._steps[0][0], self._steps[-1][0]))
        with self._compiler.at_work(" to ".join(names)):
            try:
                found: Tensors = self._compiled(*values)
            except torch._dynamo.exc.TorchDynamoException as error:
                backend, instead = self._compiler.names
                raise AutoshardError(
                    f"compile: {backend} cannot compile {self._culprit(values) or ' to '.join(names)}: "
                    f"{first_line(error)}; {instead}"
                ) from error
        self._known.add(torch.is_grad_enabled())
        return found

    def _culprit(self, values: Tensors) -> str | None:
        """The name of the first operator that cannot be compiled by itself; None where each can."""
        found = list(values)
        for name, compute, reads in self._steps:
            given = [found[place] for place in reads]
            try:
                result = self._compiler.compiled(compute)(*given)
            except torch._dynamo.exc.TorchDynamoException:
                return name
            found += result if isinstance(result, tuple) else (result,)
        return None


def first_line(error: BaseException) -> str:
    """The cause of an error in one line, without torch's own messages around it."""
    inner = getattr(error, "inner_exception", None) or error.__cause__ or error
    return next((line.strip() for line in str(inner).splitlines() if line.strip()), type(inner).__name__)


MOST_KINDS = 64
"""How many kinds of one function are compiled: torch leaves a ninth one uncompiled otherwise, with a warning."""


def configure() -> None:
    """Configures torch.compile in this process: what backward cannot compile is an error of forward. Ranks on CPUs
    compile in their own process; else each would start as many more as there are CPUs."""
    import torch._dynamo
    import torch._functorch.config
    import torch._inductor.config

    if not torch.cuda.is_available():
        torch._inductor.config.compile_threads = 1
    torch._functorch.config.force_non_lazy_backward_lowering = True
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MOST_KINDS)
    for name in ("torch._dynamo", "torch._inductor", "torch._functorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
