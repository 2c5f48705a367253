"""A page on this machine that plans while people try values. `app.py` answers requests; every search runs in a process
of its own (`isolated.py`), which gets values that `state.py` has checked and can neither read files nor start anything.
"""
