"""Knows what neuronx-distributed 0.18.0 (NxD) and NxD Training accept but get wrong, and repairs or refuses it.

The list comes from running the library on CPU and from its source. A repair is written into the configuration by
`configuration.py` and told in a sentence; a refusal is an AutoshardError that says what would work.
"""

from __future__ import annotations

from collections.abc import Callable

from autoshard.backends.nxd import NXD
from autoshard.backends.rules import check_strategy
from autoshard.errors import AutoshardError
from autoshard.plans.plan import Plan
from autoshard.runtime.nxd_backend.lowering import lower
from autoshard.runtime.nxd_backend.rank_groups import mended_groups, mesh_groups, plan_case


def nxd_repairs(plan: Plan, cpu_mode: bool = False) -> tuple[str, ...]:
    """Sentences on what the backend does with this plan to avoid NxD's traps.

    Raises AutoshardError where nothing can be done: the layout is one that NxD executes wrongly or not at all.
    """
    for refuse in REFUSALS:
        refuse(plan)
    if cpu_mode:
        _stochastic_rounding(plan)
    check_strategy(plan.model, plan.training, plan.cluster, NXD.name, plan.strategy)
    for program in plan.sample_programs:
        lower(program)
    return tuple(sentence for repair in REPAIRS if (sentence := repair(plan)) is not None)


def kv_size_multiplier(plan: Plan) -> int:
    """How often NxD's GQAQKVColumnParallelLinear repeats each key-value head; 1 where tp does not exceed them."""
    return max(1, plan.strategy.tp // plan.model.num_key_value_heads)


def _context_parallel_gradients(plan: Plan) -> None:
    if plan.strategy.cp > 1 and not plan.strategy.zero:
        raise AutoshardError(
            f"cp={plan.strategy.cp} without zero=1: NxD applies gradients that are {plan.strategy.cp} times too large; "
            "use zero=1"
        )


def _other_groups(plan: Plan) -> None:
    nxd, own = mended_groups(plan).by_name(), mesh_groups(plan).by_name()
    for kind, groups in nxd.items():
        if sorted(groups) != sorted(own[kind]):
            raise AutoshardError(
                f"tp={plan.strategy.tp} on {plan.cluster.instance}: {kind} of NxD are {list(groups[0])}, ..., "
                f"of the plan {list(own[kind][0])}, ...; use another tp"
            )


def _truncated_batch(plan: Plan) -> None:
    strategy, batch = plan.strategy, plan.training.global_batch_size
    if batch % (strategy.dp * strategy.microbatch_size):
        raise AutoshardError(
            f"global_batch_size={batch} is no multiple of dp={strategy.dp} x microbatch_size="
            f"{strategy.microbatch_size}: NxD Training would drop the rest without a word"
        )


def _stochastic_rounding(plan: Plan) -> None:
    name = plan.training.precision.name
    if name == "bf16_sr":
        raise AutoshardError(
            f"precision {name} is rounded at random by the chip; NXD_CPU_MODE rounds to nearest: "
            "use mixed_precision or fp32, or --backend torch"
        )


def _folded_groups(plan: Plan) -> str | None:
    case = plan_case(plan)
    if not case.is_folded or case.dp == 1:
        return None
    return (
        f"tp={case.tp} at lnc {case.lnc} on {plan.cluster.instance} has folded rank groups: NxD sums gradients without "
        "ZeRO-1, and chooses who saves the model, among ranks that hold different shards, so it is given the plan's "
        "groups for both"
    )


def _optimizer_files(plan: Plan) -> str | None:
    if plan.strategy.cp == 1:
        return None
    return (
        f"cp={plan.strategy.cp}: NxD's optimizer files lack a context-parallel rank and overwrite each other, so "
        "checkpoints are written in our own format, by name of the weights"
    )


def _fused_qkv(plan: Plan) -> str | None:
    if plan.strategy.tp == 1:
        return None
    return (
        f"tp={plan.strategy.tp}: fuse_qkv is off, because NxD's fused weight loses its tensor-parallel mark and the "
        "gradient norm then depends on tp"
    )


def _key_value_init(plan: Plan) -> str | None:
    if plan.cluster.platform.kv_heads_innermost or kv_size_multiplier(plan) == 1:
        return None
    return (
        f"kv_size_multiplier={kv_size_multiplier(plan)} on {plan.cluster.instance}: NxD's random initial weights "
        "repeat rows, not heads, so key-value weights are loaded head by head"
    )


def _embedding(plan: Plan) -> str | None:
    if not plan.strategy.sequence_parallel:
        return None
    return (
        "sequence_parallel: the embedding scatters along sequence_dimension 0, because NxD's returns unsummed parts "
        "along any other"
    )


def _gradient_norm(plan: Plan) -> str | None:
    if kv_size_multiplier(plan) == 1:
        return None
    return (
        f"kv_size_multiplier={kv_size_multiplier(plan)}: NxD's gradient norm counts key-value weights that often, so "
        "its clipping is off and gradients are clipped by a norm that counts them once"
    )


REFUSALS: tuple[Callable[[Plan], None], ...] = (
    _context_parallel_gradients,
    _other_groups,
    _truncated_batch,
)
REPAIRS: tuple[Callable[[Plan], str | None], ...] = (
    _folded_groups,
    _optimizer_files,
    _fused_qkv,
    _key_value_init,
    _embedding,
    _gradient_norm,
)
