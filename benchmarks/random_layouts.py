"""Tries random legal layouts, as no search would choose them: they train like one process, and hold what is planned.

    python -m benchmarks.random_layouts                           five minutes of small models against one process
    python -m benchmarks.random_layouts --operators               as a solver might shard their operators over tp
    python -m benchmarks.random_layouts --audits                  five minutes of audits instead
    python -m benchmarks.random_layouts --seconds 60 --seed 7

Small models of every family train two steps in FP64 by 2, 4 or 8 processes; losses, gradients, parameters and the
collectives executed are compared. Audits have four blocks of any built-in model at full width on one or two instances,
in mixed precision, with any dtypes of gradients and moments, bf16_sr or FP32. One in four is updated by Muon. What
differs is printed with its layout. The exit code is 1 where a layout does not train like one process, or holds more
than planned, by more than an audit allows.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from itertools import permutations
from random import Random
from time import perf_counter

from autoshard.audits.roles import roles
from autoshard.audits.run import audit_role, held_orders
from autoshard.audits.values import PEAK_MEMORY
from autoshard.backends.rules import check_strategy
from autoshard.cost.estimate import estimate
from autoshard.errors import AutoshardError
from autoshard.graph.partition import Choice
from autoshard.graph.recompute import BLOCK_MODULES
from autoshard.graph.redistribute import NoTransition
from autoshard.layout.context_parallel import CONTEXT_PARALLEL, UNUSED
from autoshard.layout.mesh import AXIS_ORDER
from autoshard.layout.strategy import ATTENTION_KERNELS, ZERO_STAGES, Strategy, even_stage_layers
from autoshard.layout.template import template_of
from autoshard.models.registry import builtin_models, load_model
from autoshard.planner.operators.options import operator_options
from autoshard.plans.plan import Plan, make_plan
from autoshard.plans.plan_json import plan_to_dict
from autoshard.plans.prices import other_operators, priced
from autoshard.plans.validate import plan_from_dict
from autoshard.runtime.rehearse import local_cluster, telling_blocks
from autoshard.spec.cluster import Cluster, load_cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.state_dtypes import FIELDS, STATE_DTYPES, takes_state_dtypes, with_state_dtypes
from autoshard.spec.training import ADAMW, MUON, Precision, TrainingSpec, load_precision
from benchmarks.planned_parity import right
from tests.multiprocess.models import MODELS
from tests.multiprocess.planned import run
from tests.multiprocess.plans import FP64

BLOCKS = 4
SCHEDULES = ("1f1b", "gpipe", "zero_bubble")
"""Of one chunk a rank: those that every process knows."""
TOGETHER = 12
"""Layouts that the same processes train."""
LENGTHS = (1024, 2048, 4096)
INSTANCES = ("h100-80gb", "b200-180gb", "trn2.48xlarge")
"""Of audits: lengths of sequences, tokens, and where layouts would run, on one or two of them."""
MOSTLY_ADAMW = (ADAMW, ADAMW, ADAMW, MUON)
MORE, UNLIKE = "holds more than planned", "does not train like one process"


def drawn(draw: Random, model: ModelSpec, devices: int) -> Strategy:
    """Any layout of four blocks, legal or not. Raises AutoshardError for one that contradicts itself."""
    degrees = {"tp": 1, "pp": 1, "dp": 1, "cp": 1}
    axis_order: tuple[str, ...] = AXIS_ORDER
    for _ in range(devices.bit_length() - 1):
        degrees[draw.choice([*degrees])] *= 2
    chunks = draw.choice((1, 2)) if degrees["pp"] > 1 else 1
    stages = degrees["pp"] * chunks
    cuts = sorted(draw.randint(0, BLOCKS) for _ in range(stages - 1))
    uneven = tuple(stop - start for start, stop in zip((0, *cuts), (*cuts, BLOCKS), strict=True))
    if draw.random() < 0.35:
        axis_order = draw.choice([*permutations(AXIS_ORDER)])
    return Strategy(
        **degrees,
        ep=draw.choice((1, 2, 4, 8)) if model.is_moe else 1,
        etp=draw.choice((None, None, 1, 2)) if model.is_moe and degrees["tp"] > 1 else None,
        num_virtual_stages=chunks,
        microbatch_size=draw.choice((1, 1, 2)),
        schedule="interleaved" if chunks > 1 else draw.choice(SCHEDULES),
        recompute=tuple(_recompute(draw) for _ in range(stages)) if draw.random() < 0.4 else (_recompute(draw),),
        sequence_parallel=degrees["tp"] > 1 and draw.random() < 0.7,
        zero=draw.choice(ZERO_STAGES),
        attention_kernel=draw.choice(ATTENTION_KERNELS),
        stage_layers=even_stage_layers(BLOCKS, stages) if draw.random() < 0.5 else uneven,
        context_parallel=draw.choice(CONTEXT_PARALLEL) if degrees["cp"] > 1 else UNUSED,
        axis_order=axis_order,
        dp_replicate=draw.choice((1, 1, 2)) if degrees["dp"] > 1 else 1,
    )


def _recompute(draw: Random) -> str:
    if draw.random() < 0.5:
        return draw.choice(("none", "full"))
    return "+".join(draw.sample(BLOCK_MODULES, draw.randint(1, 4)))


def legal(
    draw: Random,
    models: Mapping[str, ModelSpec],
    cluster: Cluster,
    sequence_length: int,
    precision: Precision,
    backend: str = "torch",
) -> tuple[str, Plan]:
    """(name of a model, plan of the first layout drawn that breaks no rule of the backend)."""
    while True:
        name = draw.choice([*models])
        try:
            strategy = drawn(draw, models[name], cluster.world_size)
            batch = draw.randint(1, 6) * strategy.dp * strategy.microbatch_size
            training = TrainingSpec(sequence_length, batch, precision, optimizer=draw.choice(MOSTLY_ADAMW))
            check_strategy(models[name], training, cluster, backend, strategy)
            priced = estimate(models[name], training, cluster, strategy)
        except AutoshardError:
            continue
        return name, make_plan(models[name], training, cluster, backend, strategy, priced)


def with_drawn_operators(draw: Random, plan: Plan) -> Plan:
    """The plan where some of its operators do along tensor-parallel axes any of what a solver may choose; as it is
    where these choices are no plan."""
    graph, strategy = plan.graph(plan.model.kinds, True, True), plan.strategy
    operators, share = dict(plan.operators), draw.random()
    options: dict[str, list[Choice]] = {}  # that blocks of every kind have
    for op in graph.operators:
        name = template_of(op.name)
        own = operator_options(graph, op, plan.mesh.stage_axes, plan.backend, strategy.sequence_parallel)
        options[name] = [one for one in options.get(name, own) if one in own]
    for name, known in options.items():
        if known and draw.random() < share:
            operators[name] = draw.choice(known)
    try:
        return plan_from_dict(plan_to_dict(priced(replace(plan, operators=operators))))
    except (AutoshardError, NoTransition):
        return plan


def trained(draw: Random, operators: bool = False) -> Iterator[tuple[str, Plan, str]]:
    """Yields (model, plan, what differs from one process or '') of some layouts.

    operators: tp shards some operators otherwise than the rule.
    """
    cluster = local_cluster(draw.choice((2, 4, 8)))
    several = [legal(draw, MODELS, cluster, 16, FP64) for _ in range(TOGETHER)]
    if operators:
        several = [(name, with_drawn_operators(draw, plan)) for name, plan in several]
    for (name, plan), found in zip(several, run([plan for _, plan in several], exact=True), strict=True):
        yield name, plan, "" if right(found, 1e-12, 1e-9) else f"{UNLIKE}: {found}"


@cache
def _of_few_blocks() -> Mapping[str, ModelSpec]:
    """The built-in models by name, with blocks that tell most about each; without those of more kinds of blocks."""
    models = [model for model in map(load_model, builtin_models()) if len(model.kinds) <= BLOCKS]
    return {model.name: model.some_blocks(telling_blocks(model, BLOCKS)) for model in models}


def audited(draw: Random) -> Iterator[tuple[str, Plan, str]]:
    """Yields (model, plan, what differs from the plan or '') of one layout."""
    precision = load_precision(draw.choice(("mixed_precision", "bf16_sr", "fp32")))
    if takes_state_dtypes(precision):
        apart = [f"{name}={draw.choice(STATE_DTYPES)}" for name in FIELDS]
        precision = with_state_dtypes(precision, ",".join(apart))
    cluster = load_cluster(draw.choice(INSTANCES), draw.choice((1, 2)))
    name, plan = legal(draw, _of_few_blocks(), cluster, draw.choice(LENGTHS), precision)
    words, orders = [], held_orders(plan)
    for role in roles(plan):
        for one in audit_role(plan, role, orders).differences:
            more = one.what == PEAK_MEMORY and one.measured > one.planned
            numbers = f"{one.what} {one.name}, planned {one.planned:,.0f}, measured {one.measured:,.0f}"
            words.append(f"stage {role.pipeline_rank} {MORE if more else 'differs'}: {numbers}")
    yield name, plan, "; ".join(words)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    either = parser.add_mutually_exclusive_group()  # audits have the rule's operators
    either.add_argument("--audits", action="store_true", help="audit layouts in place of training by them")
    either.add_argument("--operators", action="store_true", help="draw what tp does for each operator too")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=0, help="of the first draw; each one after it has the next")
    arguments = parser.parse_args()
    train = partial(trained, operators=arguments.operators)
    look: Callable[[Random], Iterator[tuple[str, Plan, str]]] = audited if arguments.audits else train
    start, seed, count, different, wrong = perf_counter(), arguments.seed, 0, 0, 0
    while perf_counter() - start < arguments.seconds:
        for name, plan, words in look(Random(seed)):
            count, different = count + 1, different + bool(words)
            wrong += MORE in words or UNLIKE in words
            if words:
                training = plan.training
                given = f"{training.precision.name}, {training.optimizer}, {training.global_batch_size} sequences"
                others = "".join(f"\n  {template}: {dict(choice)}" for template, choice in other_operators(plan))
                print(f"seed {seed}: {name}, {given}, {plan.strategy}{others}\n  {words}", flush=True)
        seed += 1
    print(f"{count:,} layouts, {different} differ, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
