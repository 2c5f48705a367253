"""Which graphs neuronx-cc is expected to take, and that the planner prefers layouts that compile."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.backends.problem import Problem
from autoshard.layout.strategy import Strategy
from autoshard.models.registry import load_model
from autoshard.planner.compiling import Compiling, compile_notes
from autoshard.planner.layouts import legal_layouts
from autoshard.planner.planning import plan_for
from autoshard.planner.ranking import Timed
from autoshard.planner.rejections import Tally
from autoshard.planner.request import PlanRequest
from autoshard.plans.search_result import Pins
from autoshard.precedents.graph_size import GraphSize, Region, graph_size, head_regions, regions
from autoshard.precedents.runs import packaged
from autoshard.precedents.will_compile import LIMIT, Verdict, judge, margin, operator_instructions, worst
from autoshard.spec.cluster import load_cluster
from autoshard.spec.stack import WHOLE_STAGES
from autoshard.spec.training import TrainingSpec, load_precision

LLAMA = load_model("llama3-8b")
TRN2 = load_cluster("trn2.48xlarge", 1).under_stack("neuron-compiled")
TRAINING = TrainingSpec(8192, 64, load_precision("mixed_precision"))


def layout(tp: int) -> Strategy:
    return Strategy(
        tp=tp,
        pp=1,
        dp=64 // tp,
        cp=1,
        ep=1,
        num_virtual_stages=1,
        microbatch_size=1,
        schedule="1f1b",
        recompute=("none",),
        sequence_parallel=tp > 1,
        zero=1,
        attention_kernel="flash",
        stage_layers=(32,),
    )


def verdict(operators: float, tiles: float, logits: float = 0.0) -> Verdict:
    return judge(Region("it", GraphSize(operators, tiles, logits))).verdict


def test_the_public_graphs_are_judged_as_they_were() -> None:
    """All that the data says, of graphs with a limit of 10 million and of one that is far beyond."""
    for one in packaged().compiled:
        found = judge(Region(one.name, one.graph)).verdict
        assert found is (Verdict.COMPILES if one.compiles else Verdict.REFUSED), one.name


def test_verdicts_at_the_edges_of_the_data() -> None:
    known = packaged()
    per_tile, off = known.instructions.per_tile, margin(known)
    assert off == pytest.approx(12.86 * 839_520 / 10e6 - 1, rel=1e-3)
    assert off > known.instructions.left_out_error
    at_limit = LIMIT / per_tile
    assert verdict(5_000, 0.9 * at_limit) is Verdict.COMPILES  # more operators than any known graph: by the law
    assert verdict(5_000, at_limit) is Verdict.NEAR
    assert verdict(5_000, 1.1 * at_limit) is Verdict.REFUSED
    assert verdict(5_000, 1e5) is Verdict.UNKNOWN and verdict(5_000, 3e6) is Verdict.REFUSED
    assert verdict(5, 2.8e6) is verdict(5, 3e6) is Verdict.REFUSED  # beyond the law, and larger than what is above it
    assert verdict(5, 2e5, 2e8) is Verdict.UNKNOWN and verdict(5, 2e5, 1e8) is Verdict.COMPILES
    assert verdict(1, 0) is Verdict.COMPILES


@given(st.floats(1, 1e4), st.floats(1e5, 1e6), st.floats(0, 1e8), st.lists(st.integers(1, 64), min_size=2, max_size=4))
def test_a_larger_graph_is_refused_where_a_smaller_one_is(
    operators: float, tiles: float, logits: float, sizes: list[int]
) -> None:
    """Of more sequences: the number of operators stays, all else grows."""
    one = Region("it", GraphSize(operators, tiles, logits), tiles / 1000, "product")
    refused = [judge(one.of_sequences(size)).verdict is Verdict.REFUSED for size in sorted(sizes)]
    assert refused == sorted(refused)


def test_regions_of_a_tensor_parallel_block() -> None:
    """tp=4 of Llama-3-8B: between collectives are attention, the MLP, norms, the head."""
    found = {one.name: one.graph for one in regions(LLAMA, TRAINING, TRN2, layout(4))}
    mlp = found["mlp.gate_proj to mlp.down_proj, forward"]
    flops = 3 * 2 * 8192 * 4096 * 14336 / 4
    assert mlp == GraphSize(4, flops / (2 * 128 * 128 * 512), 0.0)
    assert found["mlp.gate_proj to mlp.down_proj, backward"].tiles == 2 * mlp.tiles
    head = found["lm_head, backward"]  # the loss over pieces of the vocabulary communicates
    assert (head.operators, head.logits) == (1, 8192 * 128_256 / 4)
    assert head.tiles == 2 * 2 * 8192 * 4096 * 128_256 / 4 / (2 * 128 * 128 * 512)
    assert found["self_attn.q_proj to self_attn.o_proj, forward"].operators == 7
    ring = regions(LLAMA, TRAINING, TRN2, replace(layout(4), cp=2, dp=8, context_parallel="ring"))
    assert next(one for one in ring if one.name == "self_attn.core_attention, forward").graph.operators == 1
    assert list(found.values()) == sorted(found.values(), key=lambda one: -one.tiles)


def test_without_collectives_a_region_is_a_block() -> None:
    names = [one.name for one in regions(LLAMA, TRAINING, TRN2, layout(1)) if one.name.endswith("forward")]
    assert names == [
        "model.norm to loss, forward",
        "input_layernorm to mlp_residual, forward",
        "model.embed_tokens, forward",
    ]


def test_eager_operators_are_graphs_by_themselves() -> None:
    eager = load_cluster("trn2.48xlarge", 1).under_stack("neuron-eager")
    found = regions(LLAMA, TRAINING, eager, layout(4))
    assert all(one.graph.operators == 1 and " to " not in one.name for one in found)


@pytest.mark.parametrize("size", [1, 4])
def test_regions_add_up_to_the_pass(size: int) -> None:
    """Forward and backward of two blocks and both ends are the tiles of one graph of two blocks without a pipeline."""
    small, of_size = replace(LLAMA, num_hidden_layers=2), replace(layout(4), microbatch_size=size)
    whole = graph_size(small, TRAINING, TRN2, replace(of_size, stage_layers=(2,)))
    found = {one.name: one.graph.tiles for one in regions(LLAMA, TRAINING, TRN2, of_size)}
    head = sum(tiles for name, tiles in found.items() if name.startswith("lm_head"))
    assert whole.tiles == pytest.approx(head + 2 * (sum(found.values()) - head))


def test_a_layout_is_refused_for_its_logits_and_more_tp_is_the_repair() -> None:
    judged = Compiling(Problem(LLAMA, TRAINING, TRN2, "torch"))
    assert judged.refuses(layout(1)) and not judged.refuses(layout(4))
    hardest = worst(judged.judged(layout(1)))
    assert hardest.verdict is Verdict.REFUSED and hardest.because == "above the limit"


def test_the_search_prefers_what_compiles() -> None:
    request = PlanRequest("llama3-8b", "trn2.48xlarge", backend="torch", top=1, loss_chunks=1, pins={"cp": 1})
    plan = plan_for(request)
    note = next(one for one in plan.notes if one.startswith("compile:"))
    assert plan.strategy.tp > 1 and re.search(r"is predicted \d+\.\d % faster than the chosen layout, but ", note)
    assert note.endswith("is expected to be refused; pins take it all the same")
    assert next(one for one in plan.notes if one.startswith("will it compile: unknown. "))
    assert any(one.endswith("more tensor parallelism, or more chunks of logits (--loss-chunks)") for one in plan.notes)
    biased = plan_for(PlanRequest("phi-2", "trn2.48xlarge", seq_len=16384, backend="torch", top=0, pins={"tp": 1}))
    (repair,) = (one for one in biased.notes if one.startswith("if the compiler refuses "))
    assert repair.endswith("more tensor parallelism")  # its logits have a bias, and no chunks
    pinned = plan_for(replace(request, pins={"cp": 1, "tp": 1}))
    assert pinned.strategy.tp == 1 and not any(one.startswith("compile:") for one in pinned.notes)
    assert any(one.startswith("will it compile: refused. ") for one in pinned.notes)


def test_other_stacks_say_nothing_of_regions() -> None:
    plan = plan_for(PlanRequest("llama3-8b", "trn2.48xlarge", backend="nxd", top=0))
    assert not any("will it compile" in one for one in plan.notes)


@pytest.mark.parametrize(
    ("rows", "verdict", "because"),
    [
        (16_384, Verdict.COMPILES, ""),
        (20_480, Verdict.UNKNOWN, "none above 16,384^3 is known to compile"),
        (131_072, Verdict.REFUSED, "larger than 32,768^3, which is refused"),
    ],
)
def test_one_operator_has_a_limit_of_its_own(rows: int, verdict: Verdict, because: str) -> None:
    tiles = rows / 512 * (16_384 / 128) ** 2
    small = GraphSize(1, 10_000, 0)  # the graph itself is no matter
    found = judge(Region("product", small, tiles))
    assert found.verdict is verdict
    assert because in found.because


def test_a_product_s_instructions_lie_between_the_two_public_ones() -> None:
    """The largest product that compiles has 300,000 at most, the smallest refused one 300,000 at least."""
    assert operator_instructions(2.0**19) == (37_500, 300_000)
    assert operator_instructions(2.0**22) == (300_000, 2_400_000)


@pytest.mark.parametrize("stack", ["neuron-compiled", WHOLE_STAGES])
def test_layouts_are_parted_as_the_graphs_of_each_are_judged(stack: str) -> None:
    """What is known of the graphs of one size of microbatches says nothing wrong of others, nor when asked again."""
    problem = Problem(LLAMA, TRAINING, load_cluster("trn2.48xlarge", 1).under_stack(stack), "torch")
    graphs, found = Compiling(problem), set[bool]()
    meshes = legal_layouts(problem, Pins(tp=4, cp=1, zero=1), Tally())
    for mesh in (*meshes, *meshes):
        are_refused = [
            any(judge(one).verdict is Verdict.REFUSED for one in (*head_regions(*asked), *regions(*asked)))
            for asked in ((*problem[:3], draft) for draft in mesh.drafts)
        ]
        together = [*zip(mesh.schedules, are_refused, strict=True)]
        taken, others = graphs.parted(mesh)
        assert taken == [schedule for schedule, is_refused in together if not is_refused]
        assert others == [schedule for schedule, is_refused in together if is_refused]
        found |= {*are_refused}
    assert found == {True, False}


def test_a_plan_names_its_largest_operator_and_the_repair() -> None:
    asked = PlanRequest("llama3-8b", "trn2.48xlarge", backend="torch", top=0, seq_len=2048)
    (note,) = (one for one in plan_for(asked).notes if one.startswith("largest operator: "))
    assert note.endswith("against neuronx-cc's 300 K an operator: compiles")
    long = Compiling(Problem(LLAMA, replace(TRAINING, sequence_length=32_768), TRN2, "torch"))
    notes = compile_notes(long, Timed(1.0, layout(1)), None)
    (note,) = (one for one in notes if one.startswith("largest operator: "))
    assert "lm_head, 2,052,096 matrix tiles, 147 to 1,174 K instructions" in note  # 64 x 1,002 x 32
    assert "an operator: unknown; if the compiler refuses it: more tensor parallelism, or more chunks of" in note
