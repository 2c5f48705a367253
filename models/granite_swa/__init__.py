"""Granite with sliding windows: Granite 3's blocks, dense or mixtures, whose heads have sinks."""
