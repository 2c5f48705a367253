"""The graph of Mistral Small 4 is that of DeepSeek-V3: its router and its queries are in the ModelSpec."""

from autoshard.models.deepseek.graph import block, embedding, head

__all__ = ["block", "embedding", "head"]
