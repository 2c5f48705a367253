"""Write a plan as a Slurm batch script."""

from __future__ import annotations

import shlex
from textwrap import wrap

from autoshard.jobs.graphs import num_distinct_graphs, stage_graphs
from autoshard.jobs.native import ON_NUMA_NODE, WHY_NUMA, native_compilation
from autoshard.jobs.options import FIRST_PORT, NUM_PORTS, LaunchOptions, quoted
from autoshard.jobs.variables import variables
from autoshard.plans.names import all_degrees
from autoshard.plans.plan import Plan

WIDTH = 118
CACHE = "$SLURM_SUBMIT_DIR/neuron_cache"
"""Expanded in the job."""


def sbatch_script(plan: Plan, options: LaunchOptions) -> str:
    """The batch script of the plan's job.

    It has one task a node, which starts torchrun; that starts a process a device.
    """
    return "\n".join((*_header(plan, options), *_environment(plan, options), *_start(plan, options), ""))


def comment(text: str) -> list[str]:
    return [f"# {line}" for line in wrap(text, WIDTH - 2)]


def job_name(name: str) -> str:
    """The name with no letter that Slurm might not take."""
    return "".join(letter if (letter.isascii() and letter.isalnum()) or letter in ".-_" else "-" for letter in name)


def limits(options: LaunchOptions) -> list[str]:
    """The lines of a job that name its partition and its time, where these are given."""
    given = {"partition": options.partition, "time": options.time_limit}
    return [f"#SBATCH --{flag}={value}" for flag, value in given.items() if value is not None]


def _header(plan: Plan, options: LaunchOptions) -> list[str]:
    return [
        "#!/usr/bin/env bash",
        f"#SBATCH --job-name=autoshard-{job_name(plan.model.name)}{'-precompile' if options.precompile else ''}",
        f"#SBATCH --nodes={plan.cluster.nodes}",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --exclusive",
        *([f"#SBATCH --gpus-per-node={plan.cluster.devices_per_node}"] if plan.cluster.platform.is_cuda else []),
        "#SBATCH --output=%x-%j.log",
        *limits(options),
        "",
        *comment(f"{describe(plan)}; written by {plan.made_by}."),
        *comment(compilation(plan)),
        *comment(neighbours(plan)),
        "set -euo pipefail",
        "",
    ]


def describe(plan: Plan) -> str:
    """A line that names the plan's model, machine and degrees."""
    return f"{plan.model.name} on {plan.cluster.nodes} x {plan.cluster.instance}, {all_degrees(plan.strategy)}"


def compilation(plan: Plan) -> str:
    """Sentences that tell how many graphs the compiler will see, and which changes make it start anew."""
    if not plan.cluster.platform.is_trainium:
        where = "its nodes' GPUs" if plan.cluster.platform.is_cuda else "the host"
        return f"Nothing is compiled ahead: the processes run on {where}."
    if plan.cluster.stack is not None:
        return native_compilation(plan)
    each = stage_graphs(plan)[0].graphs
    return (
        f"To compile: {num_distinct_graphs(plan)} distinct graphs of a step ({each} for each distinct stage, and the "
        "updates), besides those of set-up. Another number of nodes, degree, microbatch, sequence length, cut, "
        "recompute set or precision compiles anew; another schedule or global batch does not."
    )


def neighbours(plan: Plan) -> str:
    """A sentence about nodes that must be neighbours, if the plan counts on links that join only some nodes;
    "" if not.
    """
    link, each, nodes = plan.cluster.intra_domain, plan.cluster.nodes_per_domain, plan.cluster.nodes
    if link is None or nodes == 1:
        return ""
    who, others = f"Nodes 0 to {each - 1}", f", the next {each} those of another, and so on"
    if nodes <= each:
        who, others = f"All {nodes} nodes", ""
    return (
        f"{who} of the job must share the links of one group, the {link.name}{others}: the plan counts on it, and "
        "nothing here can choose nodes."
    )


def _environment(plan: Plan, options: LaunchOptions) -> list[str]:
    lines = [
        "# More than the usual 1,024 files: every process has sockets to many others.",
        "ulimit -n 65535 2>/dev/null || true",
    ]
    for variable in variables(plan, options, CACHE):
        value = f'"{CACHE}"' if variable.value == CACHE else shlex.quote(variable.value)
        lines += [*comment(f"{variable.reason}."), f"export {variable.name}={value}"]
    if plan.cluster.stack is not None:
        lines += [*comment(f"{WHY_NUMA}."), ON_NUMA_NODE, "export -f on_numa_node"]
    return [*lines, ""]


def starter(plan: Plan, options: LaunchOptions) -> tuple[str, str]:
    """(what stands before torchrun, what stands before the program that it starts): compilers and a NUMA node."""
    if plan.cluster.stack is not None:
        return "", '--no-python bash -c "on_numa_node \\"\\$@\\"" autoshard python '
    return ("neuron_parallel_compile " if options.precompile else ""), ""


def _start(plan: Plan, options: LaunchOptions) -> list[str]:
    compiler, program = starter(plan, options)
    size = f"--nnodes {plan.cluster.nodes} --nproc-per-node {plan.cluster.devices_per_node}"
    return [
        *comment("Rendezvous: the first node of the job; the port depends on the job, so that two rarely collide."),
        'read -r MASTER_ADDR < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
        f'MASTER_PORT="$(({FIRST_PORT} + SLURM_JOB_ID % {NUM_PORTS}))"',
        "export MASTER_ADDR MASTER_PORT",
        "",
        *comment(
            "Ranks follow Slurm's order of nodes, as the plan's mesh wants it: a rendezvous without --node-rank gives "
            "them in order of arrival. The quoted lines are expanded on each node."
        ),
        "# shellcheck disable=SC2016",
        "srun --kill-on-bad-exit=1 bash -c '",
        f"    exec {compiler}torchrun {size} \\",
        f'        --node-rank "$SLURM_NODEID" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" {program}"$@"',
        f"' autoshard {quoted(options.words)}",
    ]
