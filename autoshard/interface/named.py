"""Models and clusters by name, as values that can be changed."""

from __future__ import annotations

from pathlib import Path

from autoshard.interface.inputs import Model, checked, model_of
from autoshard.planner.request import INSTANCE
from autoshard.spec import cluster as clusters
from autoshard.spec.cluster import Cluster
from autoshard.spec.model import ModelSpec


def cluster(
    instance: str | None = None,
    *,
    nodes: int = 1,
    lnc: int | None = None,
    hardware: str | Path | None = None,
    sdk: str | None = None,
) -> Cluster:
    """Nodes of an instance type, as a value: change it by `with_nodes`, `with_link` or `dataclasses.replace`, and plan
    for it.

    instance: a name of `instances()`; None: the default, or what the hardware file describes. lnc: physical NeuronCores
    in a logical one. hardware: a hardware file in place of a packaged one. sdk: release of the Neuron SDK.
    Raises AutoshardError for a name, a number or a file that is wrong.

    >>> import autoshard
    >>> today = autoshard.cluster("trn1.32xlarge", nodes=16)
    >>> faster = today.with_link(bandwidth=2 * today.inter_node.bandwidth_bytes_per_s)
    >>> plans = [autoshard.plan("llama3-70b", one) for one in (today, faster)]
    >>> plans[1].step_time_s < plans[0].step_time_s
    True
    """
    given = checked({"nodes": nodes, "lnc": lnc, "hardware": hardware, "sdk": sdk})
    name = instance or (None if hardware is not None else INSTANCE)
    file = Path(given["hardware"]) if "hardware" in given else None
    return clusters.load_cluster(name, given.get("nodes", nodes), given.get("lnc"), file, given.get("sdk"))


def instances() -> tuple[str, ...]:
    """The instance types with a packaged hardware file, sorted.

    >>> import autoshard
    >>> "trn1.32xlarge" in autoshard.instances()
    True
    """
    return clusters.instances()


def builtin_models() -> tuple[str, ...]:
    """Names of the built-in models, sorted.

    >>> import autoshard
    >>> "llama3-70b" in autoshard.builtin_models()
    True
    """
    from autoshard.models import registry

    return registry.builtin_models()


def model(given: Model, *, seq_len: int | None = None) -> ModelSpec:
    """A model as a value: its sizes and kinds of blocks; `dataclasses.replace` changes it.

    given: as `plan` takes it. seq_len: tokens that a live module is traced with. Raises AutoshardError for a name that
    is not known, and for a config that is not supported.

    >>> import autoshard
    >>> from dataclasses import replace
    >>> half = replace(autoshard.model("llama3-8b"), num_hidden_layers=16)
    >>> autoshard.plan(half, nodes=1).model.num_hidden_layers
    16
    """
    found = model_of(given, seq_len)
    if isinstance(found, ModelSpec):
        return found
    from autoshard.planner.inputs import inputs_of
    from autoshard.planner.request import PlanRequest

    return inputs_of(PlanRequest(found, seq_len=seq_len))[0]
