"""OLMo Hybrid: the gated delta rule behind a norm, or OLMo 3's attention before one, mostly without positions."""
