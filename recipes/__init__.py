"""Complete runs as YAML, named for model and hardware; installed as `autoshard.recipes`."""
