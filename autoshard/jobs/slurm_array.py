"""Write a sweep as a Slurm job array: each task does a part of the points, into a folder of its own."""

from __future__ import annotations

import shlex

from autoshard.errors import AutoshardError
from autoshard.jobs.options import LaunchOptions
from autoshard.jobs.slurm import comment, job_name, limits


def array_script(name: str, points: int, tasks: int, options: LaunchOptions, run: bool) -> str:
    """The batch script of a sweep. name: of the sweep. points: how many it has. tasks: of the array. options: plan_file
    is the sweep file; partition and time limit. run: execute the plans too, each on the task's own node.

    Raises AutoshardError for more tasks than points.
    """
    if tasks > points:
        raise AutoshardError(f"array={tasks}: sweep {name} has {points} points; at most {points} tasks have work")
    sweep = f"autoshard sweep {shlex.quote(options.plan_file)}"
    return "\n".join(
        (
            "#!/usr/bin/env bash",
            f"#SBATCH --job-name=autoshard-sweep-{job_name(name)}",
            f"#SBATCH --array=1-{tasks}",
            "#SBATCH --nodes=1",
            "#SBATCH --ntasks-per-node=1",
            "#SBATCH --output=%x-%A-%a.log",
            *limits(options),
            "",
            *comment(
                f"{points} points in {tasks} parts. A part that was stopped goes on where it was when it is submitted "
                f"again. When all are done, `{sweep}` gathers their tables."
            ),
            "set -euo pipefail",
            "",
            f'exec {sweep} --shard "$SLURM_ARRAY_TASK_ID/{tasks}"{" --run" if run else ""}',
            "",
        )
    )
