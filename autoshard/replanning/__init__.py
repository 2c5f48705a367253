"""Another plan from one that is there: for another number of nodes, or with changes that a person makes. No torch."""

from autoshard.replanning.replan import Replanned, replan

__all__ = ["Replanned", "replan"]
