"""What ATen operators mean in our graph. Importing this registers all rules."""

from autoshard.tracer.rules import attention, experts, norms, numbers, positions, products, views

__all__ = ["attention", "experts", "norms", "numbers", "positions", "products", "views"]
