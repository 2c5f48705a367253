"""NeuronX Distributed as the library that executes a plan: what it is told, without importing it."""
