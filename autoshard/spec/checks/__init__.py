"""Checks of a model: each raises one error that names the field, its value and what would do."""
