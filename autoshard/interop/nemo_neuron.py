"""NeMo 1 for Trainium, neuronx-nemo-megatron: where its configurations say or mean something else than NeMo's.

Sources: its nemo/collections/nlp (megatron_gpt_model.py, modules/common/megatron/transformer.py), core/optim and
examples/nlp/language_modeling/train_setup.sh.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.interop import megatron
from autoshard.interop.nxdt import instance_of
from autoshard.interop.written_dtypes import state_dtypes_option
from autoshard.interop.yaml_values import Values
from autoshard.spec.state_dtypes import GRADIENTS

ALL_HALF, HALF = "XLA_USE_BF16", "XLA_DOWNCAST_BF16"
"""Variables that make all numbers bfloat16, or those of 32 bits, with 32 for those of 64."""
KEYS, BIAS, WINDOW = "model.num_kv_heads", "model.has_bias", "model.sliding_window_size"
BASE, STRETCH, USUAL_BASE = "model.position_freq_base", "model.position_abf_factor", 10_000.0
ZERO, MASTERS, SUMS = "model.wrap_with_zero", "model.zero_use_master_weight", "model.zero_use_fp32_grad_accum"
WIDE_OPTIMIZER = "adamw_fp32OptState"
CUT = "model.flexible_pipeline_parallel_stages"
NO_EFFECT = (
    *("capturable", "save_xser", "load_xser", "log_parameter_norm", "log_gradient_norm", "save_logits", "use_emha"),
    *("save_logits_interval", "convert_to_hf", "output_dir", "config_path"),
)
"""Fields under `model`, or `model.optim`, that leave the work of a step as it is."""


@dataclass(frozen=True)
class OnNeuron:
    """All that such a configuration says otherwise than NeMo's. flags: of Megatron-LM, and their values. names: what a
    sentence calls these. said: of the model, as in WrittenModel. options: of `autoshard plan`. notes: on what is read
    as something that is nearly the same. warnings: on what is not in the price."""

    flags: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    said: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def is_for_neuron(values: Values, environment: Mapping[str, str]) -> bool:
    """Whether a configuration is for Trainium: its accelerator is what Lightning calls XLA's devices, or the variables
    say it that XLA reads there. environment: variables that the program gets, as far as they are known."""
    return values.get("trainer.accelerator") == "tpu" or bool(environment.keys() & {ALL_HALF, HALF})


def on_neuron(values: Values, environment: Mapping[str, str], optimizer: str) -> OnNeuron:
    """All that a configuration for Trainium says otherwise. environment: as above. optimizer: its name.

    Raises AutoshardError for stages that are cut by a text.
    """
    if values.get(CUT) is not None:
        raise AutoshardError(f"{CUT}={str(values.get(CUT))[:40]!r}: stages of unlike sizes are not read; null works")
    flags: dict[str, str] = {}
    said: dict[str, tuple[str, Any]] = {}
    if (keys := values.whole(KEYS)) is not None:
        flags |= {megatron.KEYS: str(keys), megatron.GROUPED: ""}
    base, stretch = values.number(BASE), values.number(STRETCH)
    if base is not None or stretch is not None:
        flags["rotary-base"] = str((base or USUAL_BASE) * (stretch or 1))
    if (bias := values.flag(BIAS)) is not None:
        said["bias"] = (BIAS, "all" if bias else "none")
    if (window := values.whole(WINDOW)) is not None:
        said["sliding_window"] = (WINDOW, window)
    if values.get("model.transformer_block_type") == "gpt_j":  # with a norm of its own before the MLP, as GPT-NeoX has
        said["block"] = ("model.transformer_block_type", "parallel")
    if values.get("model.activations_checkpoint_granularity") == "selective":
        norms = "" if values.flag("model.disable_layer_norm_checkpointing") else " layernorm"
        flags["recompute-modules"] = f"core_attn{norms}"
    if values.flag(ZERO):
        flags["use-distributed-optimizer"] = ""
    precision, notes = _precision(values, environment, optimizer)
    narrow = GRADIENTS if precision == "mixed_precision" and _sums_in_half(values) else ()
    if precision != "fp32":
        flags["bf16"] = ""
    options: dict[str, Any] = {"precision": precision, **state_dtypes_option(*narrow)}
    devices = values.get("trainer.devices")
    if isinstance(devices, int) and not isinstance(devices, bool) and devices > 0:
        options["instance"] = instance_of(devices, None)
    names = {megatron.KEYS: KEYS, "rotary-base": BASE, "use-distributed-optimizer": ZERO, "bf16": HALF}
    return OnNeuron(flags, names, said, options, notes, tuple(_warnings(values)))


def _precision(values: Values, environment: Mapping[str, str], optimizer: str) -> tuple[str, tuple[str, ...]]:
    """(the precision here, notes)."""
    zero, masters, wide = values.flag(ZERO), values.flag(MASTERS), values.flag("model.megatron_amp_O2")
    has_masters = wide or (zero and masters)
    if environment.get(ALL_HALF) == "1":
        return "bf16_sr", ()
    if has_masters or optimizer == WIDE_OPTIMIZER:
        notes: tuple[str, ...] = ()
        if not has_masters:
            notes += (f"model.optim.name={optimizer}: moments in float32 are priced with float32 master weights too",)
        return "mixed_precision", notes
    if environment.get(HALF) == "1":
        return "bf16_sr", ()
    if environment.keys() & {ALL_HALF, HALF}:
        return "fp32", ()
    told = f"{ALL_HALF} and {HALF} of the environment say the precision"
    return "bf16_sr", (f"{told}: read as bf16_sr, which train_setup.sh asks for; --precision says another",)


def _sums_in_half(values: Values) -> bool:
    """Whether gradients are summed in bfloat16 beside master weights: where nothing asks for FP32."""
    is_wide = values.flag("model.megatron_amp_O2") or values.get(SUMS) is True
    return bool(values.flag(ZERO) and values.flag(MASTERS)) and not is_wide


def _warnings(values: Values) -> Iterator[str]:
    """Sentences on fields that change a step and that no flag says."""
    granularity, method, _ = (
        values.get(f"model.activations_checkpoint_{part}") for part in ("granularity", "method", "num_layers")
    )
    if granularity == "selective" and method == "block":
        yield "model.activations_checkpoint_method=block: priced as if core attention of all blocks ran again"
