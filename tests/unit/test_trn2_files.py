"""The layouts that AWS documents for Llama 3 on trn2, tp=32 with folded groups among them: read, priced, written."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoshard.backends.rules import Problem, check_strategy
from autoshard.cli import main
from autoshard.cost.collectives import collective_time_s, group_shape
from autoshard.cost.local_shape import mesh_order, strategy_mesh
from autoshard.errors import AutoshardError
from autoshard.interop.export import export
from autoshard.interop.nxdt import nxdt_layout
from autoshard.layout.mesh import TENSOR_PARALLEL_AXES
from autoshard.models.registry import load_model
from autoshard.planner.score import score
from autoshard.planner.search import search
from autoshard.plans.plan import Plan
from autoshard.plans.plan_json import write_plan
from autoshard.plans.search_result import Pins
from autoshard.plans.validate import read_plan
from autoshard.runtime.nxd_backend.rank_groups import mended_groups, mesh_groups, plan_case, rank_groups
from autoshard.runtime.nxd_backend.traps import nxd_repairs
from autoshard.spec.cluster import load_cluster
from autoshard.spec.platform import TRN2_TORUS, Fold
from autoshard.units import GB
from tests.unit.plan_examples import plan_70b
from tests.unit.test_nxd_configuration import changed
from tests.unit.trn2_files import FILES, trn2_plan

BIG, SMALL = FILES
EVERY_FILE = pytest.mark.parametrize("name", FILES)


def problem(plan: Plan) -> Problem:
    return Problem(plan.model, plan.training, plan.cluster, plan.backend)


def test_the_70b_is_read_as_it_is(tmp_path: Path) -> None:
    plan = trn2_plan(BIG, tmp_path)
    s = plan.strategy
    assert (plan.model.name, plan.cluster.instance, plan.cluster.nodes, plan.cluster.lnc) == (
        *("llama3-70b", "trn2.48xlarge"),
        *(8, 2),
    )
    assert (s.tp, s.pp, s.dp, s.zero, s.sequence_parallel, s.stage_layers) == (32, 4, 4, 1, True, (19, 21, 21, 19))
    assert s.recompute == ("attention_norm+mlp_norm+mlp.act_fn",) * 4
    assert plan.backend == "nxd"
    assert [note for note in plan.notes if "folded" in note] == [
        (
            "tp=32 at lnc 2 has folded rank groups: NxD 0.18.0 leaves out the model files of half its tensor-parallel "
            "ranks: autoshard run gives it the plan's groups and writes its own files, NxD Training does neither"
        )
    ]
    assert not [note for note in plan.notes if "priced as" in note]


def test_the_8b_is_read_as_it_is(tmp_path: Path) -> None:
    plan = trn2_plan(SMALL, tmp_path)
    s = plan.strategy
    assert (plan.model.name, plan.cluster.nodes, s.tp, s.pp, s.dp) == ("llama3-8b", 1, 16, 1, 4)
    assert (s.recompute, s.zero, plan.backend) == (("none",), 1, "nxd")
    assert plan.mesh.fold is None


@EVERY_FILE
def test_a_plan_of_it_is_whole(name: str, tmp_path: Path) -> None:
    plan = trn2_plan(name, tmp_path)
    write_plan(plan, str(tmp_path / "plan.json"))
    assert read_plan(str(tmp_path / "plan.json")).strategy == plan.strategy
    assert json.loads((tmp_path / "plan.json").read_text())["mesh"]["rank_order"].endswith(
        "; the rows of each node of 64 ranks are counted 0, 3, 1, 2" if name == BIG else "have neighbouring ranks"
    )


@EVERY_FILE
def test_it_obeys_every_rule_and_fits(name: str, tmp_path: Path) -> None:
    plan = trn2_plan(name, tmp_path)
    for backend in ("nxd", "torch"):
        found = score(problem(plan)._replace(backend=backend), plan.strategy)
        assert found.broken == ()
        assert found.estimate is not None and found.estimate.fits


@EVERY_FILE
def test_its_pins_give_it(name: str, tmp_path: Path) -> None:
    """But for where the stages are cut, which search decides."""
    plan = trn2_plan(name, tmp_path)
    s = plan.strategy
    pins = Pins(tp=s.tp, pp=s.pp, dp=s.dp, microbatch_size=s.microbatch_size, recompute=s.recompute_name)
    best = search(plan.model, plan.training, plan.cluster, pins).best
    assert best.strategy == replace(s, stage_layers=best.strategy.stage_layers)
    assert best.estimate.step_time_s <= plan.estimate.step_time_s * (1 + 1e-5), "which a plan rounds to six digits"


@EVERY_FILE
def test_it_is_written_and_read_again(name: str, tmp_path: Path) -> None:
    plan = trn2_plan(name, tmp_path)
    found = export(plan, "nxdt")
    assert ("activations_checkpoint_recompute:\n  - LlamaRMSNorm\n  - ActivationMultiplyMLP\n" in found.text) == (
        name == BIG
    )
    (tmp_path / "again.yaml").write_text(found.text)
    assert main(["import", str(tmp_path / "again.yaml"), "-o", str(tmp_path / "again.json")]) == 0
    again = read_plan(str(tmp_path / "again.json"))
    assert (again.strategy, again.model, again.cluster) == (plan.strategy, plan.model, plan.cluster)
    left_out = (
        "tp=32 at lnc 2 has folded rank groups, and NxD's save_checkpoint leaves out the model files of half their "
        "ranks; autoshard convert writes all, autoshard run saves its own"
    )
    assert (left_out in found.left_out) == (name == BIG)


def test_other_sets_of_classes_are_named_one_by_one(tmp_path: Path) -> None:
    def read(classes: str) -> tuple[str, tuple[str, ...]]:
        text = FILES[BIG].replace("[LlamaRMSNorm, ActivationMultiplyMLP]", classes)
        (tmp_path / "one.yaml").write_text(text)
        assert main(["import", str(tmp_path / "one.yaml"), "-o", str(tmp_path / "one.json")]) == 0
        plan = read_plan(str(tmp_path / "one.json"))
        return plan.strategy.recompute_name, tuple(note for note in plan.notes if "priced as" in note)

    assert read("[LlamaMLP, LlamaRMSNorm]") == ("attention_norm+mlp_norm+mlp", ())
    assert read("[ActivationMultiplyMLP, CoreAttention]") == ("mlp.act_fn", ())  # it has a flash kernel
    assert read("[CoreAttention, LlamaRotaryEmbedding]") == (
        "none",
        ("activations_checkpoint_recompute=CoreAttention, LlamaRotaryEmbedding is priced as none",),
    )


@EVERY_FILE
def test_its_groups_are_nxds(name: str, tmp_path: Path) -> None:
    plan = trn2_plan(name, tmp_path)
    theirs, ours = mended_groups(plan).by_name(), mesh_groups(plan).by_name()
    assert {kind: sorted(groups) for kind, groups in theirs.items()} == {k: sorted(v) for k, v in ours.items()}
    own = rank_groups(plan_case(plan)).by_name()
    mixed = [kind for kind in ours if sorted(own[kind]) != sorted(ours[kind])]
    assert mixed == (["ep_data_groups"] if name == BIG else [])


def test_folded_groups_are_two_rows(tmp_path: Path) -> None:
    mesh = trn2_plan(BIG, tmp_path).mesh
    groups = mesh.groups(TENSOR_PARALLEL_AXES)
    assert groups[:2] == [[*range(16), *range(48, 64)], [*range(16, 48)]]
    assert groups[2][:16] == [*range(64, 80)]
    assert mesh.groups(["dp"])[:17:16] == [[0, 16, 64, 80], [48, 32, 112, 96]]
    assert mesh.groups(["pp"])[0] == [0, 128, 256, 384]
    assert [mesh.coordinates(rank)[1]["dp"] for rank in (0, 16, 32, 48, 64)] == [0, 1, 1, 0, 2]
    assert [mesh.rank(*mesh.coordinates(rank)) for rank in range(512)] == [*range(512)]


def test_folding_takes_rows_of_each_node() -> None:
    fold = Fold(8, TRN2_TORUS.row_order)
    assert [fold.rank(place) for place in range(16)] == [0, 1, 6, 7, 2, 3, 4, 5, 8, 9, 14, 15, 10, 11, 12, 13]
    fold = Fold(64, TRN2_TORUS.row_order)
    assert [fold.place(fold.rank(place)) for place in range(256)] == [*range(256)]


@pytest.mark.parametrize(
    ("instance", "lnc", "tp"),
    [("trn2.48xlarge", 2, 32), ("trn2u.48xlarge", 2, 32), ("trn2.48xlarge", 1, 64)],
)
def test_half_a_node_of_a_torus_folds_alone(instance: str, lnc: int, tp: int) -> None:
    cluster = load_cluster(instance, 2, lnc)
    assert [degree for degree in (1, 4, 8, 16, 32, 64, 128) if cluster.fold(degree)] == [tp]
    assert load_cluster("trn1.32xlarge", 2).fold(16) is None
    assert load_cluster("h100-80gb", 2).fold(4) is None


def rows_apart(node: int, one: int, other: int) -> int:
    """Hops between the rows of two ranks of a node, the shorter way around the torus."""
    rows = len(TRN2_TORUS.row_order)
    distance = abs(one % node * rows // node - other % node * rows // node)
    return min(distance, rows - distance)


@pytest.mark.parametrize(("lnc", "tp"), [(2, 32), (1, 64)])
@pytest.mark.parametrize("inner", ["dp", "pp", "cp"])
def test_neighbours_in_the_other_group_are_one_row_away(lnc: int, tp: int, inner: str) -> None:
    """With consecutive ranks they would be two, and could not talk."""
    degrees = {"tp": tp, "pp": 1, "dp": 1, "cp": 1, inner: 2}
    stages = (80,) if inner != "pp" else (40, 40)
    plan = changed(plan_70b(), "trn2.48xlarge", 1, lnc, **degrees, stage_layers=stages)
    node = plan.cluster.devices_per_node
    assert {rows_apart(node, *pair) for pair in plan.mesh.groups([inner])} == {1}
    for group in plan.mesh.groups(TENSOR_PARALLEL_AXES):
        assert {rows_apart(node, group[0], rank) for rank in group} == {0, 1}
    assert rows_apart(node, 0, tp) == 2


def around(devices: list[int], node: int) -> int:
    """The shortest run of neighbours on a ring of the node's devices that holds them all."""
    return min(1 + max((device - start) % node for device in devices) for start in devices)


@pytest.mark.parametrize(("lnc", "tp"), [(2, 32), (1, 64)])
@pytest.mark.parametrize(("pp", "dp", "cp"), [(4, 4, 1), (2, 2, 4), (1, 8, 2), (8, 2, 1), (2, 1, 8)])
def test_shapes_of_folded_groups_are_what_their_ranks_show(lnc: int, tp: int, pp: int, dp: int, cp: int) -> None:
    cluster = load_cluster("trn2.48xlarge", 8, lnc)
    stages = (80 // pp,) * pp
    strategy = replace(plan_70b().strategy, tp=tp, pp=pp, dp=dp, cp=cp, stage_layers=stages, context_parallel="ring")
    assert strategy.world_size == cluster.world_size
    mesh = strategy_mesh(plan_70b().model, cluster, strategy)
    names, node = [name for name, size in mesh_order(mesh) if size > 1], cluster.devices_per_node
    for chosen in product([False, True], repeat=len(names)):
        axes = tuple(sorted(name for name, takes in zip(names, chosen, strict=True) if takes))
        if not axes:
            continue
        shape = group_shape(mesh_order(mesh), axes, cluster)
        nodes = [{rank // node: [one for one in group if one // node == rank // node] for rank in group}
                 for group in mesh.groups(axes)]  # fmt: skip
        members = [held for one in nodes for held in one.values()]
        assert {len(held) for held in members} == {shape.ranks_per_node}, axes
        assert {len(one) for one in nodes} == {shape.nodes}, axes
        assert max(around(held, node) for held in members) == shape.span, axes


def test_a_folded_group_costs_what_two_neighbouring_rows_cost() -> None:
    """31/32 of 1 GB, twice, at 9.89 % of 1,024 GB/s, as 8 chips in a row of ranks; 31 hops of 1.62 us each way."""
    cluster = load_cluster("trn2.48xlarge", 8, 2)
    mesh = (("pp", 4), ("dp", 4), ("tp0", 8), ("tp1", 4))
    seconds = collective_time_s("all_reduce", GB, group_shape(mesh, ("tp0", "tp1"), cluster), cluster)
    assert seconds == pytest.approx(2 * 31 / 32 / (0.0989 * 1024) + 2 * 31 * 1.62e-6 + 82.1e-6, rel=1e-9)
    # stages in the two halves of a node: 4 ranks of a chip send to the row beside theirs, over those links too
    halves = group_shape((("pp", 2), ("dp", 1), ("tp", 32)), ("pp",), replace(cluster, nodes=1))
    seconds = collective_time_s("send_recv", GB, halves, cluster)
    assert seconds == pytest.approx(4 / (0.0989 * 1024) + 1.62e-6 + 82.1e-6, rel=1e-9)


def test_without_zero_1_nxd_is_given_the_plans_groups(tmp_path: Path) -> None:
    plan = trn2_plan(BIG, tmp_path)
    repair = (
        "tp=32 at lnc 2 on trn2.48xlarge has folded rank groups: NxD sums gradients without ZeRO-1, and chooses who "
        "saves the model, among ranks that hold different shards, so it is given the plan's groups for both"
    )
    assert nxd_repairs(plan)[0] == repair
    alone = changed(plan_70b(), "trn2.48xlarge", 1, 2, tp=32, pp=2, dp=1, stage_layers=(40, 40))
    assert repair not in nxd_repairs(alone), "one replica has nothing to sum"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"ep": 2},
            (
                "ep=2 with tp=32 at lnc 2: NxD spreads experts over consecutive ranks, which hold different shards in "
                "these folded groups; use ep=1, another tp or backend torch"
            ),
        ),
        (
            {"cp": 2, "dp": 2, "context_parallel": "ring"},
            (
                "cp=2 with tp=32 at lnc 2: NxD numbers the ranks that share a sequence in two orders in these folded "
                "groups; use cp=1, another tp or backend torch"
            ),
        ),
    ],
)
def test_what_nxd_gets_wrong_in_folded_groups_is_refused(fields: dict[str, Any], text: str) -> None:
    plan = plan_70b()
    model = load_model("mixtral-8x7b") if "ep" in fields else plan.model
    layers = model.num_hidden_layers // 4
    layout = replace(plan.strategy, **{"tp": 32, "pp": 4, "dp": 4, "stage_layers": (layers,) * 4, **fields})
    cluster = load_cluster("trn2.48xlarge", 8, 2)
    with pytest.raises(AutoshardError) as error:
        check_strategy(model, plan.training, cluster, "nxd", layout)
    assert str(error.value) == text
    if "cp" in fields:
        check_strategy(model, plan.training, cluster, "torch", layout)


def test_a_flash_kernel_takes_the_place_of_core_attention() -> None:
    """Blocks of Hugging Face's models call either; those of model_source=megatron have no kernel."""
    model = {
        "activations_checkpoint_granularity": "selective",
        "activations_checkpoint_recompute": ["CoreAttention"],
        "fusions": {"flash_attention": True},
    }
    data = {"distributed_strategy": {"tensor_model_parallel_size": 8}, "model": model}
    found = nxdt_layout({**data, "model_source": "hf"})
    assert (found.options["attention_kernel"], found.options["recompute"]) == ("flash", "none")
    told = "activations_checkpoint_recompute has CoreAttention, which a flash or ring kernel takes the place of: "
    assert found.notes == (f"{told}nothing of it runs again",)
    found = nxdt_layout({**data, "model_source": "megatron"})
    assert (found.options["attention_kernel"], found.options["recompute"]) == ("plain", "core_attention")
    assert found.notes == (
        "model.fusions: models of model_source=megatron have no flash kernel; read as plain attention",
    )


def test_classes_that_are_not_listed() -> None:
    """NxD Training of SDK 2.20 recomputed core attention, and the MLP where it was asked to and sequences had 8,192
    tokens or more; later ones go by the list.
    """

    def read(lines: str, length: int = 8192) -> tuple[str, tuple[str, ...]]:
        data = yaml.safe_load(FILES[BIG])
        del data["model"]["activations_checkpoint_recompute"]
        data["model"] |= {"encoder_seq_length": length, **yaml.safe_load(lines)}
        data["data"].pop("seq_length", None)
        found = nxdt_layout(data)
        return found.options["recompute"], tuple(note for note in found.notes if "activations" in note)

    told = "activations_checkpoint_granularity=selective without activations_checkpoint_recompute: NxD Training "
    nothing = ("none", (f"{told}recomputes nothing; until SDK 2.20 it was core attention",))
    assert [read(lines) for lines in ("{}", "activations_checkpoint_recompute: []")] == [nothing] * 2
    with_mlp = "activations_checkpoint_recompute_mlp"
    said = "as NxD Training read it until SDK 2.20; later ones have activations_checkpoint_recompute"
    for value, length, name in (
        (True, 8192, "core_attention+mlp"),
        (True, 4096, "core_attention"),
        (False, 8192, "core_attention"),
    ):
        assert read(f"{with_mlp}: {value}", length) == (name, (f"{with_mlp}={value} is priced as {name}, {said}",))


@pytest.mark.parametrize(
    ("lines", "zero"), [({}, 1), ({"zero1": True}, 1), ({"zero1": False}, 0), ({"zero1": None}, 0)]
)
def test_zero1_that_is_not_said_is_on(lines: dict[str, bool | None], zero: int) -> None:
    assert nxdt_layout({"distributed_strategy": {"tensor_model_parallel_size": 8, **lines}}).fields["zero"] == zero
