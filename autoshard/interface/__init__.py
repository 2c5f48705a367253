"""The calls of Python: plan, search, score, ...; `autoshard` itself has these names, and the commands call them too."""
