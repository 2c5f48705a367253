"""The model as operators over named dims, how they are sharded, and the collectives that follow.

No torch, no hardware.
"""
