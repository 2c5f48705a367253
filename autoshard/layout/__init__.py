"""What the planner chooses: the mesh, the strategy, every operator's sharding, and plan.json that holds them."""
