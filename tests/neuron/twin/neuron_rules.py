"""The contract of torch-neuronx as far as it is public: what the device or its groups refuse, or get silently wrong.

Sources: [src N] is torch-neuronx's own source or tests, a drop before Neuron 2.33, text N of a public index; [3p N] a
third party's notes or measurements, mostly of beta images; [doc P], [sdk P] pages of AWS. Where a source speaks of a
beta alone and the release is silent, a rule holds in strict mode alone.
"""

from __future__ import annotations

from dataclasses import dataclass

Version = tuple[int, ...]


@dataclass(frozen=True)
class Rule:
    """One rule.

    name: what a refusal ends with, in brackets. refuses: a sentence without a full stop. since, until: the first
    version of torch-neuronx that has the rule, and the first that has it no more; None: every one. strict: only betas
    are known to refuse it. silent: the device computes something wrong without an error; the twin refuses.
    """

    name: str
    refuses: str
    source: str
    since: Version | None = None
    until: Version | None = None
    strict: bool = False
    silent: bool = False


RULES = (
    Rule("index", "another device than neuron:LOCAL_RANK", "3p 61474609800; doc torch/guides/torch-distributed"),
    Rule("float64", "float64 on the device", "3p 71301028270, of AWS's tests: computed as float32", silent=True),
    Rule("int64", "int64 values beyond 32 bits", "3p 71301028270, of AWS's tests: computed as int32", silent=True),
    Rule("generator", "a torch.Generator of the device", "3p 61474609800, 71301028270", strict=True),
    Rule("group first", "a process group after the device was touched", "src 51938908109, test 52419462596"),
    Rule("local rank", "a process group without LOCAL_RANK and LOCAL_WORLD_SIZE", "src 51938908109", strict=True),
    Rule("root address", "a process group without MASTER_ADDR or NEURON_RT_ROOT_COMM_ID", "src 51938908109"),
    Rule("one core", "a core that another process has", "3p 71014073001"),
    Rule("host tensors", "a tensor of the host in a group", "3p 57938690064, 71301028270"),
    Rule("empty", "a tensor without elements in a collective", "jb docs/phase_e_report.md; src 51938908109"),
    Rule("contiguous", "a strided tensor in a collective", "3p 71301028270", strict=True),
    Rule("barrier", "a barrier of another group than the default one", "src 51938908109"),
    Rule("even splits", "an all-to-all with uneven splits", "src 51938908109"),
    Rule(
        "all-to-all sizes",
        "an all-to-all of another number of ranks than 4, 8, 16 or 32 k",
        "jb docs/phase_e_report.md",
        strict=True,
    ),
    Rule("all-to-all world", "an all-to-all of a group whose size does not divide the world's", "src 51938908109"),
    Rule(
        "point to point",
        "send and recv",
        "jb; 3p 71301028270, 71014073001; documented from Neuron 2.33 on",
        until=(2, 13, 3),
    ),
    Rule("dynamic shapes", "a graph with a symbolic size", "doc torch/compile/reference-torch-compile: NCC_EMOD025"),
    Rule("graph float64", "a graph with a float64 tensor", "as float64", silent=True),
    Rule("graph groups", "more than 16 groups in one graph", "sdk release-notes/components/runtime 2.32"),
    Rule("graph world", "a group in a graph that is not known", "src 52318200412: it becomes the world", silent=True),
    Rule(
        "graph broadcast",
        "another collective in a graph than all_reduce, all_gather_into_tensor, "
        "reduce_scatter_tensor, all_to_all_single",
        "src 52318200412",
    ),
)


def in_force(version: Version, strict: bool) -> frozenset[str]:
    """Names of the rules that a version has. strict: those that only betas are known to have count, too."""
    return frozenset(
        rule.name
        for rule in RULES
        if (rule.since is None or rule.since <= version)
        and (rule.until is None or version < rule.until)
        and (strict or not rule.strict)
    )


FALLS_BACK = (
    "aten::normal_",
    "aten::uniform_",
    "aten::random_",
    "aten::bernoulli_",
    "aten::randperm",
    "aten::_fused_adamw_",
    "aten::_fused_adam_",
)
"""Operators that are computed on the host, which torch.neuron.get_fallback_ops lists: random numbers [3p 61474609800,
71301028270]; the fused optimizers are a guess, no source has them among the device's own."""
COMPILED_COLLECTIVES = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")
"""Collectives that the compiler rewrites to explicit groups [src 52318200412]."""
MOST_GROUPS = 16
ALL_TO_ALL_SIZES = (4, 8, 16)
ALL_TO_ALL_MULTIPLE = 32
