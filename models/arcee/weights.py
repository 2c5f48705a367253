"""Names and form of our parameters in checkpoints of Arcee are Nemotron's."""

from autoshard.models.nemotron.weights import block, ends

__all__ = ["block", "ends"]
