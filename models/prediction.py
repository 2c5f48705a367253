"""The module for multi-token prediction behind the last block, of every family that has one (DeepSeek-AI 2024, arXiv
2412.19437, 2.2).

    x = project(concat(norm(embedding of the next token), norm(the model's output, behind its final norm)))
    loss of the model + weight * loss of head(norm(block(x))) against the token after the next one

Embedding and head are the model's own, so the last stage holds both tables. Its loss is a sum over the tokens that have
another two behind them, divided by all tokens, as the paper divides. Like the head, it is outside of recompute sets.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from types import ModuleType

from autoshard.graph.ir import GraphBuilder
from autoshard.models.llama.graph import (
    HIDDEN,
    cross_entropy,
    linear,
    norm,
    token_embedding,
    vocabulary,
)
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import FINAL_NORM

NEXT_IDS, NEXT_LABELS = "next_ids", "next_labels"
"""Inputs [batch, seq]: of each place the token behind it, and the token behind that; negative ones are not learned."""
PREDICTION = "prediction"
JOINED = "joined"
"""Dim of the projection's input: twice the width of the residual stream."""


def prefix_of(model: ModelSpec) -> str:
    """The start of the module's names: checkpoints number it as if it were the block behind the last one."""
    return f"model.layers.{model.num_hidden_layers}"


def prediction(b: GraphBuilder, model: ModelSpec, family: ModuleType, loss: str, kernel: str) -> str:
    """Append the module behind the model's head, and return the sum of both losses.

    family: the module of the family's graph. loss: the model's. kernel: of attention, 'flash' or 'plain'.
    """
    module, prefix = model.multi_token_prediction, prefix_of(model)
    assert module is not None, model
    with b.inside(PREDICTION):
        tokens = token_embedding(b, f"{prefix}.embed_tokens", b.index_input(NEXT_IDS, HIDDEN.rpartition(" ")[0]))
        both = (norm(b, model, f"{prefix}.enorm", tokens), norm(b, model, f"{prefix}.hnorm", FINAL_NORM))
        joined = b.operator("concat", f"{prefix}.joined", both, ("batch", "seq", JOINED), ("batch", "seq"))
        x = linear(b, f"{prefix}.eh_proj", joined, f"batch seq {JOINED}, embed {JOINED} -> {HIDDEN}", bias=False)
        x = family.block(b, model.with_prediction_block, x, model.num_hidden_layers, kernel)
        logits = vocabulary(b, model, f"{prefix}.shared_head.head", norm(b, model, f"{prefix}.shared_head.norm", x))
        weighed = (loss, module.mtp_loss_scaling_factor)
        return cross_entropy(b, model, logits, NEXT_LABELS, f"{prefix}.loss", weighed)


def prediction_parts(model: ModelSpec, family: ModuleType) -> Iterator[Part]:
    """The parts of the Hugging Face checkpoint for the module. family: the module of the family's weights."""
    prefix = prefix_of(model)
    for name in ("enorm", "hnorm", "shared_head.norm"):
        yield Part.same(f"{prefix}.{name}.weight", "embed")
    yield Part.same(f"{prefix}.eh_proj.weight", f"embed {JOINED}")
    yield from family.block(model.with_prediction_block, model.num_hidden_layers)


def copied_tables(model: ModelSpec) -> tuple[Part, ...]:
    """The model's two tables as checkpoints hold them once more, in the module's place."""
    head = "model.embed_tokens.weight" if model.tie_word_embeddings else "lm_head.weight"
    tables = (("embed_tokens", "model.embed_tokens.weight"), ("shared_head.head", head))
    return tuple(Part(f"{prefix_of(model)}.{name}.weight", "vocab embed", table) for name, table in tables)


def has_module(model: ModelSpec, tensors: Container[str]) -> bool:
    """Whether a checkpoint with tensors of these names has a prediction module of the model."""
    return "multi_token_prediction" in model.family.may_have and f"{prefix_of(model)}.eh_proj.weight" in tensors
