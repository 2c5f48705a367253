"""Flags of Megatron-LM that tests of several files write."""

DROPS_NOTHING = "--hidden-dropout 0 --attention-dropout 0.0"
"""Without these Megatron drops a tenth, which is warned of."""
