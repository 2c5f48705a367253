"""Gemma 4's text models: Gemma 3's norms, other heads in blocks with full attention, experts beside an MLP."""
