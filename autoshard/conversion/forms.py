"""List the forms and options of `autoshard convert`, so that the command knows them without numpy."""

BY_RANK = ("plan", "nxd")
"""Forms whose files are those of ranks, which a plan names."""
FORMS = ("hf", *BY_RANK, "peft")
"""Forms of a folder of weights: Hugging Face, a plan's checkpoint, neuronx-distributed, PEFT's adapters alone."""
QKV_STYLES = ("gqa", "fused", "separate", "coalesced")
"""gqa: qkv_proj.weight_q, _k, _v (GQAQKVColumnParallelLinear, fuse_qkv=False). fused: its weight_qkv. separate: three
layers q_proj, k_proj, v_proj. coalesced: one ColumnParallelLinear qkv_proj.weight, for models without grouped queries.
"""
