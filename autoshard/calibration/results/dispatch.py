"""How tokens travel to their experts in the stacks that were measured, as their releases ship it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from autoshard.calibration.results.rows import Row


@dataclass(frozen=True)
class Dispatch:
    """Facts of a stack's mixtures.

    sends_once: a token goes once to each rank that has experts of it, and once over the network to each node (DeepEP,
    HybridEP), not once for each of its experts. overlaps: one microbatch's exchanges run beside another's work.
    reads_back: dropless routing: the host reads how many tokens came before it launches their experts. graphs: what
    CUDA graphs launch at once, of GRAPHS.
    """

    sends_once: bool = False
    overlaps: bool = False
    reads_back: bool = False
    graphs: str = "none"


USUAL = Dispatch()
GRAPHS = ("none", "router", "attention", "all")
"""None; the router with what prepares the exchange; attention too; the whole step."""


class Shipped(NamedTuple):
    """A line of Megatron-Bridge's scripts/performance/configs. models, gpus: how names begin; releases: first and last
    container; in_mxfp8: whether it is of MXFP8 alone. once, overlaps, graphs: as in Dispatch."""

    models: tuple[str, ...]
    gpus: tuple[str, ...]
    releases: tuple[float, float]
    once: bool
    graphs: str
    overlaps: bool = False
    in_mxfp8: bool = False


ALL = (0.0, 99.0)
SHIPPED = (
    Shipped(("Qwen3-30B",), ("GB200", "GB300", "B300"), (26.06, 99.0), True, "all", True, True),
    Shipped(("Qwen3-30B",), ("GB200", "GB300", "B300"), ALL, True, "router"),
    Shipped(("Qwen3-30B",), ("B200",), (26.04, 99.0), True, "attention"),
    Shipped(("Qwen3-30B",), ("B200",), ALL, False, "router"),
    Shipped(("Qwen3-30B",), ("H100",), (26.02, 99.0), True, "router"),
    Shipped(("Qwen3-30B",), ("H100",), ALL, False, "none", True),
    Shipped(("GPT-OSS",), ("GB200", "GB300"), (26.06, 99.0), True, "all", True, True),
    Shipped(("GPT-OSS",), ("GB300",), ALL, False, "attention"),
    Shipped(("GPT-OSS",), ("GB200",), (26.04, 99.0), True, "none", True),
    Shipped(("GPT-OSS",), ("B300",), (26.02, 99.0), True, "attention"),
    Shipped(("GPT-OSS",), ("B200", "GB200", "H100"), ALL, False, "none"),
    Shipped(("",), ("GB200", "GB300"), (26.06, 99.0), True, "all", True, True),
    Shipped(("",), ("GB200", "GB300"), ALL, True, "attention"),
    Shipped(("DeepSeek",), ("",), (26.02, 99.0), True, "none"),
    Shipped(("Qwen3-235B",), ("B300",), (26.06, 99.0), True, "none"),
    Shipped(("Qwen3-235B",), ("B300",), (26.04, 26.05), False, "none"),
    Shipped(("Qwen3-235B",), ("B200",), (26.02, 99.0), False, "none"),
    Shipped(("",), ("",), ALL, False, "none", True),
)
"""The first line that fits a row counts; its last line is of Qwen3-235B on H100. Containers 25.11 to 26.06 ship v0.2.0
to v0.5.0 of https://github.com/NVIDIA-NeMo/Megatron-Bridge."""


def dispatch_of(row: Row) -> Dispatch:
    """How the tokens of a row's mixture travel: as its release ships it, or as its framework and notes say."""
    framework, notes = row.get("framework", ""), row.get("notes", "")
    dropless = "dropless" in notes
    found = re.search(r"Megatron-Bridge, NeMo (\d+\.\d+)", framework)
    if found is None:
        return Dispatch(sends_once="DeepEP" in framework, reads_back=dropless or "DeepEP" in framework)
    release, gpu, fp8 = float(found[1]), row["gpu"], row.get("precision", "").lower()
    shipped = next(
        one
        for one in SHIPPED
        if row.get("model", "").startswith(one.models)
        and gpu.startswith(one.gpus)
        and one.releases[0] <= release <= one.releases[1]
        and (not one.in_mxfp8 or fp8 == "mxfp8")
    )
    return Dispatch(shipped.once and dropless, shipped.overlaps, dropless and shipped.graphs != "all", shipped.graphs)
