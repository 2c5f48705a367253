"""nanochat: norms without a weight, also of embeddings and of turned heads; an MLP of two matrices; capped logits."""
