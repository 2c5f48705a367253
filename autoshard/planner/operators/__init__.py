"""Operator shardings by integer program."""
