"""One problem to plan, as a user states it: a model by name, a cluster, a batch, what is pinned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autoshard.cost.interval import FIT_PROBABILITY
from autoshard.plans.search_result import EXACT, OURS
from autoshard.spec.cluster import Cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import ADAMW

INSTANCE = "trn1.32xlarge"
SEQUENCE_LENGTH = 8192
GLOBAL_BATCH = 1024
TOP = 5
LARGEST_CLUSTER = 4096
"""Nodes where a search for a cluster that is large enough ends, unless it is told where."""
EVALUATIONS = 2_000
"""Layouts that a searcher other than the exact one prices, unless it is told how many."""
SEARCHED = "auto"
"""A pin with this value is none."""
PIN_FIELDS = {"vpp": "num_virtual_stages", "micro_batch": "microbatch_size"}
"""Options whose field in search.Pins has another name."""


@dataclass(frozen=True)
class PlanRequest:
    """One problem to plan. model: by a name, or a model. left_out: parts that the config of a model has beside it, such
    as vision_config; those of one by a name are looked up. nodes: of the cluster; with objective cost or nodes the
    most. seq_len None: the default for the model. precision: a name, several joined by commas, or auto. loss_chunks
    None: one, or as many as make a better layout possible. mtp_num_layers, dropout, lora None: those of a model that is
    given as a value; one by a name has none. pins: those that are set, by option name. cluster: in place of instance,
    lnc, hardware and sdk; `nodes` holds for it. search, cost_model: who looks for the layout and by whose prices."""

    model: str | ModelSpec
    instance: str | None = None
    nodes: int = 1
    lnc: int | str | None = None
    hardware: Path | None = None
    sdk: str | None = None
    seq_len: int | None = None
    global_batch: int = GLOBAL_BATCH
    precision: str = "mixed_precision"
    state_dtypes: str | None = None
    keep_bf16: str | None = None
    expert_imbalance: float | str | None = None
    loss_chunks: int | None = None
    mtp_num_layers: int | None = None
    mtp_loss_scaling_factor: float | None = None
    dropout: str | None = None
    lora: int | str | None = None
    optimizer: str = ADAMW
    backend: str = "auto"
    device: str = "auto"
    stack: str = "auto"
    operators: str = "megatron"
    objective: str = "time"
    fit_probability: float = FIT_PROBABILITY
    time_limit: float | None = None
    search: str = EXACT
    cost_model: str = OURS
    evaluations: int | None = None
    price_per_node_hour: float | None = None
    tokens: float | None = None
    days: float | None = None
    top: int = TOP
    exhaustive: bool = False
    beaten_path: bool = False
    searches_replicas: bool = False
    searches_etp: bool = False
    pins: Mapping[str, Any] = field(default_factory=dict)
    cluster: Cluster | None = None
    left_out: tuple[str, ...] = ()

    @property
    def objective_is_plain(self) -> bool:
        """Whether the fastest step on one given cluster is asked for."""
        return self.objective == "time" and self.lnc != SEARCHED
