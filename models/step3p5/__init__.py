"""Step 3.5 and 3.7: Laguna's heads with other gates, and experts whose own gates are cut off in the last blocks."""
