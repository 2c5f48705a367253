"""Training state on disk, by global coordinates of named tensors: what one layout wrote any other reads. No torch."""
