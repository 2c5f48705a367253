"""Defaults that the interface and the command line share."""

TIME_LIMIT_S = 60.0
"""How long `explain` looks for what would change the choice, seconds. Most plans are answered in a third of it; plans
for torch on many devices, where most layouts are legal, take longest."""
SHAPES = 8
"""Programs whose operators `calibrate` times, at most."""
