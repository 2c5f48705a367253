"""Proves a plan at full size before a cluster runs it: the runtime's own program on fake tensors, against the plan."""
