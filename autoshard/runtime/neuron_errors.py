"""Errors of the Neuron runtime and compiler whose texts do not say what to do: a sentence that does, for each.

Texts are from the Neuron documentation (about compiler/error-codes; status codes 1200 to 1202 of its runtime; a hang's
text from the runtime's release notes) and from logs that users published (backends/native_neuron.py names them).
"""

from __future__ import annotations

_TOO_LARGE = (
    "the graph has more instructions than the compiler takes: plan with more tensor parallelism, a smaller microbatch "
    "or more stages"
)
_NO_MEMORY = (
    "the device's memory is full, or has no piece that is large enough: plan with more recompute, a smaller microbatch "
    "or more ranks a replica"
)
_KNOWN = (
    (("cores busy", "Available:0"), "another process has the NeuronCore: neuron-ls shows which; end it, and run again"),
    (("NRT model scheduling failed", "Failed to allocate"), _NO_MEMORY),
    (("EOOM001", "EOOM002", "EVRF009", "EXSP001"), _NO_MEMORY),
    (("EBVF030", "EVRF007", "EXTP003", "EXTP004"), _TOO_LARGE),
    (
        ("uspected hang", "NRT_EXEC_HW_ERR_COLLECTIVES"),
        (
            "ranks waited for each other in a collective, in vain: the log of a rank that says something else has the "
            "cause; where all say this, a link or a device failed: start again on other instances"
        ),
    ),
    (
        ("uncorrectable", "NRT_EXEC_HW_ERR_HBM_UE", "NRT_EXEC_HW_ERR_NC_UE"),
        "hardware failed, results may be wrong: go on from the last checkpoint on another instance",
    ),
    (("EMOD025",), "a graph's shapes must be known when it is compiled: this is autoshard's mistake"),
    (
        ("Neuron runtime should not be initialized before the init_process_group",),
        "something touched the device while Python was starting: look for torch.neuron in sitecustomize and the like",
    ),
)


def advice(text: str) -> str:
    """The advice on an error of this text, a sentence without a full stop; "" where the text is not known."""
    return next((sentence for texts, sentence in _KNOWN if any(one in text for one in texts)), "")
