"""The models' own graphs on simulated ranks: under random choices for every operator, and under named layouts."""

from dataclasses import replace
from random import Random

import pytest

from autoshard.graph.ir import Graph
from autoshard.graph.partition import partition
from autoshard.layout.context_parallel import CONTEXT_PARALLEL, RINGS, with_context_parallel
from autoshard.layout.mesh import build_mesh
from autoshard.layout.sharding import stage_program
from autoshard.models.padding import key_value_heads
from autoshard.models.stage import dim_sizes, stage_graph
from tests.cases import ALL, some
from tests.multiprocess.models import MODELS
from tests.spmd.check import check_program
from tests.spmd.random_programs import ELEMENT_BYTES, random_choices, unread

CASES = 6 if ALL else 1
"""Of each model and mesh: two hundred or so, or more than a thousand in all."""


def graph_of(name: str, tp: int, kernel: str = "flash") -> Graph:
    """Embedding, a block of the last kind, head and loss: 4 sequences of 8 tokens."""
    model, width = MODELS[name], 16
    wide = 2 * width if model.num_kv_shared_layers and model.dense_intermediate_size else model.dense_intermediate_size
    model = replace(model, hidden_size=32, intermediate_size=width, dense_intermediate_size=wide)
    sizes = dim_sizes(model, batch=4, seq=8, tp=tp, capacity_factor=1.5)
    return stage_graph(model, sizes, model.kinds[-1:], True, True, kernel, ELEMENT_BYTES)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("axes", some([{"p": 2, "q": 2}, {"p": 2, "q": 2, "r": 2}], 1), ids=str)
def test_random_choices(name: str, axes: dict[str, int]) -> None:
    graph = graph_of(name, tp=8)
    for seed in range(CASES):
        choices = random_choices(graph, axes, Random(seed))
        check_program(partition(graph, axes, choices, {}, dict.fromkeys(unread(graph))), seed)


@pytest.mark.parametrize("name", ["few kv heads", "mistral", "gpt2", "gpt neox"])
@pytest.mark.parametrize("kind", RINGS)
def test_random_choices_with_attention_in_a_ring(name: str, kind: str) -> None:
    graph = with_context_parallel(graph_of(name, tp=4), kind, cp=2)
    axes = {"p": 2, "q": 2}
    for seed in range(CASES):
        choices = random_choices(graph, axes, Random(seed))
        check_program(partition(graph, axes, choices, {}, dict.fromkeys(unread(graph))), seed)


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2", "gpt neox", "mixtral"])
@pytest.mark.parametrize("kind", CONTEXT_PARALLEL)
@pytest.mark.parametrize(("tp", "cp"), [(1, 2), (2, 2), (1, 4)])
def test_context_parallel_layouts(name: str, kind: str, tp: int, cp: int) -> None:
    graph = with_context_parallel(graph_of(name, tp), kind, cp)
    ep = cp if MODELS[name].is_moe else 1
    mesh = build_mesh(tp=tp, pp=1, dp=2, cp=cp, ep=ep, num_key_value_heads=MODELS[name].num_key_value_heads)
    check_program(stage_program(graph, mesh.stage_axes, tp > 1), seed=0)


LAYOUTS = {
    "tp": (4, 1, 1, 1),
    "tp x dp": (2, 2, 1, 1),
    "tp x cp x dp": (2, 2, 2, 1),
    "tp x ep": (2, 2, 1, 2),
    "ep x dp": (1, 4, 1, 2),
    "ep over cp": (1, 2, 2, 2),
    "ep over cp and dp": (2, 2, 2, 4),
}
"""tp, dp, cp, ep."""


LEGAL = [
    (name, layout)
    for name, model in MODELS.items()
    for layout, (_, _, cp, ep) in LAYOUTS.items()
    if (ep % cp == 0 if model.is_moe else ep == 1)  # as the planner's rules have it
]


@pytest.mark.parametrize(
    ("name", "layout", "sequence_parallel"),
    [
        (*one, sp)
        for place, one in enumerate(LEGAL)
        for sp in (True, False)
        if ALL or (place % 4, sp) in ((0, True), (2, False))
    ],
)
def test_layouts(name: str, layout: str, sequence_parallel: bool) -> None:
    tp, dp, cp, ep = LAYOUTS[layout]
    mesh = build_mesh(tp=tp, pp=1, dp=dp, cp=cp, ep=ep, num_key_value_heads=key_value_heads(MODELS[name], tp))
    check_program(stage_program(graph_of(name, tp), mesh.stage_axes, sequence_parallel), seed=0)
