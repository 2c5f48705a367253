"""Hybrid sharding (HSDP): ZeRO shards inside groups of replicas, which repeat the shards."""

import json
import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from autoshard.allocations.changes import changes
from autoshard.backends.rules import Draft, Problem
from autoshard.cost.collectives import GroupShape, collective_law
from autoshard.cost.estimate import estimate
from autoshard.cost.memory import BUCKET_BYTES
from autoshard.errors import AutoshardError
from autoshard.explanation.describe import describe
from autoshard.files.codec import to_json
from autoshard.graph.count import Collective, backward_collectives, forward_collectives
from autoshard.interface.exchange import import_plan
from autoshard.interop.export import export
from autoshard.layout.strategy import Strategy, read_strategy
from autoshard.models.registry import load_model
from autoshard.models.stage import parameter_count
from autoshard.planner.hybrid import replica_degrees
from autoshard.planner.planning import plan_for
from autoshard.planner.request import PlanRequest
from autoshard.planner.written import read_written
from autoshard.plans.names import layout_name, sharding_name
from autoshard.plans.plan import Plan
from autoshard.plans.plan_json import plan_to_json
from autoshard.plans.search_result import Pins
from autoshard.plans.step_collectives import step_collectives
from autoshard.plans.validate import plan_from_dict
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import DTYPE_BYTES, TrainingSpec, load_precision
from autoshard.units import format_seconds
from tests.cases import some
from tests.multiprocess.models import LLAMA
from tests.multiprocess.plans import FP32, plan_of, strategy
from tests.unit.test_grid import priced


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dp_replicate": 0}, "dp_replicate=0 must be a whole number of at least 1"),
        ({"dp_replicate": 3}, "dp_replicate=3 must divide dp=8: ZeRO shards inside each of so many groups of replicas"),
        ({"dp_replicate": 8}, "dp_replicate=8 leaves no ranks of dp=8 to shard over; use zero=0 or fewer replicas"),
        ({"dp_replicate": 4, "ep": 4}, "ep=4 must lie inside the 2 ranks that shard, which dp_replicate=4 leaves"),
    ],
)
def test_replicas_that_cannot_hold_all_shards_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(AutoshardError) as error:
        replace(strategy(dp=8, zero=3), **changes)
    assert str(error.value) == message


def test_a_strategy_without_replicas_of_shards_is_written_as_before() -> None:
    assert "dp_replicate" not in to_json(strategy(dp=8))
    hybrid = strategy(dp=8, zero=3, dp_replicate=2)
    assert hybrid.dp_shard == 4
    written = to_json(hybrid)
    assert written["dp_replicate"] == 2
    assert read_strategy(written, "strategy") == hybrid
    assert read_strategy(to_json(strategy(dp=8)), "strategy").dp_replicate == 1


@pytest.mark.parametrize("documents", [False, True])
def test_a_microbatch_moves_nothing_between_replicas_of_the_shards(documents: bool) -> None:
    hybrid = plan_of(LLAMA, strategy(tp=2, pp=2, dp=4, zero=3, dp_replicate=2), 3, FP32)
    for stage in hybrid.stages:
        program = hybrid.program(stage.layers, stage.has_embedding, stage.has_head, documents)
        issued = {axes for step in program.steps for _, axes, _ in forward_collectives(program, step)}
        issued |= {axes for step in program.steps for _, axes, _ in backward_collectives(program, step)}
        assert issued == {("tp",)}


def _over_data(chosen: Strategy) -> dict[Collective, int]:
    """Collectives of a step over axes of the data, by how often they are issued."""
    collectives = step_collectives(plan_of(LLAMA, chosen, 3, FP32), 0)
    return {one: count for one, count in collectives.items() if set(one.axes) & {"dp", "dp_replicate"}}


def test_shards_are_summed_over_their_replicas_once_a_step() -> None:
    """Of 4 blocks by hand: q 64 x 64, k and v 64 x 32, o 64 x 64, three of 64 x 96, two norms of 64; embedding and head
    96 x 64 each, a last norm."""
    block, table, norms = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96, 96 * 64, 9 * 64
    of_hybrid = _over_data(strategy(dp=8, zero=3, dp_replicate=2))
    sums = {one.bytes: count for one, count in of_hybrid.items() if one.axes == ("dp_replicate",)}
    assert sums == {block // 4 * 4: 4, table // 4 * 4: 2, norms // 4 * 4: 1}
    assert {(one.phase, one.kind) for one in of_hybrid if one.axes == ("dp_replicate",)} == {("sync", "all_reduce")}
    inside = {one: count for one, count in of_hybrid.items() if one.axes == ("dp",)}
    assert inside == _over_data(strategy(dp=4, zero=3))  # as if the other group of replicas were not there


@pytest.mark.parametrize("zero", [1, 2])
def test_the_earlier_stages_of_zero_sum_shards_alike(zero: int) -> None:
    hybrid = _over_data(strategy(dp=8, zero=zero, dp_replicate=2))
    summed = sum(one.bytes * count for one, count in hybrid.items() if one.axes == ("dp_replicate",))
    assert summed == 4 * (4 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96) + 2 * 96 * 64 + 9 * 64) // 4
    inside = {one: count for one, count in hybrid.items() if one.axes == ("dp",)}
    assert inside == _over_data(strategy(dp=4, zero=zero))


HYBRIDS: dict[str, tuple[str, dict[str, Any]]] = {
    "FSDP in groups": ("h100-80gb", {"tp": 2, "pp": 1, "cp": 1, "zero": 3, "dp_replicate": 4}),
    "ZeRO-1 and a pipeline": ("h100-80gb", {"tp": 2, "pp": 2, "zero": 1, "cp": 1, "dp_replicate": 2}),
    "shards over cp alone": ("h100-80gb", {"tp": 1, "pp": 1, "cp": 4, "dp": 8, "zero": 3, "dp_replicate": 8}),
    "native Neuron": ("trn2.48xlarge", {"tp": 4, "pp": 1, "cp": 1, "zero": 3, "dp_replicate": 4}),
}


@cache
def hybrid(name: str) -> Plan:
    instance, pins = HYBRIDS[name]
    pins = {"recompute": "full", "context_parallel": "all_gather" if pins["cp"] > 1 else None, **pins}
    pins = {name: value for name, value in pins.items() if value is not None}
    return plan_for(PlanRequest("llama3-8b", instance, 4, backend="torch", global_batch=256, top=0, pins=pins))


@pytest.mark.parametrize("name", HYBRIDS)
@pytest.mark.parametrize(
    ("form", "file"), [("torchtitan", "r.py"), ("torchtitan-toml", "r.toml"), ("megatron", "r.sh")]
)
def test_other_frameworks_read_and_write_the_same_layout(
    name: str, form: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = hybrid(name)
    monkeypatch.chdir(tmp_path)
    Path(file).write_text(export(plan, form).text)
    read = read_written(file, {"instance": plan.cluster.instance, "nodes": 4, "backend": "torch"})
    assert read.strategy == plan.strategy
    assert not any("replicate" in note or "HSDP" in note for note in read.notes)


def test_torchtitan_has_the_degrees_by_its_names() -> None:
    text = export(hybrid("FSDP in groups"), "torchtitan-toml").text
    assert "\ndata_parallel_replicate_degree = 4\ndata_parallel_shard_degree = 4\n" in text
    assert "def llama3_8b_tp4_fsdp16_replicas4_fac()" in export(hybrid("native Neuron"), "torchtitan").text
    assert "--num-distributed-optimizer-instances 4\n" in export(hybrid("FSDP in groups"), "megatron").text


def test_replicas_that_torchtitan_would_refuse_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text('[model]\nname = "llama3"\nflavor = "8B"\n[parallelism]\ndata_parallel_replicate_degree = 3\n')
    with pytest.raises(AutoshardError) as error:
        read_written(str(file), {"instance": "h100-80gb"})
    assert str(error.value).endswith(
        "dp_replicate=3 must divide dp=8: ZeRO shards inside each of so many groups of replicas"
    )


def test_names_on_a_page() -> None:
    names = {strategy(dp=8, zero=zero): name for zero, name in enumerate(("DDP", "ZeRO-1", "ZeRO-2", "FSDP (ZeRO-3)"))}
    names[strategy(dp=32, zero=3, dp_replicate=4)] = "HSDP: shards over 8, 4 replicas"
    names[strategy(dp=4, cp=2, zero=3, dp_replicate=4)] = "HSDP: shards over 2, 4 replicas"
    names[strategy(dp=32, zero=1, dp_replicate=4)] = "HSDP with ZeRO-1: shards over 8, 4 replicas"
    assert {one: sharding_name(one) for one in names} == names
    plan = hybrid("FSDP in groups")
    assert "dp_replicate=4" in layout_name(plan.strategy).split()
    optimizer = dict(describe(plan).facts)["optimizer"]
    assert optimizer.startswith(
        "AdamW, HSDP: shards over 4, 4 replicas; state, gradients and weights sharded over dp; "
    )


def test_a_search_that_is_asked_tries_shards_that_fill_a_node_or_a_domain() -> None:
    """On nodes of 8 devices: dp=16 with tp=2 is 4 groups of a node each; dp=4 with tp=8 would leave one rank."""
    training = TrainingSpec(8192, 256, load_precision("mixed_precision"))
    problem = Problem(load_model("llama3-8b"), training, load_cluster("h100-80gb", 4), "torch")
    searched = Pins(searches_replicas=True)
    mesh = Draft(2, 1, 16, 1, 1)
    assert replica_degrees(problem, searched, mesh, 3) == (1, 4)
    assert replica_degrees(problem, searched, mesh, 1) == replica_degrees(problem, Pins(), mesh, 3) == (1,)
    assert replica_degrees(problem, searched, Draft(8, 1, 4, 1, 1), 3) == (1,)  # one rank would hold all
    assert replica_degrees(problem, searched, Draft(1, 2, 16, 1, 1), 3) == (1, 2)
    assert replica_degrees(
        problem._replace(cluster=load_cluster("h100-80gb", 1)), searched, Draft(2, 1, 4, 1, 1), 3
    ) == (1,)
    domains = problem._replace(cluster=load_cluster("gb200-186gb", 36))  # 18 nodes of 4 are one rack
    assert domains.cluster.nodes_per_domain * domains.cluster.devices_per_node == 72
    assert replica_degrees(domains, searched, Draft(1, 1, 144, 1, 1), 3) == (1, 2, 36)


def test_beside_fsdp_stands_what_hsdp_would_give() -> None:
    request = PlanRequest("llama3-8b", "h100-80gb", 4, backend="torch", global_batch=256, top=0)
    pins = {"tp": 1, "pp": 1, "cp": 1, "zero": 3}
    (note,) = (one for one in plan_for(replace(request, pins=pins)).notes if "HSDP" in one)
    other = plan_for(replace(request, pins={**pins, "dp_replicate": 4}))
    assert note.startswith(
        "HSDP: shards over 8, 4 replicas, the same layout otherwise: predicted "
        f"{format_seconds(other.estimate.step_time_s)} a step, "
    )
    assert note.endswith("; --dp-replicate 4 takes it, --dp-replicate auto searches it")
    assert not any("HSDP" in one for one in other.notes)
    found = plan_for(replace(request, pins=pins, searches_replicas=True))
    assert found.strategy == other.strategy and found.pins.fixed == {"tp": 1, "pp": 1, "cp": 1, "zero": 3}
    assert read_back(found) == found


def read_back(plan: Plan) -> Plan:
    return plan_from_dict(json.loads(plan_to_json(plan)))


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_a_group_costs_as_if_it_were_alone_but_for_one_sum_of_its_shards(zero: int) -> None:
    """4 nodes, each a group that shards: against one node with a quarter of the batch."""
    model, precision = load_model("llama3-8b"), load_precision("mixed_precision")
    clusters = {nodes: load_cluster("h100-80gb", nodes) for nodes in (1, 4)}
    found = {
        nodes: estimate(
            model,
            TrainingSpec(8192, 16 * nodes, precision),
            clusters[nodes],
            replace(strategy(dp=8 * nodes, zero=zero, layers=(32,), recompute="full"), dp_replicate=nodes),
        )
        for nodes in (1, 4)
    }
    assert found[4].fullest == found[1].fullest
    shard = parameter_count(model) / 8 * DTYPE_BYTES[precision.gradient_reduce_dtype]
    group = GroupShape(size=4, ranks_per_node=1, nodes=4, stride=8, span=1, senders_per_node=8)
    law = collective_law("all_reduce", group, clusters[4])
    buckets, rest = divmod(shard, BUCKET_BYTES)
    sums_s = buckets * law.time_s(BUCKET_BYTES) + law.time_s(rest)
    assert found[4].step_time_s - found[1].step_time_s == pytest.approx(sums_s, rel=1e-6)
    terms = [{term.name: term.value for term in one.time_terms} for one in (found[1], found[4])]
    differing = {name for name in terms[1] if terms[0].get(name) != pytest.approx(terms[1][name], rel=1e-9)}
    assert differing == {"gradient reduce-scatter"}


@pytest.mark.parametrize(
    ("model", "instance", "pins"),
    some(
        [
            ("llama3-8b", "trn2.48xlarge", Pins(dp_replicate=2)),
            ("mixtral-8x7b", "h100-80gb", Pins(searches_replicas=True)),
            ("llama3-8b", "trn2.48xlarge", Pins(searches_replicas=True)),
            ("mixtral-8x7b", "h100-80gb", Pins(dp_replicate=2)),
        ],
        2,
    ),
)
def test_thousands_are_priced_as_one_by_one(model: str, instance: str, pins: Pins) -> None:
    training = TrainingSpec(4096, 64, load_precision("mixed_precision"))
    problem = Problem(load_model(model), training, load_cluster(instance, 2), "torch")
    chunks = [one for one in priced(problem, pins) if any(draft.dp_replicate > 1 for draft in one.whole.drafts.drafts)]
    choose = random.Random(0)
    for _ in range(40):
        one = choose.choice(chunks)
        row = choose.randrange(len(one.step_time_s))
        layout = one.strategy(row)
        expected = estimate(*problem[:3], layout)
        assert one.memory_bytes[row] == pytest.approx(expected.fullest.total_bytes, rel=1e-12)
        assert one.exact_s([row])[0] == pytest.approx(expected.step_time_s, rel=1e-12)


def test_a_run_short_of_memory_may_shard_over_more_ranks() -> None:
    found = changes(hybrid("FSDP in groups"), 0)
    assert {"dp_replicate=1", "dp_replicate=2"} <= {one.words for one in found}
    for name in HYBRIDS:  # no layout of those is impossible
        assert changes(hybrid(name), 0)


def test_a_plan_that_is_edited_stays_a_plan() -> None:
    plan = hybrid("FSDP in groups")
    mutable = json.loads(plan_to_json(plan))
    mutable["strategy"]["dp_replicate"] = 2
    with pytest.raises(AutoshardError, match="dp_replicate is 4, but strategy"):
        plan_from_dict(mutable)
    mutable["inputs"]["pins"].pop("dp_replicate")
    with pytest.raises(AutoshardError) as error:
        plan_from_dict(mutable)
    assert str(error.value) == "mesh.axes[0].size is 4, but the degrees in strategy give 2"
    mutable["strategy"]["dp_replicate"] = 3
    with pytest.raises(AutoshardError) as error:
        plan_from_dict(mutable)
    assert str(error.value) == (
        "strategy: dp_replicate=3 must divide dp=16: ZeRO shards inside each of so many groups of replicas"
    )


@pytest.mark.parametrize(("shards", "replicas"), [(8, 1), (4, 2), (-1, 2), (1, 8)])
def test_torchtitans_degrees_are_held_against_the_machine(shards: int, replicas: int, tmp_path: Path) -> None:
    degrees = f"data_parallel_shard_degree = {shards}\ndata_parallel_replicate_degree = {replicas}\n"
    file = tmp_path / "r.toml"
    file.write_text(f'[model]\nname = "llama3"\nflavor = "8B"\n[parallelism]\n{degrees}')
    found = import_plan(file, instance="h100-80gb").plan.strategy
    assert (found.dp, found.zero) == (8, 0 if shards == 1 else 3)
    if shards != -1:
        with pytest.raises(AutoshardError) as error:
            import_plan(file, instance="h100-80gb", nodes=4)
        assert str(error.value) == "tp=1 x pp=1 x dp=8 x cp=1 is 8 devices; 4 x h100-80gb has 32"


@pytest.mark.parametrize(
    ("degrees", "read"),
    [
        ("data_parallel_replicate_degree = 2\ntensor_parallel_degree = 4", (2, 0, 1)),
        ("data_parallel_replicate_degree = 2\ntensor_parallel_degree = 2", (4, 3, 2)),
        ("data_parallel_replicate_degree = 2\ntensor_parallel_degree = 2\ncontext_parallel_degree = 2", (2, 3, 2)),
    ],
)
def test_replicas_of_one_rank_are_ddp(degrees: str, read: tuple[int, int, int], tmp_path: Path) -> None:
    """torchtitan shards over the ranks that replicas leave, those of cp too; one is none to shard over."""
    file = tmp_path / "r.toml"
    file.write_text(f'[model]\nname = "llama3"\nflavor = "8B"\n[parallelism]\n{degrees}\n')
    found = read_written(str(file), {"instance": "h100-80gb"})
    assert (found.strategy.dp, found.strategy.zero, found.strategy.dp_replicate) == read
    said = "2 replicas of dp=2 leave one rank to shard over, which shards nothing: read as DDP (zero=0)"
    assert (said in found.notes, any("ZeRO-3" in note for note in found.notes)) == (read[1] == 0, read[1] == 3)


def test_replicas_that_no_layout_has_are_told_what_would_do() -> None:
    with pytest.raises(AutoshardError) as error:
        plan_for(PlanRequest("llama3-8b", "h100-80gb", 4, backend="torch", pins={"dp_replicate": 3}))
    assert str(error.value) == (
        "no layout of llama3-8b on 4 x h100-80gb with dp_replicate=3 is legal: dp_replicate=3 must divide the 32 "
        "devices; degrees that fit here: 1, 2, 4, 8, 16, 32"
    )
