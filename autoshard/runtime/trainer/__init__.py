"""Trains a plan on any backend: the loop, where a run starts, checkpoints, evaluation."""
