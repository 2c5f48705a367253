"""Software stacks of native PyTorch on Neuron, and what a step costs under each beyond the hardware file's constants.

A hardware file's constants are those of one compiled graph for each pass, which is how neuronx-distributed runs. Native
PyTorch (torch-neuronx 2.10 and later, the device `neuron`) runs otherwise: `Cluster.under_stack` gives a cluster the
constants of a stack, and `cluster.stack` names it.
"""

from dataclasses import dataclass

NATIVE_RELEASE = "2.31"
"""The first release of the Neuron SDK with native PyTorch that is no private beta [SDK
announce-maintenance-nxdt-nxd-core-training: "native PyTorch on Neuron (starting Neuron 2.31 and PyTorch 2.12)"]."""
P2P_RELEASE = "2.33"
"""The first release of the Neuron SDK whose native PyTorch sends from rank to rank: torch-neuronx 2.13.3 [Neuron
documentation 2.33, torch/guides/torch-distributed and training/best-practices have pipelines]. Betas failed with "No
backend type associated with device type neuron"."""
NATIVE_DEVICES = "native PyTorch on Neuron runs on trn2 and trn3"
"""Begins sentences on other devices [Neuron release notes 2.33, components/torchneuron]."""
FRAGMENTATION = 0.088
"""Share of a device's memory that its allocator cannot hand out: an out-of-memory at 23.5 of 25.77 GB of a rank (third
party, tp=4, a 27B model, torch-neuronx beta). One case; 16 GB free in pieces of at most 58 MB were seen too."""


@dataclass(frozen=True)
class Stack:
    """A software stack that native PyTorch runs on.

    label: in sentences. operator_s: fixed seconds of each operator of a plan's graph; None: the hardware file's.
    pass_launch_s: fixed seconds of each pass of a microbatch through a stage; None: the hardware file's.
    region_launch_s: of each collective besides, which ends one region that runs by itself and starts the next.
    compiles: what becomes one graph: "operators", "regions" (what a rank computes between collectives) or "stages" (a
    pass of a microbatch through a stage, its collectives inside).
    sources: where these constants are from, a sentence without a full stop.
    """

    name: str
    label: str
    operator_s: float | None
    pass_launch_s: float | None
    region_launch_s: float
    compiles: str
    sources: str


STACKS = {
    stack.name: stack
    for stack in (
        Stack(
            "neuron-compiled",
            'native PyTorch, torch.compile(backend="neuron") of what ranks compute between collectives',
            None,
            None,
            1e-4,
            "regions",
            "100 us to start each compiled region (third party, torch-neuronx 2.12.3, one LNC2 core: 95 to 100 us); "
            "guess: no region is started while the one before it runs",
        ),
        Stack(
            "neuron-stages",
            'native PyTorch, torch.compile(backend="neuron") of whole stages with functional collectives inside',
            None,
            None,
            0.0,
            "stages",
            "guess: a graph of torch.compile runs as one of neuronx-distributed of the same stage, whose constants "
            "these are; at most 16 groups a graph (Neuron release notes 2.32, components/runtime)",
        ),
        Stack(
            "neuron-eager",
            "native PyTorch, eager",
            1.9e-4,
            0.0,
            0.0,
            "operators",
            "7 ms a Llama block and microbatch: 116 operators of torch, forward and backward, at 60 us each (third "
            "party, torch-neuronx 2.12.3: 55 to 65 us whatever they compute), spread over the 37 of its graph; guess: "
            "the device waits for the host at each of them",
        ),
    )
}
"""By name, in the order in which they are preferred."""
WHOLE_STAGES = "neuron-stages"
