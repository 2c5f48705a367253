"""Llama 4's text models: chunked attention, blocks without positions, a shared expert beside one of many."""
