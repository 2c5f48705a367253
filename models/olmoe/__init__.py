"""OLMoE: norms over all heads of queries and keys, and Qwen's experts."""
