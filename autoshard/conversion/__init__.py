"""Convert weights between layouts of files, streamed: Hugging Face, a plan's checkpoint, NxD. Needs numpy."""
