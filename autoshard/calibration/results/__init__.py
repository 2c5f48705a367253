"""Fits the cost model to results in CSV files, published ones or one's own: `autoshard calibrate --results`."""
