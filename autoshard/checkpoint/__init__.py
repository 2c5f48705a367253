"""Training state on disk, by global coordinates of named tensors: any layout reads what any other wrote. No torch."""
