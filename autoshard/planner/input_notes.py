"""The sentences of a plan that follow from its inputs alone, whatever its layout is."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.backends.products import unrunnable
from autoshard.backends.registry import BACKENDS
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import BLOCK_SPARSE, FULL_ATTENTION, OWN_INDEXER
from autoshard.spec.traced import LONGEST_TRACE
from autoshard.spec.training import ADAMW, TrainingSpec

TEXT_ALONE = "the text model alone is planned"
"""Words of a note on a config that describes more: whoever plans the model again takes the note over."""


def input_notes(model: ModelSpec, training: TrainingSpec, backend: str) -> Iterator[str]:
    """Sentences on positions beyond those of the model, what it drops, how it is updated, what is left out of it, what
    does not run."""
    length, positions, traced = training.sequence_length, model.max_position_embeddings, model.traced_length
    if traced is not None and length > traced:
        yield (
            f"seq-len {length:,} is beyond the {traced:,} tokens that {model.name} was traced for: a longer window is "
            "not in the plan; plan its module at that length"
        )
    elif length > positions:
        yield f"seq-len {length:,} is beyond the {positions:,} positions that {model.name} was made for"
    if model.dropout:
        yield f"dropout {model.dropout}: the same elements in every layout; evaluation drops nothing"
    if model.lora is not None:
        told = "no result with any was measured under this software; intervals are those of all weights trained"
        yield f"adapters: {told}"
    if training.optimizer != ADAMW:
        told = "no result with it was measured; that its products are as fast as those of layers is a guess"
        yield f"optimizer={training.optimizer}: {told}"
    if model.graph is not None:
        yield f"{model.name} was traced with {min(traced or length, LONGEST_TRACE):,} tokens, without dropout"
    if model.indexer is not None:
        told = "indexers are loaded, not learned; attention computes the scores of all keys, and MFU counts it alone"
        own = model.indexer_types.count(OWN_INDEXER)
        several = f", which {own} of {model.num_hidden_layers} blocks choose" if own else ""
        full = model.layer_types.count(FULL_ATTENTION) if model.latent_attention is None else 0
        some = f"in {full} of {model.num_hidden_layers} blocks " if full else ""
        yield f"{model.name}: {some}a query sees {model.indexer.most_keys:,} keys at most{several}; {told}"
    if (blocks := model.block_indexer) is not None:
        told = "indexers are loaded, not learned; attention computes the scores of all keys, and MFU counts it alone"
        some = f"in {model.layer_types.count(BLOCK_SPARSE)} of {model.num_hidden_layers} blocks"
        seen = f"{blocks.index_topk_blocks} of the blocks of {blocks.index_block_size:,} keys before it at most"
        yield f"{model.name}: {some} a query sees {seen}; {told}"
    if model.compressed_attention is not None:
        told = "indexers are loaded, not learned; attention computes the scores of all entries, and MFU counts them"
        chosen = f"{model.compressed_attention.index_topk:,} entries at most in blocks with an indexer"
        yield f"{model.name}: a query sees {chosen}; {told}"
        for rate in (model.compressed_attention.sparse_rate, model.compressed_attention.heavy_rate):
            if rest := length % rate:
                last = f"the last {rest} tokens are" if rest > 1 else "the last token is"
                yield f"seq-len {length:,}: {last} in no entry that stands for {rate}; use a multiple of {rate}"
    if model.zero_expert_num:
        told = f"{model.zero_expert_num:,} of {model.num_candidates:,} experts have no matrices"
        yield f"{model.name}: {told}; plans count that routers choose all alike, these too"
    if model.multi_token_prediction is not None:
        weight = model.multi_token_prediction.mtp_loss_scaling_factor
        told = "its loss is part of the one that training reports, not of that on held-out text"
        yield f"{model.name}: a prediction module runs with the head; {told}; it weighs {weight:g}"
    elif "multi_token_prediction" in model.family.may_have:
        told = "are left out, as transformers leaves them out; --mtp-num-layers 1 trains one"
        yield f"{model.name}: prediction modules, as many as num_nextn_predict_layers of its config, {told}"
    refused = unrunnable(BACKENDS[backend], training.precision)
    if refused is not None:
        yield refused
