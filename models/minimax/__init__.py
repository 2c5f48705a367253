"""MiniMax-Text-01 and MiniMax-M1 (`minimax`): lightning attention in most blocks, Mixtral's attention and experts, and
a residual stream that is normalised before each of them."""
