"""Fits the cost model to results in CSV files, published or one's own: `autoshard calibrate --results`."""
