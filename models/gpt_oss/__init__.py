"""gpt-oss: a mixture with biases and a clamped gate, attention sinks, a window on every other block."""
