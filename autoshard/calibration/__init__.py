"""Measures a machine and writes its hardware file: `autoshard calibrate`."""
