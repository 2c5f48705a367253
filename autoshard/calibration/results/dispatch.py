"""How tokens travel to their experts in the stacks that were measured, as their releases ship it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import NamedTuple

from autoshard.calibration.results.rows import Row


@dataclass(frozen=True)
class Dispatch:
    """Facts of a stack's mixtures.

    sends_once: a token goes once to each rank that has experts of it, and once over the network to each node (DeepEP,
    HybridEP), not once for each of its experts. overlaps: one microbatch's exchanges run beside another's work.
    dropless: an expert takes as many tokens as come, in place of a capacity that all are padded to. reads_back: the
    host then reads how many came before it launches their experts. graphs: what CUDA graphs launch at once, of GRAPHS.
    clamped: experts clamp both halves of their activation and have biases (GPT-OSS), which takes kernels of their own.
    neighbours: a token's experts are neighbours. permutes: the kernel that sends tokens also sorts them by expert
    (HybridEP, which takes DeepEP's place in NVL72 racks).
    """

    sends_once: bool = False
    overlaps: bool = False
    dropless: bool = False
    reads_back: bool = False
    graphs: str = "none"
    clamped: bool = False
    neighbours: bool = False
    permutes: bool = False


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
    Shipped(("Qwen3-30B",), ("H100",), (26.04, 99.0), True, "router"),
    Shipped(("Qwen3-30B",), ("H100",), (26.02, 26.03), True, "router", True),
    Shipped(("Qwen3-30B",), ("H100",), ALL, False, "none", True),
    Shipped(("Qwen3-235B",), ("H100",), ALL, False, "none", True),
    Shipped(("Qwen3-235B",), ("B300",), (26.06, 99.0), True, "none"),
    Shipped(("Qwen3-235B",), ("B300",), (26.02, 26.03), False, "none", True),
    Shipped(("Qwen3-235B",), ("B200",), (25.11, 25.12), False, "none", True),
    Shipped(("GPT-OSS",), ("GB200", "GB300"), (26.06, 99.0), True, "all", True, True),
    Shipped(("GPT-OSS",), ("GB300",), ALL, False, "attention"),
    Shipped(("GPT-OSS",), ("GB200",), (26.04, 26.05), True, "none", True),
    Shipped(("GPT-OSS",), ("GB200",), ALL, False, "none"),
    Shipped(("GPT-OSS",), ("B300",), (26.04, 99.0), True, "attention"),
    Shipped(("GPT-OSS",), ("B300",), ALL, False, "attention"),
    Shipped(("GPT-OSS",), ("B200",), (26.04, 26.05), True, "none"),
    Shipped(("DeepSeek", "Kimi"), ("B200", "B300", "H100"), (26.02, 99.0), True, "none"),
    Shipped(("",), ("GB200", "GB300"), (26.06, 99.0), True, "all", True, True),
    Shipped(("",), ("GB200", "GB300"), ALL, True, "attention"),
    Shipped(("",), ("",), ALL, False, "none"),
)
"""The first line that fits a row counts. Containers 25.11, 26.02, 26.04 and 26.06 ship v0.2.0 to v0.5.0 of
https://github.com/NVIDIA-NeMo/Megatron-Bridge. Lines without a model are what most models have there."""


CAPACITIES = ("token-drop", "capacity factor")
"""What notes say of experts with a capacity."""
DROPS = "nemo 2"
"""How frameworks begin that drop tokens beyond a capacity of 1 and pad to it: the performance recipes of NeMo 2
(containers 25.02 to 25.07) add MegatronTokenDropCallback to Mixtral, Llama 4 and DeepSeek alike. All others are
dropless, as Megatron-Core is unless it is asked."""


NVL72 = "GB"
"""How names of GPUs begin that stand in NVL72 racks."""
FAKE_GATES = ("AutoModel",)
"""What frameworks say whose benchmarks replace the router by one that hands out experts in turn: token i takes the k
experts from i k on, modulo all of them, which lie on one rank or few (FakeBalancedGate of NeMo AutoModel, named in the
notes of its results; what it does is recalled, not read)."""


def dispatch_of(row: Row) -> Dispatch:
    """How the tokens of a row's mixture travel: as its release ships it, or as its framework and notes say."""
    framework, notes = row.get("framework", ""), row.get("notes", "")
    dropless = not (framework.lower().startswith(DROPS) or any(word in notes for word in CAPACITIES))
    clamped, in_rack = "clamped" in row.get("act", ""), row.get("gpu", "").startswith(NVL72)
    found = re.search(r"Megatron-Bridge, NeMo (\d+\.\d+)", framework)
    if found is None:
        fake = any(name in framework for name in FAKE_GATES)
        once = "DeepEP" in framework or fake
        facts = Dispatch(once, dropless=dropless, reads_back=dropless, clamped=clamped, neighbours=fake)
        return replace(facts, permutes=once and in_rack)
    release, gpu, in_mxfp8 = float(found[1]), row["gpu"], row.get("precision", "").lower() == "mxfp8"
    shipped = next(
        one
        for one in SHIPPED
        if row.get("model", "").startswith(one.models)
        and gpu.startswith(one.gpus)
        and one.releases[0] <= release <= one.releases[1]
        and (in_mxfp8 or not one.in_mxfp8)
    )
    return Dispatch(
        sends_once=shipped.once and dropless,
        overlaps=shipped.overlaps,
        dropless=dropless,
        reads_back=dropless and shipped.graphs != "all",
        graphs=shipped.graphs,
        clamped=clamped,
        permutes=shipped.once and dropless and in_rack,
    )
