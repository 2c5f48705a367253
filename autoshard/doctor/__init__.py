"""What this machine has, and what of it would stop a plan."""
