"""The table of model families: which modules write the graph and the weights of each model_type."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

from autoshard.models.gpt2 import graph as gpt2_graph
from autoshard.models.gpt2 import weights as gpt2_weights
from autoshard.models.gpt_neox import graph as gpt_neox_graph
from autoshard.models.gpt_neox import weights as gpt_neox_weights
from autoshard.models.llama import graph as llama_graph
from autoshard.models.llama import weights as llama_weights
from autoshard.models.mixtral import graph as mixtral_graph
from autoshard.models.mixtral import weights as mixtral_weights
from autoshard.models.qwen import graph as qwen_graph
from autoshard.models.qwen import weights as qwen_weights
from autoshard.models.traced import graph as traced_graph


@dataclass(frozen=True)
class Family:
    """The modules of a family.

    graph: module with `embedding(b, model)`, `block(b, model, x, layer, kernel)` and `head(b, model, x)`.
    weights: module with `block(model, layer)` and `ends(model)`, which list parts of the Hugging Face checkpoint; None
    if no such checkpoint is known.
    """

    graph: ModuleType
    weights: ModuleType | None = None


LLAMA, QWEN_MOE = Family(llama_graph, llama_weights), Family(qwen_graph, qwen_weights)
FAMILIES = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "mixtral": Family(mixtral_graph, mixtral_weights),
    "gpt2": Family(gpt2_graph, gpt2_weights),
    "gpt_neox": Family(gpt_neox_graph, gpt_neox_weights),
    "qwen2": LLAMA,
    "qwen3": LLAMA,
    "qwen2_moe": QWEN_MOE,
    "qwen3_moe": QWEN_MOE,
    "traced": Family(traced_graph),
}
"""By model_type."""
