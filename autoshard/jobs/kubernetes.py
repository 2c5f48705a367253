"""Write a plan as a Kubernetes manifest: a PyTorchJob of the Kubeflow training operator, one pod a node."""

from __future__ import annotations

from typing import Any

from autoshard.errors import AutoshardError
from autoshard.jobs.native import ON_NUMA_NODE
from autoshard.jobs.options import LaunchOptions, quoted
from autoshard.jobs.slurm import comment, compilation, describe, neighbours, starter
from autoshard.jobs.variables import SHARED, variables
from autoshard.plans.plan import Plan

CLAIM = "autoshard-shared"
HUGE_PAGES, HUGE_PAGES_SIZE = "hugepages-2Mi", "5120Mi"
"""Huge pages that EFA asks for [AWS EKS user guide, "Run machine learning training on Amazon EKS with EFA"]."""
ASKED_TOO = {"cpu": 1}
"""Kubernetes refuses a pod that asks for huge pages alone, without cpu or memory [Kubernetes, "Manage HugePages"]. No
limit goes with it: the pod has its node alone."""


def pytorch_job(plan: Plan, options: LaunchOptions) -> str:
    """The manifest (YAML) of the plan's job. The operator gives each pod its RANK, MASTER_ADDR and MASTER_PORT.

    Raises AutoshardError without an image.
    """
    import yaml

    if options.image is None:
        needed = "Neuron, " if plan.cluster.platform.is_trainium else ""
        raise AutoshardError(
            f"image is missing: the container with {needed}torch and autoshard, such as REGISTRY/NAME:TAG"
        )
    replicas = {"Master": _replica(plan, options, 1)}
    if plan.cluster.nodes > 1:
        replicas["Worker"] = _replica(plan, options, plan.cluster.nodes - 1)
    manifest = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": _name(plan, options)},
        "spec": {"runPolicy": {"cleanPodPolicy": "None"}, "pytorchReplicaSpecs": replicas},
    }
    reasons = [f"{one.name}: {one.reason}." for one in variables(plan, options, f"{SHARED}/neuron_cache")]
    lines = [f"{describe(plan)}; written by {plan.made_by}.", compilation(plan), neighbours(plan), *reasons]
    if plan.cluster.platform.is_trainium and not _is_ec2(plan.cluster.instance):
        lines.append(f"{plan.cluster.instance} is no type of EC2: add the nodeSelector of your nodes.")
    head = "\n".join(line for text in lines for line in comment(text))
    return f"{head}\n{yaml.safe_dump(manifest, sort_keys=False, width=1000)}"


def node_script(plan: Plan, options: LaunchOptions) -> str:
    """The shell commands that a pod runs."""
    compiler, program = starter(plan, options)
    numa = f"{ON_NUMA_NODE}\nexport -f on_numa_node\n" if program else ""
    return (
        f"ulimit -n 65535 2>/dev/null || true\n{numa}exec {compiler}torchrun --nnodes {plan.cluster.nodes} "
        f'--nproc-per-node {plan.cluster.devices_per_node} --node-rank "$RANK" '
        f'--master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" {program}{quoted(options.words)}\n'
    )


def _replica(plan: Plan, options: LaunchOptions, count: int) -> dict[str, Any]:
    set_here = variables(plan, options, f"{SHARED}/neuron_cache")
    resources = _resources(plan)
    container: dict[str, Any] = {
        "name": "pytorch",  # the operator looks for this name
        "image": options.image,
        "workingDir": SHARED,
        "command": ["bash", "-c", node_script(plan, options)],
        "env": [{"name": one.name, "value": one.value} for one in set_here],
        "resources": {"limits": resources, "requests": resources | (ASKED_TOO if HUGE_PAGES in resources else {})},
        "volumeMounts": [{"name": "shared", "mountPath": SHARED}, {"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108
    }
    spec: dict[str, Any] = {
        "containers": [container],
        "volumes": [
            {"name": "shared", "persistentVolumeClaim": {"claimName": options.claim or CLAIM}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }
    if plan.cluster.platform.is_trainium and _is_ec2(plan.cluster.instance):
        spec["nodeSelector"] = {"node.kubernetes.io/instance-type": plan.cluster.instance}
    return {"replicas": count, "restartPolicy": "Never", "template": {"spec": spec}}


def _is_ec2(instance: str) -> bool:
    """Whether a name is like a type of EC2, "family.size", which nodes are labelled with."""
    return "." in instance


def _resources(plan: Plan) -> dict[str, Any]:
    """The resources that a pod asks for: all chips and adapters of a node, so that no other pod shares it. Of a node of
    GPUs the GPUs alone: which adapters it has is not known here."""
    if plan.cluster.platform.is_cuda:
        return {"nvidia.com/gpu": plan.cluster.devices_per_node}
    if not plan.cluster.platform.is_trainium:
        return {}
    found: dict[str, Any] = {"aws.amazon.com/neuron": plan.cluster.chips_per_node}
    if plan.cluster.nodes > 1:
        found |= {"vpc.amazonaws.com/efa": plan.cluster.adapters_per_node, HUGE_PAGES: HUGE_PAGES_SIZE}
    return found


def _name(plan: Plan, options: LaunchOptions) -> str:
    """The job's name: letters, digits and dashes, at most as long as Kubernetes allows (63)."""
    text = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in plan.model.name.lower())
    return f"autoshard-{text}"[:50].rstrip("-") + ("-precompile" if options.precompile else "")
