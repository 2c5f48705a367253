"""Llama with attention and MLP side by side, as in PaLM: both read the block's input through one norm.

    autoshard plan --model my_config.json        where "model_type": "parallel_llama"

One module with what a folder of models/ has in graph.py and config.py.
"""

from autoshard.models.dropping import residual
from autoshard.models.families import Family
from autoshard.models.llama.config import Defaults, read_as_llama, written_as_llama
from autoshard.models.llama.graph import (
    HEADS,
    core_attention,
    embedding,
    gated_mlp,
    head,
    output_projection,
    projections,
    rms_norm,
    rope,
)

__all__ = ["ARCHITECTURES", "FAMILY", "block", "embedding", "head", "read", "write"]

FAMILY = Family("", package="autoshard_parallel_llama", activations=("silu",))
ARCHITECTURES = {"parallel_llama": "ParallelLlamaForCausalLM"}


def block(b, model, x, layer, kernel):
    prefix = f"model.layers.{layer}"
    b.module = "attention_norm"
    h = rms_norm(b, model, f"{prefix}.input_layernorm", x)
    b.module = "attention"
    q, k, v = projections(b, model, f"{prefix}.self_attn", h, HEADS)
    q, k = (rope(b, model, f"{prefix}.self_attn.{name}_rope", part, layer) for name, part in (("q", q), ("k", k)))
    b.module = "core_attention"
    core = core_attention(b, model, f"{prefix}.self_attn.core_attention", q, k, v, kernel, None, None)
    attended = output_projection(b, model, f"{prefix}.self_attn", core)
    b.module = "mlp"
    down = gated_mlp(b, model, h, f"{prefix}.mlp")
    parts = (attended, f"{prefix}.self_attn.dropout"), (down, f"{prefix}.mlp.dropout")
    return residual(b, model, f"{prefix}.residual", x, *parts)


def read(config, model_type):
    return read_as_llama(config, model_type, Defaults(norm_eps=1e-5, rope_theta=10_000.0))


def write(model):
    return written_as_llama(model)
