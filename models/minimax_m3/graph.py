"""The graph of MiniMax-M3's text model as operators over named dims: Llama's attention, in most blocks to chosen blocks
of keys, and Mixtral's experts with a shared one."""

from __future__ import annotations

from autoshard.graph.attention_kind import KEY_BLOCK
from autoshard.graph.ir import GraphBuilder
from autoshard.models.dropping import residual
from autoshard.models.llama.graph import embedding, head, norm, self_attention
from autoshard.models.mixtral.graph import experts_or_mlp
from autoshard.spec.block_indexer import BlockIndexer
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import BLOCK_SPARSE

__all__ = ["block", "embedding", "head"]


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    prefix = f"model.layers.{layer}"
    b.module = "attention_norm"
    h = norm(b, model, f"{prefix}.input_layernorm", x)
    chosen = None
    if model.mixer_of(layer) == BLOCK_SPARSE:
        assert model.block_indexer is not None, model
        chosen = _chosen(b, model, model.block_indexer, f"{prefix}.self_attn.indexer", h)
    out = self_attention(b, model, h, layer, kernel, chosen=chosen)
    x = residual(b, model, f"{prefix}.attention_residual", x, (out, f"{prefix}.self_attn.dropout"))
    b.module = "mlp_norm"
    h = norm(b, model, f"{prefix}.post_attention_layernorm", x)
    return residual(b, model, f"{prefix}.mlp_residual", x, experts_or_mlp(b, model, h, layer))


def _chosen(b: GraphBuilder, model: ModelSpec, indexer: BlockIndexer, name: str, h: str) -> str:
    """Append the choice of blocks of keys, and return the mask [batch, seq, kvhead, key_block]. h: [batch, seq, embed].
    name: of the operator."""
    b.module = "attention"

    def weight(part: str, dims: str, is_matrix: bool) -> str:
        return b.parameter(f"{name}.{part}.weight", dims, learned=False, matrix=is_matrix)

    theta, scaling = model.rope_of(0)
    return b.operator(
        "choose_blocks",
        name,
        (
            h,
            weight("q_proj", "kvhead index_dim embed", True),
            weight("k_proj", "index_dim embed", True),
            weight("q_norm", "index_dim", False),
            weight("k_norm", "index_dim", False),
        ),
        ("batch", "seq", "kvhead", KEY_BLOCK),
        ("batch", "seq", "kvhead"),
        element_bytes=1,
        differentiable=False,
        top_k=indexer.index_topk_blocks,
        local=indexer.index_local_blocks,
        block=indexer.index_block_size,
        eps=model.norm_eps,
        theta=theta,
        scaling=scaling,
        rotary_dim=model.rotary_dim,
    )
