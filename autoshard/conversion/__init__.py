"""Weights from one layout of files to another, streamed: Hugging Face, a plan's checkpoint, NxD. Needs numpy."""
