"""Experts that fewer ranks cut than tp has (etp): what is sent, what is held, what it is priced at."""

import json
import random
from collections import Counter
from dataclasses import replace

import pytest

from autoshard.backends.problem import Problem
from autoshard.cost.estimate import estimate
from autoshard.errors import AutoshardError
from autoshard.graph.count import parameter_elements
from autoshard.graph.partition import RedistributeStep
from autoshard.interop.export import export
from autoshard.layout.sharding import stage_program
from autoshard.layout.strategy import read_strategy
from autoshard.models.registry import load_model
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.planner.search import search
from autoshard.plans.names import layout_name
from autoshard.plans.plan_json import plan_to_json
from autoshard.plans.search_result import Pins
from autoshard.plans.validate import plan_from_dict
from autoshard.runtime.rehearse import local_cluster, rehearse
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision
from tests.multiprocess.plans import FP32, MODELS, plan_of, strategy
from tests.unit.test_grid import priced

MIXTRAL = MODELS["mixtral"]


def program(experts_apart: bool, tp: int = 2):  # type: ignore[no-untyped-def]
    graph = stage_graph(MIXTRAL, dim_sizes(MIXTRAL, 2, 16, tp), (0,), False, False)
    return stage_program(graph, {"tp": tp}, True, experts_apart=experts_apart)


def test_a_rank_holds_whole_experts_and_no_less() -> None:
    """4 experts of 3 matrices over 2 ranks: two whole ones, as many numbers as halves of all four."""
    whole, parts = program(True), program(False)
    weight = "model.layers.0.block_sparse_moe.experts.w1.weight"
    assert whole.states[weight] == ("expert",) and parts.states[weight] == ("ffn",)
    assert parameter_elements(whole) == parameter_elements(parts)


def test_tokens_are_gathered_and_summed_as_with_parts_of_experts() -> None:
    """Only the routers' weights are exchanged besides: each rank takes the columns of its own experts."""

    def sent(experts_apart: bool) -> Counter[str]:
        steps = program(experts_apart).steps
        return Counter(t.forward for s in steps if isinstance(s, RedistributeStep) for t in s.transitions)

    assert sent(True) - sent(False) == {"all_to_all": 1}
    assert set(sent(False) - sent(True)) <= {"all_gather"}


@pytest.mark.parametrize(
    "pins",
    [
        Pins(tp=2, etp=1),
        Pins(tp=2, pp=2, etp=1),
        Pins(tp=2, etp=1, zero=3, dp=4, ep=2),
        Pins(tp=2, dp=4, ep=4, etp=1),
        Pins(tp=2, cp=2, dp=2, etp=1),
        Pins(tp=4, dp=2, ep=4, etp=2),
    ],
)
def test_searched_layouts_are_priced_as_estimated(pins: Pins) -> None:
    model = replace(MIXTRAL, hidden_size=512, vocab_size=4096, intermediate_size=512)
    training = TrainingSpec(256, 32, load_precision("mixed_precision"))
    cluster = local_cluster(8)
    found = search(model, training, cluster, pins, "torch")
    chosen = found.best.strategy
    assert chosen.etp == pins.etp and f"etp={pins.etp}" in layout_name(chosen)
    cost = estimate(model, training, cluster, chosen)
    assert cost.step_time_s == pytest.approx(found.best.estimate.step_time_s, rel=1e-12)
    parts = estimate(model, training, cluster, replace(chosen, ep=chosen.ep * pins.etp // chosen.tp, etp=None))
    # products of whole experts are wider
    assert cost.step_time_s < parts.step_time_s
    assert cost.fullest.total_bytes == pytest.approx(parts.fullest.total_bytes, rel=0.05)


@pytest.mark.parametrize(
    ("model", "instance", "pins"),
    [
        ("mixtral-8x7b", "h100-80gb", Pins(etp=1)),
        ("qwen3-30b-a3b", "trn2.48xlarge", Pins(etp=2)),
        ("deepseek-v2-lite", "h100-80gb", Pins(etp=1, cp=2)),
        ("gpt-oss-20b", "b200-180gb", Pins(etp=2, dp_replicate=2)),
    ],
)
def test_thousands_are_priced_as_one_by_one(model: str, instance: str, pins: Pins) -> None:
    training = TrainingSpec(4096, 64, load_precision("mixed_precision"), expert_imbalance=1.3)
    problem = Problem(load_model(model), training, load_cluster(instance, 2), "torch")
    chunks = [one for one in priced(problem, pins) if any(draft.etp for draft in one.whole.drafts.drafts)]
    choose = random.Random(0)
    for _ in range(40):
        one = choose.choice(chunks)
        row = choose.randrange(len(one.step_time_s))
        expected = estimate(*problem[:3], one.strategy(row))
        assert one.memory_bytes[row] == pytest.approx(expected.fullest.total_bytes, rel=1e-12)
        assert one.exact_s([row])[0] == pytest.approx(expected.step_time_s, rel=1e-12)


def test_the_busiest_of_the_ranks_with_experts_has_more_to_do() -> None:
    training = TrainingSpec(16, 4, FP32, expert_imbalance=1.5)
    apart, parts = strategy(tp=2, ep=2, etp=1), strategy(tp=2)
    assert (training.imbalance(2), training.imbalance(1)) == (1.5, 1.0)
    seconds = [estimate(MIXTRAL, training, local_cluster(2), one).step_time_s for one in (apart, parts)]
    even = estimate(MIXTRAL, replace(training, expert_imbalance=1.0), local_cluster(2), apart).step_time_s
    assert seconds[0] > even


def test_a_plan_says_it_and_reads_it_again() -> None:
    plan = plan_of(MIXTRAL, strategy(tp=2, ep=2, etp=1), 2, FP32)
    assert plan_from_dict(json.loads(plan_to_json(plan))) == plan
    assert rehearse(plan, max_processes=8, vocab_size=256).plan.strategy.etp == 1
    assert "    --expert-tensor-parallel-size 1\n" in export(plan, "megatron").text
    assert '"etp"' not in plan_to_json(plan_of(MIXTRAL, strategy(tp=2), 2, FP32))


def test_another_degree_is_refused() -> None:
    fields = {
        **strategy(tp=4, ep=4, etp=1).__dict__,
        "recompute": ["none"],
        "stage_layers": [4],
        "axis_order": ["pp", "dp", "cp", "tp"],
    }
    for etp, tp in ((4, 4), (3, 4), (1, 1)):
        with pytest.raises(AutoshardError, match=f"etp={etp} must divide tp={tp} and be less, or absent: as tp"):
            read_strategy({**fields, "tp": tp, "etp": etp, "sequence_parallel": False}, "strategy")
    with pytest.raises(AutoshardError, match="ep=2 must be a multiple of tp/etp=4 that divides dp x tp/etp=4: "):
        read_strategy({**fields, "ep": 2}, "strategy")
