"""Trace a user's own torch module to a ModelSpec with its graph as data. Only this part of the planner imports
torch.
"""
