"""Software stacks of native PyTorch on Neuron: constants, fallbacks, what a plan says of them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import autoshard
from autoshard.backends.problem import Problem
from autoshard.backends.registry import as_run_by
from autoshard.backends.rules import warnings
from autoshard.cost.collectives import GroupShape, collective_law
from autoshard.cost.estimate import estimate
from autoshard.errors import AutoshardError
from autoshard.layout.strategy import Strategy, even_stage_layers
from autoshard.models.registry import load_model
from autoshard.planner.compiling import REGIONS_STAY, launches_at_most_s, whole_stages
from autoshard.planner.planning import plan_for
from autoshard.planner.request import PlanRequest
from autoshard.plans.plan import Plan
from autoshard.plans.plan_json import plan_to_json
from autoshard.plans.search_result import Candidate, Pins
from autoshard.plans.validate import plan_from_dict
from autoshard.replanning.edit import edited
from autoshard.schedules import usual_schedule
from autoshard.spec.cluster import Cluster, load_cluster
from autoshard.spec.stack import FRAGMENTATION, STACKS
from autoshard.spec.training import TrainingSpec, load_precision

TRN2 = load_cluster("trn2.48xlarge", 1)
PAIR = GroupShape(size=2, ranks_per_node=2, nodes=1, stride=4, span=5, senders_per_node=4)


def request(**changes: object) -> PlanRequest:
    asked = {"model": "llama3-8b", "instance": "trn2.48xlarge", "backend": "torch", "top": 0, **changes}
    return PlanRequest(**asked)  # type: ignore[arg-type]


def test_constants_of_each_stack() -> None:
    compiled, stages, eager = (TRN2.under_stack(name) for name in STACKS)
    assert compiled.collective_launch_s == pytest.approx(TRN2.collective_launch_s + 1e-4)
    assert compiled.device.operator_overhead_s == TRN2.device.operator_overhead_s
    assert stages.device.pass_launch_s == TRN2.device.pass_launch_s
    assert stages.collective_launch_s == eager.collective_launch_s == TRN2.collective_launch_s
    assert (eager.device.operator_overhead_s, eager.device.pass_launch_s) == (1.9e-4, 0.0)
    assert 37 * eager.device.operator_overhead_s == pytest.approx(7e-3, rel=0.01)
    for one in (compiled, stages, eager):
        margin = one.device.reserved_memory_bytes - TRN2.device.reserved_memory_bytes
        assert margin == pytest.approx(FRAGMENTATION * 25_769_803_776)
        assert pytest.approx(1 - 23.5 / 25.77, abs=5e-4) == FRAGMENTATION


def test_one_graph_a_stage_is_planned_and_judged_as_such() -> None:
    plan = plan_for(request(stack="neuron-stages", seq_len=2048))
    assert plan.cluster.compiles_stages and plan.strategy.uniform_recompute == "none" and plan.strategy.zero < 2
    note = next(one for one in plan.notes if one.startswith("will it compile"))
    assert "A graph is a pass through a stage; the largest: a stage of " in note
    assert plan_from_dict(json.loads(plan_to_json(plan))) == plan
    assert plan.cluster.collective_launch_s == TRN2.collective_launch_s


def test_a_cluster_with_a_stack_is_planned_for_the_backend_that_runs_on_it() -> None:
    """NxD, the usual one of trn2, was priced with the constants of native PyTorch."""
    small = {"model": "llama3.2-1b", "seq_len": 256, "global_batch": 64, "pins": {"tp": 4, "zero": 1}}
    native = TRN2.under_stack("neuron-compiled")
    assert plan_for(request(**small, cluster=native, backend="auto")).backend == "torch"
    with pytest.raises(AutoshardError, match=r"^backend=nxd on a cluster with the constants of stack=neuron-compiled"):
        plan_for(request(**small, cluster=native, backend="nxd"))
    for backend, other, constants in (("torch", "nxd", "neuron-compiled"), ("nxd", "torch", "compiled passes")):
        plan = plan_for(request(**small, backend=backend, stack="neuron-compiled" if backend == "torch" else "auto"))
        with pytest.raises(AutoshardError) as raised:
            edited(plan, [f"backend={other}"])
        assert str(raised.value) == (
            f"--edit backend={other}: the constants in the plan are those of {constants}; make a plan of another "
            "backend with autoshard plan --backend"
        )
        with pytest.raises(AutoshardError) as raised:
            edited(plan, ["inputs.cluster.stack=neuron-eager"])
        assert str(raised.value) == (
            f"--edit inputs.cluster.stack: the constants in the plan are those of {constants}; make a plan of another "
            "stack with autoshard plan --stack"
        )


SMALL = {"model": "llama3.2-1b", "instance": "trn2.3xlarge", "global_batch": 64}


def way_of(plan: Plan) -> str:
    (note,) = (one for one in plan.notes if one.startswith(("ways of compiling", "whole stages as graphs")))
    return note


def test_whole_stages_are_chosen_where_starting_regions_takes_more_than_stacks_differ_by() -> None:
    """One sequence of 256 tokens in each microbatch and tp=4: 16 blocks start regions 64 times."""
    pinned = {"seq_len": 256, "pins": {"tp": 4, "microbatch_size": 1}, **SMALL}
    free, stages, regions = (
        plan_for(request(stack=stack, **pinned)) for stack in ("auto", "neuron-stages", "neuron-compiled")
    )
    assert free.cluster.stack == "neuron-stages" and free.strategy == stages.strategy
    saved = 1 - stages.estimate.step_time_s / regions.estimate.step_time_s
    assert saved > REGIONS_STAY
    assert f"whole stages are chosen for {saved:.1%} less, by constants of both that are guesses" in way_of(free)
    assert plan_from_dict(json.loads(plan_to_json(free))) == free


def test_a_toss_up_between_the_ways_of_compiling_stays_with_regions() -> None:
    plan = plan_for(request(seq_len=1024, pins={"tp": 4, "zero": 1}, **SMALL))
    stages = plan_for(request(seq_len=1024, pins={"tp": 4, "zero": 1}, stack="neuron-stages", **SMALL))
    assert stages.estimate.step_time_s < plan.estimate.step_time_s
    assert plan.cluster.stack == "neuron-compiled" and way_of(plan).endswith("a toss-up, regions stay")


def test_ways_of_compiling_that_are_no_choice_say_why() -> None:
    asked = request(nodes=2, model="mixtral-8x7b")
    assert way_of(plan_for(asked)) == (
        "whole stages as graphs, --stack neuron-stages, are no choice here: mixtral-8x7b has experts: "
        "stack=neuron-stages is of dense models without; use stack=neuron-compiled"
    )
    alone = request(seq_len=2048, pins={"tp": 1, "pp": 1}, **SMALL)
    assert way_of(plan_for(alone)).endswith("whole stages as graphs are not looked at")
    named = plan_for(request(stack="neuron-compiled", seq_len=256, pins={"tp": 4, "microbatch_size": 1}, **SMALL))
    assert named.cluster.stack == "neuron-compiled" and not any("ways of compiling" in one for one in named.notes)


def test_whole_stages_that_are_less_sure_to_fit_or_to_compile_are_not_chosen() -> None:
    found = {
        stack: plan_for(request(stack=stack, seq_len=256, pins={"tp": 4, "microbatch_size": 1}, **SMALL))
        for stack in ("neuron-compiled", "neuron-stages")
    }
    regions, stages = (Problem(one.model, one.training, one.cluster, one.backend) for one in found.values())
    best, other = (Candidate(one.strategy, one.estimate) for one in found.values())
    assert whole_stages(regions, best, stages, other, 0.9)[0]
    unsure = replace(other, estimate=replace(other.estimate, fits_probability=0.6))
    is_chosen, note = whole_stages(regions, best, stages, unsure, 0.9)
    assert not is_chosen and note.endswith("but they fit with 60.0 % probability: regions are chosen")
    assert whole_stages(regions, best, stages, unsure, 0.5)[0]
    large = stages._replace(training=replace(stages.training, sequence_length=32_768))
    is_chosen, note = whole_stages(regions, best, large, other, 0.9)
    assert not is_chosen and "less, but will it compile: refused" in note


@pytest.mark.parametrize(
    ("model", "tp", "pp", "num_virtual_stages", "batch"),
    [
        ("llama3.2-1b", 4, 1, 1, 256),
        ("llama3.2-1b", 1, 4, 4, 256),
        ("llama3.2-1b", 4, 16, 1, 2),  # most of the step ranks wait for those in front and behind
        ("olmo2-7b", 16, 1, 1, 256),
        ("olmo2-7b", 4, 2, 16, 256),
    ],
)
def test_launches_of_regions_are_no_more_than_the_bound(
    model: str, tp: int, pp: int, num_virtual_stages: int, batch: int
) -> None:
    """The same layout with regions that are started at once is faster by what starting them takes."""
    spec, cluster = load_model(model), TRN2.under_stack("neuron-compiled")
    training = TrainingSpec(1024, batch, load_precision("mixed_precision"))
    stages = pp * num_virtual_stages
    strategy = Strategy(
        tp=tp,
        pp=pp,
        dp=64 // tp // pp,
        cp=1,
        ep=1,
        num_virtual_stages=num_virtual_stages,
        microbatch_size=1,
        schedule=usual_schedule(num_virtual_stages),
        recompute=("none",) * stages,
        sequence_parallel=tp > 1,
        zero=1,
        attention_kernel="plain",
        stage_layers=even_stage_layers(spec.num_hidden_layers, stages),
    )
    at_once = replace(cluster, collective_launch_s=TRN2.collective_launch_s)
    times = [estimate(spec, training, one, strategy).step_time_s for one in (cluster, at_once)]
    bound_s = launches_at_most_s(Problem(spec, training, cluster, "torch"), Pins(tp=tp, microbatch_size=1))
    assert 0 < times[0] - times[1] < bound_s


def test_one_graph_a_stage_recomputes_nothing() -> None:
    with pytest.raises(AutoshardError) as error:
        plan_for(request(stack="neuron-stages", pins={"recompute": "full"}))
    assert str(error.value) == (
        "recompute=full: stack=neuron-stages keeps every activation; use none, or stack=neuron-compiled"
    )


def test_a_stack_is_taken_once_and_not_changed() -> None:
    compiled = TRN2.under_stack("neuron-compiled")
    assert compiled.under_stack("neuron-compiled") is compiled
    assert as_run_by(compiled, "torch") is compiled and as_run_by(TRN2, "nxd") is TRN2
    with pytest.raises(AutoshardError) as error:
        compiled.under_stack("neuron-eager")
    assert str(error.value) == ("stack=neuron-eager but the constants of trn2.48xlarge are those of neuron-compiled")
    with pytest.raises(AutoshardError, match=r"^stack='neuron-eager' of cluster trn1.32xlarge must be .*null"):
        replace(load_cluster("trn1.32xlarge", 1), stack="neuron-eager")


def test_a_plan_on_the_cluster_of_a_plan_keeps_its_stack() -> None:
    again = {"model": "llama3.2-1b", "global_batch": 64, "pins": {"zero": 1, "recompute": "none"}}
    first = plan_for(request(instance="trn2.3xlarge", **again))
    second = plan_for(request(instance=None, cluster=first.cluster, **again))
    assert (first.cluster.stack, second.cluster) == ("neuron-compiled", first.cluster)
    assert second.strategy == first.strategy
    assert any(note.startswith("ways of compiling: ") for note in first.notes)
    assert not any(note.startswith("ways of compiling: ") for note in second.notes)


@pytest.mark.parametrize("instance", ["trn2.3xlarge", "trn2.48xlarge", "trn2u.48xlarge", "trn3-gen1", "trn3-gen2"])
def test_torch_on_trn2_and_trn3_is_native(instance: str) -> None:
    for lnc in (1, 2):
        assert as_run_by(load_cluster(instance, 1, lnc), "torch").stack == "neuron-compiled"


@pytest.mark.parametrize("instance", ["trn1.32xlarge", "cpu", "h100-80gb"])
def test_torch_elsewhere_has_no_stack(instance: str) -> None:
    cluster = load_cluster(instance, 1)
    assert as_run_by(cluster, "torch") is cluster


def transfer(cluster: Cluster, payload_bytes: float) -> float:
    seconds: float = collective_law("send_recv", PAIR, cluster).time_s(payload_bytes)
    return seconds


def test_before_2_33_a_transfer_is_a_broadcast_in_a_group_of_two() -> None:
    """A broadcast is an all-reduce: launched once, each hop twice, of two ranks each byte once each way."""
    old = load_cluster("trn2.48xlarge", 1, sdk="2.32").under_stack("neuron-compiled")
    new = load_cluster("trn2.48xlarge", 1, sdk="2.33").under_stack("neuron-compiled")
    assert not old.has_p2p and new.has_p2p and load_cluster("trn2.48xlarge", 1, sdk="2.32").has_p2p
    hop_s = old.intra_node_link(5).latency_s
    for payload_bytes in (1e3, 1e9):
        assert transfer(old, payload_bytes) == pytest.approx(transfer(new, payload_bytes) + hop_s)


def test_a_cluster_under_a_release_without_native_pytorch_is_said_to_move(tmp_path: Path) -> None:
    """A release that was asked for by name is refused; a cluster has one whether or not anybody asked. Also where the
    planner itself takes torch, because nxd has no ZeRO-2 and -3."""
    note = (
        "planned and priced for sdk=2.33, not the cluster's: sdk=2.28 has no native PyTorch on Neuron, which backend "
        "torch needs: it is there from 2.31 on"
    )
    pins = {"tp": 4, "pp": 1, "cp": 1, "micro_batch": 1, "recompute": "full"}
    assert TRN2.sdk == "2.28"
    for backend, zero, notes in (("torch", 1, [note]), ("auto", 3, [note]), ("nxd", 1, [])):
        plan = plan_for(
            request(model="llama3.2-1b", cluster=TRN2, instance=None, backend=backend, pins={**pins, "zero": zero})
        )
        assert plan.backend == ("nxd" if backend == "nxd" else "torch")
        assert [one for one in plan.notes if "not the cluster's" in one] == notes
    newer = load_cluster("trn2.48xlarge", 1, sdk="2.32")
    plan = plan_for(request(model="llama3.2-1b", cluster=newer, instance=None, pins=pins))
    assert plan.cluster.sdk == "2.32" and not any("not the cluster's" in one for one in plan.notes)
    file = tmp_path / "ds.json"
    file.write_text('{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}')
    found = autoshard.import_plan(file, model="llama3.2-1b", instance="trn2.48xlarge", nodes=1, sdk="2.28")
    plan = found.plan
    assert plan.cluster.sdk == "2.33" and note in plan.notes


def test_an_all_to_all_that_the_device_lacks_is_an_all_gather_of_everything() -> None:
    """Of two ranks, each receives all of the other one's payload, where an all-to-all would send half of it."""
    native = TRN2.under_stack("neuron-compiled")
    four = replace(PAIR, size=4, ranks_per_node=4, span=13)
    for payload_bytes in (1e3, 1e9):
        found = collective_law("all_to_all", PAIR, native).time_s(payload_bytes)
        assert found == collective_law("all_gather", PAIR, native).time_s(2 * payload_bytes)
    assert collective_law("all_to_all", four, native) == replace(
        collective_law("all_to_all", four, TRN2),
        latency_s=collective_law("all_to_all", four, TRN2).latency_s + STACKS["neuron-compiled"].region_launch_s,
    )


def test_a_plan_says_what_it_runs_on() -> None:
    plan = plan_for(request(pins={"tp": 4, "pp": 2}, sdk="2.32"))
    said = warnings(Problem(plan.model, plan.training, plan.cluster, plan.backend), plan.strategy)
    said = tuple(note for note in plan.notes if note in said)
    assert [note.partition(":")[0] for note in said] == ["stack neuron-compiled", "fragmentation", "pp=2"]
    assert "guess" in said[0] and "2.27 GB" in said[1]
    assert said[2] == (
        "pp=2: native PyTorch sends from rank to rank from SDK 2.33 (torch-neuronx 2.13.3) on; under sdk=2.32 each "
        "transfer is planned and priced as a broadcast in a group of two, which is an all-reduce there"
    )
    assert plan_from_dict(json.loads(plan_to_json(plan))) == plan


def test_the_best_practice_stands_beside_the_choice() -> None:
    here = plan_for(request())
    note = next(one for one in here.notes if one.startswith("best practice"))
    assert "tp=4 inside a chip and FSDP over the torus" in note and "--tp 4 --pp 1 --cp 1 --zero 3 takes it" in note
    pinned = plan_for(request(pins={"tp": 4, "pp": 1, "cp": 1, "zero": 3}))
    assert any(one.startswith("best practice") and one.endswith("the chosen layout is that") for one in pinned.notes)
    alone = plan_for(
        request(model="llama3-8b", instance="trn2.3xlarge", global_batch=64, seq_len=2048, precision="bf16_sr")
    )
    assert not any(one.startswith("best practice") for one in alone.notes)
    assert not any(one.startswith("best practice") for one in plan_for(request(backend="nxd")).notes)
