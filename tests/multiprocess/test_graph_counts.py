"""FLOPs and kept activations counted on the graph are what torch counts on the modules that run it."""

from itertools import product

import pytest
import torch

from autoshard.graph.recompute import COMMON_SETS
from benchmarks.graph_counts import TOLERANCE, measure, small
from tests.cases import some

NAMES = ("gpt3-175b", "qwen3-8b", "qwen2-57b-a14b", "deepseek-v3", "glm-4.5")


@pytest.mark.parametrize(("name", "recompute"), some(product(NAMES, COMMON_SETS), step=5))
def test_counts_are_torchs(name: str, recompute: str) -> None:
    torch.set_num_threads(1)
    for row in measure(small(name), name, recompute):
        assert abs(row.difference) < (1e-12 if row.quantity == "flops" else TOLERANCE), row
