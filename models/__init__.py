"""The models that autoshard knows by name, one folder a family; installed as `autoshard.models`."""
