"""The models that autoshard knows by name, one folder a family; installed as `autoshard.models`."""

from autoshard.models.registry import builtin_models, load_model

__all__ = ["builtin_models", "load_model"]
