"""What a run says it does beside its plan's prices."""

from __future__ import annotations

from typing import Any

import pytest

from autoshard.planner.planning import plan_for
from autoshard.planner.request import PlanRequest
from autoshard.runtime.unpriced import document_mask_bytes, document_masks
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import plan_of, strategy

ALONE = "not in the plan's prices: attention inside documents only"


@pytest.mark.parametrize(
    ("length", "pins", "kept"),
    [
        (4096, {}, "; a microbatch's masks take 33.6 MB"),  # 4,096 x 4,096 x 2 bytes
        (
            4096,
            {"micro_batch": 2},
            None,
        ),  # of both rows together it would be larger than any that is made: tiles keep none
        (2048, {"micro_batch": 2}, "; a microbatch's masks take 16.8 MB"),
        (
            4096,
            {"cp": 2, "context_parallel": "all_gather"},
            "; a microbatch's masks take 16.8 MB",
        ),  # half of the queries
        (4096, {"cp": 2, "context_parallel": "ulysses"}, "; a microbatch's masks take 33.6 MB"),
        (4096, {"cp": 2, "context_parallel": "zigzag_ring"}, None),
        (4096, {"attention_kernel": "plain"}, None),
    ],
)
def test_a_mask_is_kept_where_attention_takes_it_whole(length: int, pins: dict[str, Any], kept: str | None) -> None:
    request = PlanRequest(
        "llama3-8b", "trn1.32xlarge", 4, seq_len=length, backend="torch", pins={"tp": 2, "micro_batch": 1, **pins}
    )
    more = "" if kept is None else f"{kept} of a device, for as long as its attention is kept"
    assert document_masks(plan_for(request)) == ALONE + more


@pytest.mark.parametrize(
    ("model", "masks"),
    [("mistral", 1), ("windows on later blocks", 2), ("gemma3", 2), ("llama4", 2), ("gemma2", 0), ("gpt oss", 0)],
)
def test_blocks_that_see_alike_share_a_mask_and_tiles_keep_none(model: str, masks: int) -> None:
    plan = plan_of(MODELS[model], strategy(layers=(4,)), 1)
    rows, length = plan.strategy.microbatch_size, plan.training.sequence_length
    assert document_mask_bytes(plan) == masks * rows * length * length * 8  # FP64


def test_a_stage_keeps_the_masks_of_its_own_blocks_alone() -> None:
    plan = plan_of(MODELS["windows on later blocks"], strategy(pp=2, layers=(1, 3)), 2)
    rows, length = plan.strategy.microbatch_size, plan.training.sequence_length
    assert document_mask_bytes(plan) == rows * length * length * 8
