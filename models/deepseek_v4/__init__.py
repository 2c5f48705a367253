"""DeepSeek-V4: a residual of several streams, attention to a window and to compressed pieces of the sequence."""
