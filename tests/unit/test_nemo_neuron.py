"""NeMo 1's configurations for Trainium: each field that says or means something else than NeMo's, by itself."""

from __future__ import annotations

from typing import Any

import pytest

from autoshard.errors import AutoshardError
from autoshard.interop import nemo_neuron
from autoshard.interop.nemo_neuron import OnNeuron, is_for_neuron
from autoshard.interop.yaml_values import Values

DOWNCAST = {"XLA_DOWNCAST_BF16": "1"}
MASTERS = {"wrap_with_zero": True, "zero_use_master_weight": True}
WIDE = "adamw_fp32OptState"


def on_neuron(model: dict[str, Any], environment: dict[str, str] = DOWNCAST, optimizer: str = "adamw") -> OnNeuron:
    """All that the fields under `model` say otherwise than NeMo's."""
    return nemo_neuron.on_neuron(Values({"model": model, "trainer": {"devices": 32}}), environment, optimizer)


@pytest.mark.parametrize(
    ("accelerator", "environment", "expected"),
    [("tpu", {}, True), ("gpu", {}, False), ("gpu", {"XLA_USE_BF16": "0"}, True), (None, DOWNCAST, True)],
)
def test_a_configuration_for_trainium(accelerator: str | None, environment: dict[str, str], expected: bool) -> None:
    assert is_for_neuron(Values({"trainer": {"accelerator": accelerator}}), environment) == expected


@pytest.mark.parametrize(
    ("model", "flags"),
    [
        ({}, {}),
        ({"num_kv_heads": 8}, {"num-query-groups": "8", "group-query-attention": ""}),
        ({"position_freq_base": 500_000}, {"rotary-base": "500000.0"}),
        ({"position_abf_factor": 50}, {"rotary-base": "500000.0"}),
        ({"position_freq_base": 20_000.0, "position_abf_factor": 1.5}, {"rotary-base": "30000.0"}),
        ({"wrap_with_zero": True}, {"use-distributed-optimizer": ""}),
        ({"wrap_with_zero": False}, {}),
        ({"activations_checkpoint_granularity": "full"}, {}),
        ({"activations_checkpoint_granularity": "selective"}, {"recompute-modules": "core_attn layernorm"}),
        (
            {"activations_checkpoint_granularity": "selective", "disable_layer_norm_checkpointing": True},
            {"recompute-modules": "core_attn"},
        ),
    ],
)
def test_flags_of_megatron(model: dict[str, Any], flags: dict[str, str]) -> None:
    assert on_neuron(model).flags == {**flags, "bf16": ""}


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"has_bias": True}, {"bias": ("model.has_bias", "all")}),
        ({"has_bias": False}, {"bias": ("model.has_bias", "none")}),
        ({"sliding_window_size": 4096}, {"sliding_window": ("model.sliding_window_size", 4096)}),
        ({"transformer_block_type": "gpt_j"}, {"block": ("model.transformer_block_type", "parallel")}),
        ({"transformer_block_type": "pre_ln"}, {}),
    ],
)
def test_words_on_the_model(model: dict[str, Any], said: dict[str, Any]) -> None:
    assert on_neuron(model).said == said


@pytest.mark.parametrize(
    ("model", "environment", "optimizer", "precision", "note"),
    [
        (MASTERS, {"XLA_USE_BF16": "1"}, WIDE, "bf16_sr", None),
        ({}, DOWNCAST, "adamw", "bf16_sr", None),
        ({"wrap_with_zero": True}, DOWNCAST, "adamw", "bf16_sr", None),
        ({"zero_use_master_weight": True}, DOWNCAST, "adamw", "bf16_sr", None),
        ({}, {"XLA_DOWNCAST_BF16": "0"}, "adamw", "fp32", None),
        ({**MASTERS, "zero_use_fp32_grad_accum": True}, DOWNCAST, "adamw", "mixed_precision", None),
        (MASTERS, DOWNCAST, "adamw", "mixed_precision", None),
        ({"megatron_amp_O2": True}, {}, "adamw", "mixed_precision", None),
        (
            {},
            DOWNCAST,
            WIDE,
            "mixed_precision",
            f"model.optim.name={WIDE}: moments in float32 are priced with float32 ",
        ),
        (
            {},
            {},
            "adamw",
            "bf16_sr",
            "XLA_USE_BF16 and XLA_DOWNCAST_BF16 of the environment say the precision: read as",
        ),
    ],
)
def test_precisions(
    model: dict[str, Any], environment: dict[str, str], optimizer: str, precision: str, note: str | None
) -> None:
    found = on_neuron(model, environment, optimizer)
    assert found.options["precision"] == precision
    assert ("bf16" in found.flags) == (precision != "fp32")
    assert [one[: len(note)] for one in found.notes] == [note] if note else not found.notes


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (MASTERS, {"state_dtypes": "gradient_accumulation=bfloat16,gradient_reduce=bfloat16"}),
        ({**MASTERS, "zero_use_fp32_grad_accum": True}, {}),
        ({**MASTERS, "megatron_amp_O2": True}, {}),
        ({}, {}),
    ],
)
def test_gradients_in_bf16(model: dict[str, Any], options: dict[str, str]) -> None:
    """Beside master weights, where nothing asks for FP32; without these all is."""
    found = on_neuron(model, DOWNCAST, "adamw").options
    assert {name: value for name, value in found.items() if name == "state_dtypes"} == options


@pytest.mark.parametrize(
    ("devices", "instance"), [(2, "trn1.2xlarge"), (32, "trn1.32xlarge"), (64, "trn2.48xlarge"), ([0, 1], None)]
)
def test_instances(devices: object, instance: str | None) -> None:
    found = nemo_neuron.on_neuron(Values({"trainer": {"devices": devices}}), DOWNCAST, "adamw")
    assert found.options.get("instance") == instance


def test_core_attention_of_some_blocks_is_that_of_all() -> None:
    model = {"activations_checkpoint_granularity": "selective", "activations_checkpoint_method": "block"}
    assert on_neuron(model).warnings == (
        "model.activations_checkpoint_method=block: priced as if core attention of all blocks ran again",
    )
    assert on_neuron({**model, "activations_checkpoint_method": "uniform"}).warnings == ()


def test_stages_that_a_text_cuts_are_refused() -> None:
    with pytest.raises(AutoshardError) as error:
        on_neuron({"flexible_pipeline_parallel_stages": "[3, 5]"})
    assert str(error.value) == (
        "model.flexible_pipeline_parallel_stages='[3, 5]': stages of unlike sizes are not read; null works"
    )
