"""GLM-4: norms before and behind attention and MLP, half of each head turned, as pairs of neighbours."""
