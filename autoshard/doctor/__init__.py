"""Check a machine: what it has, and what of it would stop a plan."""
