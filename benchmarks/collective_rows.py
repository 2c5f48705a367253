"""Rows of trainium_collectives.csv: which collective of which group they timed."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.cost.collectives import GroupShape, collective_time_s
from autoshard.spec.cluster import Cluster, load_cluster
from benchmarks.measured_rows import Row, Unscored, integer, number

KINDS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
}
TRN1_GUESSED = {("all_reduce", 2), ("all_gather", 32)}
"""Of rows that do not state their instance, those that are taken for trn1."""


@dataclass(frozen=True)
class CollectiveCase:
    """group: rows of one kind over one number of ranks and nodes, which are left out together. framework: started by
    torch.distributed, which takes a while of its own, rather than compiled."""

    instance: str
    lnc: int
    nodes: int
    kind: str
    ranks: int
    payload_bytes: float
    time_s: float
    framework: bool

    @property
    def group(self) -> tuple[str, int, str, int, int]:
        return self.instance, self.lnc, self.kind, self.ranks, self.nodes

    @property
    def shape(self) -> GroupShape:
        """Neighbouring ranks, as many on each node."""
        each = self.ranks // self.nodes
        return GroupShape(self.ranks, each, self.nodes, 1, each, each)

    def cluster(self) -> Cluster:
        return load_cluster(self.instance, self.nodes, self.lnc)

    def predicted_s(self, cluster: Cluster) -> float:
        return collective_time_s(self.kind, self.payload_bytes, self.shape, cluster)


def collective_case(row: Row) -> CollectiveCase:
    """Raises Unscored where the row does not say what was timed on what."""
    kind, ranks, time_us = KINDS.get(row["op"]), integer(row, "ranks"), number(row, "time_us")
    if kind is None:
        raise Unscored(f"op={row['op']!r} is none that a plan issues")
    size = number(row, "size_bytes")
    if time_us is None or size is None:
        raise Unscored("no time or no size")
    shards = "SHARD" in row["size_semantics"]
    return CollectiveCase(
        _instance(row, ranks),
        integer(row, "lnc", 1),
        integer(row, "nodes"),
        kind,
        ranks,
        size * ranks if shards else size,
        time_us * 1e-6,
        row["layer"].startswith("torch.distributed"),
    )


def _instance(row: Row, ranks: int) -> str:
    stated = row["instance_stated"]
    if "trn2" in stated:
        return "trn2.48xlarge"
    if "trn1" in stated or (stated == "not stated" and (row["op"], ranks) in TRN1_GUESSED):
        return "trn1.32xlarge"
    raise Unscored("the instance is not stated")
