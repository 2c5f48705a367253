"""GPT-NeoX and Pythia: layer norm, rotary positions on part of each head, attention and MLP side by side, biases."""
