"""Keys and values that blocks take of another one, and n-grams of tokens that they take of tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.spec.model_types import NONE, ngram_table
from autoshard.units import counted

if TYPE_CHECKING:
    from autoshard.spec.model import ModelSpec


def check_other_blocks(model: ModelSpec) -> None:
    """Raises AutoshardError for blocks that take what no block or table gives."""
    if model.num_kv_shared_layers:
        _check_shared_keys(model, model.num_kv_shared_layers)
    if model.kv_source_layers:
        _check_key_sources(model, model.kv_source_layers)
    _check_ngrams(model)


def _check_shared_keys(model: ModelSpec, count: int) -> None:
    """Keys and values of blocks with the same mixer, for the last `count` blocks, whose MLPs may be twice as wide."""
    of = model.name
    if count >= model.num_hidden_layers:
        raise AutoshardError(
            f"num_kv_shared_layers={count} of {of} must be below num_hidden_layers={model.num_hidden_layers}: the "
            "others' keys and values are taken"
        )
    if not model.is_moe and model.dense_intermediate_size not in (0, 2 * model.intermediate_size):
        raise AutoshardError(
            f"dense_intermediate_size={show(model.dense_intermediate_size)} of {of} must be twice intermediate_size="
            f"{model.intermediate_size}, the width of the MLPs of its last {counted(count, 'block')}, or 0 where these "
            "are as wide as the others"
        )
    own = {model.mixer_of(layer) for layer in range(model.num_hidden_layers - count)}
    for layer in filter(model.shares_keys, range(model.num_hidden_layers)):
        if (word := model.mixer_of(layer)) not in own:
            raise AutoshardError(
                f"num_kv_shared_layers={count} of {of}: layer_types says {word} of block {layer}, but of none of "
                "the blocks whose keys and values it could take"
            )


def _check_key_sources(model: ModelSpec, sources: tuple[int, ...]) -> None:
    """Compressed keys of a block that makes its own and has positions as those have that take them."""
    of = model.name
    if sources == tuple(range(model.num_hidden_layers)):
        raise AutoshardError(f"kv_source_layers of {of} must be absent where each block makes keys of its own")
    for layer, source in enumerate(sources):
        said = f"kv_source_layers of {of} says block {source} for block {layer}"
        if not 0 <= source <= layer or sources[source] != source:
            raise AutoshardError(f"{said}; it must be itself, or an earlier block that makes keys of its own")
        if model.has_rope(source) != model.has_rope(layer):
            raise AutoshardError(f"{said}; both must have positions, or neither of them")


def _check_ngrams(model: ModelSpec) -> None:
    """Which block has which table exactly where there are tables, of rows that checkpoints can hold."""
    ngrams, of = model.ngram_embedding, model.name
    if (ngrams is not None) != bool(model.ngram_types):
        raise AutoshardError(
            f"ngram_types of {of} must say which table of ngram_embedding each block has, and both must be absent "
            "without tables"
        )
    if ngrams is None:
        return
    if ngrams.eos_token_id >= model.vocab_size:
        raise AutoshardError(f"eos_token_id={ngrams.eos_token_id} of {of} must be below vocab_size={model.vocab_size}")
    for word in {*model.ngram_types} - {NONE}:
        table = ngram_table(word)
        assert table is not None, word
        ngrams.part_rows(table, model.vocab_size)
