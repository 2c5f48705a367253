"""Lists the fitted constants by name, with what each means, its prior, and how far it may stray from the prior."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class Constant:
    """A constant to fit. prior: where the fit starts, and the value for a stack that was never measured. spread:
    standard deviation of its logarithm. most: the largest value allowed, 1 for shares."""

    prior: float
    spread: float
    meaning: str
    most: float = inf


FAMILY = {
    "matmul_efficiency": Constant(0.82, 0.1, "share of the peak that a large matrix product reaches", 1.0),
    "matmul_k0": Constant(500.0, 0.4, "contracting K reaches K / (K + k0) of that"),
    "memory_efficiency": Constant(0.75, 0.15, "share of the memory bandwidth", 1.0),
    "flash_attention_2": Constant(0.60, 0.2, "share of the peak of the kernel", 1.0),
    "flash_attention_1": Constant(0.35, 0.4, "share of the peak of the kernel, and of Triton's copy", 1.0),
    "tensor_overlap": Constant(
        0.5, 0.5, "share of a gathering layer's backward behind which its collectives hide", 1.0
    ),
    "cudnn": Constant(0.65, 0.2, "share of the peak of the kernel", 1.0),
    "plain_attention_passes": Constant(4.0, 0.4, "times that all scores move through memory forward"),
    "torch_attention": Constant(1.5, 0.3, "passes of unfused attention against a fused softmax"),
    "misaligned_slowdown": Constant(4.0, 0.5, "of plain attention's products where the head dim is no multiple of 8"),
    "norm_passes": Constant(8.0, 0.4, "times that a norm which is not one kernel moves its input and output"),
    "route_passes": Constant(
        1.0, 0.8, "times that tokens move on their way to and from experts where no kernel does all of it"
    ),
    "transfer_share": Constant(0.5, 0.5, "of the transfers between pipeline stages, what is exposed", 1.0),
    "fp8_efficiency": Constant(0.95, 0.1, "of products in FP8, against those in bfloat16"),
    "mxfp8_efficiency": Constant(0.88, 0.03, "of products in MXFP8, a scale for 32 elements each, against bfloat16"),
    "network_efficiency": Constant(0.7, 0.4, "share of the network adapters that collectives reach", 1.0),
    "hop_latency_s": Constant(5e-6, 0.7, "of a collective, for each other member in a node: they wait for each other"),
    "overlap": Constant(0.5, 0.5, "share of the work behind which transfers hide where the stack overlaps them", 1.0),
}
"""Of a family of devices. mxfp8_efficiency's prior is as sure as it is because pairs of results tell it well and single
ones badly: in the ten pairs of dense models in Megatron-Bridge's summaries (releases 25.09 to 26.06) that differ in the
format alone, MXFP8 takes 1.02 to 1.12 times as long as FP8, on torchao's page for B200 1.04 times. A freer fit makes it
faster than FP8 for what mixtures are missed by, whose exchanges are less sure."""
STACK = {
    "compute_slowdown": Constant(1.0, 0.06, "of all work on the device"),
    "link_slowdown": Constant(1.0, 0.25, "of all transfers"),
}
MEMORY = {
    "activation_scale": Constant(1.0, 0.3, "kept activations against those of the programs"),
    "logits_bytes": Constant(6.0, 0.7, "a logit beyond the loss of the programs"),
    "reserved_bytes": Constant(3e9, 0.7, "of each device: buffers of the stack, and what its allocator loses"),
}
EXPERTS = {"group_launch_s": 1.5e-5, "expert_overlap": 1.0, "clamped_passes": 8.0}
"""Of mixtures, not fitted: seconds that the host takes to launch one expert's product besides (of 5, 15 and 30
microseconds the one with the smallest error of left-out groups in 8 bits); share of the work behind which exchanges
hide where a release overlaps them (0.7 does as well); times that a clamped activation with biases moves its inputs and
output, where each step of it is a kernel (biases, two clamps, sigmoid, three products, a sum: 24 tensors read or
written for 3; of 5, 6 and 8 it misses mixtures in bf16 least). The first is a guess that rows chose among."""
FIXED = {
    "link_efficiency": 0.8,
    "pass_launch_s": 1e-4,
    "sync_s": 2e-4,
    "wave_elements": 9e5,
    "loss_passes": 1.5,
    "replay_slowdown": 1.03,
    "collective_launch_s": 2e-5,
    "network_hop_latency_s": 1.5e-5,
    "all_to_all_efficiency": 0.6,
    "nvfp4_efficiency": 0.6,
    "sharded_overlap": 0.8,
    "contention": 0.25,
    "step_overhead_s": 0.01,
    "copy_launch_s": 8e-6,
    "stall_s": 2.4e-4,
    "cpu_s_per_operator": 9e-5,
    **EXPERTS,
    "working_scale": 0.45,
    "score_copies": 1.65,
    "norm_copies": 5.0,
}
"""Constants that are not fitted. First those that could be fitted but do not lower the error of left-out groups: the
share of NVLink that collectives reach (a guess, as all here); seconds once a pass of a microbatch through a stage;
output elements of a product that are computed in vain in its last wave (half of one of 128 x 128 tiles on the 108
multiprocessors of an A100); times that the loss moves the logits; the cost of recomputed work against the first one;
seconds once a collective. Then: a hop between doublings of nodes; share of the links that an all-to-all reaches;
products in NVFP4 against those in bfloat16, which no row here has (Megatron-Bridge publishes such results); share of
the work behind which sharded parameters, fetched ahead, hide, and of what hides the share by which that work takes
longer (0.2 to 0.5 do as well; without it llm-foundry's large models are too fast, the more the more nodes and the
fewer tokens in a microbatch); seconds once a step; a launch that copies one replica's share of a tensor; see STALLS.
Last those that each stack once had as its own constant, which differed by no more than the results can tell: seconds
that the host takes to launch an operator (within 6 %); of the largest operator's buffers; of plain attention's scores,
kept beyond the probabilities; hidden activations that norms of several kernels keep in a block."""

STACKS = (
    ("aa-scaling", "AA-Scaling", False),
    ("megatron-deepspeed 1f1b", "Megatron-DeepSpeed 1F1B", False),
    ("megatron-deepspeed", "Megatron-DeepSpeed", False),
    ("megatron-lm (scatter", "Megatron-LM 2021", False),
    ("megatron-lm 23e00ed0", "Megatron-Core", True),
    ("megatron-lm / megatron-core", "Megatron-Core", True),
    ("megatron-core", "Megatron-Core", True),
    ("megatron-lm", "Megatron-LM", False),
    ("nemo automodel", "AutoModel", True),
    ("automodel", "AutoModel", True),
    ("nemo", "NeMo", True),
    ("megatron-bridge", "Megatron-Bridge", True),
    ("pytorch fsdp", "PyTorch FSDP", True),
    ("llm-foundry", "llm-foundry FSDP", True),
    ("torchtitan fsdp2 +compile", "torchtitan compiled", True),
    ("torchtitan", "torchtitan", True),
    ("nanotron", "nanotron", True),
)
"""(how a row's framework begins, in small letters; the stack; whether it hides data-parallel transfers behind work).
AA-Scaling does not: its published code sums gradients when the last backward is over."""

OVERLAPS_WITHOUT_ZERO = ("nanotron",)
"""Stacks that hide data-parallel transfers only under ZeRO-0. nanotron's gradients are summed by hooks of
DistributedDataParallel while the last backward runs; with ZeRO-1 they are scattered after it."""
COPIES_SHARES = ("nanotron",)
"""Stacks that copy each replica's share of each parameter separately: nanotron's reduce_scatter_coalesced joins the
shares before the one collective of a step, and its all_gather_coalesced splits them again after it."""
SENDS_BESIDE = ("NeMo", "Megatron-Core", "Megatron-Bridge")
"""Stacks that send between stages beside the work where stages are virtual, and wait for each transfer else:
overlap_p2p_comm and batch_p2p_comm [NVIDIA/NeMo: lightning/pytorch/callbacks/megatron_comm_overlap.py, line 156;
NVIDIA-NeMo/Megatron-Bridge v0.3.1: training/comm_overlap.py, line 453]."""
SYNCS = ("Megatron-LM", "Megatron-LM 2021")
"""Stacks whose host waits for the device after each transfer between stages, so that a pass begins with an empty queue:
Megatron's torch.cuda.synchronize after batch_isend_irecv, where transfers do not run beside the work. sync_s is guessed
at 2e-4: each pass more of the zero-bubble rows' interleaved schedule takes 0.36 to 0.43 milliseconds, in four models,
whatever it sends, and a pass of other stacks has pass_launch_s."""
STALLS = ("nanotron",)
"""Stacks whose collectives inside a microbatch stall: a layer of nanotron's runs with a pipeline on 2 to 32 nodes takes
4.8 + 2.4 tp milliseconds, whatever its width and microbatch, where without one it takes 4.8; on 64 nodes it does so
without a pipeline as well. Why is not known: other stacks on 64 to 384 nodes do not, so no law of nodes or ranks does
it. stall_s is that of the pipelines, to which nothing is fitted."""

FUSED_ACCUMULATION = ("NeMo", "Megatron-LM", "Megatron-Core", "Megatron-Bridge")
"""Stacks whose products add gradients of weights to their sum: Megatron's gradient_accumulation_fusion, on by default
since 2022."""

KEEPS_GATHERED = ("AA-Scaling",)
"""Stacks whose layers keep their gathered input under sequence parallelism: AA-Scaling gathers behind the norm, outside
of the linear layers that read it [core/nn/norm/rms_norm.py]. Megatron's and nanotron's gather inside and keep a rank's
piece [nanotron's tp_recompute_allgather, on by default]."""

LOOSE_NORMS = ("AA-Scaling", "torchtitan", "PyTorch FSDP")
"""Stacks whose RMS norms are several kernels, as torch runs one without a compiler: square, mean, rsqrt, two products
[AA-Scaling's core/nn/norm/rms_norm.py, torchtitan's models/norms.py; fms/modules/layernorm.py of
foundation-model-stack, which IBM's FSDP results train]; one where the row says that torch.compile made one of them.
Others bring a kernel."""


def stack_of(framework: str) -> tuple[str | None, bool]:
    """(name of the measured stack or None, whether it hides data-parallel transfers) for a row's framework."""
    lowered = framework.lower()
    for start, name, overlaps in STACKS:
        if lowered.startswith(start):
            return name, overlaps
    return None, "fsdp" in lowered or "megatron-core" in lowered


def is_compiled(framework: str) -> bool:
    """Whether a row's framework says that torch.compile ran."""
    return bool(re.search(r"(?<!no torch\.)(?<!\bno )(?<!\bwithout )\bcompil", framework.lower()))
