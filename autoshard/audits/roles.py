"""Which ranks run the same program."""

from __future__ import annotations

from autoshard.audits.values import Role
from autoshard.errors import AutoshardError
from autoshard.layout.mesh import TENSOR_PARALLEL_AXES
from autoshard.plans.plan import Plan


def roles(plan: Plan, pipeline_ranks: tuple[int, ...] | None = None) -> tuple[Role, ...]:
    """One for each pipeline rank; two where only some positions hold padding of the vocabulary.

    Every dim divides evenly over its axes, so all positions of a stage run the same operators on the same shapes; what
    a rank's position decides is numbers: which rows of a table, which part of a mask. Two things are more than that.
    The loss blanks columns of padding only where a rank has some. And under context parallelism the last position sees
    most keys, so it is the one that is audited: the plan counts the fullest rank.
    Raises AutoshardError for a pipeline rank that the plan does not have.
    """
    chosen = range(plan.strategy.pp) if pipeline_ranks is None else sorted(set(pipeline_ranks))
    for rank in chosen:
        if not 0 <= rank < plan.strategy.pp:
            raise AutoshardError(f"--stages has {rank}; this plan's pipeline ranks are 0 to {plan.strategy.pp - 1}")
    return tuple(role for rank in chosen for role in _of_rank(plan, rank))


def _of_rank(plan: Plan, pipeline_rank: int) -> list[Role]:
    mesh = plan.mesh
    last_context = {axis.name: axis.size - 1 for axis in mesh.axes if axis.name == "cp"}
    others = mesh.stage_size // mesh.size(("cp",)) // mesh.size(TENSOR_PARALLEL_AXES)
    merged = ", ".join(f"{axis.name} {axis.size}" for axis in mesh.axes if axis.size > 1)
    same = f"all positions along {merged} run the same operators on the same shapes" if merged else "the only rank"
    if last_context.get("cp"):
        same += "; the last of cp sees most keys"
    plain, padded = _positions_by_padding(plan)
    if not (plain and padded) or not any(s.has_head for s in plan.stages if s.pipeline_rank == pipeline_rank):
        return [Role(pipeline_rank, mesh.rank(pipeline_rank, last_context), mesh.stage_size, same)]
    roles = []
    for positions, why in ((plain, "without padding of the vocabulary"), (padded, "with padding of the vocabulary")):
        rank = mesh.rank(pipeline_rank, last_context | _tensor_index(plan, positions[0]))
        count = len(positions) * others * mesh.size(("cp",))
        roles.append(Role(pipeline_rank, rank, count, f"{why}; {same}"))
    return roles


def _positions_by_padding(plan: Plan) -> tuple[list[int], list[int]]:
    """Tensor-parallel positions whose piece of the vocabulary is all words, and those with padding."""
    count = plan.mesh.size(TENSOR_PARALLEL_AXES)
    piece = plan.dim_sizes["vocab"] // count
    plain = [position for position in range(count) if (position + 1) * piece <= plan.model.vocab_size]
    return plain, [position for position in range(count) if position not in plain]


def _tensor_index(plan: Plan, position: int) -> dict[str, int]:
    """Index along each tensor-parallel axis, the last one varying fastest."""
    index = {}
    for axis in reversed([axis for axis in plan.mesh.axes if axis.name in TENSOR_PARALLEL_AXES]):
        position, index[axis.name] = divmod(position, axis.size)
    return index
