"""Formats of other projects, read into ours."""
