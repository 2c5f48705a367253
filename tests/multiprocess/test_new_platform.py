"""A platform that nobody knows is added by one record: planned for, audited, run on its groups, and rehearsed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autoshard.audits.roles import roles
from autoshard.audits.run import audit_role, held_orders
from autoshard.cli import main
from autoshard.files.codec import to_json
from autoshard.plans.plan import Plan
from autoshard.plans.validate import read_plan
from autoshard.runtime.data import DataSource, prepare
from autoshard.runtime.launch import RunOutcome, run_processes
from autoshard.runtime.report import verdict
from autoshard.runtime.tokenizer import ByteTokenizer
from autoshard.runtime.trainer.difference import RankFiles
from autoshard.runtime.worker_arguments import TrainArguments
from autoshard.spec.hardware_file import read_content
from autoshard.spec.platform import PLATFORMS, Platform
from tests.multiprocess.new_platform_workers import SMALL
from tests.multiprocess.started import forked
from tests.multiprocess.test_run import TINY
from tests.new_platform import hardware_file, own

PINS = ("--tp", "4", "--pp", "1", "--cp", "1", "--dp", "2")
RECORDS: dict[str, tuple[Platform, list[int], list[int]]] = {
    "as it is": (SMALL, [0, 1, 4, 5], [0, 1]),
    "copies of a head are neighbours": (replace(SMALL, kv_heads_innermost=False), [0, 1, 4, 5], [0, 4]),
    "no torus": (replace(SMALL, torus=None), [0, 1, 2, 3], [0, 1]),
}
"""A record, the ranks of the first tensor-parallel group, and those of them that are the first to hold each of two
key-value heads."""


def small_node(folder: Path) -> Path:
    """A hardware file of trn9 nodes with four chips, and so eight devices."""
    content = read_content(hardware_file(folder)) | {"instance": "trn9.mini", "chips_per_node": own(4)}
    content["calibration"]["link_efficiency_by_chips"] = {"2": own(0.5), "4": own(0.5)}
    file = folder / "trn9_mini.json"
    file.write_text(json.dumps(content))
    return file


def planned(folder: Path) -> Plan:
    """A small model with two key-value heads, planned by the command for one node."""
    (folder / "config.json").write_text(json.dumps({**TINY, "num_hidden_layers": 2, "num_key_value_heads": 2}))
    request = ("--model", str(folder / "config.json"), "--hardware", str(small_node(folder)), "--seq-len", "128")
    batch = ("--global-batch", "4", "--precision", "fp32")
    assert main(["plan", *request, *batch, *PINS, "--out", str(folder / "plan.json")]) == 0
    return read_plan(folder / "plan.json")


@pytest.mark.parametrize("name", RECORDS)
def test_it_is_planned_for_and_audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    record, group, _ = RECORDS[name]
    monkeypatch.setitem(PLATFORMS, record.name, record)
    plan = planned(tmp_path)
    assert (plan.cluster.layout_rules, plan.mesh.world_size, plan.strategy.attention_kernel) == ("trn9", 8, "plain")
    assert sorted(plan.mesh.groups(("tp0", "tp1"))[0]) == group
    assert [audit_role(plan, role, held_orders(plan)).differences for role in roles(plan)] == [()] * len(roles(plan))


def test_its_ranks_hold_what_the_record_says_and_train_as_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, group, holders = RECORDS["as it is"]
    monkeypatch.setitem(PLATFORMS, record.name, record)
    plan = planned(tmp_path)
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 100)
    arguments = TrainArguments(
        plan=str(tmp_path / "plan.json"),
        data=str(prepare(DataSource(tmp_path / "text.txt", ByteTokenizer()), tmp_path).path),
        steps=2,
        learning_rate=1e-3,
        warmup_steps=0,
        lr_schedule="constant",
        seed=0,
        device="cpu",
        backend="torch",
        tensors=str(tmp_path),
    )
    sharded = run("train", arguments, plan.mesh.world_size, tmp_path)
    alone = run("compare", arguments, 1, tmp_path)
    assert verdict(plan, sharded.results, alone.results[0]).ok
    files, attention = RankFiles(tmp_path), "trained.parameter/0/model.layers.0.self_attn"
    assert list(files.pieces(f"{attention}.q_proj.weight")) == group
    assert list(files.pieces(f"{attention}.k_proj.weight")) == holders


def run(name: str, arguments: TrainArguments, processes: int, folder: Path) -> RunOutcome:
    outcome = run_processes(
        f"tests.multiprocess.new_platform_workers:{name}",
        to_json(arguments),
        processes,
        on_message=lambda message: None,
        log_directory=folder / "logs",
        hang_timeout_s=100,
        trusted_prefix="tests.",
        start=forked(),
    )
    assert outcome.exit_code == 0, outcome.message
    return outcome


def test_a_rehearsal_of_it_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rehearsal's own plan is for processes of this machine, so its ranks need no record."""
    monkeypatch.setitem(PLATFORMS, SMALL.name, SMALL)
    planned(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 200)
    text = str(tmp_path / "text.txt")
    assert main(["run", str(tmp_path / "plan.json"), "--data", text, "--processes", "4", "--steps", "2"]) == 0
    printed = capsys.readouterr().out
    assert " on 1 x trn9.mini: this machine is not the plan's 8 devices." in printed
    assert printed.rstrip().endswith("OK: the sharded run equals one process")
