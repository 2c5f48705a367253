"""`autoshard run` as a user runs it: rehearsals, plans for this machine, torchrun, and what goes wrong."""

import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from autoshard.cli import main
from autoshard.errors import AutoshardError
from autoshard.files.codec import to_json
from autoshard.plans.plan_json import write_plan
from autoshard.plans.validate import read_plan
from autoshard.runtime.data import DataSource, prepare
from autoshard.runtime.launch import run_processes
from autoshard.runtime.report import result_tables, verdict
from autoshard.runtime.tokenizer import ByteTokenizer
from autoshard.runtime.trainer.difference import save
from autoshard.runtime.worker_arguments import TrainArguments
from autoshard.schedules import actions
from tests.multiprocess.command import autoshard, in_a_process, offline
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import FP32, plan_of, strategy
from tests.multiprocess.started import by_default, forked

TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}


def plan_of_four(folder: Path) -> None:
    """plan.json for 4 processes of this machine, 2 pipeline stages of 2 ranks."""
    model = replace(MODELS["llama"], vocab_size=256)
    write_plan(plan_of(model, strategy(tp=2, pp=2), 4, FP32), folder / "plan.json")


def test_a_70b_plan_is_rehearsed(tmp_path: Path) -> None:
    """By the commands of the README."""
    assert in_a_process(tmp_path, "plan", "--model", "llama3-70b", "--nodes", "16").returncode == 0
    ran = in_a_process(tmp_path, "run", "plan.json", "--steps", "3", "--wandb")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "REHEARSAL of llama3-70b on 16 x trn1.32xlarge" in ran.stdout
    assert ran.stdout.rstrip().endswith("OK: the sharded run equals one process")
    assert "\x1b" not in ran.stdout
    (directory,) = (tmp_path / "runs").glob("[!.]*")
    steps = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [one["step"] for one in steps] == [1, 2, 3]
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert list((directory / "tensorboard").iterdir())
    (kept,) = directory.glob("wandb/offline-run-*")
    assert f", wandb sync {kept.relative_to(tmp_path)}, " in ran.stdout
    result = json.loads((directory / "result.json").read_text())
    assert result["ok"] is True
    assert len(result["peak_memory_bytes"]) == 8


def test_a_moe_plan_with_expert_parallelism_is_rehearsed(tmp_path: Path) -> None:
    pins = ("--tp", "8", "--pp", "4", "--ep", "4")
    made = autoshard(tmp_path, "plan", "--model", "mixtral-8x7b", "--nodes", "8", *pins)
    assert made.returncode == 0, made.stderr
    ran = autoshard(tmp_path, "run", "plan.json", "--steps", "1")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "not rehearsed: dp (all axes together take --processes 16)" in ran.stdout


@pytest.fixture(scope="module")
def planned_here(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run of 8 processes, planned for this machine, and what it printed."""
    folder = tmp_path_factory.mktemp("here")
    (folder / "config.json").write_text(json.dumps(TINY))
    made = autoshard(
        folder, "plan", "--model", "config.json", "--instance", "cpu", "--nodes", "1", "--seq-len", "64",
        "--global-batch", "8", "--tp", "2", "--pp", "2", "--dp", "2",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    evaluation = ("--eval-fraction", "0.1", "--eval-every", "2", "--eval-batches", "2")
    ran = autoshard(folder, "run", "plan.json", "--steps", "4", "--profile", *evaluation)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (directory,) = (folder / "runs").glob("[!.]*")
    return directory, ran.stdout


def test_a_plan_for_this_machine_runs_as_planned(planned_here: tuple[Path, str]) -> None:
    directory, printed = planned_here
    assert "Running as planned: 8 processes of this machine" in printed
    (found,) = re.findall(r", the last ([\d,]+) of ([\d,]+) rows held out\n", printed)
    held_out, rows = (int(count.replace(",", "")) for count in found)
    assert held_out % 8 == 0 and abs(held_out - 0.1 * rows) <= 4  # whole batches of 8
    assert "\nstep 2: loss on held-out data 5." in printed
    assert re.search(r"in 4 steps, 5\.\d+ on held-out data", printed)
    steps = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert ["held_out_loss" in one for one in steps] == [False, True, False, True]


def test_a_profile_shows_the_plans_actions_in_the_plans_order(planned_here: tuple[Path, str]) -> None:
    directory, _ = planned_here
    events = json.loads((directory / "trace.json").read_text())["traceEvents"]
    plan = read_plan(directory / "plan.json")
    order = actions(plan.strategy.schedule, 2, plan.num_microbatches, plan.strategy.num_virtual_stages)
    for rank in range(8):
        executed = [one["name"] for one in events if (one["pid"], one["tid"], one.get("cat")) == (1, rank, "action")]
        assert executed == 3 * [str(action) for action in order[plan.mesh.coordinates(rank)[0]]]
    run = json.loads((directory / "run.json").read_text())
    assert len(run["ranks"]) == 8
    for one in run["profile"]["ranks"]:
        assert 0 < one["collectives_s"] < one["actions_s"] < one["step_s"]
        parts = ("actions_s", "waiting_s", "gradient_sync_s", "parameter_gather_s", "update_s")
        assert sum(one[part] for part in parts) == pytest.approx(one["step_s"], rel=0.1)


def test_torchrun_with_the_plans_world_size_runs_as_planned(tmp_path: Path) -> None:
    write_plan(plan_of(replace(MODELS["llama"], vocab_size=256), strategy(pp=2), 4, FP32), tmp_path / "plan.json")
    ran = torchrun(tmp_path, 2)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Running as planned: 2 ranks of torchrun" in ran.stdout
    (directory,) = (tmp_path / "runs").glob("[!.]*")
    assert len((directory / "metrics.jsonl").read_text().splitlines()) == 2
    assert (directory / "plan.json").read_bytes() == (tmp_path / "plan.json").read_bytes()
    assert [one["rank"] for one in json.loads((directory / "run.json").read_text())["ranks"]] == list(range(2))


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--checkpoint-every", "1"], "checkpoints are of runs as planned, this would be a rehearsal: "),
        (
            ["--weights", "w"],
            "weights=w are of the whole model, this would be a rehearsal with a smaller one: ",
        ),
    ],
)
def test_what_a_rehearsal_has_not_says_who_runs_the_plan(
    flags: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    plan_of_four(tmp_path)
    Path("w").mkdir()
    assert main(["run", "plan.json", "--processes", "2", *flags]) == 2
    here = "the plan has 4 ranks, processes=2; --processes 4 runs it here"
    assert capsys.readouterr().err == f"autoshard: error: {text}{here}\n"
    plan = read_plan("plan.json")
    write_plan(replace(plan, cluster=replace(plan.cluster, instance="mine", layout_rules="none")), "plan.json")
    assert main(["run", "plan.json", *flags]) == 2
    there = "the plan has 4 ranks on mine; torchrun or Slurm with as many processes runs it as planned"
    assert capsys.readouterr().err == f"autoshard: error: {text}{there}\n"


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux ends a process with its parent")
def test_ranks_end_with_a_torchrun_that_is_killed(tmp_path: Path) -> None:
    write_plan(plan_of(replace(MODELS["llama"], vocab_size=256), strategy(pp=2), 4, FP32), tmp_path / "plan.json")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "autoshard"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (tmp_path / "log").open("w") as log:
        endless = [*command, "run", "plan.json", "--steps", "100000"]
        process = subprocess.Popen(endless, cwd=tmp_path, stdout=log, text=True, env=environment)
    ranks = wait_for_workers(tmp_path, process)
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(ranks, timeout=5)
    assert len(ranks) == 2 and not alive


def test_torchrun_with_another_world_size_is_refused(tmp_path: Path) -> None:
    plan_of_four(tmp_path)
    ran = torchrun(tmp_path, 2)
    assert ran.returncode != 0
    assert (
        "autoshard: error: torchrun started 2 processes; the plan has 4 ranks: start as many, or none "
        "(without torchrun it is rehearsed)" in ran.stderr
    )
    assert not (tmp_path / "runs").exists()


def test_ranks_of_torchrun_that_read_other_tokens_are_refused(tmp_path: Path) -> None:
    """One byte of 40,000 differs between the copies that the ranks read, each into its own folder."""
    write_plan(plan_of(replace(MODELS["llama"], vocab_size=256), strategy(dp=2), 4, FP32), tmp_path / "plan.json")
    for rank, text in enumerate((b"aaaab" * 8_000, b"aaaab" * 7_999 + b"aaaac")):
        (tmp_path / f"rank-{rank}.txt").write_bytes(text)
    job = tmp_path / "job.py"
    job.write_text(
        "import os, sys\nfrom autoshard.cli import main\nrank = os.environ['RANK']\n"
        "sys.exit(main([*sys.argv[1:], '--data', f'rank-{rank}.txt', '--output', f'runs-{rank}']))\n"
    )
    ran = torchrun(tmp_path, 2, str(job))
    assert ran.returncode != 0
    (line,) = {line for line in ran.stderr.splitlines() if line.startswith("autoshard: error:")}
    assert re.fullmatch(
        r"autoshard: error: ranks differ in data: rank 0 has 40,000 tokens of SHA-256 [0-9a-f]{12}, rank 1 has "
        r"40,000 tokens of SHA-256 [0-9a-f]{12}: start every rank with the same plan, options and data",
        line,
    ), line


def test_a_rank_of_torchrun_that_hangs_says_so_itself(tmp_path: Path) -> None:
    write_plan(plan_of(replace(MODELS["llama"], vocab_size=256), strategy(tp=2), 4, FP32), tmp_path / "plan.json")
    timeout_s = 8  # on a busy machine a rank is silent for a while before it hangs
    ran = torchrun(tmp_path, 2, str(Path(__file__).parent / "hanging_run.py"), "--timeout", str(timeout_s))
    assert time.time() - (tmp_path / "hangs").stat().st_mtime < timeout_s + 10
    assert ran.returncode == 1
    (line,) = (line for line in ran.stderr.splitlines() if line.startswith("autoshard: error:"))
    assert re.fullmatch(
        r"autoshard: error: rank 1 hung in step 2, pipeline stage 0, summing gradients and updating parameters: "
        r"nothing heard from it for \d+ s",
        line,
    ), line


def torchrun(folder: Path, processes: int, *job: str) -> subprocess.CompletedProcess[str]:
    """job: what is run instead of autoshard, and what is added to its options."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    program, options = (job[:1], job[1:]) if job else (("-m", "autoshard"), ())
    return subprocess.run(
        [*command, *program, "run", "plan.json", "--steps", "2", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.parametrize(("blow", "expected"), [("kill a rank", 1), ("Ctrl-C", 130)])
def test_a_blow_ends_every_process_with_one_message(tmp_path: Path, blow: str, expected: int) -> None:
    plan_of_four(tmp_path)
    endless = ("--steps", "100000", "--checkpoint-every", "100000")
    command = [sys.executable, "-m", "autoshard", "run", "plan.json", *endless, "--wandb"]
    environment = offline(tmp_path)
    with by_default(signal.SIGINT):
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
    workers = wait_for_workers(tmp_path, process)
    start = time.monotonic()
    if blow == "Ctrl-C":
        process.send_signal(signal.SIGINT)
    else:
        next(one for one in workers if one.name() == "rank 3").send_signal(signal.SIGKILL)
    _, stderr = process.communicate(timeout=20)
    assert time.monotonic() - start < 10
    assert process.returncode == expected, stderr
    lines = [line for line in stderr.splitlines() if line.startswith("autoshard: error:")]
    assert len(lines) == 1
    if blow == "kill a rank":
        assert "rank " in lines[0]
        assert "SIGKILL" in lines[0]
    _, alive = psutil.wait_procs(workers, timeout=5)
    assert not alive
    (log,) = tmp_path.glob("runs/tiny*/wandb/offline-run-*/*.wandb")
    assert [one.exit.exit_code for one in wandb_records(log) if one.HasField("exit")] == [expected]
    assert not (tmp_path / "runs" / "checkpoints").exists()  # a folder with a lock alone


def wandb_records(log: Path) -> Iterator[Any]:
    """The records of W&B's log: in LevelDB's format, after 7 bytes of its own."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, record, start = log.read_bytes(), b"", 7
    while start + 7 <= len(content):
        left = 32_768 - start % 32_768
        if left < 7:  # no part begins so late in a block
            start += left
            continue
        size, part = struct.unpack("<HB", content[start + 4 : start + 7])
        record, start = record + content[start + 7 : start + 7 + size], start + 7 + size
        if part in (1, 4):  # a whole record, or the last part of one
            yield Record.FromString(record)
            record = b""


def test_a_rank_that_hangs_is_named_with_its_stage_and_action(tmp_path: Path) -> None:
    plan_of_four(tmp_path)
    command = [sys.executable, "-m", "autoshard", "run", "plan.json", "--steps", "100000", "--timeout", "6"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    workers = wait_for_workers(tmp_path, process)
    stopped = next(one for one in workers if one.name() == "rank 3")
    stopped.suspend()  # the other three wait for it in collectives, and look just as silent
    start = time.monotonic()
    _, stderr = process.communicate(timeout=60)
    assert time.monotonic() - start < 6 + 10
    assert process.returncode == 1
    line = next(line for line in stderr.splitlines() if line.startswith("autoshard: error:"))
    assert re.match(
        r"autoshard: error: rank 3 hung in step \d+, pipeline stages? 1\b.*, .+: nothing heard from it for \d+ s; "
        r"the other 3 ranks were stopped",
        line,
    ), line
    _, alive = psutil.wait_procs(workers, timeout=5)
    assert not alive


def wait_for_workers(folder: Path, process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The ranks, once the first step is done."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        metrics = list((folder / "runs").glob("*/metrics.jsonl"))
        if metrics and metrics[0].read_text():
            return psutil.Process(process.pid).children()
        time.sleep(0.1)
    raise AssertionError("no step within a minute")


def test_a_wrong_gradient_is_found_and_named(tmp_path: Path) -> None:
    plan = plan_of(replace(MODELS["llama"], vocab_size=256), strategy(tp=2), 2, FP32)
    write_plan(plan, tmp_path / "plan.json")
    arguments = TrainArguments(
        plan=str(tmp_path / "plan.json"),
        tensors=str(tmp_path),
        steps=2,
        learning_rate=1e-3,
        warmup_steps=0,
        lr_schedule="constant",
        seed=0,
        data=str(prepare(DataSource(small_text(tmp_path), ByteTokenizer()), tmp_path).path),
        eval_fraction=0.2,
        eval_every=1,
        eval_batches=2,
        device="cpu",
        backend="torch",
        rehearsal=True,
    )
    sharded = run(tmp_path, "train", arguments, 2)
    spoil(tmp_path / "rank-00001.safetensors", "check.gradient/0/model.layers.2.mlp.up_proj.weight")
    alone = run(tmp_path, "compare", arguments, 1)
    found = verdict(plan, sharded, alone[0])
    assert not found.ok
    assert found.line.startswith("FAILED: gradients (FP32, one step) differs by ")
    assert "model.layers.2.mlp.up_proj.weight" in result_tables(found)


def small_text(folder: Path) -> Path:
    text = folder / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 50)
    return text


def run(folder: Path, name: str, arguments: TrainArguments, processes: int) -> tuple[dict[str, object] | None, ...]:
    outcome = run_processes(
        f"autoshard.runtime.trainer.worker:{name}",
        to_json(arguments),
        processes,
        on_message=lambda message: None,
        log_directory=folder / "logs",
        hang_timeout_s=100,
        start=forked(),
    )
    assert outcome.exit_code == 0, outcome.message
    return outcome.results


def spoil(path: Path, key: str) -> None:
    """One number of a hundred off by a factor of two."""
    tensors = load_file(path)
    tensors[key].view(-1)[::100] *= 2
    save_file(tensors, path)


def test_tensors_that_cannot_be_left_for_the_comparison_are_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "gone" / "rank-00000.safetensors"
    with pytest.raises(AutoshardError) as error:
        save({"one": torch.zeros(1)}, file)
    assert str(error.value).startswith(f"cannot write {file} (TMPDIR chooses where): ")
    assert "No such file or directory" in str(error.value) and "\n" not in str(error.value)
