"""Experts that fewer ranks cut than tp has (etp): what is sent, what is held, what it is priced at."""

import json
import random
from collections import Counter
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from autoshard.backends.problem import Problem
from autoshard.cost.estimate import estimate
from autoshard.errors import AutoshardError
from autoshard.explanation.describe import describe
from autoshard.files.toml_file import parse_toml
from autoshard.graph.count import parameter_elements
from autoshard.graph.partition import RedistributeStep
from autoshard.interop.export import export
from autoshard.interop.megatron import megatron_layout
from autoshard.interop.torchtitan import torchtitan_layout
from autoshard.layout.mesh import tensor_ranks_apart
from autoshard.layout.sharding import stage_program
from autoshard.layout.strategy import read_strategy
from autoshard.models.registry import load_model
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.planner.planning import plan_for
from autoshard.planner.request import PlanRequest
from autoshard.planner.score import completed
from autoshard.planner.search import search
from autoshard.planner.written import read_written
from autoshard.plans.names import layout_name
from autoshard.plans.plan import Plan
from autoshard.plans.plan_json import plan_to_json
from autoshard.plans.search_result import Pins
from autoshard.plans.validate import plan_from_dict
from autoshard.replanning.edit import edited
from autoshard.runtime.rehearse import local_cluster, rehearse
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import FP32, plan_of, strategy
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
    apart = tensor_ranks_apart(chosen.tp, chosen.etp)
    parts = estimate(model, training, cluster, replace(chosen, ep=chosen.ep // apart, etp=None))
    # products of whole experts are wider
    assert cost.step_time_s < parts.step_time_s
    assert cost.fullest.total_bytes == pytest.approx(parts.fullest.total_bytes, rel=0.05)


@pytest.mark.parametrize(
    ("model", "instance", "pins"),
    [
        ("mixtral-8x7b", "h100-80gb", Pins(tp=4, etp=1)),
        ("qwen3-30b-a3b", "trn2.48xlarge", Pins(tp=4, etp=2)),
        ("deepseek-v2-lite", "h100-80gb", Pins(tp=2, etp=1, cp=2)),
        ("gpt-oss-20b", "b200-180gb", Pins(tp=4, etp=2, dp_replicate=2)),
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


SPREADS = {
    "over tp": {"tp": 4, "pp": 2, "etp": 1, "ep": 4},
    "over tp and replicas": {"tp": 4, "pp": 1, "etp": 1, "ep": 8},
    "parts of them": {"tp": 4, "pp": 1, "etp": 2, "ep": 4},
    "as the rest": {"tp": 4, "pp": 1, "ep": 2},
}


@cache
def spread_plan(name: str) -> Plan:
    pins = {"recompute": "full", "cp": 1, "zero": 3, "schedule": "1f1b", **SPREADS[name]}
    return plan_for(PlanRequest("qwen3-30b-a3b", "h100-80gb", 2, backend="torch", global_batch=256, top=0, pins=pins))


@pytest.mark.parametrize("name", SPREADS)
@pytest.mark.parametrize(
    ("form", "file"), [("torchtitan", "r.py"), ("torchtitan-toml", "r.toml"), ("megatron", "r.sh")]
)
def test_other_frameworks_read_and_write_the_same_layout(
    name: str, form: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = spread_plan(name)
    monkeypatch.chdir(tmp_path)
    written = export(plan, form)
    Path(file).write_text(written.text)
    read = read_written(file, {"instance": plan.cluster.instance, "nodes": 2, "backend": "torch"}).strategy
    if form == "torchtitan-toml" and plan.strategy.etp == 2:
        assert "etp=2: torchtitan has 1 and tp=4, which is written" in written.left_out
        assert (read.etp, read.ep) == (None, 2)
    elif form == "torchtitan" and plan.strategy.etp != 1:
        etp, ep = plan.strategy.etp or plan.strategy.tp, plan.strategy.ep
        assert f"etp={etp}: torchtitan's main branch keeps experts whole where ep={ep} spreads them" in written.left_out
        assert (read.etp, read.ep) == ({"parts of them": 1, "as the rest": 2}[name], ep)
    else:
        assert (read.tp, read.ep, read.etp, read.dp) == tuple(
            getattr(plan.strategy, field) for field in ("tp", "ep", "etp", "dp")
        )


def test_torchtitans_main_branch_has_no_ranks_that_cut_experts() -> None:
    """Releases until 0.2.2 have the field; a slots dataclass without it takes no such attribute."""
    for name in SPREADS:
        assert "expert_tensor_parallel_degree" not in export(spread_plan(name), "torchtitan").text
        assert "expert_tensor_parallel_degree = " in export(spread_plan(name), "torchtitan-toml").text
    found = export(spread_plan("as the rest"), "torchtitan")
    assert "    config.parallelism.expert_parallel_degree = 2\n" in found.text
    assert "etp=4: torchtitan's main branch keeps experts whole where ep=2 spreads them" in found.left_out
    for name, form in (("as the rest", "torchtitan-toml"), ("over tp", "torchtitan")):
        assert not any(one.startswith("etp=") for one in export(spread_plan(name), form).left_out)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--tensor-model-parallel-size 4 --expert-model-parallel-size 8 --expert-tensor-parallel-size 1", (8, 1)),
        ("--tensor-model-parallel-size 4 --expert-model-parallel-size 4 --expert-tensor-parallel-size 2", (4, 2)),
        ("--tensor-model-parallel-size 4 --expert-model-parallel-size 2 --expert-tensor-parallel-size 4", (2, None)),
        ("--tensor-model-parallel-size 4 --expert-model-parallel-size 2", (2, None)),
    ],
)
def test_megatrons_degrees_are_ours(arguments: str, expected: tuple[int, int | None]) -> None:
    written = megatron_layout(arguments)
    assert (written.options["ep"], written.options.get("etp")) == expected
    assert not any("expert-tensor" in text for text in (*written.warnings, *written.left_out, *written.not_priced))


def test_ranks_of_megatron_with_the_same_experts_and_tokens_of_one_sequence_have_no_price() -> None:
    degrees = "--tensor-model-parallel-size 4 --expert-model-parallel-size 2 --expert-tensor-parallel-size 1"
    written = megatron_layout(degrees)
    assert "etp" not in written.options
    assert written.warnings == ("--expert-tensor-parallel-size 1: experts are priced with tp=4, as the rest",)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("expert_parallel_degree = 8\n", (8, 1)),
        ("expert_parallel_degree = 8\nexpert_tensor_parallel_degree = 4\n", (8, None)),
        ("expert_parallel_degree = 2\n", (2, 2)),
        ("expert_parallel_degree = 6\n", (6, 2)),
        ("expert_parallel_degree = 3\n", (3, None)),
        ("expert_parallel_degree = 4\ncontext_parallel_degree = 2\n", (4, 2)),
        ("", (1, None)),
    ],
)
def test_torchtitans_default_is_whole_experts(more: str, expected: tuple[int, int | None]) -> None:
    options = torchtitan_layout(parse_toml(f"[parallelism]\ntensor_parallel_degree = 4\n{more}", "it")).options
    assert (options["ep"], options.get("etp")) == expected


def test_whole_experts_on_fewer_ranks_than_tp_has_are_said_to_be_priced_in_parts() -> None:
    """32 of 128 experts on each of 4 ranks, or halves of 64 on each of 8: an eighth of the weights either way."""

    def warnings(more: str) -> tuple[str, ...]:
        text = f"[parallelism]\ntensor_parallel_degree = 8\n{more}[activation_checkpoint]\nmode = 'full'\n"
        return torchtitan_layout(parse_toml(text, "it")).warnings

    whole = "parallelism.expert_parallel_degree=4: torchtitan keeps experts whole"
    assert warnings("expert_parallel_degree = 4\n") == (f"{whole}; priced with each cut over 2 ranks of tp=8",)
    assert warnings("expert_parallel_degree = 8\n") == ()
    assert warnings("expert_parallel_degree = 4\nexpert_tensor_parallel_degree = 8\n") == ()


def test_torchtitans_experts_lie_within_the_ranks_that_share_shards() -> None:
    """One rank to shard over leaves those of tp, with nothing sharded; copies of the model share no experts."""

    def read(more: str) -> tuple[int, int]:
        text = f"[parallelism]\ndata_parallel_replicate_degree = 8\ntensor_parallel_degree = 2\n{more}"
        found = torchtitan_layout(parse_toml(text, "it"))
        return found.options["ep"], found.fields["zero"]

    assert read("expert_parallel_degree = 2\ndata_parallel_shard_degree = 1\n") == (2, 0)
    assert read("expert_parallel_degree = 8\ndata_parallel_shard_degree = 4\n") == (8, 3)
    shards, cp, tp = "data_parallel_shard_degree=1", "context_parallel_degree=1", "tensor_parallel_degree=2"
    for more, within in (("", f"{shards} x {cp} x {tp}"), ("expert_tensor_parallel_degree = 2\n", f"{shards} x {cp}")):
        with pytest.raises(AutoshardError) as error:
            read(f"expert_parallel_degree = 4\ndata_parallel_shard_degree = 1\n{more}")
        assert str(error.value) == f"parallelism.expert_parallel_degree=4 must divide {within}"


def test_torchtitan_cuts_experts_over_all_or_none() -> None:
    text = "[parallelism]\ntensor_parallel_degree = 4\nexpert_parallel_degree = 8\nexpert_tensor_parallel_degree = 2\n"
    message = r"^parallelism.expert_tensor_parallel_degree=2 must be 1 or tensor_parallel_degree=4$"
    with pytest.raises(AutoshardError, match=message):
        torchtitan_layout(parse_toml(text, "it"))


def test_parts_of_tp_are_rehearsed_apart() -> None:
    shrunk = rehearse(spread_plan("parts of them"), max_processes=8, vocab_size=256)
    chosen = shrunk.plan.strategy
    assert (chosen.tp, chosen.etp, chosen.ep, chosen.dp, shrunk.left_out) == (4, 2, 4, 2, ("dp",))
    shrunk = rehearse(spread_plan("parts of them"), max_processes=4, vocab_size=256)
    assert (shrunk.plan.strategy.tp, shrunk.plan.strategy.etp, shrunk.plan.strategy.ep) == (2, 1, 4)


def test_a_page_says_where_experts_are() -> None:
    page = "; ".join(text for _, text in describe(spread_plan("over tp and replicas")).facts)
    assert "16 on each of ep=8 ranks (4 of tp x 2 replicas) in a node, whole (etp=1); slots for " in page
    page = "; ".join(text for _, text in describe(spread_plan("parts of them")).facts)
    assert "32 on each of ep=4 ranks (2 of tp x 2 replicas) in a node, each cut over 2 ranks (etp=2); slots" in page


@pytest.mark.parametrize(
    ("instance", "nodes", "where"),
    [("gb200-186gb", 8, "over the NVLink of the rack"), ("h100-80gb", 4, "over the network")],
)
def test_a_page_says_which_links_a_group_of_experts_spans(instance: str, nodes: int, where: str) -> None:
    pins = {"tp": 4, "pp": 1, "cp": 1, "ep": 32, "etp": 1, "recompute": "full", "zero": 3, "micro_batch": 1}
    plan = plan_for(PlanRequest("qwen3-30b-a3b", instance, nodes, backend="torch", top=0, pins=pins))
    page = "; ".join(text for _, text in describe(plan).facts)
    assert f"4 on each of ep=32 ranks (4 of tp x 8 replicas) {where}, whole (etp=1); slots for" in page


def test_the_degree_can_be_edited() -> None:
    plan = spread_plan("as the rest")
    found = edited(plan, ["strategy.etp=1", "strategy.ep=8"]).plan
    assert (found.strategy.ep, found.strategy.etp) == (8, 1)


def test_a_search_that_is_asked_tries_every_part_of_tp() -> None:
    training = TrainingSpec(4096, 64, load_precision("mixed_precision"))
    given = (load_model("mixtral-8x7b"), training, load_cluster("h100-80gb", 2))
    found = {etp: search(*given, Pins(tp=4, pp=1, cp=1, etp=etp), "torch").best for etp in (1, 2, 4)}
    best = min(found, key=lambda etp: found[etp].estimate.step_time_s)
    searched = search(*given, Pins(tp=4, pp=1, cp=1, searches_etp=True), "torch")
    assert searched.best == found[best] and best != 4
    assert search(*given, Pins(tp=4, pp=1, cp=1), "torch").best == found[4]


def test_all_other_degrees_may_be_pinned_where_etp_is_searched() -> None:
    """Experts over 16 of 4 replicas: these are 16 with the ranks of tp, if each of those has experts of its own."""
    training = TrainingSpec(4096, 64, load_precision("mixed_precision"))
    given = (load_model("qwen3-30b-a3b"), training, load_cluster("h100-80gb", 2))
    pins = Pins(tp=4, pp=1, dp=4, cp=1, ep=16)
    assert search(*given, replace(pins, searches_etp=True), "torch").best.strategy.etp == 1
    with pytest.raises(AutoshardError, match=r"^ep=16 must divide dp=4: "):
        search(*given, pins, "torch")


def test_a_pin_of_etp_is_kept_where_tp_is_no_more(tmp_path: Path) -> None:
    request = PlanRequest("mixtral-8x7b", "h100-80gb", 4, backend="torch", pins={"etp": 1, "tp": 1}, top=0)
    plan = plan_for(request)
    assert plan.strategy.etp is None
    assert plan_from_dict(json.loads(plan_to_json(plan))) == plan


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"tp": 4, "etp": 1}, (4, 1)),
        ({"tp": 4, "etp": 2, "cp": 2}, (4, 2)),
        ({"tp": 4, "etp": 4}, (1, None)),
        ({"tp": 4, "etp": 1, "ep": 8}, (8, 1)),
    ],
)
def test_a_layout_that_names_etp_alone_has_the_least_ep(
    given: dict[str, int], expected: tuple[int, int | None]
) -> None:
    training = TrainingSpec(4096, 64, load_precision("mixed_precision"))
    problem = Problem(load_model("mixtral-8x7b"), training, load_cluster("h100-80gb", 2), "torch")
    found = completed(problem, given)
    assert (found.ep, found.etp) == expected


def test_only_the_exact_search_tries_etp() -> None:
    request = PlanRequest("mixtral-8x7b", "h100-80gb", 1, backend="torch", search="random", searches_etp=True)
    with pytest.raises(AutoshardError, match=r"^etp=auto with search=random: only the exact search tries it; give"):
        plan_for(request)


@pytest.mark.parametrize("name", ["over tp and replicas", "parts of them"])
def test_a_plan_has_the_schemas_form(name: str) -> None:
    schema = json.loads(files("autoshard.plans").joinpath("plan.schema.json").read_text())
    written = json.loads(plan_to_json(spread_plan(name)))
    Draft202012Validator(schema).validate(written)
    assert {axis["name"] for axis in written["mesh"]["axes"]} >= {"tp", "ep"}


def test_a_model_without_experts_has_none_to_cut() -> None:
    with pytest.raises(AutoshardError, match=r"^etp=1 has no experts to place: llama3-8b has none; leave it out$"):
        plan_for(PlanRequest("llama3-8b", "h100-80gb", 1, backend="torch", pins={"etp": 1}))


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
