"""Laguna: blocks with a window and without have other numbers of query heads, each with a gate (Poolside 2026)."""
