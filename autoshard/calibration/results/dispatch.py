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
    host then reads how many came before it launches their experts. graphs: as in cost.stacks.Software.
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


class Shipped(NamedTuple):
    """A line of the performance presets of Megatron-Bridge. models, gpus, formats: how names begin; since: the first
    container. once, graphs, overlaps: as in Dispatch."""

    models: tuple[str, ...]
    gpus: tuple[str, ...]
    since: str
    formats: tuple[str, ...]
    once: bool
    graphs: str
    overlaps: bool = False


ANY = ("",)
"""Every name."""
RACKS = ("GB",)
"""GPUs that stand in NVL72 racks."""
MXFP8 = ("mxfp8",)
IN_8_BITS = ("fp8", "mxfp8")
IN_LESS = (*IN_8_BITS, "nvfp4")
SHIPPED = (
    Shipped(("Kimi",), ("GB300",), "", ANY, True, "none"),
    Shipped(("Kimi",), ("GB200",), "", ANY, True, "router"),
    Shipped(("Kimi",), ANY, "26.04", ANY, False, "none"),
    Shipped(("Kimi",), ANY, "", ANY, True, "none"),
    Shipped(ANY, RACKS, "26.06", MXFP8, True, "all", True),
    Shipped(("DeepSeek",), ("GB300",), "26.02", IN_LESS, True, "none"),
    Shipped(("DeepSeek",), ("GB200",), "26.02", ANY, True, "attention"),
    Shipped(("DeepSeek",), ("GB200",), "25.11", ANY, True, "router"),
    Shipped(("DeepSeek",), ("B300",), "26.06.01", MXFP8, True, "all", True),
    Shipped(("DeepSeek",), ("B300",), "26.04.01", ANY, True, "attention"),
    Shipped(("DeepSeek",), ("B200",), "26.04.01", MXFP8, True, "attention", True),
    Shipped(("DeepSeek",), ("B200",), "26.04.01", ("nvfp4",), True, "none", True),
    Shipped(("DeepSeek",), ("B200", "B300", "H100"), "26.02", ANY, True, "none"),
    Shipped(("DeepSeek",), ("H100",), "", ANY, True, "none", True),
    Shipped(("Qwen3-30B",), ("B300",), "26.06", MXFP8, True, "all", True),
    Shipped(("Qwen3-30B",), ("GB300", "B300"), "", ANY, True, "router"),
    Shipped(("Qwen3-30B",), ("GB200",), "25.11", MXFP8, True, "router"),
    Shipped(("Qwen3-30B",), ("GB200",), "25.11", ANY, True, "attention"),
    Shipped(("Qwen3-30B",), ("B200",), "26.06.01", MXFP8, True, "all", True),
    Shipped(("Qwen3-30B",), ("B200",), "26.02.01", ANY, True, "attention"),
    Shipped(("Qwen3-30B",), ("B200",), "25.11", ANY, False, "router"),
    Shipped(("Qwen3-30B",), ("H100",), "26.02.01", IN_8_BITS, True, "none"),
    Shipped(("Qwen3-30B",), ("H100",), "26.02.01", ANY, True, "router"),
    Shipped(("Qwen3-30B",), ("H100",), "26.02", IN_8_BITS, True, "none", True),
    Shipped(("Qwen3-30B",), ("H100",), "26.02", ANY, True, "router", True),
    Shipped(("Qwen3-30B",), ("H100",), "25.11", IN_8_BITS, False, "none", True),
    Shipped(("Qwen3-30B",), ("H100",), "25.11", ANY, False, "router", True),
    Shipped(("Qwen3-30B",), ("GB200", "B200"), "", ANY, False, "all"),
    Shipped(("Qwen3-235B",), ("GB300",), "26.02.01", ANY, True, "attention"),
    Shipped(("Qwen3-235B",), ("GB300",), "26.02", IN_8_BITS, True, "attention"),
    Shipped(("Qwen3-235B",), ("GB300",), "", ANY, True, "router"),
    Shipped(("Qwen3-235B",), ("GB200",), "25.11", ANY, True, "attention"),
    Shipped(("Qwen3-235B",), ("GB200",), "", ANY, False, "all"),
    Shipped(("Qwen3-235B",), ("B300", "B200"), "26.06.01", MXFP8, True, "all", True),
    Shipped(("Qwen3-235B",), ("B300",), "26.04.01", ANY, True, "none"),
    Shipped(("Qwen3-235B",), ("B300",), "26.02.01", ANY, False, "none"),
    Shipped(("Qwen3-235B",), ("B300",), "", ANY, False, "none", True),
    Shipped(("Qwen3-235B",), ("B200",), "26.02", ANY, False, "none"),
    Shipped(("Qwen3-235B",), ("B200", "H100"), "25.11", ANY, False, "none", True),
    Shipped(("GPT-OSS",), ("GB300",), "", ANY, False, "attention"),
    Shipped(("GPT-OSS",), ("GB200",), "26.04.01", ANY, False, "none", True),
    Shipped(("GPT-OSS",), ("GB200",), "26.04", ANY, True, "none", True),
    Shipped(("GPT-OSS",), ("GB200",), "", ANY, False, "none"),
    Shipped(("GPT-OSS",), ("B300",), "26.04", ANY, True, "attention"),
    Shipped(("GPT-OSS",), ("B300",), "", ANY, False, "attention"),
    Shipped(("GPT-OSS",), ("B200",), "26.04.01", ANY, False, "none"),
    Shipped(("GPT-OSS",), ("B200",), "26.04", ANY, True, "none"),
    Shipped(ANY, RACKS, "25.11", ANY, True, "attention"),
    Shipped(ANY, ANY, "", ANY, False, "none"),
)
"""The first line that fits a row counts. Containers 25.09, 25.11, 26.02, 26.02.01, 26.04, 26.04.01, 26.06, 26.06.01 and
26.08 ship v0.1.0rc3, v0.2.0, v0.3.0, v0.3.1, v0.4.0, v0.4.2, v0.5.0, v0.5.1 and v0.6.0 of
https://github.com/NVIDIA-NeMo/Megatron-Bridge. A line is moe_flex_dispatcher_backend, cuda_graph_scope and
moe_a2a_overlap of scripts/performance/configs, from v0.3.0 on of the variant with the larger batch (_V2), which the
published rows have. v0.1.0rc3 sets them in run_script.py; its cuda_graphs launches whole blocks at once. v0.3.1 names
deepep for Qwen3-235B where it then asks for "alltoall", and takes it for Kimi where it names none. Of v0.6.0 only the
racks were read, in src/megatron/bridge/perf_recipes: they are as in v0.5.1. Lines without a model are what most models
have there."""


CAPACITIES = ("token-drop", "capacity factor")
"""What notes say of experts with a capacity."""
DROPS = "nemo 2"
"""How frameworks begin that drop tokens beyond a capacity of 1 and pad to it: the performance recipes of NeMo 2
(containers 25.02 to 25.07) add MegatronTokenDropCallback to Mixtral, Llama 4 and DeepSeek alike. All others are
dropless, as Megatron-Core is unless it is asked."""


FAKE_GATES = ("AutoModel",)
"""What frameworks say whose benchmarks replace the router by one that hands out experts in turn: token i takes the k
experts from i k on, modulo all of them, which lie on one rank or few (FakeBalancedGate of NeMo AutoModel, named in the
notes of its results; what it does is recalled, not read)."""


def dispatch_of(row: Row) -> Dispatch:
    """How the tokens of a row's mixture travel: as its release ships it, or as its framework and notes say."""
    framework, notes = row.get("framework", ""), row.get("notes", "")
    dropless = not (framework.lower().startswith(DROPS) or any(word in notes for word in CAPACITIES))
    clamped, in_rack = "clamped" in row.get("act", ""), row.get("gpu", "").startswith(RACKS)
    found = re.search(r"Megatron-Bridge, NeMo (\d+(?:\.\d+)+)", framework)
    if found is None:
        fake = any(name in framework for name in FAKE_GATES)
        once = "DeepEP" in framework or fake
        facts = Dispatch(once, dropless=dropless, reads_back=dropless, clamped=clamped, neighbours=fake)
        return replace(facts, permutes=once and in_rack)
    shipped = next(
        one
        for one in SHIPPED
        if row.get("model", "").startswith(one.models)
        and row["gpu"].startswith(one.gpus)
        and one.since <= found[1]
        and row.get("precision", "").lower().startswith(one.formats)
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
