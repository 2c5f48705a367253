"""Plans for other nodes: bytes that move by hand, and what is chosen, kept and said."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from autoshard.backends.rules import Problem, warnings
from autoshard.checkpoint import layout
from autoshard.cli import main
from autoshard.cost.estimate import estimate
from autoshard.errors import AutoshardError
from autoshard.files.codec import to_json
from autoshard.layout.buckets import Run, runs_of_shard
from autoshard.layout.strategy import Strategy
from autoshard.models.registry import load_model
from autoshard.models.stage import parameter_count
from autoshard.planner.beaten_path import precedent
from autoshard.planner.planning import plan_for
from autoshard.planner.ranking import describe
from autoshard.planner.request import PlanRequest
from autoshard.planner.search import search
from autoshard.plans.mixture_changes import mixture_changes
from autoshard.plans.plan import Plan, make_plan, operator_choices
from autoshard.plans.plan_json import plan_to_json, write_plan
from autoshard.plans.prices import priced
from autoshard.plans.search_result import Pins
from autoshard.plans.validate import plan_from_dict, read_plan
from autoshard.replanning import replan
from autoshard.replanning.edit import edited, made_anew
from autoshard.replanning.moved import MOST_RANKS, Held, Moved, held, moved, sample
from autoshard.replanning.replan import LITTLE, WORTH
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision
from autoshard.units import percent
from tests.multiprocess.models import LLAMA, MODELS
from tests.multiprocess.plans import FP32, plan_of, strategy

STATE = 3 * 4 * parameter_count(LLAMA)
ONE, DP = strategy(), strategy(dp=2)
PLAIN_DP, TP, PP = strategy(dp=2, zero=0), strategy(tp=2, sp=False), strategy(pp=2)


def plan(chosen: Strategy) -> Plan:
    return plan_of(LLAMA, chosen, 4, FP32)


def moved_between(before: Plan, after: Plan) -> Moved:
    return moved(held(before, after.mesh.world_size), after)


@pytest.mark.parametrize(
    ("before", "after", "total", "kept"),
    [
        (ONE, ONE, 1, 1),
        (DP, ONE, 1, 1 / 2),  # the rank that stays had the first half of every bucket
        (ONE, DP, 1, 1 / 2),  # it keeps its half; the new rank brings nothing
        (PLAIN_DP, ONE, 1, 1),  # each had everything
        (ONE, PLAIN_DP, 2, 1),  # two copies, one of which is there
        (PLAIN_DP, PLAIN_DP, 2, 2),
    ],
)
def test_what_moves(before: Strategy, after: Strategy, total: float, kept: float) -> None:
    found = moved_between(plan(before), plan(after))
    assert found.total_bytes == total * STATE
    assert found.total_bytes - found.moved_bytes == kept * STATE


def test_halves_of_rows_meet_halves_of_blocks() -> None:
    """From two stages to two tensor-parallel ranks: each has the half of what it will have of half of the blocks."""
    embedding = LLAMA.vocab_size * LLAMA.hidden_size
    norm = LLAMA.hidden_size
    block = (parameter_count(LLAMA) - 2 * embedding - norm) // 4
    matrices = block - 2 * norm
    kept = embedding / 2 + embedding / 2 + norm + 4 * (matrices / 2 + 2 * norm)
    found = moved_between(plan(PP), plan(TP))
    assert found.total_bytes - found.moved_bytes == 3 * 4 * kept
    assert found.total_bytes == STATE + 3 * 4 * 9 * norm  # both hold every norm


def test_blocks_that_are_alike_are_laid_out_once_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under ZeRO-3: the norms; the head, and the embedding like it; four blocks."""
    laid_out = list[int]()

    def counting(sizes: Mapping[str, int], begin: int, elements: int) -> Iterator[Run]:
        laid_out.append(elements)
        return runs_of_shard(sizes, begin, elements)

    monkeypatch.setattr(layout, "runs_of_shard", counting)
    (shards,) = layout.shards_of(plan(strategy(dp=2, zero=3)), (1,))
    assert [one.elements for one in shards] == [288, 3072, 3072, *4 * [15360]]
    assert laid_out == [288, 3072, 15360]
    assert [one.pieces[0].name for one in shards[3:]] == [f"model.layers.{n}.mlp.gate_proj.weight" for n in range(4)]


def test_a_sample_of_a_large_world_meets_every_place_of_an_axis() -> None:
    assert sample(256) == tuple(range(256))
    ranks = sample(8192)
    assert len(ranks) == MOST_RANKS
    for axis in (2, 4, 8, 16, 32):
        assert {rank % axis for rank in ranks} == set(range(axis))


@pytest.fixture(scope="module")
def sixteen() -> Plan:
    """Llama-3-70B on 16 nodes of 8 H100."""
    model, cluster = load_model("llama3-70b"), load_cluster("h100-80gb", 16)
    training = TrainingSpec(8192, 840, load_precision("mixed_precision"))
    pins = Pins(tp=4, cp=1, microbatch_size=1)
    best = search(model, training, cluster, pins, "torch", 1).best
    return make_plan(
        model, training, cluster, "torch", best.strategy, best.estimate, pins=replace(pins, dp=best.strategy.dp)
    )


def test_little_is_given_for_moving_less(sixteen: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    counted, module = list[Plan](), sys.modules[moved.__module__]

    def counting(plan: Plan, ranks: Sequence[int]) -> Iterator[tuple[layout.Shard, ...]]:
        counted.append(plan)
        return layout.shards_of(plan, ranks)

    monkeypatch.setattr(module, "shards_of", counting)
    found = replan(sixteen, 15)
    assert len(counted) > 2
    assert counted.count(sixteen) == 1
    assert found.plan.cluster == replace(sixteen.cluster, nodes=15)
    assert (found.plan.model, found.plan.training) == (sixteen.model, sixteen.training)
    assert found.plan.strategy.tp == 4  # pinned
    assert found.plan.estimate.step_time_s <= found.searched.estimate.step_time_s * (1 + LITTLE)
    again = estimate(sixteen.model, sixteen.training, found.plan.cluster, found.plan.strategy)
    assert found.plan.estimate.step_time_s == pytest.approx(again.step_time_s, rel=1e-5)
    gain = found.moved.kept_share - found.searched_moved.kept_share
    assert gain == 0 if found.plan.strategy == found.searched.strategy else gain >= WORTH
    text = " ".join(found.plan.notes)
    assert "replanned from 16 to 15 nodes; stays: tp 4, " in text
    assert f"{found.moved.kept_share:.0%} of the training state is where it was" in text


def test_nothing_changes_on_as_many_nodes(sixteen: Plan) -> None:
    found = replan(sixteen, 16)
    assert found.plan.strategy == sixteen.strategy
    assert found.moved.moved_bytes == 0
    assert "changes: nothing" in " ".join(found.plan.notes)


def test_the_new_plan_says_all_that_a_search_says_of_its_layout() -> None:
    """The layout on the beaten path, which is not the fastest, of a model with fewer positions."""
    before, expected = (
        plan_for(PlanRequest("llama2-7b", nodes=nodes, global_batch=256, seq_len=4224)) for nodes in (2, 1)
    )
    found = replan(before, 1).plan
    assert (found.strategy, found.search) == (expected.strategy, expected.search)
    assert any(one.estimate.step_time_s < found.estimate.step_time_s for one in found.runners_up)
    assert found.notes[2] == (
        "it is the layout that plan takes; none as sure within 2% of it keeps 5% more of the state in place"
    )
    assert found.notes[3:] == expected.notes
    assert found.notes[3] == "seq-len 4,224 is beyond the 4,096 positions that llama2-7b was made for"
    assert found.notes[4].startswith("beaten path: the chosen layout has only features of ")


def test_another_layout_is_taken_only_where_no_more_is_held_against_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is about as fast as the search's moves nothing: of these one has no more features that nobody ran."""
    model, clusters = load_model("llama2-13b"), [load_cluster("trn1.32xlarge", nodes) for nodes in (2, 1)]
    training = TrainingSpec(2048, 256, load_precision("mixed_precision"))
    best = search(model, training, clusters[0], Pins(tp=8), "nxd", 1).best
    before = make_plan(model, training, clusters[0], "nxd", best.strategy, best.estimate)
    searched = search(model, training, clusters[1], Pins(), "nxd", 20)
    path = precedent(Problem(model, training, clusters[1], "nxd"), Pins())
    assert path is not None
    unknown = path.unknown(searched.best.strategy)
    most_s = searched.best.estimate.step_time_s * (1 + LITTLE)
    near = [one.strategy for one in searched.runners_up if one.estimate.step_time_s <= most_s]
    assert any(len(path.unknown(one)) > len(unknown) for one in near)

    def moves(before: Held, after: Plan) -> Moved:
        return Moved(100.0, 90.0 if after.strategy == searched.best.strategy else 0.0)

    monkeypatch.setattr(sys.modules[replan.__module__], "moved", moves)
    found = replan(before, 1)
    assert found.plan.strategy != found.searched.strategy == searched.best.strategy
    summary = found.plan.search
    assert summary is not None and summary.beaten_path is not None
    assert summary.beaten_path.unknown == path.unknown(found.plan.strategy)
    assert len(summary.beaten_path.unknown) <= len(unknown)
    assert summary.optimality == (
        "within 2% of the layout that plan takes, and of those looked at the one that moves least"
    )
    slower = found.plan.estimate.step_time_s / found.searched.estimate.step_time_s - 1
    assert found.plan.notes[2] == (
        f"{describe(found.searched.strategy)}, the layout that plan takes, is {slower:.2%} faster and leaves 10% where "
        "it was: up to 2% is given up to move less"
    )
    said = ", ".join(summary.beaten_path.unknown)
    assert found.plan.notes[3].startswith(f"beaten path: nobody is known to have run {said} on trn1 with backend nxd: ")


def test_the_new_plan_has_the_warnings_of_its_layout() -> None:
    """As `plan` gives them: of what NxD gets wrong there."""
    model, cluster = load_model("llama3-8b"), load_cluster("trn1.32xlarge", 2)
    training = TrainingSpec(2048, 64, load_precision("mixed_precision"))
    best = search(model, training, cluster, Pins(tp=32), "nxd", 1).best
    before = make_plan(model, training, cluster, "nxd", best.strategy, best.estimate, pins=Pins(tp=32))
    found = replan(before, 4).plan
    expected = warnings(Problem(model, training, found.cluster, "nxd"), found.strategy)
    assert expected[0].startswith("tp=32 replicates 8 key-value heads")
    assert found.notes[-len(expected) :] == expected


def test_a_plan_whose_experts_drop_other_tokens_says_so() -> None:
    """The busiest of 4 ranks of experts gets twice the mean; a rank that has all experts gets the mean."""
    model, cluster, chosen = MODELS["mixtral"], load_cluster("trn1.32xlarge", 2), strategy(dp=64, ep=4)
    training = TrainingSpec(64, 64, FP32, expert_imbalance=2.0)
    before = make_plan(model, training, cluster, "torch", chosen, estimate(model, training, cluster, chosen))
    found = replan(before, 1).plan
    assert found.strategy.ep == 1
    said = "each expert takes up to 32 of a sequence's 64 tokens from here on, 64 before: other tokens are dropped"
    assert said in found.notes
    assert mixture_changes(before, found) == (said,)
    none_dropped = replace(before, training=replace(training, expert_capacity_factor=4.0))
    assert mixture_changes(before, none_dropped) == ()


def test_another_plan_of_the_batch_balances_routers_over_other_sequences() -> None:
    """64 ranks with a sequence each take 64 at a time, 32 ranks 32, and 16 ranks with 4 each 64 again."""
    model = replace(MODELS["mixtral"], router_aux_loss_coef=0.01)
    cluster, training = load_cluster("trn1.32xlarge", 2), TrainingSpec(64, 64, FP32, expert_capacity_factor=4.0)
    plans = [
        make_plan(one, training, cluster, "torch", chosen, estimate(one, training, cluster, chosen))
        for one in (model, MODELS["mixtral"])
        for chosen in (strategy(dp=64), strategy(tp=2, dp=32), strategy(tp=4, dp=16, mbs=4))
    ]
    wide, narrow, same, without, without_narrow, _ = plans
    said = "routers are balanced over 32 sequences at a time from here on, over 64 before: their loss is another"
    assert mixture_changes(wide, narrow) == (said,)
    assert mixture_changes(wide, same) == ()
    assert mixture_changes(without, without_narrow) == ()
    assert mixture_changes(without, narrow) == mixture_changes(replace(wide, backend="nxd"), narrow) == ()


def test_what_does_not_fit_is_one_error(sixteen: Plan) -> None:
    with pytest.raises(AutoshardError, match=r"memory|fits"):
        replan(sixteen, 1)


def test_what_fits_with_the_loss_in_chunks_alone_gets_them() -> None:
    """As `plan` does. GPipe keeps the logits of all microbatches of a rank, and half the nodes have twice as many."""
    request = PlanRequest("llama3-8b", "h100-80gb", nodes=32, top=0, pins={"pp": 4, "schedule": "gpipe"})
    before, planned = plan_for(request), plan_for(replace(request, nodes=16))
    assert before.training.loss_chunks == 1
    again = replan(before, 16).plan
    assert again.training == planned.training and again.training.loss_chunks == 32
    assert again.strategy == planned.strategy and again.estimate == planned.estimate
    assert again.notes[0].startswith("loss in 32 chunks: of all logits at once no layout fits, ")
    assert plan_from_dict(json.loads(plan_to_json(again))).training == again.training
    on_more = replan(again, 32).plan
    stay = "loss in 32 chunks, as in the plan before; plan without --loss-chunks chooses them anew, which may be faster"
    assert on_more.training.loss_chunks == 32 and on_more.notes[0] == stay
    assert not any("chunks" in note for note in replan(before, 32).plan.notes)


def test_what_compiles_with_the_loss_in_chunks_alone_gets_them_where_that_is_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As `plan` does, of a plan that has none. What moves is no matter here, and takes long to count."""
    monkeypatch.setattr(sys.modules[replan.__module__], "moved", lambda before, after: Moved(1, 0))
    pins = {"tp": 4, "pp": 1, "recompute": "full"}
    request = PlanRequest("command-a", "trn2.48xlarge", 4, backend="torch", stack="neuron-compiled", top=0, pins=pins)
    planned, before = plan_for(request), plan_for(replace(request, nodes=8, loss_chunks=1))
    assert planned.training.loss_chunks > 1
    found = replan(before, 4)
    assert found.plan.training == planned.training
    assert found.searched.strategy == planned.strategy
    told = f"loss in {planned.training.loss_chunks} chunks: "
    assert found.plan.notes[0].startswith(told) and "expected to compile takes" in found.plan.notes[0]


def test_what_the_plans_pins_forbid_says_how_to_lose_one(small: Plan) -> None:
    pinned = edited(small, ["strategy.pp=4", "strategy.dp=4", "strategy.stage_layers=[8, 8, 8, 8]"]).plan
    pinned = edited(pinned, ["inputs.pins.cp=1", "inputs.pins.ep=1", "inputs.pins.num_virtual_stages=1"]).plan
    with pytest.raises(AutoshardError) as caught:
        replan(pinned, 3)
    assert str(caught.value).endswith(
        "must divide global_batch_size=256; of the plan's pins replan --edit inputs.pins.recompute=null frees one"
    )
    assert replan(edited(pinned, ["inputs.pins.pp=null"]).plan, 3).plan.cluster.nodes == 3


def test_the_command_writes_a_valid_plan(
    sixteen: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_plan(sixteen, tmp_path / "plan.json")
    assert main(["replan", "plan.json", "--nodes", "12"]) == 0
    assert (
        "wrote plan-12-nodes.json; next: autoshard run plan-12-nodes.json --resume auto, which goes on"
        in capsys.readouterr().out
    )
    assert read_plan(tmp_path / "plan-12-nodes.json").cluster.nodes == 12
    assert main(["replan", "plan.json"]) == 2
    assert capsys.readouterr().err == (
        "autoshard: error: plan.json is as it was made; --nodes N or --edit FIELD=VALUE makes another plan of it\n"
    )


# edits


@pytest.fixture(scope="module")
def small() -> Plan:
    """Llama-3-8B on 4 trn1 nodes, microbatches of 1 pinned."""
    model, cluster = load_model("llama3-8b"), load_cluster("trn1.32xlarge", 4)
    training = TrainingSpec(4096, 256, load_precision("mixed_precision"))
    pins = Pins(tp=8, pp=2, microbatch_size=1, recompute="full")
    best = search(model, training, cluster, pins, "nxd", 1).best
    return make_plan(model, training, cluster, "nxd", best.strategy, best.estimate, pins=pins)


def test_an_edit_keeps_the_rest_and_is_priced(small: Plan) -> None:
    found = edited(small, ["strategy.microbatch_size=2", "inputs.model.norm_eps=1e-6", "strategy.recompute=mlp"])
    assert found.plan.strategy == replace(small.strategy, microbatch_size=2, recompute=("mlp",))
    assert found.plan.model == replace(small.model, norm_eps=1e-6)
    assert found.plan.pins == replace(small.pins, microbatch_size=2, recompute="mlp")  # an edit is the user's wish too
    assert (found.plan.training, found.plan.cluster) == (small.training, small.cluster)
    assert found.plan == priced(found.plan) == plan_from_dict(json.loads(plan_to_json(found.plan)))
    assert found.before == small.estimate
    assert (found.plan.search, found.plan.runners_up) == (None, ())
    stages = ["full"] * 2, ["mlp"] * 2
    assert found.changes == (
        ("inputs.model.norm_eps", 1e-5, 1e-6),
        ("inputs.pins.microbatch_size", 1, 2),
        ("inputs.pins.recompute", "full", "mlp"),
        ("strategy.microbatch_size", 1, 2),
        ("strategy.recompute", *stages),
    )
    assert found.plan.notes[0] == (
        "edited, not searched: inputs.model.norm_eps 1e-05 -> 1e-06, inputs.pins.microbatch_size 1 -> 2, "
        'inputs.pins.recompute "full" -> "mlp", strategy.microbatch_size 1 -> 2, '
        'strategy.recompute ["full" x 2] -> ["mlp" x 2]'
    )


def test_an_edit_there_and_back_is_the_same_layout(small: Plan) -> None:
    there = edited(small, ["inputs.training.global_batch_size=512"]).plan
    back = edited(there, ["inputs.training.global_batch_size=256"]).plan
    assert replace(back, notes=()) == replace(small, notes=())


def test_a_precision_is_named_in_an_edit(small: Plan) -> None:
    found = edited(small, ["inputs.training.precision=bf16_sr"]).plan
    assert found.training == replace(small.training, precision=load_precision("bf16_sr"))


FOLLOWS = "that follows from inputs, backend and strategy; edit these, such as strategy.microbatch_size=2"
PINS = ", ".join(to_json(Pins(etp=1, dp_replicate=2, beaten_path=True, searches_replicas=True, searches_etp=True)))
EDITS = {
    "strategy.microbatch_size": "--edit strategy.microbatch_size must be FIELD=VALUE, "
    "such as strategy.microbatch_size=2",
    "strategy.microbatch_size=1": "--edit strategy.microbatch_size=1: the plan has that already",
    "strategy.microbatch_size=two": "strategy: microbatch_size='two' must be a whole number of at least 1",
    "strategy.dp=4": "strategy: tp=8 x pp=2 x dp=4 x cp=1 is 64 devices; 4 x trn1.32xlarge has 128",
    "strategy.stage_layers=[16, 15]": "strategy: stage_layers=[16, 15] is 31 blocks; llama3-8b has 32",
    "strategy.stage_layers=0,3, 29": "--edit strategy.stage_layers=0,3, 29 must be a list in JSON: "
    "--edit 'strategy.stage_layers=[0, 3, 29]'",
    "strategy.recompute=full,none": "--edit strategy.recompute=full,none must be a list in JSON: "
    """--edit 'strategy.recompute=["full", "none"]'""",
    **{
        f"strategy.stage_layers={no_list}": f"--edit strategy.stage_layers={no_list} must be a list in JSON: "
        "--edit 'strategy.stage_layers=[17, 15]'"
        for no_list in ("", "[5,x]", "x")
    },
    "strategy.recompute=full*1,none*1": "--edit strategy.recompute=full*1,none*1 must be a list in JSON: "
    """--edit 'strategy.recompute=["full", "full"]'""",
    "strategy.num_virtual_stages=4": "strategy: stage_layers has 2 stages; pp=2 x num_virtual_stages=4 needs 8, "
    "such as [4, 4, 4, 4, 4, 4, 4, 4]",
    "strategy.pp=999999": "strategy: stage_layers has 2 stages; pp=999999 x num_virtual_stages=1 needs 999999",
    "strategy.pp=32": f"strategy: stage_layers has 2 stages; pp=32 x num_virtual_stages=1 needs 32, such as {[1] * 32}",
    "strategy.axis_order=dp,pp,cp,tp": "axis_order=dp,pp,cp,tp must name each of pp, dp, cp, tp once, outermost first, "
    "such as pp-dp-cp-tp",
    "strategy.axis_order=pp-dp-cp-tp": "--edit strategy.axis_order=pp-dp-cp-tp: the plan has that already",
    "inputs.cluster.lnc=2": "lnc=2 of cluster trn1.32xlarge must be 1, as its layout_rules=trn1 say",
    "inputs.cluster.inter_node.latency_s=1e300": "latency_s=1e+300 of link network adapter must be 0 or from "
    "1e-100 to 1e+100",
    "inputs.pins.tp=4": "inputs.pins.tp is 4, but strategy.tp is 8",
    "inputs.pins.vpp=4": f"inputs.pins: pins has a field that is not known: 'vpp'; known: {PINS}",
    "inputs.cluster.intra_node[9].devices=2": "--edit inputs.cluster.intra_node[9].devices: there is no 9; a list of 4",
    "inputs.cluster.link.name=x": "--edit inputs.cluster.link.name: there is no link; "
    f"there is: {', '.join(to_json(load_cluster('trn1.32xlarge', 1)))}",
    **dict.fromkeys(
        ('inputs.cluster.sdk="2.13"', "inputs.cluster.sdk=2.24", "inputs.cluster.sdk=2.20", "inputs.cluster.sdk=null"),
        "--edit inputs.cluster.sdk: the speeds in the plan are those under 2.28; "
        "make a plan of another release with autoshard plan --sdk",
    ),
    "inputs.cluster.instance=trn2.48xlarge": "--edit inputs.cluster.instance: the speeds in the plan are those of "
    "trn1.32xlarge; make a plan of another instance with autoshard plan --instance",
    "inputs.cluster.nodes=0": "nodes=0 of cluster trn1.32xlarge must be a whole number from 1 to 1,000,000,000",
    "inputs.cluster.sdk=2.28": "--edit inputs.cluster.sdk=2.28: the plan has that already",
    "backend.x.y=1": "--edit backend.x.y: there is no x; a value",
    "inputs=3": "--edit inputs=3: there is more than one value; name one of: model, training, cluster, pins",
    "inputs.cluster.intra_node[0]=x": "--edit inputs.cluster.intra_node[0]=x: there is more than one "
    "value; name one of: devices, link",
    "inputs.training.precision=bf16": "precision='bf16' of the training must be one of: "
    "mixed_precision, bf16_sr, fp32, fp8, fp8_block, mxfp8, nvfp4, cfp8",
    "inputs.training.precision=fp8": "precision fp8: trn1.32xlarge lnc 1 has no products in float8; "
    "precisions that it has: mixed_precision, bf16_sr, fp32, cfp8",
    "tp=4": "--edit tp: fields begin with inputs, backend or strategy; did you mean strategy.tp?",
    "x=4": "--edit x: fields begin with inputs, backend or strategy; such as strategy.microbatch_size=2",
    "stages[0].stop_layer=4": f"--edit stages[0].stop_layer: {FOLLOWS}",
    "estimate.mfu=1": f"--edit estimate.mfu: {FOLLOWS}",
}


@pytest.mark.parametrize(("edit", "message"), EDITS.items(), ids=EDITS)
def test_edits_that_are_none(small: Plan, edit: str, message: str) -> None:
    with pytest.raises(AutoshardError) as caught:
        edited(small, [edit])
    assert str(caught.value) == message


def test_an_edit_of_nodes_takes_as_many_of_each_rack_as_a_plan_does() -> None:
    """4 nodes of a rack that became 8 were priced as two racks with 4 each: 2.2 times the step time."""
    pins = {"tp": 4, "pp": 1, "cp": 1, "zero": 3, "micro_batch": 1}
    request = PlanRequest("llama3-8b", "gb200-186gb", 4, seq_len=2048, global_batch=64, top=0, pins=pins)
    before = plan_for(request)
    more = ["inputs.cluster.nodes=8", "strategy.dp=8"]
    found = edited(before, more).plan
    assert found.cluster == load_cluster("gb200-186gb", 8)
    assert found.estimate.step_time_s < 0.6 * before.estimate.step_time_s
    assert not any("nodes_per_domain" in note for note in found.notes[1:])
    apart = edited(before, [*more, "inputs.cluster.nodes_per_domain=2"]).plan
    assert apart.cluster.nodes_per_domain == 2
    assert apart.notes[-1].startswith("nodes_per_domain=2: a job of 8 nodes of gb200-186gb takes 8 of each domain; ")
    replaced = plan_for(replace(request, nodes=8, cluster=replace(before.cluster, nodes=8)))
    assert any(note.startswith("nodes_per_domain=4: a job of 8 nodes ") for note in replaced.notes)


def test_an_edit_of_the_lnc_is_refused() -> None:
    """Devices at lnc 1 are twice as many, with half the memory."""
    pins = {"tp": 4, "pp": 1, "zero": 1}
    before = plan_for(PlanRequest("llama3.2-1b", "trn2.48xlarge", seq_len=2048, global_batch=64, top=0, pins=pins))
    with pytest.raises(AutoshardError) as raised:
        edited(before, ["inputs.cluster.lnc=1"])
    assert str(raised.value) == (
        "--edit inputs.cluster.lnc: the devices in the plan are those at lnc 2; make a plan of another with autoshard "
        "plan --lnc"
    )


def test_operators_of_the_solver_stay_where_the_layout_still_has_them() -> None:
    """The norms of a toy replicated over tp, in place of the rule's sequence parallelism."""
    before = plan(strategy(tp=2))
    norm = "model.layers.*.input_layernorm"
    others = {**before.operators, norm: {**before.operators[norm], "tp": "I"}}
    before = priced(replace(before, operators=others))
    kept = edited(before, ["strategy.recompute=full"]).plan
    assert kept.operators == before.operators
    assert kept == priced(kept)
    found = edited(before, ["strategy.tp=1", "strategy.sequence_parallel=false", "strategy.dp=2"]).plan
    assert found.operators == operator_choices(found.model, found.training, found.cluster, found.strategy)
    assert found.notes[1] == "operators by Megatron's rule: those of the plan before do not go with the changes"


def with_head_over_tokens(layout: Strategy) -> Plan:
    before = plan(layout)
    others = {name: {**before.operators[name], "tp": "seq"} for name in ("lm_head", "loss")}
    return priced(replace(before, operators={**before.operators, **others}))


def test_a_head_that_the_solver_sharded_stays_where_it_becomes_the_embedding_of_the_same_stage() -> None:
    """The gradient of the table is then summed over dp x cp in each microbatch."""
    before = with_head_over_tokens(strategy(tp=2, dp=2, cp=2))
    found = edited(before, ["inputs.model.tie_word_embeddings=true"]).plan
    assert found.operators == before.operators
    assert found == priced(found)


def test_a_head_that_the_solver_sharded_does_not_stay_where_it_becomes_the_embedding_of_another_stage() -> None:
    """The first stage would hold another piece of the table than the last one."""
    found = edited(with_head_over_tokens(strategy(tp=2, pp=2)), ["inputs.model.tie_word_embeddings=true"]).plan
    assert found.operators == operator_choices(found.model, found.training, found.cluster, found.strategy)
    assert found.notes[1] == "operators by Megatron's rule: those of the plan before do not go with the changes"


def test_the_command_says_what_an_edit_changes(
    small: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_plan(small, "plan.json")
    edit = ["replan", "plan.json", "--edit", "strategy.recompute=none", "--edit", "strategy.microbatch_size=8"]
    assert main([*edit, "-o", "new.json"]) == 0
    now = read_plan("new.json").estimate
    step, share = small.estimate.step_time_s, now.step_time_s / small.estimate.step_time_s - 1
    printed = capsys.readouterr()
    assert printed.err == ""
    memory, new_memory = (f"~{one.fullest.total_bytes / 1e9:.3g} GB of 17.2 GB" for one in (small.estimate, now))
    fits = small.estimate.fits_probability, now.fits_probability
    assert printed.out.splitlines() == [
        "  field                        before        after",
        "  inputs.pins.microbatch_size  1             8",
        '  inputs.pins.recompute        "full"        "none"',
        "  strategy.microbatch_size     1             8",
        '  strategy.recompute           ["full" x 2]  ["none" x 2]',
        "",
        f"                      {'before':<{len(memory)}}  after",
        f"  step time           {f'~{step:.3g} s':<{len(memory)}}  ~{now.step_time_s:.3g} s ({share:+.1%})",
        f"  memory              {memory}  {new_memory}",
        f"  probability to fit  {percent(fits[0]):<{len(memory)}}  {percent(fits[1])}",
        "",
        *(f"note: {note}" for note in read_plan("new.json").notes[1:]),
        "wrote new.json; next: autoshard explain new.json",
    ]
    assert main([*edit, "--format", "json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["changes"][0] == {"field": "inputs.pins.microbatch_size", "before": 1, "after": 8}
    assert values["after"]["step_time_s"] == now.step_time_s
    assert Path("plan-edited.json").read_text() == Path("new.json").read_text()
    assert main(["replan", "plan.json", "--nodes", "2", "--edit", "strategy.tp=8"]) == 2
    assert capsys.readouterr().err == (
        "autoshard: error: --nodes 2 with --edit: one plans another layout, the other keeps it; use one\n"
    )


def test_a_file_changed_by_hand_is_made_a_plan_again(
    small: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    values = json.loads(plan_to_json(small))
    values["strategy"]["microbatch_size"], values["inputs"]["pins"]["microbatch_size"] = 2, None
    Path("plan.json").write_text(json.dumps(values))
    assert main(["validate", "plan.json"]) == 2
    refused = capsys.readouterr().err.removeprefix("autoshard: error: plan.json: ").rstrip()
    assert main(["replan", "plan.json", "-o", "new.json"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(
        f"plan.json was changed by hand: {refused}\nIts inputs and strategy are taken as they stand there.\n"
    )
    assert "  schedule.num_microbatches  32      16\n" in printed
    asked = edited(small, ["strategy.microbatch_size=2", "inputs.pins.microbatch_size=null"]).plan
    assert replace(read_plan("new.json"), notes=()) == replace(asked, notes=())
    for text in ('{"format_version": 2}', "[]", '{"inputs": 1, "backend": "nxd", "strategy": 2}'):
        Path("plan.json").write_text(text)
        assert main(["replan", "plan.json", "-o", "other.json"]) == 2
        assert capsys.readouterr().err.startswith("autoshard: error: plan.json: ")
    assert not Path("other.json").exists()


def test_the_format_before_is_written_anew(small: Plan, tmp_path: Path) -> None:
    values = {**json.loads(plan_to_json(small)), "format_version": 1}
    del values["sha256"]
    (tmp_path / "plan.json").write_text(json.dumps(values))
    found = made_anew(tmp_path / "plan.json")
    assert (found.plan, found.changes, found.by_hand) == (small, (), "")


def test_fewer_nodes_fill_a_rack_as_a_job_of_that_size_does() -> None:
    import autoshard

    whole = autoshard.plan("llama3-8b", "gb200-186gb", nodes=18, seq_len=2048, global_batch=288)
    assert whole.cluster.nodes_per_domain == 18
    fewer = autoshard.replan(whole, 16)
    assert fewer.cluster == autoshard.cluster("gb200-186gb", nodes=16)
    assert fewer.cluster.nodes_per_domain == 16
