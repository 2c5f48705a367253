"""The names and the form of our parameters in Hugging Face checkpoints of Ministral 3's text models are Llama's."""

from autoshard.models.llama.weights import block, ends

__all__ = ["block", "ends"]

LEFT_OUT = tuple(f"{outer}{part}." for outer in ("", "model.") for part in ("vision_tower", "multi_modal_projector"))
