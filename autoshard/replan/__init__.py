"""A plan for another number of nodes, from one that a run was under way with. No torch."""

from autoshard.replan.replan import Replanned, replan

__all__ = ["Replanned", "replan"]
