"""The subcommands of `autoshard`: each module imports what it needs when it runs."""
