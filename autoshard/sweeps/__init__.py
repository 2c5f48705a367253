"""Plans a grid of problems and writes a table and a plot; a second run plans only what is missing."""
