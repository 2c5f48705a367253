"""kill -9 at random moments of training and saving, again and again in one run; then it ends as if nothing had been.

A run of two data-parallel processes saves after every other step. Again and again it is started, one of its ranks or
all of them and their supervisor are killed, and it is started anew. A fifth of the moments lie in the start (reading
the checkpoint, tidying the folder), two fifths in training, two fifths within a save: from when its files appear until
they are a checkpoint. After every one of them

* the checkpoint that was the newest is still there, or a newer one, and every file has its checksum
* the next start skips nothing and goes on from it: what is lost are the steps since
* every step's loss is that of an undisturbed run, to the last bit

    python -m benchmarks.checkpoint_faults                       # 30 moments, about 5 minutes on 2 idle cores
    python -m benchmarks.checkpoint_faults --folder work --moments 15      # goes on where it was when called again
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from autoshard.checkpoint.directory import LocalStore
from autoshard.checkpoint.manifest import read_manifest
from autoshard.checkpoint.store import file_problem, step_of
from autoshard.cost.estimate import estimate
from autoshard.layout.strategy import Strategy
from autoshard.models.registry import load_model
from autoshard.plans.plan import make_plan
from autoshard.plans.plan_json import write_plan
from autoshard.runtime.rehearse import local_cluster
from autoshard.spec.training import TrainingSpec, load_precision

EVERY = 2
STEPS = 1_000_000
"""More steps than any run gets to: all runs are killed."""
AFTERWARDS = 4
START, TRAINING, SAVING = "start", "training", "saving"
WITHIN_S = {START: 6.0, TRAINING: 1.5, SAVING: 0.05}
"""Phase -> a moment lies within so many seconds of the process's start, of the first new checkpoint, or of a save's
first file."""
_TIMEOUT_S = 120.0
MODEL = replace(
    load_model("llama3-8b"),
    name="faults",
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=16,
    vocab_size=8192,
    max_position_embeddings=64,
)


@dataclass(frozen=True)
class Moment:
    """One kill. phase: of the run. victims: how many processes were killed. while_saving: whether files of an
    incomplete save were there. reached: the last step that was reported. kept: step of the newest checkpoint
    afterwards."""

    phase: str
    victims: int
    while_saving: bool
    reached: int
    kept: int

    @property
    def lost(self) -> int:
        """Number of steps that the next run repeats."""
        return self.reached - self.kept


def write_the_plan(folder: Path) -> None:
    strategy = Strategy(
        tp=1,
        pp=1,
        dp=2,
        cp=1,
        ep=1,
        num_virtual_stages=1,
        microbatch_size=1,
        schedule="1f1b",
        recompute=("none",),
        sequence_parallel=False,
        zero=1,
        attention_kernel="flash",
        stage_layers=(MODEL.num_hidden_layers,),
    )
    training, cluster = TrainingSpec(32, 4, load_precision("fp32")), local_cluster(2)
    expected = estimate(MODEL, training, cluster, strategy)
    write_plan(make_plan(MODEL, training, cluster, "torch", strategy, expected), folder / "plan.json")


OPTIONS = ("--checkpoint-dir", "saved", "--checkpoint-every", str(EVERY))


def command(steps: int, *options: str) -> list[str]:
    return [sys.executable, "-m", "autoshard", "run", "plan.json", "--steps", str(steps), *options]


def store(folder: Path) -> LocalStore:
    return LocalStore(folder / "saved")


def newest(folder: Path) -> int:
    """The step of the newest complete checkpoint, 0 if there is none."""
    return max((step_of(one) for one in store(folder).folders()), default=0)


def losses(folder: Path) -> dict[int, float]:
    """Step -> loss over all runs; each step that two runs did has one loss. A line that a kill cut off is skipped."""
    found: dict[int, float] = {}
    for file in folder.glob("runs/*/metrics.jsonl"):
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("}\n"):
                values = json.loads(line)
                before = found.setdefault(values["step"], values["loss"])
                assert before == values["loss"], f"step {values['step']}: {before} and {values['loss']}"
    return found


def kill(folder: Path, randomness: random.Random) -> Moment:
    """Starts the run, kills it at a random moment, and returns what it leaves."""
    before, log = newest(folder), folder / "log"
    phase = randomness.choice((START, TRAINING, TRAINING, SAVING, SAVING))
    with log.open("w") as out:
        process = subprocess.Popen(command(STEPS, *OPTIONS), cwd=folder, stdout=out, stderr=subprocess.STDOUT)
        try:
            if phase != START:
                _wait(lambda: newest(folder) > before, process, log)
            if phase == SAVING:
                _wait(lambda: any(folder.glob("saved/step-*.tmp/*")), process, log)
            time.sleep(randomness.uniform(0, WITHIN_S[phase]))
            known = newest(folder)
            supervisor = psutil.Process(process.pid)
            workers = supervisor.children()  # ranks, and who forks them
            ranks = [one for one in workers if one.name().startswith("rank ")]
            victims = randomness.choice(([*ranks, supervisor][:1], [*workers, supervisor]))
            while_saving = any(folder.glob("saved/step-*.tmp"))
            for one in victims:
                one.kill()
            process.wait(timeout=60)
        finally:
            process.kill()
            process.wait()
    _wait_for_the_end_of(workers)
    _check_start(log.read_text(), before, phase)
    kept = newest(folder)
    assert kept >= known, f"the checkpoint of step {known} is lost; the newest is of step {kept}"
    _check_files(folder)
    return Moment(phase, len(victims), while_saving, max(losses(folder), default=0), kept)


def _wait(condition: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited too long: {log.read_text()}"
        assert process.poll() is None, f"ended early: {log.read_text()}"
        time.sleep(0.001)


def _wait_for_the_end_of(workers: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive, f"left over: {alive}"


def _check_start(text: str, before: int, phase: str) -> None:
    assert "skipped" not in text, text
    found = re.search(r"resumed from \S+, after step (\d+)", text)
    assert (int(found[1]) if found else 0) == before or (phase == START and not found), f"{before}: {text}"


def _check_files(folder: Path) -> None:
    for one in store(folder).folders():
        for record in read_manifest(one).files:
            problem = file_problem(one, record.name, record.bytes, record.sha256)
            assert not problem, f"{one}: {problem}"


def finish(folder: Path) -> int:
    """Lets the run end and compares every loss with those of an undisturbed run; returns the number of steps."""
    steps = newest(folder) + AFTERWARDS
    whole = folder / "undisturbed"
    whole.mkdir(exist_ok=True)
    (whole / "plan.json").write_text((folder / "plan.json").read_text())
    for where, options in ((folder, OPTIONS), (whole, ())):
        ran = subprocess.run(command(steps, *options), cwd=where, capture_output=True, text=True, timeout=300)
        assert ran.returncode == 0, ran.stderr
    disturbed, expected = losses(folder), losses(whole)
    assert sorted(expected) == list(range(1, steps + 1))
    assert {step: disturbed[step] for step in expected} == expected
    return steps


def survive(folder: Path, moments: int, seed: int) -> dict[str, Any]:
    """Kills `moments` times in all, including earlier calls in the folder, then compares; returns what was seen."""
    kept = folder / "moments.json"
    seen = [Moment(**one) for one in json.loads(kept.read_text())] if kept.exists() else []
    if not (folder / "plan.json").exists():
        write_the_plan(folder)
    while len(seen) < moments:
        seen.append(kill(folder, random.Random(f"{seed} {len(seen)}")))
        kept.write_text(json.dumps([asdict(one) for one in seen]))
        print(f"{len(seen)} of {moments}: {seen[-1]}", flush=True)
    steps = finish(folder)
    return {
        "moments": len(seen),
        "by phase": {phase: sum(one.phase == phase for one in seen) for phase in WITHIN_S},
        "of one rank": sum(one.victims == 1 for one in seen),
        "of all ranks and their supervisor": sum(one.victims > 1 for one in seen),
        "while files of a save were there": sum(one.while_saving for one in seen),
        "checkpoints lost": 0,
        "checkpoint every": EVERY,
        "most steps done anew": max(one.lost for one in seen),
        "steps": steps,
        "steps whose loss differs from the undisturbed run's": 0,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keep the run here, and go on with one that is there")
    parser.add_argument("--results", type=Path, help="a JSON file that gets what was seen")
    arguments = parser.parse_args()
    with TemporaryDirectory(prefix="autoshard-faults-") as scratch:
        folder = arguments.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        found = survive(folder, arguments.moments, arguments.seed)
    if arguments.results is not None:
        arguments.results.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
