"""autoshard: plan how a large model is sharded, prove it, run it."""

__version__ = "0.1.0"
