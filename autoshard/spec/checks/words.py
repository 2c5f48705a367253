"""The lists of a model that say something of each block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoshard.errors import AutoshardError
from autoshard.files.fields import check_choice, is_count, show
from autoshard.spec.model_types import (
    BLOCK_SPARSE,
    CHUNKED_ATTENTION,
    COMPRESSED_TYPES,
    FULL_ATTENTION,
    GATE_TYPES,
    HASHED,
    HYBRID,
    INDEXER_TYPES,
    LAYER_TYPES,
    MAMBA1,
    MLP_LAYER_TYPES,
    MOST_REPEATED,
    NGRAM_TABLE,
    NONE,
    POSITION_TYPES,
    ngram_word,
)

if TYPE_CHECKING:
    from autoshard.spec.model import ModelSpec


def check_words(model: ModelSpec) -> None:
    """Raises AutoshardError for a list without an entry for each block, or with one that the model's family has not."""
    for field, words in _words(model).items():
        _check_words(model, field, words)
    sources, of = model.kv_source_layers, model.name
    if not isinstance(sources, tuple) or any(type(one) is not int for one in sources):
        raise AutoshardError(f"kv_source_layers={show(sources)} of {of} must have the number of a block for each")
    if sources:
        _check_length(model, "kv_source_layers")


def _words(model: ModelSpec) -> dict[str, tuple[str, ...]]:
    """By field that has a word for each block, those that there are in the model's family."""
    none = (NONE,) if model.family.has_one_branch else ()
    mlps = MLP_LAYER_TYPES if model.family.has_attention else ()
    return {
        "layer_types": (*_mixers(model), *none),
        "mlp_layer_types": (*mlps, *((HASHED,) if model.family.hashes_tokens else ()), *none),
        "position_types": POSITION_TYPES,
        "gate_types": GATE_TYPES,
        "indexer_types": INDEXER_TYPES,
        "ngram_types": _ngram_words(model),
    }


def _check_words(model: ModelSpec, field: str, known: tuple[str, ...]) -> None:
    """A known word for each block, or none at all."""
    types = getattr(model, field)
    if not isinstance(types, tuple):
        raise AutoshardError(f"{field}={show(types)} of {model.name} must be a word for each block")
    if wrong := [word for word in types if word not in known]:
        check_choice(model.name, field, wrong[0], known)
    if types:
        _check_length(model, field)


def _check_length(model: ModelSpec, field: str) -> None:
    if (entries := len(getattr(model, field))) != model.num_hidden_layers:
        raise AutoshardError(
            f"{field} of {model.name} has {entries} entries; num_hidden_layers={model.num_hidden_layers} needs one for "
            "each block"
        )


def _mixers(model: ModelSpec) -> tuple[str, ...]:
    """The words of layer_types for blocks that mix their tokens, of the model's family."""
    if not model.family.has_attention:
        return (MAMBA1,)
    if model.family.has_two_mixers:
        return (HYBRID,)
    if model.compressed_attention is not None:
        return COMPRESSED_TYPES
    if "block_indexer" in model.family.may_have:
        return (FULL_ATTENTION, BLOCK_SPARSE)
    return LAYER_TYPES if model.chunked_attention is None else (FULL_ATTENTION, CHUNKED_ATTENTION)


def _ngram_words(model: ModelSpec) -> tuple[str, ...]:
    """The words that ngram_types may have, of tables the first one and those that it names."""
    said = model.ngram_types if isinstance(model.ngram_types, tuple) else ()
    numbers = (word.removeprefix(NGRAM_TABLE) for word in said if isinstance(word, str))
    tables = {int(number) for number in numbers if is_count(number)} | {0}
    return NONE, *(ngram_word(table) for table in sorted(tables) if table < MOST_REPEATED)
