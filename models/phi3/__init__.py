"""Phi-3, Phi-3.5 and Phi-4: Llama with fused matrices in its checkpoints."""
