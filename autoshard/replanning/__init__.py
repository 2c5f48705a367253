"""Makes a new plan from a plan: for another number of nodes, or with fields that a person changes. No torch."""

from autoshard.replanning.replan import Replanned, replan

__all__ = ["Replanned", "replan"]
