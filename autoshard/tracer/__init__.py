"""A user's own torch module -> ModelSpec with its graph as data. The only part of the planner that imports torch."""
