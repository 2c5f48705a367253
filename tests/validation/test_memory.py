"""`autoshard memory`: every block of a rank is named, adds up to the audit's peak, and is shown in four forms."""

from __future__ import annotations

import json
import pickle
import re
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from torch.cuda import _memory_viz

import autoshard
from autoshard.allocations.blocks import AGAIN, KEPT, RECEIVED, STATE, TOKENS, WEIGHTS, Block, RankMemory, held_levels
from autoshard.allocations.clock import event_times_s
from autoshard.allocations.compare import MORE, TWICE, UNKNOWN, diagnose
from autoshard.allocations.dump import read_dump
from autoshard.allocations.page import moment
from autoshard.allocations.record import rank_memory
from autoshard.allocations.snapshot import Held, rank_snapshot, snapshot, to_bytes
from autoshard.audits.measure import measure
from autoshard.audits.roles import roles
from autoshard.cli import main
from autoshard.errors import AutoshardError
from autoshard.plans.plan_json import write_plan
from tests.validation.audit_plans import plan

VIEWER: Any = _memory_viz
"""Functions without types."""


@pytest.mark.parametrize("name", ["1f1b", "ZeRO-3", "one device"])
def test_the_peak_is_the_audits(name: str) -> None:
    p = plan(name)
    role = roles(p)[0]
    found, measured = rank_memory(p, role.rank), measure(p, role)
    assert found.peak()[1] == pytest.approx(measured.peak_bytes, rel=1e-4)
    state = sum(one.size_bytes for one in found.blocks if one.kind == STATE)
    assert state == pytest.approx(sum(measured.state.values()), rel=1e-4)


def test_blocks_are_named_by_tensor_operator_stage_and_microbatch() -> None:
    p = plan("ZeRO-3")  # two pipeline ranks, core attention and MLP recomputed
    found = rank_memory(p, p.mesh.rank(1, {}))
    assert (found.pipeline_rank, found.all_microbatches) == (1, 8)
    kept = [one for one in found.blocks if one.kind == KEPT and one.tensor == "model.layers.2.self_attn.q_rope"]
    assert [(one.operator, one.stage, one.microbatch, one.phase) for one in kept] == [
        ("model.layers.2.self_attn.q_rope", 1, number, "forward") for number in range(found.microbatches)
    ]
    again = Counter(one.tensor for one in found.blocks if one.kind == AGAIN)
    assert again["model.layers.2.mlp.gate_proj"] == found.microbatches
    assert {one.tensor for one in found.blocks if one.kind == WEIGHTS} == {
        f"gathered weights of {unit}" for unit in ("model.layers.2", "model.layers.3", "lm_head.weight")
    }
    gradients = {one.tensor for one in found.blocks if one.phase == "backward"}
    assert {"gradient of model.layers.2.self_attn.q_rope", "gradients of model.layers.2, on their way"} <= gradients
    unnamed = sum(one.size_bytes for one in found.at(found.peak()[0]) if not one.tensor and not one.operator)
    assert unnamed < 0.05 * found.peak()[1]


def test_a_rank_in_the_middle_has_no_token_ids_and_receives_from_both_sides() -> None:
    p = plan("1f1b")
    found = rank_memory(p, p.mesh.rank(1, {}))
    assert sum(one.size_bytes for one in found.blocks if one.kind == TOKENS) < 1000  # torch's own token of a microbatch
    hidden = 4096 // 2 * 4096 * 2  # a half of the sequence, in BF16
    received = [one for one in found.blocks if one.kind == RECEIVED]
    assert {one.size_bytes for one in received} == {hidden}
    assert {one.label for one in received} == {"activation or gradient from another stage"}
    first = rank_memory(p, p.mesh.rank(0, {}))
    ids = [one for one in first.blocks if one.kind == TOKENS and one.size_bytes == 4096 * 8]
    assert len(ids) == p.num_microbatches == 12


@pytest.fixture(scope="module")
def small() -> Any:
    return autoshard.plan("llama3.2-1b", "trn1.32xlarge", nodes=1, seq_len=2048, global_batch=64, tp=8, pp=2, dp=2)


@pytest.fixture(scope="module")
def memory(small: Any) -> Any:
    return autoshard.memory(small)


@pytest.fixture(scope="module")
def recorded() -> Any:
    """What a rank holds, recorded once for all mistakes that are made beside it."""
    return cache(rank_memory)


def test_the_snapshot_is_what_pytorchs_own_functions_read(memory: Any, tmp_path: Path) -> None:
    file = memory.save(tmp_path / "memory.pickle")
    values = pickle.loads(file.read_bytes())
    text = VIEWER.trace(values)
    assert "raise" not in text and "TOTAL MEM" in text
    assert "gradients of model." in VIEWER.memory(values, lambda lines: lines)
    held = sum(one.size_bytes for one in memory.blocks.blocks if one.death is None)
    shown = re.search(r"total_allocated: ([\d.]+)([MG])iB", VIEWER.segsum(values))
    assert shown and float(shown[1]) * {"M": 2**20, "G": 2**30}[shown[2]] == pytest.approx(held, rel=0.05)
    assert "<html>" in VIEWER.trace_plot(values) and "<html>" in VIEWER.segment_plot(values)
    frames = {frame["name"] for entry in values["device_traces"][0] for frame in entry["frames"]}
    rank = memory.blocks.pipeline_rank
    first = memory.plan.stages[rank].first_layer
    assert {f"model.layers.{first}.mlp.gate_proj", f"F0.0: forward, stage {rank}, microbatch 0"} <= frames
    levels, level, peak = memory.blocks.levels(), 0, 0
    for entry in values["device_traces"][0]:
        level += {"alloc": entry["size"], "free_requested": -entry["size"]}.get(entry["action"], 0)
        peak = max(peak, level)
    assert peak == max(levels) and level == levels[-1]


def test_counters_and_picture(memory: Any, tmp_path: Path) -> None:
    events = json.loads(memory.save(tmp_path / "memory.json").read_text())["traceEvents"]
    sums = [sum(one["args"].values()) for one in events if one["ph"] == "C"]
    assert max(sums) == pytest.approx(memory.peak_bytes / 1e9, abs=1e-3)
    assert [one["name"] for one in events if one["ph"] == "X"] == [one.text for one in memory.blocks.actions]
    times = event_times_s(memory.plan, memory.blocks)
    assert times == sorted(times) and len(times) == memory.blocks.events + 1
    pytest.importorskip("matplotlib")
    assert memory.save(tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in memory.save(tmp_path / "memory.svg").read_bytes()


def test_a_planned_snapshot_is_its_own_dump(memory: Any, tmp_path: Path) -> None:
    found = memory.diagnose(memory.save(tmp_path / "memory.pickle")).found
    assert found.findings == () and found.short_bytes == 0
    assert found.held_bytes == found.planned_peak_bytes
    assert all(one.planned_bytes == one.found_bytes for one in found.present)


def test_a_run_that_is_out_of_memory(memory: Any, tmp_path: Path) -> None:
    times = [round(at * 1e6) for at in event_times_s(memory.plan, memory.blocks)]
    event, _ = memory.blocks.peak()
    held = [
        Held(one.size_bytes, one.birth, None if one.death is None or one.death > event else one.death, [])
        for one in memory.blocks.blocks
        if one.birth <= event
    ]
    leak = {"filename": "/home/me/train.py", "line": 7, "name": "log_logits"}
    held.append(Held(333_333_333, 0, None, [leak]))
    values = snapshot(held, times[: event + 1], {"size": 100_000_000, "device_free": 20_000_000})
    file = tmp_path / "dump.pickle"
    file.write_bytes(to_bytes(values))
    found = memory.diagnose(file)
    first, *_ = found.found.findings
    assert (first.what, first.size_bytes, first.where) == (UNKNOWN, 333_333_504, "train.py:7:log_logits")
    reserved = sum(one["total_size"] for one in values["segments"])
    alive = sum(one.size_bytes for one in held if one.death is None)
    assert (found.found.short_bytes, found.found.unused_bytes) == (80_000_000, reserved - alive)
    assert found.found.held_bytes == alive + 100_000_000
    assert found.fitting and found.fitting[0].saved_bytes >= found.found.short_bytes
    assert [one.step_time_s for one in found.fitting] == sorted(one.step_time_s for one in found.fitting)
    page = found.page(100)
    assert "never planned: the plan has no block of this size; asked for in train.py:7:log_logits" in " ".join(
        page.split()
    )
    assert "Would fit  single changes of the plan, the fastest first" in page
    assert max(map(len, page.splitlines())) <= 100


def block(tensor: str, kind: str, size_bytes: int, birth: int, death: int | None) -> Block:
    phase = "" if kind == STATE else "forward"
    return Block(tensor, tensor, 0, 0, phase, kind, size_bytes, birth, death)


def test_findings_by_hand() -> None:
    # at most: two of 1,024 bytes (state), one of 2,048 (kept) at a time
    planned = RankMemory(
        "m", 0, 0, 1, 1, (), 6,
        (
            block("gradients of a", STATE, 1024, 0, None),
            block("parameters of a", STATE, 1024, 0, None),
            block("model.layers.0.x", KEPT, 2048, 1, 2),
            block("model.layers.1.x", KEPT, 2048, 3, 4),
        ),
    )  # fmt: skip
    assert held_levels(planned.blocks, 6) == [2048, 4096, 2048, 4096, 2048, 2048, 2048]
    held = [
        Held(1000, 0, None, []), Held(1024, 1, None, []), Held(1024, 2, None, []),  # 1,000 becomes 1,024
        Held(2048, 4, None, []), Held(2048, 5, None, []), Held(3000, 6, None, []),
    ]  # fmt: skip
    values = snapshot(held, range(8))
    file = Path("dump.pickle")
    file.write_bytes(to_bytes(values))
    found = diagnose(planned, read_dump(file), 10_000)
    assert [(one.what, one.count, one.size_bytes, one.tensors) for one in found.findings] == [
        (UNKNOWN, 1, 3072, ()),
        (MORE, 1, 2048, ("model.layers.*.x",)),
        (TWICE, 1, 1024, ("gradients of a", "parameters of a")),
    ]
    assert (found.held_bytes, found.short_bytes, found.planned_peak_bytes) == (10_144, 144, 4096)
    file.write_bytes(to_bytes({**values, "device_traces": []}))  # of a run without a history
    assert [one.what for one in diagnose(planned, read_dump(file), 1e9).findings] == [UNKNOWN, MORE, TWICE]


def test_the_visualisers_form_of_a_step() -> None:
    memory = RankMemory("m", 0, 0, 1, 1, (), 2, (block("x", KEPT, 1000, 1, 2),))
    (trace,) = rank_snapshot(memory, [0.0, 1e-6, 2e-6])["device_traces"]
    assert [(one["action"], one["size"], one["time_us"]) for one in trace] == [
        ("alloc", 1000, 1),
        ("free_requested", 1000, 2),
        ("free_completed", 1000, 2),
    ]
    assert len({one["addr"] for one in trace}) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rank", "32"], "rank=32 is none of this plan's; its ranks are 0 to 31"),
        (["-o", "memory.txt"], "memory memory.txt ends with none of: .pickle, .json, .png, .svg"),
        (["--snapshot", "none.pickle"], "snapshot none.pickle cannot be read: No such file or directory"),
        (["--snapshot", "."], "snapshot . cannot be read: Is a directory"),
        (["--snapshot", "hostile.pickle"], "snapshot hostile.pickle is refused: its opcode GLOBAL at byte 2 makes "),
        (["--snapshot", "other.pickle"], "snapshot other.pickle is no snapshot of memory: torch.cuda.memory._dump"),
        (["--snapshot", "cut.pickle"], "snapshot cut.pickle is no pickle, or a damaged one"),
        (["-o", "nowhere/memory.json"], "memory nowhere/memory.json cannot be written: No such file or directory"),
    ],
)
def test_a_mistake_is_one_sentence(
    options: list[str],
    message: str,
    small: Any,
    recorded: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_plan(replace(small), "plan.json")
    monkeypatch.setattr("autoshard.allocations.record.rank_memory", recorded)
    Path("hostile.pickle").write_bytes(b"\x80\x02cos\nsystem\nX\x08\x00\x00\x00touch ran\x85R.")
    Path("other.pickle").write_bytes(pickle.dumps({"segments": 3}, 4))
    Path("cut.pickle").write_bytes(pickle.dumps([1, 2], 4)[:-3])
    assert main(["memory", "plan.json", *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"autoshard: error: {message}") and error.count("\n") == 1
    assert not Path("ran").exists() and not Path("nowhere").exists()


def test_the_page_says_what_is_alive_at_the_peak(memory: Any) -> None:
    page = memory.page(80)
    assert page.startswith(f"Memory  rank {memory.blocks.rank} holds at most ")
    assert "chunk 0" in page and "B0.0" not in page
    assert [moment(one) for one in ("B3.1", "F0.0", "W2.0", "optimizer", "before the step")] == [
        "in the backward of microbatch 3, chunk 1",
        "in the forward of microbatch 0, chunk 0",
        "in the weights' gradients of microbatch 2, chunk 0",
        "in optimizer",
        "before the step",
    ]
    assert "model.layers.*.input_layernorm (forward)" in page
    assert max(map(len, page.splitlines())) <= 80


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)


def test_the_allocation_that_failed_is_among_the_blocks(tmp_path: Path) -> None:
    planned = RankMemory("m", 0, 0, 1, 1, (), 1, (block("parameters of a", STATE, 1024, 0, None),))
    values = snapshot([Held(1024, 0, None, [])], [0, 1], {"size": 4096, "device_free": 512})
    (file := tmp_path / "dump.pickle").write_bytes(to_bytes(values))
    found = diagnose(planned, read_dump(file), 1e9)
    assert [(one.what, one.size_bytes, one.where) for one in found.findings] == [
        (UNKNOWN, 4096, "the call that failed")
    ]
    assert (found.held_bytes, found.short_bytes) == (5120, 3584)
    values["device_traces"][0][-1]["frames"] = [{"filename": "/a/model.py", "line": 3, "name": "forward"}]
    file.write_bytes(to_bytes(values))
    assert diagnose(planned, read_dump(file), 1e9).findings[0].where == "model.py:3:forward"


@pytest.mark.parametrize("field", ["filename", "line", "name"])
def test_a_frame_that_is_too_deep_to_write_is_not_written(field: str, tmp_path: Path) -> None:
    deep: Any = ()
    for _ in range(60):
        deep = (deep, deep)  # written out it has 2^60 pairs of brackets
    values = snapshot([Held(1024, 0, None, [{"filename": "/a/b.py", "line": 3, "name": "f", field: deep}])], [0, 1])
    (file := tmp_path / "dump.pickle").write_bytes(to_bytes(values))
    (only,) = read_dump(file).blocks
    assert only.where == {"filename": "", "line": "b.py:f", "name": "b.py:3:"}[field]


@pytest.mark.parametrize(
    "change",
    [
        {"segments": None},
        {"segments": [{"device": "0"}]},
        {"segments": [{"device": 0, "total_size": -1}]},
        {"device_traces": [[{"action": "alloc", "addr": 1}]]},
        {"device_traces": [[{"action": "alloc", "addr": 1, "size": 1.5}]]},
        {"device_traces": [[{"action": "alloc", "addr": 1, "size": 1, "frames": 3}]]},
        {"device_traces": [[7]]},
        {"device_traces": 7},
    ],
)
def test_other_forms_are_one_sentence(change: dict[str, Any], tmp_path: Path) -> None:
    (file := tmp_path / "dump.pickle").write_bytes(to_bytes({**snapshot([], [0]), **change}))
    with pytest.raises(AutoshardError, match=r"dump\.pickle is no snapshot of memory: torch\.cuda\.memory\._dump_snap"):
        read_dump(file)


def test_the_command_prints_json_and_writes_beside_it(
    small: Any, memory: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    write_plan(replace(small), "plan.json")
    assert main(["memory", "plan.json", "--format", "json", "-o", "memory.pickle"]) == 0
    printed = capsys.readouterr()
    values = json.loads(printed.out)
    assert len(values["blocks"]) == len(memory.blocks.blocks) and values["rank"] == memory.blocks.rank
    assert printed.err == "wrote memory.pickle\n"
    assert main(["memory", "plan.json", "--snapshot", "memory.pickle", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []
    assert main(["memory", "plan.json"]) == 0
    assert capsys.readouterr().out == memory.page(100)
