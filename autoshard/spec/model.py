"""The model that is trained: sizes of a decoder-only transformer, under the names of its Hugging Face config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

from autoshard.files.codec import Absence, Count, Limit, NotNegative, Positive, Whole
from autoshard.files.fields import take_own_numbers
from autoshard.spec.attention_heads import GLOBAL, AttentionHeads, GlobalAttention
from autoshard.spec.attention_scores import USUAL_SCORES, AttentionScores
from autoshard.spec.block_indexer import BlockIndexer
from autoshard.spec.blocks import Blocks, blocks_of
from autoshard.spec.branch_multipliers import BranchMultipliers
from autoshard.spec.branch_norms import BranchNorms
from autoshard.spec.checks.model import check_model
from autoshard.spec.chunked_attention import ChunkedAttention
from autoshard.spec.clamped_gate import ClampedGate
from autoshard.spec.compressed_attention import CompressedAttention
from autoshard.spec.dropout import NO_DROPOUT, Dropout
from autoshard.spec.gated_residual import GatedResidual
from autoshard.spec.hyper_connections import HyperConnections
from autoshard.spec.indexer import Indexer
from autoshard.spec.latent_attention import LatentAttention
from autoshard.spec.linear_attention import LightningAttention, LinearAttention, Mamba, Mamba1, ShortConv
from autoshard.spec.lora import Lora
from autoshard.spec.model_types import (
    ALL_HEADS,
    BLOCK_SPARSE,
    BOTH,
    CHUNKED_ATTENTION,
    EACH_HEAD,
    FAMILIES,
    FINAL_NORM,
    FULL_ATTENTION,
    HASHED,
    MOST_REPEATED,
    OWN_INDEXER,
    RECURRENT,
    RMS_NORM,
    ROPE,
    ROUTED,
    SLIDING_ATTENTION,
    SPARSE,
    XIELU,
    Family,
    ngram_table,
)
from autoshard.spec.multipliers import Multipliers
from autoshard.spec.ngram_embedding import NgramEmbedding
from autoshard.spec.prediction import MultiTokenPrediction
from autoshard.spec.rope import RopeScaling
from autoshard.spec.router import Router
from autoshard.spec.traced import TracedGraph
from autoshard.spec.weighted_residual import WeightedResidual

Repeated = Annotated[int, Limit(at_least=1, at_most=MOST_REPEATED)]
MaybeRepeated = Annotated[int, Limit(at_least=0, at_most=MOST_REPEATED)]
KIND_FIELDS = ("layer_types", "mlp_layer_types", "position_types", "gate_types", "indexer_types", "ngram_types")
"""Fields with a word for each block: blocks of the same words are of one kind, and are built and priced alike."""


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only transformer. Sizes are counts of elements.

    name: What plans call it.
    model_type: Hugging Face's name of the family, a plug-in's name, or traced (a user's own module). The table in
        autoshard/spec/model_types.py says what all its models have in common.
    hidden_size: Width of the residual stream.
    intermediate_size: Width of the MLP; of one expert where there are experts.
    num_hidden_layers: Transformer blocks.
    num_attention_heads: Query heads; 1 where no block has attention, as num_key_value_heads and head_dim are.
    num_key_value_heads: Key-value heads; each serves num_attention_heads / num_key_value_heads query heads. Blocks may
        have others: global_attention.
    head_dim: Width of one head.
    vocab_size: Tokens of the vocabulary, before padding.
    max_position_embeddings: Positions, tokens, that the model was made for.
    hidden_act: Activation of the MLP; silu stands in a gated one.
    norm_eps: Added to the variance in each norm.
    rope_theta: Base of the rotary positions; null where positions are learned.
    rope_scaling: How rotary frequencies are stretched; null where they are not.
    tie_word_embeddings: Whether embedding and head share one table.
    sliding_window: Keys that a query sees, itself included; null means all before it.
    attention_bias: Whether the projections of attention have biases; the output projection of some families has none.
    mlp_bias: Whether the matrices of the MLP, or of the router and the experts, have biases.
    num_local_experts: Experts of a block; 0 without.
    num_experts_per_tok: Experts that each token goes to; 0 without.
    shared_expert_intermediate_size: Width of the expert that every token goes to besides; 0 without.
    norm_topk_prob: Whether the weights of a token's experts are made to add up to 1.
    router_aux_loss_coef: Weight of the routers' load-balancing loss, the mean of the layers'; 0 without.
    partial_rotary_factor: Part of each head, from its start, or with compressed_attention at its end, that rotary
        positions turn.
    use_parallel_residual: Whether attention and MLP both read the block's input.
    layer_types: Of each block, what mixes its tokens: full_attention | sliding_attention | chunked_attention |
        block_sparse_attention (with block_indexer) | linear_attention | lightning_attention | mamba | mamba1 | conv |
        hybrid (falcon_h1: full attention and mamba side by side) | none (nemotron_h: it has an MLP instead); with
        compressed_attention sliding_attention | compressed_sparse_attention | heavily_compressed_attention; absent
        where all blocks have the same attention.
    mlp_layer_types: Of each block of a mixture, dense (an MLP of dense_intermediate_size) | sparse (experts) | hashed
        (deepseek_v4: experts that a table of tokens chooses); of each block of nemotron_h also none (its tokens are
        mixed instead); absent where all blocks are alike.
    dense_intermediate_size: Width of the MLP of a mixture's blocks without experts, of both MLPs that each block of
        longcat_flash has beside its experts, and of the MLP of the blocks that num_kv_shared_layers counts, where that
        is another than the others'; absent without such MLPs.
    position_types: Of each block, rope (rotary positions) | nope (no positions); absent where all blocks have them.
    gate_types: Of each block, whose gates clamped_gate cuts off: free (nobody's) | routed (the routed experts') |
        shared (those of the shared expert, or of the MLP in place of experts) | both; absent where it is the routed
        experts' in all blocks, if there is a clamped_gate.
    indexer_types: Of each block, full (an indexer of its own) | shared (it sees the keys that the last block before it
        with an indexer chose); absent where all have their own, if there is an indexer.
    ngram_types: Of each block, table0, table1, ... (it adds what is made of rows of that table of ngram_embedding) |
        none; absent without such tables.
    linear_attention: Sizes of the blocks that are linear_attention in layer_types; absent without such blocks.
    lightning_attention: Sizes of the blocks that are lightning_attention in layer_types; absent without such blocks.
    mamba: Sizes of the blocks that are mamba or hybrid in layer_types; absent without such blocks.
    mamba1: Sizes of the blocks that are mamba1 in layer_types; absent without such blocks.
    conv: Sizes of the blocks that are conv in layer_types; absent without such blocks.
    multipliers: Constants by which embeddings, scores, residuals and logits are scaled; absent where none is.
    branch_multipliers: Constants by which embeddings and the branches of each block are scaled; absent where none is.
    branch_norms: Norms, and perhaps gates, behind attention and MLP; absent where they are as the others, or none is.
    weighted_residual: Weights with which attention and MLP join what they read, where the residual stream is the output
        of the norms before them (minimax); absent where it is their input.
    latent_attention: Widths of multi-head latent attention; absent where a block has none.
    compressed_attention: Sizes of attention to a window and to compressed pieces of the sequence; absent where blocks
        have another one.
    hyper_connections: The streams of the residual; absent where there is one, and with gated_residual.
    gated_residual: The streams of a residual each number of which is weighed before a part of a block reads it; absent
        where there is one, and with hyper_connections.
    ngram_embedding: Tables of n-grams, of the blocks that have one by ngram_types; absent without such blocks.
    indexer: Sizes of what chooses the keys that a query sees, of latent attention or in the blocks that are
        full_attention in layer_types; absent where it sees all before it.
    block_indexer: Sizes of what chooses the blocks of keys that queries see in the blocks that are
        block_sparse_attention in layer_types; absent without such blocks.
    use_qk_norm: Whether each head's query and key have a norm, an RMSNorm (glm4_moe) or a LayerNorm with weights of the
        head's own (stablelm, cohere), in families that leave it to the config; absent where not.
    use_rms_norm: Whether norms are RMSNorms, in families of LayerNorms that leave it to the config (cohere2_moe);
        absent where not.
    averages_shared_expert: Whether an MLP with a shared expert is the mean of it and the routed ones (cohere2_moe);
        absent where it is their sum.
    router: How the experts of a token are chosen; absent where they are the largest of a softmax.
    attention_scores: What attention does otherwise than softmax(q k^T / sqrt(head_dim)); absent where that is nothing.
    final_logit_softcapping: A logit z becomes c * tanh(z / c), where c is this; absent where it stays.
    logit_scale: By which logits are multiplied; absent where they are not.
    rope_local_base_freq: Base of the rotary positions of blocks with a sliding window, which are not stretched; absent
        where they are as in the others.
    chunked_attention: Chunks of the sequence, as in Llama 4; absent in families without.
    v_head_dim: Width of a head's value and output, where it is another than head_dim; absent where it is the same, and
        with latent attention, which says its own.
    global_attention: Heads of the blocks that are full_attention in layer_types, where these are others than those of
        blocks with a window; absent where all blocks have the same.
    moe_latent_size: Width of the vector that a token is brought down to for the experts, and their answer up from;
        absent where they take the hidden state.
    zero_expert_num: Experts behind the others that hand a token back as it is, without a matrix: a router chooses
        num_experts_per_tok among both; 0 without.
    clamped_gate: Activation with a gate that is cut off, of the experts or as gate_types says; absent where it is
        hidden_act's.
    hidden_size_per_layer_input: Width of the vector that each block makes of a token and its embedding by tables of its
        own, and multiplies a gate by (gemma4_text); absent where blocks see the residual stream alone.
    num_kv_shared_layers: Blocks at the end that have no keys and values of their own: they take those of the last block
        before them that has some and the same word in layer_types (gemma4_text); 0 without.
    kv_source_layers: Of each block, the one whose compressed keys and values it takes, from 0: itself, or an earlier
        one that makes its own and has the same word in position_types (mistral_large4_text); absent where each block
        makes its own.
    multi_token_prediction: The module behind the last block that predicts the token after the next one; absent where
        training leaves it out, which it does unless it was asked to have it.
    lora: Low-rank adapters that are trained in place of the weights; absent where the weights are.
    dropout: What training drops; absent where it drops nothing, which it does, whatever a config says, unless it
        was asked to.
    graph: Of model_type traced alone: the operators of a user's own module over named dims, read as data; the other
        fields then are sizes alone.

    Raises AutoshardError where a field is not what the model_type can have.
    """

    name: str
    model_type: str
    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Repeated
    num_attention_heads: Repeated
    num_key_value_heads: Repeated
    head_dim: Count
    vocab_size: Count
    max_position_embeddings: Count
    hidden_act: str
    norm_eps: Positive
    rope_theta: Positive | None
    rope_scaling: RopeScaling | None
    tie_word_embeddings: bool
    sliding_window: Count | None
    attention_bias: bool
    mlp_bias: bool
    num_local_experts: MaybeRepeated = 0
    num_experts_per_tok: MaybeRepeated = 0
    shared_expert_intermediate_size: Whole = 0
    norm_topk_prob: bool = True
    router_aux_loss_coef: Annotated[NotNegative, Absence.READ] = 0.0
    partial_rotary_factor: Annotated[float, Limit(above=0, at_most=1)] = 1.0
    use_parallel_residual: bool = False
    layer_types: Annotated[tuple[str, ...], Absence.WRITTEN, Limit(most_items=MOST_REPEATED)] = ()
    mlp_layer_types: Annotated[tuple[str, ...], Absence.WRITTEN, Limit(most_items=MOST_REPEATED)] = ()
    dense_intermediate_size: Annotated[Whole, Absence.WRITTEN] = 0
    position_types: Annotated[tuple[str, ...], Absence.WRITTEN, Limit(most_items=MOST_REPEATED)] = ()
    gate_types: Annotated[tuple[str, ...], Absence.WRITTEN, Limit(most_items=MOST_REPEATED)] = ()
    indexer_types: Annotated[tuple[str, ...], Absence.WRITTEN, Limit(most_items=MOST_REPEATED)] = ()
    ngram_types: Annotated[tuple[str, ...], Absence.WRITTEN, Limit(most_items=MOST_REPEATED)] = ()
    linear_attention: Annotated[LinearAttention | None, Absence.WRITTEN] = None
    lightning_attention: Annotated[LightningAttention | None, Absence.WRITTEN] = None
    mamba: Annotated[Mamba | None, Absence.WRITTEN] = None
    mamba1: Annotated[Mamba1 | None, Absence.WRITTEN] = None
    conv: Annotated[ShortConv | None, Absence.WRITTEN] = None
    multipliers: Annotated[Multipliers | None, Absence.WRITTEN] = None
    branch_multipliers: Annotated[BranchMultipliers | None, Absence.WRITTEN] = None
    branch_norms: Annotated[BranchNorms | None, Absence.WRITTEN] = None
    weighted_residual: Annotated[WeightedResidual | None, Absence.WRITTEN] = None
    latent_attention: Annotated[LatentAttention | None, Absence.WRITTEN] = None
    compressed_attention: Annotated[CompressedAttention | None, Absence.WRITTEN] = None
    hyper_connections: Annotated[HyperConnections | None, Absence.WRITTEN] = None
    gated_residual: Annotated[GatedResidual | None, Absence.WRITTEN] = None
    ngram_embedding: Annotated[NgramEmbedding | None, Absence.WRITTEN] = None
    indexer: Annotated[Indexer | None, Absence.WRITTEN] = None
    block_indexer: Annotated[BlockIndexer | None, Absence.WRITTEN] = None
    use_qk_norm: Annotated[bool, Absence.WRITTEN] = False
    use_rms_norm: Annotated[bool, Absence.WRITTEN] = False
    averages_shared_expert: Annotated[bool, Absence.WRITTEN] = False
    router: Annotated[Router | None, Absence.WRITTEN] = None
    attention_scores: Annotated[AttentionScores, Absence.WRITTEN] = USUAL_SCORES
    final_logit_softcapping: Annotated[Positive | None, Absence.WRITTEN] = None
    logit_scale: Annotated[Positive | None, Absence.WRITTEN] = None
    rope_local_base_freq: Annotated[Positive | None, Absence.WRITTEN] = None
    chunked_attention: Annotated[ChunkedAttention | None, Absence.WRITTEN] = None
    v_head_dim: Annotated[Count | None, Absence.WRITTEN] = None
    global_attention: Annotated[GlobalAttention | None, Absence.WRITTEN] = None
    moe_latent_size: Annotated[Count | None, Absence.WRITTEN] = None
    zero_expert_num: Annotated[MaybeRepeated, Absence.WRITTEN] = 0
    clamped_gate: Annotated[ClampedGate | None, Absence.WRITTEN] = None
    hidden_size_per_layer_input: Annotated[Count | None, Absence.WRITTEN] = None
    num_kv_shared_layers: Annotated[MaybeRepeated, Absence.WRITTEN] = 0
    kv_source_layers: Annotated[tuple[int, ...], Absence.WRITTEN, Limit(most_items=MOST_REPEATED)] = ()
    multi_token_prediction: Annotated[MultiTokenPrediction | None, Absence.WRITTEN] = None
    lora: Annotated[Lora | None, Absence.WRITTEN] = None
    dropout: Annotated[Dropout, Absence.WRITTEN] = NO_DROPOUT
    graph: Annotated[TracedGraph | None, Absence.WRITTEN] = None

    def __post_init__(self) -> None:
        take_own_numbers(self)
        check_model(self)

    @cached_property
    def _hash(self) -> int:
        return hash((self.num_hidden_layers, self.hidden_size, self.vocab_size, self.num_local_experts))

    def __hash__(self) -> int:
        """Computed once, of a few numbers, which are the same in every process: models are keys of many caches."""
        return self._hash

    @cached_property
    def blocks(self) -> Blocks:
        """Its blocks by what they are built of; how they are trained may tell more of them apart
        (TrainingSpec.blocks_of)."""
        said: list[tuple[object, ...]] = [types for types in self._types.values() if types]
        if self.indexer_types:  # the first of those that see one choice counts it (models/deepseek/attention.py)
            said.append(tuple(layer - self.chooser_of(layer) == 1 for layer in range(self.num_hidden_layers)))
        if self.takes_keys:
            said.append(tuple(map(self.shares_keys, range(self.num_hidden_layers))))
        return blocks_of(zip(*said, strict=True)) if said else Blocks((0,) * self.num_hidden_layers)

    @property
    def kinds(self) -> tuple[int, ...]:
        """The first block of each kind, in the model's order: (0,) where blocks are alike."""
        return self.blocks.kinds

    def kind_counts(self, first: int, stop: int) -> tuple[tuple[int, int], ...]:
        """(kind, how many of the blocks from `first` to before `stop` are of it) of each kind among them."""
        return self.blocks.kind_counts(first, stop)

    def some_blocks(self, places: Sequence[int]) -> ModelSpec:
        """The model with these of its blocks alone, in this order. Those that take keys and values of another one have
        their own, too, up to the last one that no block is left to take them of."""
        picked: dict[str, Any] = {
            name: tuple(types[place] for place in places) for name, types in self._types.items() if types
        }
        if self.num_kv_shared_layers:
            own = next((at for at, place in enumerate(places) if self.shares_keys(place)), len(places))
            left = {self.mixer_of(place) for place in places[:own]}
            alone = (at + 1 for at, place in enumerate(places) if at >= own and self.mixer_of(place) not in left)
            picked["num_kv_shared_layers"] = len(places) - max(alone, default=own)
            if not picked["num_kv_shared_layers"]:
                picked["dense_intermediate_size"] = 0
        if self.kv_source_layers:
            makers = dict[int, int]()
            sources = tuple(makers.setdefault(self.kv_source_layers[place], at) for at, place in enumerate(places))
            picked["kv_source_layers"] = () if sources == tuple(range(len(places))) else sources
        return replace(self, num_hidden_layers=len(places), **picked)

    @cached_property
    def with_prediction_block(self) -> ModelSpec:
        """The model with the block of its prediction module behind the others, like the last one of these; but where
        blocks have indexers it has one of its own."""
        longer = self.some_blocks((*range(self.num_hidden_layers), self.num_hidden_layers - 1))
        if not self.indexer_types:
            return longer
        return replace(longer, indexer_types=(*self.indexer_types, OWN_INDEXER))

    @property
    def without_adapters(self) -> ModelSpec:
        """The model whose weights are trained, without what adapters would drop."""
        if self.lora is None:
            return self
        return replace(self, lora=None, dropout=replace(self.dropout, lora=0.0))

    @property
    def shares_embedding(self) -> bool:
        """Whether the last stage needs the table of the embedding, for the head or for a prediction module."""
        return self.tie_word_embeddings or self.multi_token_prediction is not None

    @property
    def _types(self) -> dict[str, tuple[str, ...]]:
        """By field, a word for each block; empty where all blocks are alike."""
        return {field: getattr(self, field) for field in KIND_FIELDS}

    def mixer_of(self, layer: int) -> str:
        """The word of LAYER_TYPES for what mixes the tokens of a block; NONE where nothing does."""
        if self.layer_types:
            return self.layer_types[layer]
        return FULL_ATTENTION if self.sliding_window is None else SLIDING_ATTENTION

    @property
    def is_recurrent(self) -> bool:
        """Whether some blocks mix their tokens by a recurrence or a convolution over the sequence."""
        return any(word in RECURRENT for word in self.layer_types)

    def window_of(self, layer: int) -> int | None:
        """Keys that a query of a block sees, itself included; None is all before it."""
        return None if self.layer_types and self.layer_types[layer] != SLIDING_ATTENTION else self.sliding_window

    def chunk_of(self, layer: int) -> int | None:
        """Tokens of the chunk that a query of a block sees; None where it sees more than its chunk."""
        chunked = self.layer_types and self.layer_types[layer] == CHUNKED_ATTENTION
        return self.chunked_attention.attention_chunk_size if chunked and self.chunked_attention else None

    def chosen_block_of(self, layer: int) -> int | None:
        """Keys of the blocks of which a query of a block sees some; None where it does not choose among such."""
        indexer = self.block_indexer
        return None if indexer is None or self.layer_types[layer] != BLOCK_SPARSE else indexer.index_block_size

    def has_rope(self, layer: int) -> bool:
        """Whether rotary positions turn the queries and keys of a block."""
        return self.rope_theta is not None and (not self.position_types or self.position_types[layer] == ROPE)

    def has_experts(self, layer: int) -> bool:
        """Whether the MLP of a block is a mixture of experts."""
        return self.mlp_layer_types[layer] in (SPARSE, HASHED) if self.mlp_layer_types else self.is_moe

    def hashes(self, layer: int) -> bool:
        """Whether a table of tokens chooses the experts of a block."""
        return bool(self.mlp_layer_types) and self.mlp_layer_types[layer] == HASHED

    def activation_of(self, layer: int, experts: str) -> str | None:
        """The activation of a block's gated MLPs, an expression (graph/pointwise.py) of the outputs of the gate and up
        projections; None where it is hidden_act's. experts: routed | shared; the MLP in place of experts is as the
        shared one."""
        gate, word = self.clamped_gate, self.gate_types[layer] if self.gate_types else ROUTED
        if gate is None or word not in (experts, BOTH):
            return None
        limit = gate.swiglu_limit if experts == ROUTED else gate.swiglu_limit_shared
        assert limit is not None, self.name
        return gate.expression(limit)

    def chooser_of(self, layer: int) -> int:
        """The block whose indexer chooses the keys that a block sees: itself, or the last one before it that has an
        indexer."""
        if not self.indexer_types:
            return layer
        return next(place for place in range(layer, -1, -1) if self.indexer_types[place] == OWN_INDEXER)

    def choice_of(self, layer: int) -> str:
        """The name of the indexer that chooses the keys that a block sees, and of its choice."""
        return f"model.layers.{self.chooser_of(layer)}.self_attn.indexer"

    def choice_behind(self, layers: Sequence[int]) -> str | None:
        """The name of the choice of these blocks, or of one before them, that the block behind them sees, too; None
        where that one chooses for itself, or none is there."""
        behind = layers[-1] + 1 if layers else 0
        if behind == self.num_hidden_layers or self.chooser_of(behind) == behind:
            return None
        return self.choice_of(behind)

    @property
    def takes_keys(self) -> bool:
        """Whether some blocks take keys and values of another one."""
        return self.num_kv_shared_layers > 0 or bool(self.kv_source_layers)

    def shares_keys(self, layer: int) -> bool:
        """Whether a block takes keys and values of another one."""
        if self.kv_source_layers:
            return self.kv_source_layers[layer] != layer
        return layer >= self.num_hidden_layers - self.num_kv_shared_layers

    def keys_of(self, layer: int) -> int:
        """The block whose keys and values a block sees: itself, or the one that kv_source_layers says, or the last one
        with such and the same mixer."""
        if not self.shares_keys(layer):
            return layer
        if self.kv_source_layers:
            return self.kv_source_layers[layer]
        own = range(self.num_hidden_layers - self.num_kv_shared_layers - 1, -1, -1)
        return next(place for place in own if self.mixer_of(place) == self.mixer_of(layer))

    @property
    def needs_one_stage(self) -> bool:
        """Whether blocks read what the embedding or an earlier block made, beside the residual stream that stages
        send."""
        return self.hidden_size_per_layer_input is not None or self.takes_keys

    @property
    def chooses_keys(self) -> bool:
        """Whether queries of some blocks see no keys but those that an indexer chose."""
        return self.indexer is not None or self.block_indexer is not None

    @property
    def num_sparse_layers(self) -> int:
        """Blocks whose MLP is a mixture of experts."""
        if not self.mlp_layer_types:
            return self.num_hidden_layers * self.is_moe
        return sum(word in (SPARSE, HASHED) for word in self.mlp_layer_types)

    @property
    def num_candidates(self) -> int:
        """Experts that a router chooses among: also those without a matrix."""
        return self.num_local_experts + self.zero_expert_num

    @property
    def num_experts_met(self) -> float:
        """Experts with a matrix that a token goes to, if routers choose all alike."""
        return self.num_experts_per_tok * self.num_local_experts / max(1, self.num_candidates)

    @property
    def num_streams(self) -> int:
        """Streams of the residual, each as wide as hidden_size."""
        if self.gated_residual is not None:
            return self.gated_residual.hc_count
        return 1 if self.hyper_connections is None else self.hyper_connections.hc_mult

    def ngram_table_of(self, layer: int) -> int | None:
        """The number of the table of n-grams of which a block adds rows to the residual, from 0 on; None where it adds
        none."""
        return ngram_table(self.ngram_types[layer]) if self.ngram_types else None

    @property
    def inner_sizes(self) -> dict[str, int]:
        """By field or dim, the widths that tensor parallelism splits besides heads and vocabulary."""
        fields_too = ("intermediate_size", "shared_expert_intermediate_size", "dense_intermediate_size")
        own = () if self.graph is None else self.graph.split_sizes
        return {**{field: getattr(self, field) for field in fields_too}, **dict(own)}

    @property
    def is_moe(self) -> bool:
        """Whether the MLP, of some blocks at least, is a mixture of experts."""
        return self.num_local_experts > 0

    @property
    def family(self) -> Family:
        """The traits that all models of its model_type have."""
        return FAMILIES[self.model_type]

    @property
    def output_projection_bias(self) -> bool:
        """Whether attention's output projection has a bias, as the others do where attention_bias is set."""
        return self.attention_bias and self.family.has_output_bias

    @property
    def normalization(self) -> str:
        """The norm of its blocks: rmsnorm | layernorm."""
        return RMS_NORM if self.use_rms_norm else self.family.normalization

    def offsets_norm(self, name: str) -> bool:
        """Whether a norm with a weight, by its name, multiplies by 1 plus the weight."""
        family = self.family
        return family.has_unit_offset and (family.offsets_final_norm or name != FINAL_NORM)

    @property
    def normalizes_heads(self) -> bool:
        """Whether each head's query and key are normalised by themselves."""
        return self.use_qk_norm or self.family.qk_norm == EACH_HEAD

    @property
    def weighs_each_head(self) -> bool:
        """Whether the norms of queries and keys are LayerNorms with a weight of its own for each head."""
        return self.normalizes_heads and self.family.weighs_each_head

    @property
    def normalizes_all_heads(self) -> bool:
        """Whether the queries of all heads have one RMSNorm together, and so have their keys."""
        return self.family.qk_norm == ALL_HEADS

    @property
    def normalizes_turned_heads(self) -> bool:
        """Whether the norm of queries and keys is behind their rotary positions."""
        return self.family.normalizes_turned_heads

    @property
    def normalizes_values(self) -> bool:
        """Whether each head's value has an RMSNorm without a weight."""
        return self.family.normalizes_values

    @property
    def learns_activation(self) -> bool:
        """Whether the MLP's activation has numbers that are learned."""
        return self.hidden_act == XIELU

    def rope_of(self, layer: int) -> tuple[float | None, RopeScaling | None]:
        """(base of the rotary positions of a block, how they are stretched)."""
        if self.rope_local_base_freq is not None and self.window_of(layer) is not None:
            return self.rope_local_base_freq, None
        return self.rope_theta, self.rope_scaling

    @property
    def original_positions(self) -> int | None:
        """Positions, tokens, before they were stretched; None where rope_scaling does not say."""
        return None if self.rope_scaling is None else self.rope_scaling.original_max_position_embeddings

    @property
    def traced_length(self) -> int | None:
        """Tokens of the sequences that its module was traced for, which `max_position_embeddings` has; None where none
        was traced, and where positions are learned and that field counts them."""
        return None if self.graph is None or self.rope_theta is None else self.max_position_embeddings

    @property
    def rotary_dim(self) -> int:
        """Numbers of each head that rotary positions turn; of the first of `heads`."""
        if self.latent_attention is not None:
            return self.latent_attention.qk_rope_head_dim
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def scores_scale(self) -> float | None:
        """By which attention multiplies its scores; None is 1/sqrt(head_dim)."""
        if self.multipliers is not None:
            return self.multipliers.attention_multiplier
        scaling = self.rope_scaling
        factor = 1.0 if scaling is None or self.latent_attention is None else scaling.latent_scores_factor
        factor *= 1.0 if self.branch_multipliers is None else self.branch_multipliers.scores
        factor *= self.attention_scores.qk_scale_factor or 1.0
        return None if factor == 1 else float(factor * self.head_dim**-0.5)

    @cached_property
    def heads(self) -> tuple[AttentionHeads, ...]:
        """The heads of each kind of attention that blocks may have: num_key_value_heads and head_dim first, those of
        global_attention behind them. With compressed attention no key has a head: query heads are in the groups of
        the output projection. Empty where no block has attention."""
        if not self.family.has_attention:
            return ()
        if (compressed := self.compressed_attention) is not None:
            of_group = self.num_attention_heads // compressed.o_groups
            return (AttentionHeads(compressed.o_groups, of_group, self.head_dim, self.rotary_dim),)
        shape = self.num_key_value_heads, self.num_query_groups, self.head_dim, self.rotary_dim
        own = AttentionHeads(*shape, value_dim=self.v_head_dim)
        if (wide := self.global_attention) is None:
            return (own,)
        count, width = wide.num_global_key_value_heads, wide.global_head_dim
        groups = (wide.num_global_attention_heads or self.num_attention_heads) // count
        turned = int(width * (wide.global_partial_rotary_factor or self.partial_rotary_factor))
        return own, AttentionHeads(count, groups, width, turned, GLOBAL, wide.attention_k_eq_v, self.v_head_dim)

    def heads_of(self, layer: int) -> AttentionHeads:
        """The heads of a block's attention."""
        return self.heads[-1 if self.mixer_of(layer) == FULL_ATTENTION else 0]

    @property
    def value_head_dim(self) -> int:
        """Width of a head's value; of the first of `heads`."""
        latent = self.latent_attention
        return (self.v_head_dim or self.head_dim) if latent is None else latent.v_head_dim

    def has_sinks(self, layer: int) -> bool:
        """Whether the heads of a block's attention have learned scores that weigh no value."""
        return self.attention_scores.has_sinks(self.window_of(layer))

    @property
    def num_query_groups(self) -> int:
        """Query heads that share one key-value head; 1 without grouped-query attention."""
        return self.num_attention_heads // self.num_key_value_heads
