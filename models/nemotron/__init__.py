"""An MLP of two matrices behind Llama's attention: Nemotron (LayerNorm of weight 1 + w, half of each head turned, a
squared ReLU), Arcee (that MLP with Llama's norms and positions), Jais 2 and StarCoder2 (LayerNorm and biases)."""
