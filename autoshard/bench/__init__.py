"""PlanBench: predictors against measured results, searchers against the proven optimum."""
