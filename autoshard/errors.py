"""Mistakes of the user's. Everything else that goes wrong is a bug and keeps its traceback."""


class AutoshardError(Exception):
    """One line: which field, its value, the other side's value, what would work. The command line then exits with 2."""


class NoLayoutFits(AutoshardError):
    """Every layout was dropped; the text names the nearest miss and what would fit."""


class NoneFound(AutoshardError):
    """A search that looks at some layouts saw none that fits, though others do."""
