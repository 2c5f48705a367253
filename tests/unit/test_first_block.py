"""What the first block of a model keeps and repeats beside others: the same, but where a block moves its input."""

from __future__ import annotations

import pytest

from autoshard.cost.local_shape import LocalShape
from autoshard.cost.stage import stage_parts, stage_pricer
from autoshard.cost.stage_program import UNITS, begins_as_others, block_unit
from autoshard.graph.recompute import NO_RECOMPUTE, is_recomputed
from autoshard.models.registry import builtin_models, load_model
from autoshard.planner.sets import every_set
from autoshard.spec.cluster import load_cluster
from autoshard.spec.traced import HIDDEN
from autoshard.spec.training import TrainingSpec, load_precision
from tests.cases import some

CLUSTER = load_cluster("h100-80gb", 2)
TRAINING = TrainingSpec(4096, 64, load_precision("mixed_precision"))
FAMILIES = {model.model_type: model for model in map(load_model, builtin_models())}
POST_NORM = ("olmo2", "olmo3", "flex_olmo", "exaone4")
SHARDED = [(1, False, 1), (2, True, 1), (2, False, 1), (1, False, 2), (4, True, 2)]
"""(tp, whether sequence parallelism is on, cp)."""


def shapes(model_type: str) -> list[tuple[int, bool, int]]:
    """Those that the model can have: ranks that share sequences share experts too."""
    return [one for one in SHARDED if FAMILIES[model_type].num_local_experts % one[2] == 0]


def moved(model_type: str) -> set[tuple[int, bool, int]]:
    """Shapes whose first block is told apart from others."""
    model, found = FAMILIES[model_type], set()
    reads_embedding = model.hidden_size_per_layer_input is not None  # where others are given it, it is not counted
    for tp, splits, cp in shapes(model_type):
        kind = "zigzag_ring" if cp > 1 else "all_gather"
        shape = LocalShape(tp, cp, cp if model.is_moe else 1, 2, splits, "flash", kind)
        price = stage_pricer(model, TRAINING, CLUSTER, shape)
        if not begins_as_others(price(*block_unit(0)).work.program):
            found.add((tp, splits, cp))
            continue
        alone, behind = price(*block_unit(0)), price(*UNITS["first"])
        embedding = price(*UNITS["embedding"]).part(NO_RECOMPUTE)
        given = alone.work.program.local_bytes[HIDDEN]
        for recompute in every_set(model)[::5]:
            first, block = behind.part(recompute), alone.part(recompute)
            assert first.kept_bytes == block.kept_bytes + embedding.kept_bytes
            assert first.replay_bytes == block.replay_bytes
            assert first.segment_bytes - block.segment_bytes in ({0, given} if reads_embedding else {0})
            assert first.recompute == block.recompute
            assembled = stage_parts(model, TRAINING, CLUSTER, shape, recompute)
            opens = is_recomputed(alone.work.program.graph.operators[0], recompute)
            assert assembled.embedding.kept_bytes == embedding.kept_bytes
            assert assembled.embedding.replay_bytes == opens * block.replay_bytes
            assert assembled.embedding.segment_bytes == opens * block.segment_bytes
    return found


@pytest.mark.parametrize("model_type", some(sorted(FAMILIES), step=2))
def test_the_first_block_keeps_and_repeats_what_others_do(model_type: str) -> None:
    gathers_itself = {(2, True, 1), (2, False, 1), (4, True, 2)} if model_type in POST_NORM else set()
    assert moved(model_type) == gathers_itself.intersection(shapes(model_type))


def test_the_first_block_of_olmo2_keeps_more() -> None:
    model, shape = FAMILIES["olmo2"], LocalShape(2, 1, 1, 2, True, "flash", "all_gather")
    assert stage_parts(model, TRAINING, CLUSTER, shape, "full").embedding.kept_bytes > 0
    # its projections keep the embedding's output whole, those of other blocks the half that a rank has of theirs
    hidden_bytes = 2 * TRAINING.sequence_length * model.hidden_size * 2
    assert stage_parts(model, TRAINING, CLUSTER, shape, NO_RECOMPUTE).embedding.kept_bytes == hidden_bytes / 2
