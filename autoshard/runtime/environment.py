"""Finds out this process's rank and world from the variables that torchrun or Slurm set."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from autoshard.errors import AutoshardError
from autoshard.jobs.options import FIRST_PORT, NUM_PORTS

_TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class ClusterEnvironment:
    """The place of this process among all that a cluster launcher started."""

    launcher: str  # "torchrun" | "slurm"
    rank: int
    world_size: int
    local_rank: int
    master_address: str
    master_port: int

    @property
    def init_method(self) -> str:
        """The init_method for torch.distributed.init_process_group. Under torchrun it is env://, because torchrun
        already serves a store."""
        if self.launcher == "torchrun":
            return "env://"
        host = f"[{self.master_address}]" if ":" in self.master_address else self.master_address
        return f"tcp://{host}:{self.master_port}"


def cluster_environment(variables: Mapping[str, str] | None = None) -> ClusterEnvironment | None:
    """This process's place as torchrun or `srun` gives it; None when neither started the process.

    torchrun inside srun counts as torchrun. A shell on a Slurm node (sbatch script, salloc) was not started by srun and
    counts as neither. variables: os.environ unless given. Raises AutoshardError naming the variable that is missing,
    not an integer, or contradicts another.
    """
    found = os.environ if variables is None else variables
    if "RANK" in found or "WORLD_SIZE" in found:
        return _from_torchrun(found)
    if "SLURM_PROCID" in found and "SLURM_STEP_NODELIST" in found:
        return _from_slurm(found)
    return None


def first_host(nodelist: str) -> str:
    """The first host of a Slurm node list: 'node[01-03,7],x' -> 'node01', 'rack[2-3]n[10,12]' -> 'rack2n10'."""
    host = ""
    rest = nodelist.strip()
    while rest and not rest.startswith(","):
        part = re.match(r"([^\[\],\s]+)|\[(\d+)(?:-\d+)?(?:,\d+(?:-\d+)?)*\]", rest)
        if part is None:
            break
        host += part[1] or part[2]
        rest = rest[part.end() :]
    if not host or (rest and not rest.startswith(",")):
        raise AutoshardError(
            f"SLURM_STEP_NODELIST={nodelist!r} is not a list of hosts like 'node[01-03,7],x': cannot read {rest!r}"
        )
    return host


def _from_torchrun(found: Mapping[str, str]) -> ClusterEnvironment:
    missing = [name for name in _TORCHRUN_VARIABLES if not found.get(name)]
    if missing:
        present = [name for name in _TORCHRUN_VARIABLES if name in found and name not in missing]
        raise AutoshardError(
            f"{' and '.join(f'{name}={found[name]}' for name in present)} set but {', '.join(missing)} not: "
            f"start with torchrun, which sets all of {', '.join(_TORCHRUN_VARIABLES)}, or unset {', '.join(present)}"
        )
    return _checked(
        ClusterEnvironment(
            launcher="torchrun",
            rank=_integer(found, "RANK"),
            world_size=_integer(found, "WORLD_SIZE"),
            local_rank=_integer(found, "LOCAL_RANK"),
            master_address=found["MASTER_ADDR"],
            master_port=_integer(found, "MASTER_PORT"),
        ),
        rank_name="RANK",
        size_name="WORLD_SIZE",
        local_name="LOCAL_RANK",
    )


def _from_slurm(found: Mapping[str, str]) -> ClusterEnvironment:
    # In an interactive step SLURM_NTASKS is the job's, SLURM_STEP_NUM_TASKS the step's own number of processes.
    size_name = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in found else "SLURM_NTASKS"
    if found.get("MASTER_PORT"):
        port = _integer(found, "MASTER_PORT")
    else:
        job = _integer(found, "SLURM_JOB_ID") if "SLURM_JOB_ID" in found else 0
        port = FIRST_PORT + job % NUM_PORTS  # the same on every rank
    return _checked(
        ClusterEnvironment(
            launcher="slurm",
            rank=_integer(found, "SLURM_PROCID"),
            world_size=_integer(found, size_name),
            local_rank=_integer(found, "SLURM_LOCALID"),
            master_address=found.get("MASTER_ADDR") or first_host(found["SLURM_STEP_NODELIST"]),
            master_port=port,
        ),
        rank_name="SLURM_PROCID",
        size_name=size_name,
        local_name="SLURM_LOCALID",
    )


def _integer(found: Mapping[str, str], name: str) -> int:
    value = found.get(name)
    if value is None:
        raise AutoshardError(f"{name} is not set, but the launcher's other variables are: start with srun or torchrun")
    if not re.fullmatch(r"-?\d{1,18}", value.strip(), re.ASCII):
        raise AutoshardError(f"{name}={value!r} is not an integer")
    return int(value)


def _checked(env: ClusterEnvironment, rank_name: str, size_name: str, local_name: str) -> ClusterEnvironment:
    if env.world_size < 1:
        raise AutoshardError(f"{size_name}={env.world_size} must be 1 or more")
    if not 0 <= env.rank < env.world_size:
        raise AutoshardError(f"{rank_name}={env.rank} must be 0 to {env.world_size - 1}: {size_name}={env.world_size}")
    if not 0 <= env.local_rank < env.world_size:
        raise AutoshardError(
            f"{local_name}={env.local_rank} must be 0 to {env.world_size - 1}: {size_name}={env.world_size}"
        )
    if not 1 <= env.master_port <= 65_535:
        raise AutoshardError(f"MASTER_PORT={env.master_port} must be 1 to 65535")
    return env
