"""The graph of Laguna as operators over named dims: Llama's attention with gates, and DeepSeek-V3's experts."""

from autoshard.graph.ir import GraphBuilder
from autoshard.models.deepseek.graph import mlp
from autoshard.models.llama.graph import attention, embedding, head
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head"]


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    return mlp(b, model, attention(b, model, x, layer, kernel), layer)
