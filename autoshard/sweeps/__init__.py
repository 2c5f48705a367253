"""Plans a grid of problems: a table, a plot, and a second run that does what is missing."""
