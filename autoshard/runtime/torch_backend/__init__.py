"""The torch backend: local tensors, exactly the planned collectives, any device that torch.distributed serves."""
