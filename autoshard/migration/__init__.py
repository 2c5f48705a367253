"""From a configuration of NxD Training, and its checkpoint, to a plan that goes on from it."""
