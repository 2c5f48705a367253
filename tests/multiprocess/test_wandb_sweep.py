"""examples/wandb_sweep: the command of the configuration, as an agent of W&B would start it, offline."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import yaml

from autoshard.cli import build_parser

EXAMPLE = Path(__file__).parents[2] / "examples/wandb_sweep"


def commands() -> list[list[str]]:
    """The command of each point of the grid, with the macros of the configuration expanded as an agent does."""
    sweep = yaml.safe_load((EXAMPLE / "sweep.yaml").read_text())
    assert sweep["method"] == "grid" and set(sweep["metric"]) == {"name", "goal"}
    values = [[(name, value) for value in one["values"]] for name, one in sweep["parameters"].items()]
    found = []
    for point in product(*values):
        expanded = {
            "${env}": ["/usr/bin/env"],
            "${program}": [sweep["program"]],
            "${args}": [f"--{name}={value}" for name, value in point],
        }
        found.append([word for given in sweep["command"] for word in expanded.get(given, [given])])
    return found


def test_every_point_is_options_of_plan() -> None:
    for command in commands():
        layout = [word for word in command if word.startswith(("--tp", "--micro-batch"))]
        build_parser("plan").parse_args(["plan", "--model", "x", *layout])


def test_a_point_is_planned_and_run_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    folder = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "PATH": os.pathsep.join((folder, os.environ["PATH"])),
    }
    command = [*commands()[2], "--steps=2"]
    ended = subprocess.run(
        command, cwd=EXAMPLE, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "OK: the sharded run equals one process" in ended.stdout
    (records,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    logged = records.read_bytes()
    for name in (b"planned/step_time_s", b"planned/fits", b"run/loss", b"rehearsal/equals_one_process"):
        assert name in logged
