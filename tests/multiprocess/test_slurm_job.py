"""The Slurm script that `autoshard launch` writes, run with a fake srun that starts two "nodes" on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autoshard.jobs.options import LaunchOptions
from autoshard.jobs.slurm import sbatch_script
from autoshard.plans.plan import make_plan
from tests.unit.plan_examples import by_hand, plan_one_device, strategy

pytestmark = pytest.mark.multiprocess

SRUN = """\
#!/usr/bin/env bash
# One task for each of two nodes, as srun --ntasks-per-node=1 would.
while [[ "$1" == --* ]]; do shift; done
for node in 0 1; do SLURM_NODEID=$node SLURM_PROCID=$node "$@" & tasks[node]=$!; done
wait -n && wait -n || { kill "${tasks[@]}"; exit 1; }
"""
SCONTROL = "#!/usr/bin/env bash\n[[ \"$*\" == 'show hostnames one,two' ]] && echo 127.0.0.1 && echo 127.0.0.2\n"
TRAIN = """\
import os, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
rank, node = dist.get_rank(), os.environ["SLURM_NODEID"]
open(f"rank{rank}", "w").write(f"node {node} of {dist.get_world_size()}, sum {total.item():g}, {sys.argv[1:]}")
dist.destroy_process_group()
"""


def test_two_nodes_meet_and_have_slurms_order(tmp_path: Path) -> None:
    plan = plan_one_device()
    chosen = strategy(tp=1, pp=1, dp=2, sequence_parallel=False, recompute="none", stage_layers=(8,))
    cluster = replace(plan.cluster, nodes=2)
    made = by_hand(plan.model, plan.training, cluster, chosen)
    two = make_plan(plan.model, plan.training, cluster, "torch", chosen, made)
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        tool = tmp_path / "bin" / name
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(text)
        tool.chmod(0o755)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "job.sh").write_text(sbatch_script(two, LaunchOptions("plan.json", program="train.py 'a b' c")))
    path = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    slurm = {"SLURM_JOB_NODELIST": "one,two", "SLURM_JOB_ID": str(os.getpid()), "SLURM_SUBMIT_DIR": str(tmp_path)}
    ended = subprocess.run(
        ["bash", "job.sh"],
        cwd=tmp_path,
        env={**os.environ, **slurm, "PATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert ended.returncode == 0, ended.stderr
    for rank in (0, 1):
        assert (tmp_path / f"rank{rank}").read_text() == f"node {rank} of 2, sum 3, ['a b', 'c']"
