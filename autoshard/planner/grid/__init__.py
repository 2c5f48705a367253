"""Prices whole layouts by the thousand: the formulas of the cost model over arrays."""
