"""Matrices that Muon updates: which they are, who orthogonalises them, what ranks exchange, and what all that costs."""

from collections import Counter
from dataclasses import replace
from math import prod

import pytest

from autoshard.audits.expected import expectation
from autoshard.audits.values import ORTHOGONAL
from autoshard.backends.rules import Problem
from autoshard.cost.collectives import collective_law, group_shape
from autoshard.cost.estimate import estimate
from autoshard.cost.local_shape import mesh_order
from autoshard.cost.stage_program import Rewrites, rewrites
from autoshard.errors import AutoshardError
from autoshard.graph.ir import Graph
from autoshard.graph.orthogonal import MatrixDims, matrix_dims, orthogonalising_flops, with_orthogonal_updates
from autoshard.layout import orthogonal
from autoshard.layout.buckets import bucket_elements
from autoshard.layout.orthogonal import Exchange, exchanges, num_rounds
from autoshard.layout.strategy import Strategy
from autoshard.models.registry import load_model
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.planner.grid.table import Table
from autoshard.planner.layouts import legal_layouts
from autoshard.planner.planning import plan_for
from autoshard.planner.rejections import Tally
from autoshard.planner.request import PlanRequest
from autoshard.plans.plan import Plan, make_plan
from autoshard.plans.search_result import Pins
from autoshard.plans.step_collectives import step_collectives
from autoshard.spec.cluster import load_cluster
from autoshard.spec.lora import Lora
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import ADAMW, MUON, TrainingSpec, load_precision
from tests.unit.plan_examples import TOY, strategy

TRAINING = TrainingSpec(256, 64, load_precision("mixed_precision"), optimizer=MUON)
LLAMA = replace(load_model("llama3-8b"), name="toy", **TOY)
MIXTRAL = replace(load_model("mixtral-8x7b"), name="toy", **TOY)
ONE_NODE = load_cluster("h100-80gb", 1)
LAYOUTS = {
    "dp": (LLAMA, strategy(tp=1, pp=1, dp=8, sequence_parallel=False, stage_layers=(8,))),
    "dp, no ZeRO": (LLAMA, strategy(tp=1, pp=1, dp=8, zero=0, sequence_parallel=False, stage_layers=(8,))),
    "kv replicated": (LLAMA, strategy(tp=4, pp=1, dp=2, zero=3, stage_layers=(8,))),
    "pp": (LLAMA, strategy(tp=2, pp=2, dp=2, stage_layers=(5, 3))),
    "ep x tp": (MIXTRAL, strategy(tp=2, pp=1, dp=4, ep=4, stage_layers=(8,))),
    "experts cut by a part of tp": (MIXTRAL, strategy(tp=4, pp=1, dp=2, ep=2, etp=2, zero=2, stage_layers=(8,))),
}


def plan(model: ModelSpec, chosen: Strategy, training: TrainingSpec = TRAINING) -> Plan:
    found = estimate(model, training, ONE_NODE, chosen)
    return make_plan(model, training, ONE_NODE, "torch", chosen, found)


def exchanges_of(of: Plan) -> list[Exchange]:
    return exchanges(of.stage_programs[:1], of.mesh, frozenset(), of.strategy.zero)


def graph(model: ModelSpec) -> Graph:
    return with_orthogonal_updates(stage_graph(model, dim_sizes(model, 1, 1), model.kinds, True, True))


def test_matrices_of_blocks_alone_are_orthogonalised() -> None:
    names = {one.name.removeprefix("model.") for one in graph(load_model("llama3-8b")).learned() if one.orthogonal}
    assert names == {
        *(f"layers.0.self_attn.{name}_proj.weight" for name in "qkvo"),
        *(f"layers.0.mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
    }
    hybrid = graph(load_model("nemotron-h-8b"))
    kernels = [one for one in hybrid.learned() if one.name in hybrid.matrices and not one.orthogonal]
    ends = {one for one in (kernel.name for kernel in kernels) if "layers" not in one}
    assert len(ends) == 2 and any("embed" in name for name in ends) and any("lm_head" in name for name in ends)
    assert {one.name.rsplit(".", 2)[1] for one in kernels if one.name not in ends} == {
        *("x_conv1d", "b_conv1d", "c_conv1d")
    }


def test_the_training_says_whether_a_graph_has_marks() -> None:
    own = replace(TRAINING, optimizer=ADAMW)
    assert [rewrites(LLAMA, training, (0,), True).by_muon for training in (own, TRAINING)] == [False, True]
    quantized = replace(TRAINING, precision=load_precision("fp8"))
    assert rewrites(LLAMA, quantized, (0,), False) == Rewrites(1.0, (), 16, (), 1, by_muon=True)


def test_what_is_not_learned_has_no_mark() -> None:
    adapted = replace(load_model("llama3-8b"), lora=Lora(16, 16.0, ("q_proj",)))
    names = {one.name for one in graph(adapted).tensors.values() if one.orthogonal}
    assert names and all("lora" in name for name in names)


def test_rows_columns_and_experts_of_a_weight() -> None:
    llama, mixtral = graph(load_model("llama3-8b")), graph(load_model("mixtral-8x7b"))
    attention = "model.layers.0.self_attn"
    assert matrix_dims(llama, f"{attention}.q_proj.weight") == MatrixDims(
        (), ("kvhead", "group", "headdim"), ("embed",)
    )
    assert matrix_dims(llama, f"{attention}.o_proj.weight") == MatrixDims(
        (), ("embed",), ("kvhead", "group", "headdim")
    )
    experts = matrix_dims(mixtral, "model.layers.0.block_sparse_moe.experts.w2.weight")
    assert experts == MatrixDims(("expert",), ("embed",), ("ffn",))
    assert experts.sizes(mixtral.sizes) == (8, 4096, 14336)


def test_the_work_of_one_matrix_by_hand() -> None:
    """64 x 128: five times two products of 64 x 128 x 64 and one of 64 x 64 x 64."""
    assert orthogonalising_flops(64, 128) == 5 * (2 * 2 * 64 * 128 * 64 + 2 * 64**3) == 13_107_200
    assert orthogonalising_flops(128, 64) == orthogonalising_flops(64, 128)


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_matrix_goes_whole_to_one_owner(name: str) -> None:
    of = plan(*LAYOUTS[name])
    found = exchanges_of(of)
    program = of.stage_programs[0]
    owned = [one for exchange in found for several in exchange.matrices.values() for one in several]
    assert {one.name for one in owned} == {one.name for one in program.graph.learned() if one.orthogonal}
    for exchange in found:
        members = exchange.members(of.mesh)
        assert len(members) == exchange.ranks == of.mesh.size(exchange.axes)
        for owner, several in exchange.matrices.items():
            sent = sum(exchange.sent(sharer)[owner] for sharer, _ in members)
            assert sent == sum(prod(one.sizes) for one in several)
            for one in several:
                has_some = [sharer for sharer, _ in members if one.run(sharer).elements]
                assert {*has_some} == {*one.sharers}
        assert max(sum(exchange.sent(sharer)) for sharer, _ in members) <= exchange.most_sent
        loads = [sum(one.flops for one in several) for several in exchange.matrices.values()]
        largest = max(one.flops for several in exchange.matrices.values() for one in several)
        assert max(loads) <= sum(loads) / exchange.ranks + largest  # what the longest-first rule promises


@pytest.mark.parametrize("name", LAYOUTS)
def test_rounds_have_all_matrices_once_and_leave_no_rank_much(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 8,192 elements a rank, which is the largest matrix here."""
    of = plan(*LAYOUTS[name])
    whole = [one for exchange in exchanges_of(of) for several in exchange.matrices.values() for one in several]
    monkeypatch.setattr(orthogonal, "ROUND_ELEMENTS", 8192.0)
    found = exchanges_of(of)
    several = [one for exchange in found for of_owner in exchange.matrices.values() for one in of_owner]
    assert sorted(several, key=str) == sorted(whole, key=str)
    by_axes = Counter(exchange.axes for exchange in found)
    for exchange in found:
        share = sum(prod(one.sizes) for of_owner in exchange.matrices.values() for one in of_owner) / exchange.ranks
        assert share <= 8192 * 1.5
    largest, bytes_of_owners = max(prod(one.sizes[1:]) for one in whole), Counter[tuple[str, ...]]()
    for exchange in found:
        bytes_of_owners[exchange.axes] += sum(exchange.sent(0))
    assert largest == 8192
    rounds = {axes: num_rounds(count, largest) for axes, count in bytes_of_owners.items()}
    assert all(abs(by_axes[axes] - rounds[axes]) <= 1 for axes in by_axes)  # buckets are padded


def test_copies_of_a_round_take_memory_where_activations_leave_none() -> None:
    """Four copies in bf16 of what a rank owns, beside the buckets of collectives."""
    small = replace(TRAINING, sequence_length=1, global_batch_size=8)
    model, chosen = LAYOUTS["dp, no ZeRO"]
    of_ranks = (
        estimate(model, training, ONE_NODE, replace(chosen, recompute=("full",))).memory[0]
        for training in (replace(small, optimizer=ADAMW), small)
    )
    by_adamw, by_muon = ({term.name: term.value for term in rank.terms}["collective buckets"] for rank in of_ranks)
    assert by_adamw > 0
    assert by_muon - by_adamw == pytest.approx(4 * 2 * 294_912, rel=1e-6)


def test_few_owners_lie_evenly_among_many_ranks() -> None:
    """Two blocks have 14 matrices, of which those of one rank's size lie on every other or so of 64 ranks."""
    model = replace(LLAMA, num_hidden_layers=2)
    cluster, chosen = (
        load_cluster("h100-80gb", 8),
        strategy(tp=1, pp=1, dp=64, sequence_parallel=False, stage_layers=(2,)),
    )
    of = make_plan(model, TRAINING, cluster, "torch", chosen, estimate(model, TRAINING, cluster, chosen))
    (exchange,) = exchanges_of(of)
    assert [*exchange.matrices] == [owner * 64 // 14 for owner in range(14)]


@pytest.mark.parametrize("name", LAYOUTS)
def test_ranks_send_all_that_muon_updates(name: str) -> None:
    """Each shard of a bucket goes there and comes back once; only padding of the bucket stays."""
    of = plan(*LAYOUTS[name])
    zero, mesh = of.strategy.zero, of.mesh
    counts = bucket_elements(of.stage_programs[:1], mesh, frozenset(), zero)
    buckets = {key: count // (mesh.size(key.shard_axes) if zero else 1) for key, count in counts.items()}
    held = sum(count for key, count in buckets.items() if key.orthogonal)
    sent = sum(sum(exchange.sent(0)) for exchange in exchanges_of(of))
    assert held * 0.99 < sent <= held
    assert {key.moments for key in buckets if key.orthogonal} == {1}
    assert {key.moments for key in buckets if not key.orthogonal} == {2}


def test_ranks_issue_two_exchanges_of_one_size() -> None:
    """Eight blocks of 64 x 64 (q, o), 32 x 64 (k, v) and three of 64 x 128 are 294,912 elements; a rank has an eighth.
    Owners have at most four matrices of an MLP and what fills up."""
    of = plan(*LAYOUTS["dp"])
    (exchange,) = exchanges_of(of)
    assert exchange.axes == ("dp",) and exchange.most_sent == 294_912 // 8
    found = {one.bytes: count for one, count in step_collectives(of, 0).items() if one.kind == "all_to_all"}
    assert found == {2 * exchange.most_sent: 1, 2 * exchange.most_owned: 1} or found == {2 * exchange.most_sent: 2}
    again = plan(*LAYOUTS["dp, no ZeRO"])
    assert not [one for one in step_collectives(again, 0) if one.kind == "all_to_all"]


def test_the_price_of_an_update_by_hand() -> None:
    """Without the exchange's latency nothing is hidden: work of all matrices over eight ranks, and two exchanges."""
    by_muon, by_adamw = (
        estimate(LLAMA, replace(TRAINING, optimizer=name), ONE_NODE, LAYOUTS["dp"][1]) for name in (MUON, ADAMW)
    )
    device, order = ONE_NODE.device, mesh_order(plan(*LAYOUTS["dp"]).mesh)
    rate = device.peak_flops_per_s("bfloat16") * device.matmul_efficiency
    alone_s = 0.0
    for rows, columns, count in ((64, 64, 2), (32, 64, 2), (64, 128, 3)):
        flops = orthogonalising_flops(rows, columns)
        alone_s += 8 * count * flops * (1 + device.matmul_k0 / rows) / rate
    law = collective_law("all_to_all", group_shape(order, ("dp",), ONE_NODE), ONE_NODE)
    expected_s = alone_s / 8 + 2 * law.time_s(2 * 294_912 / 8)
    updates_s = [{one.name: one.value for one in of.time_terms}["optimizer update"] for of in (by_muon, by_adamw)]
    assert updates_s[0] - updates_s[1] == pytest.approx(expected_s, rel=1e-9)


@pytest.mark.parametrize("name", LAYOUTS)
def test_matrices_have_one_moment(name: str) -> None:
    model, chosen = LAYOUTS[name]
    trainings = replace(TRAINING, optimizer=ADAMW), TRAINING
    ranks = (estimate(model, training, ONE_NODE, chosen).memory[0] for training in trainings)
    states = [{term.name: term.value for term in rank.terms}["optimizer state"] for rank in ranks]
    of = plan(model, chosen)
    counts = bucket_elements(of.stage_programs[:1], of.mesh, frozenset(), chosen.zero)
    owned = sum(
        count // (of.mesh.size(key.shard_axes) if chosen.zero else 1) for key, count in counts.items() if key.orthogonal
    )
    assert states[0] - states[1] == pytest.approx(4 * owned, rel=1e-3)  # buckets are padded


def test_an_audit_expects_what_each_owner_computes() -> None:
    of = plan(*LAYOUTS["pp"])
    block = sum(orthogonalising_flops(*size) for size in (*2 * [(64, 64)], *2 * [(32, 64)], *3 * [(64, 128)]))
    for pipeline_rank, blocks in ((0, 5), (1, 3)):
        ranks = [rank for rank in range(8) if of.mesh.coordinates(rank)[0] == pipeline_rank]
        assert sum(expectation(of, pipeline_rank, rank).flops[ORTHOGONAL] for rank in ranks) == blocks * block


@pytest.mark.parametrize("model", [LLAMA, MIXTRAL], ids=["dense", "experts"])
def test_the_grid_prices_and_holds_what_the_cost_model_does(model: ModelSpec) -> None:
    problem = Problem(model, TRAINING, ONE_NODE, "torch")
    table = Table(problem, ("none", "full"))
    for mesh in legal_layouts(problem, Pins(cp=1), Tally()):
        for draft in mesh.drafts:
            table.add(draft)
    rows = [(one, row) for one in table.price() for row in range(len(one.memory_bytes))]
    for one, row in rows[::37]:
        expected = estimate(*problem[:3], one.strategy(row))
        assert one.memory_bytes[row] == pytest.approx(expected.fullest.total_bytes, rel=1e-12)
        assert one.exact_s([row])[0] == pytest.approx(expected.step_time_s, rel=1e-12)


@pytest.mark.parametrize(("model", "operators"), [("llama3.2-1b", "megatron"), ("qwen3-30b-a3b", "megatron")])
def test_a_search_finds_what_all_prices_say(model: str, operators: str) -> None:
    asked = PlanRequest(model, "h100-80gb", 2, backend="torch", optimizer=MUON, operators=operators, top=0)
    asked = replace(asked, pins={"pp": 1, "cp": 1, "zero": 1})
    found, exact = (plan_for(one).estimate.step_time_s for one in (asked, replace(asked, exhaustive=True)))
    assert found == pytest.approx(exact, rel=1e-6)


def test_nxd_has_no_muon() -> None:
    with pytest.raises(AutoshardError) as raised:
        plan_for(PlanRequest("llama3-8b", "trn1.32xlarge", optimizer=MUON, top=0, backend="nxd"))
    assert "backend=nxd has no optimizer=muon, which needs whole matrices; use backend torch" in str(raised.value)


def test_weights_that_are_rounded_at_random_are_refused() -> None:
    with pytest.raises(AutoshardError) as raised:
        replace(TRAINING, precision=load_precision("bf16_sr"))
    assert str(raised.value) == (
        "optimizer=muon of the training: its updates need master weights, which precision bf16_sr lacks; "
        "mixed_precision has them"
    )


def test_an_unknown_optimizer_names_those_there_are() -> None:
    with pytest.raises(AutoshardError) as raised:
        replace(TRAINING, optimizer="lion")
    assert str(raised.value) == "optimizer='lion' of the training must be one of: adamw, muon"
