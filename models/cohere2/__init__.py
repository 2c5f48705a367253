"""Command R7B and Command A: attention and MLP side by side behind one LayerNorm without a bias."""
