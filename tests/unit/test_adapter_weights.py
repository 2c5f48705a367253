"""Adapters in weights that come and go: begun anew, merged, and as PEFT holds them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoshard.checkpoint.manifest import Manifest, read_manifest
from autoshard.conversion import stream
from autoshard.conversion.convert import Conversion, convert, open_source, source_for
from autoshard.conversion.dtypes import as_dtype
from autoshard.conversion.source import Source
from autoshard.errors import AutoshardError
from autoshard.files.codec import to_json
from autoshard.models.adapter_weights import adapters
from autoshard.models.stage import linear_layers
from autoshard.models.weights import parameter_dims, written_parts
from autoshard.plans.plan import Plan
from autoshard.spec.lora import Lora
from autoshard.spec.model import ModelSpec
from tests.cases import some
from tests.multiprocess.models import MODELS
from tests.unit.weight_folders import Tensors, bytes_of, huggingface_folder, plan, trained
from tests.whole_weights import to_checkpoint

LORA = Lora(4, 8.0, ("down_proj", "q_proj", "v_proj"))
LLAMA = replace(MODELS["llama"], lora=LORA)
EVERYWHERE = [
    name for name, model in MODELS.items() if model.family.is_published and model.multi_token_prediction is None
]


def adapted(model: ModelSpec) -> ModelSpec:
    """The model with an adapter beside each linear layer that may have one."""
    return replace(model, lora=Lora(3, 12.0, linear_layers(model)))


def run(source: Source, target: Path, form: str = "hf", to: Plan | None = None, **options: Any) -> None:
    convert(source, target, Conversion(form, to, **options), lambda count: None, lambda count: None)


def merged(model: ModelSpec, values: Tensors) -> Tensors:
    """The published tensors with the adapters in them, computed in FP64."""
    known, (dims, sizes) = adapters(model), parameter_dims(model)

    def value(name: str) -> np.ndarray[Any, Any]:
        if (adapter := known.get(name)) is None:
            return values[name]
        letters = {dim: chr(97 + index) for index, dim in enumerate({*adapter.dims, *dims[adapter.down]})}
        terms = ("".join(letters[dim] for dim in dims[one]) for one in (adapter.up, adapter.down, name))
        added = np.einsum(
            "{},{}->{}".format(*terms), *(values[one].astype(float) for one in (adapter.up, adapter.down))
        )
        total: np.ndarray[Any, Any] = values[name] + adapter.scale * added
        return total

    return dict(to_checkpoint(written_parts(replace(model, lora=None)), dims, sizes, value))


def floats(folder: Path) -> Tensors:
    return {
        name: np.frombuffer(data, np.int64 if dtype == "I64" else np.float32).reshape(shape)
        for name, (dtype, shape, data) in bytes_of(folder).items()
    }


def same_numbers(found: Tensors, expected: Tensors) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("name", some(EVERYWHERE, step=12))
def test_the_merged_model_is_a_plain_one(name: str, tmp_path: Path) -> None:
    model = adapted(MODELS[name])
    source, values = trained(tmp_path / "ours", model)
    run(source, tmp_path / "cut", "plan", plan(model, tp=2, pp=2, dp=2))
    run(open_source(tmp_path / "cut"), tmp_path / "hf")
    same_numbers(floats(tmp_path / "hf"), merged(model, values))
    assert open_source(tmp_path / "hf").model.lora is None


def test_any_cut_with_padding_and_copies_merges_to_the_same_bits(tmp_path: Path) -> None:
    odd = replace(LLAMA, num_attention_heads=6, num_key_value_heads=2)
    source, _ = trained(tmp_path / "ours", odd)
    run(source, tmp_path / "direct")
    for degrees in ({"tp": 4}, {"pp": 2, "dp": 3, "zero": 3}):
        folder = tmp_path / str(degrees)
        run(source, folder, "plan", plan(odd, **degrees))
        run(open_source(folder), folder / "hf")
        assert bytes_of(folder / "hf") == bytes_of(tmp_path / "direct")


def test_parts_of_a_weight_are_merged_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "CHUNK_BYTES", 1000)  # of matrices of 16 KB and more
    source, values = trained(tmp_path / "ours", LLAMA)
    run(source, tmp_path / "hf")
    same_numbers(floats(tmp_path / "hf"), merged(LLAMA, values))


def test_it_is_rounded_once(tmp_path: Path) -> None:
    source, _ = trained(tmp_path / "ours", LLAMA)
    run(source, tmp_path / "fp32")
    run(source, tmp_path / "bf16", dtype="bfloat16")
    for name, (_, _, data) in bytes_of(tmp_path / "bf16").items():
        wide = np.frombuffer(bytes_of(tmp_path / "fp32")[name][2], np.uint32)
        assert data == as_dtype(wide, "F32", "BF16").tobytes()


def test_a_plan_without_adapters_goes_on_with_the_merged_model(tmp_path: Path) -> None:
    source, _ = trained(tmp_path / "ours", LLAMA)
    run(source, tmp_path / "hf")
    run(source, tmp_path / "cut", "plan", plan(MODELS["llama"], dp=2))
    run(open_source(tmp_path / "cut"), tmp_path / "back")
    assert bytes_of(tmp_path / "back") == bytes_of(tmp_path / "hf")


def test_weights_cut_for_a_plan_that_begins_with_new_adapters_have_none(tmp_path: Path) -> None:
    hf = huggingface_folder(tmp_path / "hf", MODELS["llama"], "BF16")
    run(open_source(hf), tmp_path / "cut", "plan", plan(LLAMA, tp=2, pp=2, dp=2))
    assert read_manifest(tmp_path / "cut").model.get("lora") is None
    cut = open_source(tmp_path / "cut")
    assert source_for(cut, plan(LLAMA)) is cut
    run(cut, tmp_path / "back")
    assert bytes_of(tmp_path / "back") == bytes_of(hf)


def test_adapters_of_another_rank_are_of_another_model(tmp_path: Path) -> None:
    source, _ = trained(tmp_path / "ours", LLAMA)
    other = plan(replace(LLAMA, lora=replace(LORA, r=8)))
    said = (
        "a file of ours is of another model than the plan: lora.r=4, the plan's has 8: a plan with --lora "
        "r=4,lora_alpha=8,target_modules=down_proj+q_proj+v_proj has these"
    )
    with pytest.raises(AutoshardError, match=f"^{re.escape(said)}$"):
        source_for(source, other)


@pytest.mark.parametrize(
    ("saved", "model", "said"),
    [
        (
            MODELS["llama"],
            LLAMA,
            "lacks the plan's adapters: --weights step-00000002 starts from its weights and new adapters",
        ),
        (
            LLAMA,
            MODELS["llama"],
            "has adapters, which the plan lacks: --weights step-00000002 starts from the merged model",
        ),
        (
            LLAMA,
            replace(LLAMA, lora=replace(LORA, r=8)),
            (
                "is of another model: lora.r=4, the plan's has 8: a plan with --lora "
                "r=4,lora_alpha=8,target_modules=down_proj+q_proj+v_proj goes on with these"
            ),
        ),
        (MODELS["llama"], replace(LLAMA, vocab_size=8), "is of another model: vocab_size=96, the plan's has 8"),
    ],
)
def test_a_run_does_not_resume_with_other_adapters(saved: ModelSpec, model: ModelSpec, said: str) -> None:
    manifest = Manifest(2, to_json(saved), {}, "F32", 1e-3, 0, {}, 1, ())
    manifest.check_model(saved, Path("step-00000002"))
    with pytest.raises(AutoshardError, match=f"^checkpoint step-00000002 {re.escape(said)}$"):
        manifest.check_model(model, Path("step-00000002"))


def test_peft_has_the_adapters_alone(tmp_path: Path) -> None:
    source, values = trained(tmp_path / "ours", LLAMA)
    run(source, tmp_path / "cut", "plan", plan(LLAMA, tp=2, pp=2))
    run(open_source(tmp_path / "cut"), tmp_path / "peft", "peft")
    assert sorted(path.name for path in (tmp_path / "peft").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert json.loads((tmp_path / "peft" / "adapter_config.json").read_text()) == {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "r": 4,
        "lora_alpha": 8,
        "lora_dropout": 0.0,
        "target_modules": ["down_proj", "q_proj", "v_proj"],
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    found = floats(tmp_path / "peft")
    assert len(found) == 4 * 3 * 2
    for module, rows, columns in (("self_attn.v_proj", 32, 64), ("mlp.down_proj", 64, 96)):
        name = f"model.layers.3.{module}"
        for matrix, shape in (("lora_A", (4, columns)), ("lora_B", (rows, 4))):
            expected = values[f"{name}.{matrix}.weight"].reshape(shape)
            assert np.array_equal(found[f"base_model.model.{name}.{matrix}.weight"], expected)


def test_beside_experts_peft_has_adapters_of_attention_by_full_names(tmp_path: Path) -> None:
    model = replace(MODELS["mixtral"], lora=Lora(4, 8.0, ("q_proj",)))
    source, _ = trained(tmp_path / "ours", model)
    run(source, tmp_path / "peft", "peft")
    targets = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())["target_modules"]
    assert targets == [f"model.layers.{layer}.self_attn.q_proj" for layer in range(4)]


def test_a_gate_for_one_number_has_an_adapter(tmp_path: Path) -> None:
    """Its published weight has a dim of size 1 that ours lacks."""
    model = replace(MODELS["qwen2 moe"], lora=Lora(4, 8.0, ("shared_expert_gate",)))
    source, values = trained(tmp_path / "ours", model)
    run(source, tmp_path / "hf")
    same_numbers(floats(tmp_path / "hf"), merged(model, values))


def test_matrices_of_gpt2_lie_the_other_way_round(tmp_path: Path) -> None:
    model = replace(MODELS["gpt2"], lora=Lora(4, 8.0, ("c_proj",)))
    source, _ = trained(tmp_path / "ours", model)
    run(source, tmp_path / "peft", "peft")
    assert json.loads((tmp_path / "peft" / "adapter_config.json").read_text())["fan_in_fan_out"] is True
    found = floats(tmp_path / "peft")
    assert found["base_model.model.transformer.h.0.mlp.c_proj.lora_A.weight"].shape == (4, 96)
    assert found["base_model.model.transformer.h.0.mlp.c_proj.lora_B.weight"].shape == (64, 4)


@pytest.mark.parametrize(
    ("name", "module", "why"),
    [
        (
            "gpt2",
            "q_proj",
            "transformer.h.0.attn.c_attn.weight with others, and PEFT has none of parts of a tensor",
        ),
        (
            "qwen2 moe",
            "down_proj",
            "model.layers.0.mlp.shared_expert.down_proj.weight, which PEFT may know by another name",
        ),
    ],
)
def test_adapters_that_peft_does_not_hold_are_merged_alone(name: str, module: str, why: str, tmp_path: Path) -> None:
    model = replace(MODELS[name], lora=Lora(4, 8.0, (module,)))
    source, _ = trained(tmp_path / "ours", model)
    said = f"lora of {model.name}: {module} lies in {why}: to=hf writes the merged model"
    with pytest.raises(AutoshardError, match=f"^{re.escape(said)}$"):
        run(source, tmp_path / "peft", "peft")
    assert not (tmp_path / "peft").exists()


def test_weights_without_adapters_have_nothing_for_peft(tmp_path: Path) -> None:
    hf = open_source(huggingface_folder(tmp_path / "hf", MODELS["llama"]))
    said = f"{hf.form} has no adapters, which alone to=peft writes: a plan made with --lora trains some"
    with pytest.raises(AutoshardError, match=f"^{re.escape(said)}$"):
        run(hf, tmp_path / "peft", "peft")
