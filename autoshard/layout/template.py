"""One name for the same operator or parameter of every block: `model.layers.*.mlp.up_proj`."""

from __future__ import annotations


def template_of(name: str) -> str:
    """The name of an operator or parameter with * for the block: 'model.layers.3.mlp.up_proj' ->
    'model.layers.*.mlp.up_proj'.
    """
    return ".".join("*" if part.isdigit() else part for part in name.split("."))
