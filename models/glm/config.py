"""The config.json of GLM has GLM-4's keys and defaults."""

from autoshard.models.glm4.config import read, write

__all__ = ["ARCHITECTURES", "read", "write"]

ARCHITECTURES = {"glm": "GlmForCausalLM"}
