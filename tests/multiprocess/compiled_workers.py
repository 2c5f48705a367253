"""What processes run to compare compiled stages with one process that compiles nothing."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.plans.plan import Plan
from autoshard.runtime.rehearse import one_process
from autoshard.runtime.torch_backend import kernels
from autoshard.runtime.torch_backend.compiled import Compiler
from autoshard.runtime.worker import Reporter
from autoshard.spec.training import load_precision
from tests.multiprocess.compared import against_one_process, at_rank_0, connect, local_arrays, surplus, train
from tests.multiprocess.models import MODELS
from tests.multiprocess.parity_workers import BF16_LEARNING_RATE
from tests.multiprocess.plans import FP32, case, plan_of, strategy

ALSO: dict[int, dict[str, Plan]] = {
    1: {"one process": plan_of(MODELS["llama"], strategy(recompute="mlp"), 2)},
    4: {
        "tp x pp, interleaved, recompute": plan_of(
            MODELS["llama"], strategy(tp=2, pp=2, vpp=2, recompute="core_attention+mlp"), 4
        )
    },
}
"""Layouts that the parity matrix does not have: world size -> name."""


def parity(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Rank 0 returns, for each of `layouts`, how far it is from one process in the precisions asked: two steps in FP64,
    one in FP32, of which the collectives are counted, the losses of two in bf16."""
    if reporter.world_size > 1:
        connect(reporter)
    found: dict[str, Any] = {}
    for name, precisions in arguments["layouts"].items():
        plan = ALSO.get(reporter.world_size, {}).get(name) or case(reporter.world_size, name, few_blocks=True)
        single = replace(plan, training=replace(plan.training, precision=FP32))
        work: dict[str, Callable[..., Any]] = {
            "fp64": partial(_compared, plan, 2),
            "fp32": partial(_compared, single, 1, counted=True),
            "bf16": partial(_bf16, plan),
        }
        found[name] = {one: work[one](backend=arguments["backend"], reporter=reporter) for one in precisions}
    if reporter.rank == 0:
        found["refused"] = _refused(reporter)
    return found


def _refused(reporter: Reporter) -> str:
    """What a user is told of an operator that looks at its numbers, which no compiler knows."""
    known = kernels._ELEMENTWISE["silu_mul"]
    kernels._ELEMENTWISE["silu_mul"] = lambda gate, up: known(gate, up) if gate.sum() < 1e9 else up
    plan = plan_of(MODELS["llama"], strategy(), 1, FP32)
    try:
        train(plan, 0, 1, compiler=_compiler(plan, "aot_eager", reporter))
    except AutoshardError as error:
        return str(error)
    return "compiled"


def _compared(plan: Plan, steps: int, backend: str, reporter: Reporter, counted: bool = False) -> dict[str, Any]:
    compiler = _compiler(plan, backend, reporter)
    session, outcomes, counter = train(plan, reporter.rank, steps, counted, compiler=compiler)
    own = (
        local_arrays(session),
        surplus(plan, session, counter) if counted else {},
        (compiler.segments, compiler.distinct),
    )
    if not (ranks := at_rank_0(own, reporter) if reporter.world_size > 1 else [own]):
        return {}
    return {
        **against_one_process(plan, outcomes, [one[0] for one in ranks]),
        "collectives": [one[1] for one in ranks],
        "compiled": [one[2] for one in ranks],
        "seconds": compiler.compile_time_s,
    }


def _bf16(plan: Plan, backend: str, reporter: Reporter) -> float:
    """Largest relative difference of the losses to one process that rounds alike."""
    rounded = replace(plan, training=replace(plan.training, precision=load_precision("mixed_precision")))
    compiler = _compiler(plan, backend, reporter)
    _, outcomes, _ = train(rounded, reporter.rank, 2, learning_rate=BF16_LEARNING_RATE, compiler=compiler)
    if reporter.rank:
        return 0.0
    _, expected, _ = train(one_process(rounded), 0, 2, learning_rate=BF16_LEARNING_RATE)
    return max(abs(a[0] - b[0]) / b[0] for a, b in zip(outcomes, expected, strict=True))


def _compiler(plan: Plan, backend: str, reporter: Reporter) -> Compiler:
    def on_action(action: str) -> None:
        reporter.last_action = f"{plan.model.name}, {plan.strategy}, {action}"

    return Compiler(on_action, backend)
