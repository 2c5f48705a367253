"""The training stack that runs on the devices, as far as it changes what a step costs.

How a stack behaves is stated (what it shards, overlaps, keeps); how well it does it is five fitted constants, two of
time and three of memory. The planner's own runtimes are `COMPILED`: neutral constants, nothing overlaps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, eq=False)
class Software:
    """A named stack on one family of devices.

    Fitted to a stack, 1 or 0 where nothing is known:
      compute_slowdown, link_slowdown: of all work on the device and of all transfers against the device's constants.
    Of hosts, the same for all measured stacks:
      cpu_s_per_operator: the host needs that long to launch one; a pass lasts at least as long as its launches.
      group_launch_s: the host needs that long besides for each expert's product, where each is a launch of its own.
    Fitted to a family of devices:
      attention_efficiency: share of the peak that a flash kernel reaches; None: the device's.
      wave_elements: of its output that a product computes besides: the last wave of tiles is partly empty.
      tensor_overlap: share of the backward products of a layer whose input is gathered (sequence parallelism) behind
      which its collectives hide.
      plain_attention_passes: times that attention without a flash kernel moves all scores, forward and backward.
      misaligned_slowdown: of that attention's products where the head dim is no multiple of 8.
      norm_passes: times that a norm moves its input and output; more than 1 where it is not one kernel.
      loss_passes: times that the loss moves the logits.
      route_passes: times that tokens move, against once each way, while they are copied for their experts, sorted and
      added up; more than 1 where that is not one kernel each.
      activation_passes: times that an expert's activation moves its inputs and output; more than 1 as for norms.
      transfer_share: of a transfer between stages, what each pass waits for; None: transfers run beside the work and
      delay only what needs them.
      sends_beside: stages send beside the work, so that delays add up along the pipeline and a pass waits for the mean
      of its hops; else each rank waits for its own hop, and the slowest sets the pace of all.
      quantized_efficiency: of products in 8 or 4 bits, against what those in the compute dtype reach of their peak;
      None: the device's.
      overlap: share of the work behind which data-parallel transfers hide.
      contention: of transfers of sharded parameters that hide, and of copies to the host, the share by which the work
      takes longer.
      step_overhead_s: once a step. copy_launch_s: under ZeRO-1, for each tensor and replica, where its share is copied
      by a launch of its own.
    Memory, fitted to a stack:
      activation_scale: kept activations against those that the programs keep.
      logits_bytes: a logit, beyond what the program's loss keeps.
      reserved_bytes: of each device, beyond what the device file reserves.
    Memory, the same for all measured stacks:
      norm_copies: further hidden activations that the two norms of a block keep where they are not one kernel.
      score_copies: of the attention scores that a kernel other than flash keeps, beyond the probabilities.
      working_scale: of working buffers.
    Stated:
      splits_dispatch: the ranks of tensor parallelism send a part of their tokens to the experts each, and gather what
      arrives, in place of sending all of them.
      sends_once: tokens go to each rank once that has experts of theirs, and over the network once to each node; else
      once for each expert. neighbours: a token's experts are neighbours, as a gate that only spreads them evenly makes
      them. sorts_copies: where a rank has several experts, what has arrived is sorted by them before their products,
      and back after.
      expert_overlap: share of the work behind which exchanges with experts hide.
      reads_back: the host learns from the device how many tokens the experts have: in a forward, its launches and the
      device's work come one after the other. graphs: what is launched at once: none, router, attention besides, all.
      stall_s: of a microbatch's collectives, each waits besides, so long for each of its members.
      replay_slowdown: of recomputed forward work against the first one.
      accumulation_share: of adding gradients up; 0 where the products that make gradients of weights add to the sum.
      gathers_quantized: what quantised products read is gathered as they read it, in 8 or 4 bits, between
      tensor-parallel ranks: Transformer Engine's modules quantise before gather_along_first_dim.
      keeps_loss: what the loss keeps is charged to blocks that run backward too, when it is over: so the stack's
      constants of memory were fitted.
      hands_over: after how much of a backward gradients of weights are handed over (Cluster.hands_over); "nothing":
      products add to the sums themselves; None: as the cluster's does.
      whole_logits: every tensor-parallel rank gathers all logits and works on them.
      replays_head: full recompute repeats the head as well.
      keeps_gathered: with sequence parallelism, layers keep their whole gathered input for backward; else their ranks'
      pieces, which backward gathers again.
      adapts: only low-rank adapters of linear layers are trained (LoRA). Weights have neither gradients, nor products
      that make them, nor optimizer state; of the adapters nothing counts but the launches of their two narrow products.
      offloaded: of what blocks keep for backward, the share that waits in the host's memory. host_bytes_per_s: of the
      link to it, each way.
      sharded_parameters: FSDP (ZeRO-3): each microbatch gathers parameters for forward and for backward and scatters
      gradients. sharded_gradients: ZeRO-2, which scatters them in each microbatch.
    """

    name: str
    compute_slowdown: float = 1.0
    link_slowdown: float = 1.0
    cpu_s_per_operator: float = 0.0
    group_launch_s: float = 0.0
    replay_slowdown: float = 1.0
    attention_efficiency: float | None = None
    wave_elements: float = 0.0
    tensor_overlap: float = 0.0
    plain_attention_passes: tuple[float, float] = (1.0, 2.0)
    misaligned_slowdown: float = 1.0
    norm_passes: float = 1.0
    loss_passes: float = 1.0
    route_passes: float = 1.0
    activation_passes: float = 1.0
    whole_logits: bool = False
    replays_head: bool = False
    keeps_gathered: bool = False
    copy_launch_s: float = 0.0
    stall_s: float = 0.0
    splits_dispatch: bool = False
    sends_once: bool = False
    neighbours: bool = False
    sorts_copies: bool = False
    expert_overlap: float = 0.0
    reads_back: bool = False
    graphs: str = "none"
    transfer_share: float | None = None
    sends_beside: bool = False
    quantized_efficiency: float | None = None
    overlap: float = 0.0
    contention: float = 0.0
    activation_scale: float = 1.0
    norm_copies: float = 0.0
    score_copies: float = 0.0
    logits_bytes: float = 0.0
    working_scale: float = 1.0
    reserved_bytes: float = 0.0
    accumulation_share: float = 1.0
    gathers_quantized: bool = False
    keeps_loss: bool = False
    hands_over: str | None = "stages"
    adapts: bool = False
    sharded_parameters: bool = False
    sharded_gradients: bool = False
    step_overhead_s: float = 0.0
    offloaded: float = 0.0
    host_bytes_per_s: float = 0.0


TRACED = Software("traced", cpu_s_per_operator=1.9e-4)
"""A host that traces every pass anew with torch-xla, as optimum-neuron's trainer does, while the device works on the
pass before. From fine-tuning on one chip: TinyLlama-1.1B and Qwen3-1.7B take 12 to 13 ms a block and microbatch on trn1
and on trn2 alike, far above what their work takes. The seconds of an operator are a hand fit to the two."""
TRACED_LORA = replace(TRACED, name="traced LoRA", adapts=True)
"""The same host with adapters of low rank beside all linear layers, which it traces too."""
XLA_FSDP = Software("xla-fsdp", sharded_parameters=True, sharded_gradients=True, hands_over="nothing")
"""JAX through XLA on trn2, as AXLearn shards weights: one graph gathers them for forward and for backward, and scatters
the gradients of a block as they come. Nothing hides behind work: a collective in the graph of a matrix product makes it
19 to 42 % longer (yahavb/trn2-matmul-bench)."""
EAGER = Software("eager", cpu_s_per_operator=6e-5)
"""Native torch on Neuron without a compiler: 55 to 65 us an operator, whatever it computes (torch-neuronx 2.12)."""
COMPILED = Software("compiled", hands_over=None)
"""Both backends of autoshard: one compiled graph a pass. Passes of plain attention set by hand to published Llama-2-7B
results on trn1: the softmax is fused with the product before it and only the probabilities are written; backward, they
are read and their gradient is written. Unfused it would be 4 and 7."""
