"""The model as operators over named dims, how they are sharded, and what that costs in collectives. No torch, no hardware."""
