"""A backend that nobody knows is added by one record: planned for, written, validated, audited and run."""

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from autoshard.audits.roles import roles
from autoshard.audits.run import audit_role, held_orders
from autoshard.backends.registry import BACKENDS
from autoshard.commands import validate
from autoshard.cost.estimate import estimate
from autoshard.errors import AutoshardError
from autoshard.files.codec import to_json
from autoshard.graph.recompute import NO_RECOMPUTE
from autoshard.models import load_model
from autoshard.planner.planning import plan_for
from autoshard.planner.request import PlanRequest
from autoshard.plans.plan import Plan, make_plan
from autoshard.plans.plan_json import write_plan
from autoshard.plans.validate import read_plan
from autoshard.runtime.data import DataSource, prepare
from autoshard.runtime.launch import Message, RunOutcome, run_processes
from autoshard.runtime.nxd_backend import runtime as nxd_runtime
from autoshard.runtime.options import RunOptions, backend_names
from autoshard.runtime.report import verdict
from autoshard.runtime.session import Runtime
from autoshard.runtime.tokenizer import ByteTokenizer
from autoshard.runtime.torch_backend import runtime as torch_runtime
from autoshard.runtime.worker_arguments import TrainArguments
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision
from tests.multiprocess import third_backend
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import FP32, plan_of, strategy
from tests.multiprocess.started import forked
from tests.multiprocess.third_backend import THIN

RUNTIMES: tuple[Runtime, ...] = (nxd_runtime, torch_runtime, third_backend)
"""mypy proves that these modules, and the sessions that they open, meet the protocols."""


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, THIN.name, THIN)


def request(**changes: object) -> PlanRequest:
    return PlanRequest(model="llama3-8b", nodes=2, backend="thin", pins=changes)


def test_it_is_planned_for_written_and_validated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_for(request())
    assert plan.backend == "thin" and plan.strategy.tp <= 2 and plan.strategy.schedule == "1f1b"
    assert plan.search is not None and "Thin shards over two ranks" in [one.reason for one in plan.search.rejections]
    write_plan(plan, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan
    assert validate.run({"plan": str(tmp_path / "plan.json")}) == 0
    assert "plan.json is valid: llama3-8b on 2 x trn1.32xlarge" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        ({"tp": 8}, "tp=8: Thin shards over 2 ranks at most; use tp=2"),
        ({"pp": 2, "schedule": "zero_bubble"}, "schedule=zero_bubble is not one of Thin's: 1f1b"),
        ({"zero": 3}, "zero=3: Thin shards the optimizer state alone; use zero=1 or backend torch"),
        (
            {"axis_order": "dp-pp-cp-tp"},
            "Thin builds its groups in the order pp-dp-cp-tp alone; use that or",
        ),
        ({"cp": 2, "context_parallel": "ring"}, "context_parallel=ring with cp=2: Thin has all_gather alone"),
    ],
)
def test_its_limits_are_told(pins: dict[str, object], message: str) -> None:
    with pytest.raises(AutoshardError) as error:
        plan_for(request(**pins))
    assert message in str(error.value)


def test_a_backend_without_a_record() -> None:
    with pytest.raises(AutoshardError, match=r"^backend='fourth' of the request must be one of: nxd, torch, thin$"):
        plan_for(replace(request(), backend="fourth"))


def test_a_run_may_ask_for_it() -> None:
    assert backend_names() == ("auto", "torch", "nxd", "thin")
    assert RunOptions(backend="thin").backend == "thin"
    with pytest.raises(AutoshardError, match=r"^profile=True: Thin has no clock$"):
        RunOptions(backend="thin", profile=True)


def test_every_record_names_its_module() -> None:
    paths = {module.__name__ for module in RUNTIMES if isinstance(module, ModuleType)}
    assert paths == {one.runtime for one in BACKENDS.values()} <= sys.modules.keys()


def test_it_is_audited() -> None:
    model, cluster = replace(load_model("llama3-8b"), num_hidden_layers=2), load_cluster("trn1.32xlarge", 1)
    training = TrainingSpec(2048, 32, load_precision("mixed_precision"))
    chosen = strategy(tp=2, dp=16, layers=(2,), recompute=NO_RECOMPUTE)
    plan = make_plan(model, training, cluster, "thin", chosen, estimate(model, training, cluster, chosen))
    held = held_orders(plan)
    assert [audit_role(plan, role, held).differences for role in roles(plan)[:1]] == [()]


def test_it_runs_as_one_process_does(tmp_path: Path) -> None:
    plan = replace(plan_of(replace(MODELS["llama"], vocab_size=256), strategy(tp=2), 2, FP32), backend="thin")
    write_plan(plan, tmp_path / "plan.json")
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 50)
    arguments = TrainArguments(
        plan=str(tmp_path / "plan.json"),
        data=str(prepare(DataSource(tmp_path / "text.txt", ByteTokenizer()), tmp_path).path),
        steps=2,
        learning_rate=1e-3,
        warmup_steps=0,
        lr_schedule="constant",
        seed=0,
        device="cpu",
        backend="thin",
        tensors=str(tmp_path),
        eval_fraction=0.2,
        eval_batches=1,
    )
    notes: list[str] = []
    sharded = run("train", plan, arguments, 2, tmp_path, notes)
    assert notes == ["Thin does nothing itself"]
    trained = (sharded.results[0] or {})["trained"]
    assert len(trained["losses"]) == 2 and 2000 < trained["held_out_losses"][-1] < 2010  # its own session ran
    alone = run("compare", plan, arguments, 1, tmp_path, [])
    assert verdict(plan, sharded.results, alone.results[0]).ok


def run(name: str, plan: Plan, arguments: TrainArguments, processes: int, folder: Path, notes: list[str]) -> RunOutcome:
    def hear(message: Message) -> None:
        if message.kind == "note":
            notes.append(message.values["text"])

    outcome = run_processes(
        f"tests.multiprocess.third_backend:{name}",
        to_json(arguments),
        processes,
        on_message=hear,
        log_directory=folder / "logs",
        hang_timeout_s=100,
        trusted_prefix="tests.",
        start=forked(),
    )
    assert outcome.exit_code == 0, outcome.message
    return outcome
