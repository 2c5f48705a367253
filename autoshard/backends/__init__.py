"""Backends and platforms, and the layouts that each accepts."""
