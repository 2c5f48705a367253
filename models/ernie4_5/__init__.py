"""ERNIE 4.5: Llama with pairs of neighbours turned; mixtures with a corrected softmax and shared experts."""
