"""Other people's packages that add to autoshard: found by their entry points, loaded when a name is asked for."""
