"""The choices that the planner makes: the mesh, the strategy and every operator's sharding."""
