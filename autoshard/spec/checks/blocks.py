"""The kinds of a model's blocks, and the sizes that these need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoshard.errors import AutoshardError
from autoshard.spec.model_types import DENSE, HYBRID, NONE, RECURRENT, SLIDING_ATTENTION, SPARSE

if TYPE_CHECKING:
    from autoshard.spec.model import ModelSpec


def check_blocks(model: ModelSpec) -> None:
    """Raises AutoshardError for kinds of blocks that the model_type has not, and for sizes of kinds of which there is
    no block, or that are missing."""
    of = model.name
    if model.family.has_one_branch:
        _check_branches(model)
    if model.family.has_two_mixers and not model.layer_types:
        raise AutoshardError(
            f"layer_types of {of} must say {HYBRID} of each block: model_type={model.model_type} has attention and a "
            "state space in all of them"
        )
    if SLIDING_ATTENTION in model.layer_types and model.sliding_window is None:
        raise AutoshardError(f"layer_types of {of} has {SLIDING_ATTENTION}: sliding_window must be given")
    if SPARSE in model.mlp_layer_types and not model.is_moe:
        raise AutoshardError(f"mlp_layer_types of {of} has {SPARSE}, but num_local_experts=0")
    used = {RECURRENT.get(word) for word in model.layer_types}
    for field in sorted({*RECURRENT.values()}):
        if (field in used) != (getattr(model, field) is not None):
            word = HYBRID if model.family.has_two_mixers and field == RECURRENT[HYBRID] else field
            raise AutoshardError(
                f"{field} of {of} must be the sizes of the blocks that are {word} in layer_types, and absent without "
                "such blocks"
            )
    if model.mamba is not None and not (model.mamba.mamba_rms_norm or model.family.has_two_mixers):
        raise AutoshardError(
            f"mamba_rms_norm=False of {of} must be True: model_type={model.model_type} has a norm behind the gate"
        )
    eps, has_norms = model.mamba1 and model.mamba1.mixer_rms_eps, model.family.normalizes_selection
    if (eps is not None) != has_norms:
        wanted = "given" if has_norms else "absent"
        raise AutoshardError(f"mixer_rms_eps of mamba1 of {of} must be {wanted} with model_type={model.model_type}")
    _check_dense_width(model)


def _check_branches(model: ModelSpec) -> None:
    """A mixer or an MLP in each block, of a family of blocks with one branch."""
    mixers, mlps, of = model.layer_types, model.mlp_layer_types, f"model_type={model.model_type} of {model.name}"
    for layer in range(model.num_hidden_layers):
        words = tuple(types[layer] if types else "nothing" for types in (mixers, mlps))
        if words.count(NONE) != 1 or "nothing" in words:
            raise AutoshardError(
                f"layer_types and mlp_layer_types of {model.name} have {words[0]} and {words[1]} for block {layer}: "
                f"{of} has one branch in each block, so that one of both must be {NONE}"
            )


def _check_dense_width(model: ModelSpec) -> None:
    """A width of MLPs exactly where some blocks of a mixture have them in place of experts, or beside them."""
    width, of = model.dense_intermediate_size, model.name
    if model.family.has_two_attentions and model.mlp_layer_types:
        raise AutoshardError(
            f"mlp_layer_types of {of} must be absent: each block of model_type={model.model_type} has experts"
        )
    if model.family.has_two_attentions and not width:
        raise AutoshardError(
            f"dense_intermediate_size=0 of {of} must be the width of both MLPs of a block, which model_type="
            f"{model.model_type} has beside its experts"
        )
    may_be_dense = model.is_moe or not model.family.has_one_branch
    has_widths = model.family.has_two_attentions or (DENSE in model.mlp_layer_types and may_be_dense)
    of_shared_keys = model.num_kv_shared_layers > 0 and not model.is_moe  # which other_blocks.py looks at
    if has_widths != (width > 0) and not of_shared_keys:
        raise AutoshardError(
            f"dense_intermediate_size={width} of {of} must be the width of the blocks that are {DENSE} in "
            "mlp_layer_types, and 0 without such blocks"
        )
