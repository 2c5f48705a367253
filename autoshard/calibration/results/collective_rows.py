"""Reads rows with times of collectives: which collective, over which group, on which cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autoshard.calibration.results.rows import Row, Unscored, integer, number
from autoshard.cost.collectives import GroupShape, collective_time_s
from autoshard.errors import AutoshardError
from autoshard.spec.cluster import Cluster, instances, load_cluster

COLUMNS = ("op", "ranks", "nodes", "size_bytes", "time_us", "instance_stated")
"""Columns that a row must have."""

KINDS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
}
CHIP_OF = {"trn2.3xlarge": "trn2.48xlarge"}
"""Instance of one chip -> the larger one that it is a chip of, whose links inside a chip it has."""
TRN1_GUESSED = {("all_reduce", 2), ("all_gather", 32)}
"""(kind, ranks) of rows that do not name their instance and are taken for trn1."""


@dataclass(frozen=True)
class CollectiveCase:
    """One measured collective. group: rows of one kind over one number of ranks and nodes, which are left out together.
    framework: whether torch.distributed started it, which takes extra time, rather than a compiled graph."""

    cluster: Cluster
    kind: str
    ranks: int
    payload_bytes: float
    time_s: float
    framework: bool

    @property
    def group(self) -> tuple[str, int, str, int, int]:
        return self.cluster.instance, self.cluster.lnc, self.kind, self.ranks, self.cluster.nodes

    @property
    def shape(self) -> GroupShape:
        """The group as the cost model describes it: neighbouring ranks, equally many on each node."""
        nodes = self.cluster.nodes
        each = self.ranks // nodes
        return GroupShape(self.ranks, each, nodes, 1, each, each)

    def predicted_s(self, cluster: Cluster) -> float:
        return collective_time_s(self.kind, self.payload_bytes, self.shape, cluster)


def collective_case(row: Row, hardware_file: Path | None = None) -> CollectiveCase:
    """The case of one row. hardware_file: describes the row's instance, in place of the packaged file.

    Raises Unscored where the row does not say what was timed on what.
    """
    kind, ranks, time_us = KINDS.get(row["op"]), integer(row, "ranks"), number(row, "time_us")
    if kind is None:
        raise Unscored(f"op={row['op']!r} is none that a plan issues")
    size = number(row, "size_bytes")
    if time_us is None or size is None:
        raise Unscored("no time or no size")
    shards = "SHARD" in row.get("size_semantics", "")
    try:
        name = row["instance_stated"] if hardware_file else _instance(row, ranks)
        cluster = load_cluster(name, integer(row, "nodes"), integer(row, "lnc", 0) or None, hardware_file)
    except AutoshardError as error:
        raise Unscored(str(error)) from error
    return CollectiveCase(
        cluster,
        kind,
        ranks,
        size * ranks if shards else size,
        time_us * 1e-6,
        row.get("layer", "").startswith("torch.distributed"),
    )


def _instance(row: Row, ranks: int) -> str:
    stated = CHIP_OF.get(row["instance_stated"], row["instance_stated"])
    if stated in instances():
        return stated
    if "trn2" in stated:
        return "trn2.48xlarge"
    if "trn1" in stated or (stated == "not stated" and (row["op"], ranks) in TRN1_GUESSED):
        return "trn1.32xlarge"
    raise Unscored("the instance is not stated")
