"""The rules for ATen operators: what each becomes in our graph. Importing this registers all of them."""

from autoshard.tracer.rules import attention, experts, norms, numbers, positions, products, views

__all__ = ["attention", "experts", "norms", "numbers", "positions", "products", "views"]
