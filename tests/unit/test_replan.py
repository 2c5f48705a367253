"""Plans for other nodes: bytes that move by hand, and what is chosen, kept and said."""

from dataclasses import replace
from pathlib import Path

import pytest

from autoshard.cli import main
from autoshard.cost.estimate import estimate
from autoshard.errors import AutoshardError
from autoshard.layout.plan import Plan, make_plan
from autoshard.layout.plan_json import write_plan
from autoshard.layout.strategy import Strategy
from autoshard.layout.validate import read_plan
from autoshard.models.registry import load_model
from autoshard.models.stage import parameter_count
from autoshard.replan import replan
from autoshard.replan.moved import MOST_RANKS, moved, sample
from autoshard.replan.replan import LITTLE, WORTH
from autoshard.search import Pins, search
from autoshard.search.rules import Problem, warnings
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision
from tests.multiprocess.plans import FP32, LLAMA, plan_of, strategy

STATE = 3 * 4 * parameter_count(LLAMA)
ONE, DP = strategy(), strategy(dp=2)
PLAIN_DP, TP, PP = strategy(dp=2, zero=0), strategy(tp=2, sp=False), strategy(pp=2)


def plan(chosen: Strategy) -> Plan:
    return plan_of(LLAMA, chosen, 4, FP32)


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
    found = moved(plan(before), plan(after))
    assert found.total_bytes == total * STATE
    assert found.total_bytes - found.moved_bytes == kept * STATE


def test_halves_of_rows_meet_halves_of_blocks() -> None:
    """From two stages to two tensor-parallel ranks: each has the half of what it will have of half of the blocks."""
    embedding = LLAMA.vocab_size * LLAMA.hidden_size
    norm = LLAMA.hidden_size
    block = (parameter_count(LLAMA) - 2 * embedding - norm) // 4
    matrices = block - 2 * norm
    kept = embedding / 2 + embedding / 2 + norm + 4 * (matrices / 2 + 2 * norm)
    found = moved(plan(PP), plan(TP))
    assert found.total_bytes - found.moved_bytes == 3 * 4 * kept
    assert found.total_bytes == STATE + 3 * 4 * 9 * norm  # both hold every norm


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
    best = search(model, training, cluster, Pins(tp=4), "torch", 1).best
    return make_plan(
        model, training, cluster, "torch", best.strategy, best.estimate, pins=Pins(tp=4, dp=best.strategy.dp)
    )


def test_little_is_given_for_moving_less(sixteen: Plan) -> None:
    found = replan(sixteen, 15)
    assert found.plan.cluster == replace(sixteen.cluster, nodes=15)
    assert (found.plan.model, found.plan.training) == (sixteen.model, sixteen.training)
    assert found.plan.strategy.tp == 4  # pinned
    assert found.plan.estimate.step_time_s <= found.fastest.estimate.step_time_s * (1 + LITTLE)
    again = estimate(sixteen.model, sixteen.training, found.plan.cluster, found.plan.strategy)
    assert found.plan.estimate.step_time_s == pytest.approx(again.step_time_s, rel=1e-5)
    gain = found.moved.kept_share - found.fastest_moved.kept_share
    assert gain == 0 if found.plan.strategy == found.fastest.strategy else gain >= WORTH
    text = " ".join(found.plan.notes)
    assert "replanned from 16 to 15 nodes; stays: tp 4, " in text
    assert f"{found.moved.kept_share:.0%} of the training state is where it was" in text


def test_nothing_changes_on_as_many_nodes(sixteen: Plan) -> None:
    found = replan(sixteen, 16)
    assert found.plan.strategy == sixteen.strategy
    assert found.moved.moved_bytes == 0
    assert "changes: nothing" in " ".join(found.plan.notes)


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


def test_what_does_not_fit_is_one_error(sixteen: Plan) -> None:
    with pytest.raises(AutoshardError, match=r"memory|fits"):
        replan(sixteen, 1)


def test_the_command_writes_a_valid_plan(
    sixteen: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_plan(sixteen, tmp_path / "plan.json")
    assert main(["replan", "plan.json", "--nodes", "12"]) == 0
    assert "wrote plan-12-nodes.json; next: autoshard run plan-12-nodes.json" in capsys.readouterr().out
    assert read_plan(tmp_path / "plan-12-nodes.json").cluster.nodes == 12
    assert main(["replan", "plan.json"]) == 2
    assert capsys.readouterr().err == "autoshard: error: --nodes is missing; see --help\n"
