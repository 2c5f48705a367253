"""The names and the form of our parameters in Hugging Face checkpoints of DeepSeek-V4, as transformers saves them:
DeepSeek's own names inside of transformers' modules."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.graph.compressed_kinds import SERIES
from autoshard.models.deepseek_v4.graph import HEADS, PIECES
from autoshard.models.hyper_connections import parts as streams
from autoshard.models.llama.graph import TABLE
from autoshard.models.llama.weights import norms
from autoshard.models.mixtral.weights import MATRICES, OURS, mixture
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import COMPRESSED_SPARSE, FINAL_NORM

__all__ = ["LEFT_OUT", "block", "ends"]

LEFT_OUT = ("mtp.",)
"""Prediction modules."""
ATTENTION = {
    "q_a_proj.weight": ("wq_a.weight", "q_rank embed"),
    "q_a_norm.weight": ("q_norm.weight", "q_rank"),
    "q_b_proj.weight": ("wq_b.weight", f"({HEADS}) q_rank"),
    "kv_proj.weight": ("wkv.weight", "headdim embed"),
    "kv_norm.weight": ("norm.weight", "headdim"),
    "sinks": ("attn_sink", "(kvhead group)"),
    "o_a_proj.weight": ("wo_a.weight", "(kvhead o_rank) (group headdim)"),
    "o_b_proj.weight": ("wo_b.weight", "embed (kvhead o_rank)"),
}
"""Our name -> (the checkpoint's, its layout)."""


def ends(model: ModelSpec) -> Iterator[Part]:
    yield Part.same(TABLE, "vocab embed")
    yield from streams(model, "model.hc_head.hc", "model.hc_head", writes=False)
    yield from norms(model, FINAL_NORM)
    if not model.tie_word_embeddings:
        yield Part("head.weight", "vocab embed", "lm_head.weight")


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    own, hub, word = f"{prefix}.self_attn", f"{prefix}.attn", model.mixer_of(layer)
    for name, (theirs, layout) in ATTENTION.items():
        yield Part(f"{hub}.{theirs}", layout, f"{own}.{name}")
    if (pieces := PIECES.get(word)) is not None:
        width = f"{SERIES} headdim" if word == COMPRESSED_SPARSE else "headdim"
        yield from _compressor(f"{hub}.compressor", f"{own}.compressor", f"{pieces}_rate", width)
    if word == COMPRESSED_SPARSE:
        indexer = f"{own}.compressor.indexer"
        yield from _compressor(f"{hub}.indexer.compressor", indexer, "sparse_rate", f"{SERIES} index_dim")
        yield Part(f"{hub}.indexer.wq_b.weight", "(index_head index_dim) q_rank", f"{indexer}.q_b_proj.weight")
        weights = f"{indexer}.scorer.weights_proj.weight"
        yield Part(f"{hub}.indexer.weights_proj.weight", "index_head embed", weights)
    for theirs, ours in (("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm")):
        yield Part(f"{prefix}.{theirs}.weight", "embed", f"{prefix}.{ours}.weight")
    for part in ("attn", "ffn"):
        yield from streams(model, f"{prefix}.hc_{part}", f"{prefix}.{part}_hc")
    yield from _experts(model, layer, f"{prefix}.ffn", f"{prefix}.mlp")


def _compressor(hub: str, own: str, rate: str, width: str) -> Iterator[Part]:
    """The parts of entries. hub, own: the checkpoint's name and ours. rate: dim of a piece's tokens. width: dims of a
    token's values."""
    rows, last = f"({width})" if " " in width else width, width.split()[-1]
    yield Part(f"{hub}.wkv.weight", f"{rows} embed", f"{own}.kv_proj.weight")
    yield Part(f"{hub}.wgate.weight", f"{rows} embed", f"{own}.gate_proj.weight")
    yield Part(f"{hub}.ape", f"{rate} {rows}", f"{own}.position_bias")
    yield Part(f"{hub}.norm.weight", last, f"{own}.kv_norm.weight")


def _experts(model: ModelSpec, layer: int, hub: str, own: str) -> Iterator[Part]:
    """The parts of a block's experts, and of what chooses them. hub, own: the checkpoint's name and ours."""
    chosen = f"{own}.gate.e_score_correction_bias"
    for part in mixture(model, own, MATRICES, hub=hub, ours=OURS, correction="gate.bias"):
        if part.parameter != chosen or not model.hashes(layer):
            yield part
    if model.hashes(layer):
        yield Part(f"{hub}.gate.tid2eid", "token choice", f"{own}.gate.tid2eid", whole_numbers=True)
    for theirs, ours in OURS.items():
        layout = MATRICES[theirs].replace("ffn", "shared_ffn")
        yield Part(f"{hub}.shared_experts.{theirs}.weight", layout, f"{own}.shared_experts.{ours}.weight")
