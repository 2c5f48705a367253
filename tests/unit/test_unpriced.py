"""What a run says it does beside its plan's prices."""

from __future__ import annotations

from typing import Any

import pytest

from autoshard.planner.planning import plan_for
from autoshard.planner.request import PlanRequest
from autoshard.runtime.unpriced import document_masks

ALONE = "not in the plan's prices: attention inside documents only"


@pytest.mark.parametrize(
    ("pins", "kept"),
    [
        ({}, "; a microbatch's mask takes 33.6 MB"),  # 4,096 x 4,096 x 2 bytes
        ({"micro_batch": 2}, "; a microbatch's mask takes 67.1 MB"),
        ({"cp": 2, "context_parallel": "all_gather"}, "; a microbatch's mask takes 16.8 MB"),  # half of the queries
        ({"cp": 2, "context_parallel": "ulysses"}, "; a microbatch's mask takes 33.6 MB"),
        ({"cp": 2, "context_parallel": "zigzag_ring"}, None),
        ({"attention_kernel": "plain"}, None),
    ],
)
def test_a_mask_is_kept_where_attention_takes_it_whole(pins: dict[str, Any], kept: str | None) -> None:
    request = PlanRequest(
        "llama3-8b", "trn1.32xlarge", 4, seq_len=4096, backend="torch", pins={"tp": 2, "micro_batch": 1, **pins}
    )
    more = "" if kept is None else f"{kept} of each device, for as long as its attention is kept"
    assert document_masks(plan_for(request)) == ALONE + more
