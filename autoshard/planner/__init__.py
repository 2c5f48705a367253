"""From a problem to a plan: every legal layout is priced, the best one is chosen and written down."""
