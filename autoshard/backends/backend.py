"""A backend as one value: all that the planner and a run have to know of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from itertools import permutations
from typing import Any

from autoshard.backends.problem import Problem, Rule
from autoshard.layout.context_parallel import CONTEXT_PARALLEL
from autoshard.layout.mesh import AXIS_ORDER
from autoshard.layout.strategy import ZERO_STAGES, Strategy

AXIS_ORDERS: tuple[tuple[str, ...], ...] = tuple(permutations(AXIS_ORDER))
"""All of them, the default first."""
NO_COMPILE = "compile: Neuron compiles by itself: leave --compile out, or use backend=torch"
"""The sentence of a backend that runs on XLA against --compile."""


def no_warnings(problem: Problem, strategy: Strategy) -> tuple[str, ...]:
    """No warnings: of a backend that runs every legal layout as it is."""
    return ()


@dataclass(frozen=True)
class Backend:
    """One record for each backend; `registry.py` lists them. The defaults are those of a backend without limits.

    name: in plan.json and behind --backend. label: in sentences.
    runtime: module whose functions are those of `autoshard.runtime.session.Runtime`.
    early_imports: modules that take long to import and that all ranks need, where a process without threads and devices
    can import them and be forked then; else none.

    What it runs, the preferred first: axis_orders; runs_schedule, by the name of a schedule; zero_stages;
    context_parallel, its kinds. recompute_sets: those that search tries, None: every one that is useful for the model.
    product_formats: names in PRODUCT_FORMATS that its linear layers multiply in.
    pads: whether empty heads and columns fill up what tp does not divide.
    solves_operators: whether an operator may be sharded otherwise than by the rule of layout/sharding.py, with or
    without sequence parallelism.
    shares_sequences_of_experts: whether a model with experts may have cp of 2 or more.
    balances_microbatches: whether the routers' loss takes its means over a microbatch of all data-parallel ranks.
    repeats_shards: whether ZeRO may shard inside groups of replicas (HSDP), not over all of them alone.
    runs_stacks: whether it runs on native PyTorch where a platform has stacks of that (spec/stack.py).
    unlike_stages: whether several chunks a rank may differ in their blocks, and an end of the model may be a stage
    without any.

    Rules beyond everybody's, by the group that they are checked with: mesh_rules, kernel_rules, state_rules.
    warnings: what a person should know about a legal layout.

    refuses: field of RunOptions -> the sentence for any other value than its default; {value} is that value.
    packages: pip's names of what it needs beside torch. requirement: "module:function" that raises AutoshardError where
    this machine lacks them. repairs: "module:function" from a plan to what is done about the library's mistakes, in
    sentences; raises AutoshardError where the library has no layer for an operator of the plan.
    """

    name: str
    label: str
    runtime: str
    early_imports: tuple[str, ...] = ()
    axis_orders: tuple[tuple[str, ...], ...] = AXIS_ORDERS
    runs_schedule: Callable[[str], bool] = lambda name: True
    zero_stages: tuple[int, ...] = (1, *(stage for stage in ZERO_STAGES if stage != 1))
    context_parallel: tuple[str, ...] = CONTEXT_PARALLEL
    recompute_sets: tuple[str, ...] | None = None
    product_formats: tuple[str, ...] = ()
    pads: bool = False
    solves_operators: bool = True
    shares_sequences_of_experts: bool = True
    balances_microbatches: bool = False
    repeats_shards: bool = True
    runs_stacks: bool = False
    unlike_stages: bool = False
    mesh_rules: tuple[Rule, ...] = ()
    kernel_rules: tuple[Rule, ...] = ()
    state_rules: tuple[Rule, ...] = ()
    warnings: Callable[[Problem, Strategy], tuple[str, ...]] = no_warnings
    refuses: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    requirement: str | None = None
    repairs: str | None = None


def imported(path: str) -> Any:
    """'package.module:name' -> that function or class. Records name code by such paths: planning imports no torch."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
