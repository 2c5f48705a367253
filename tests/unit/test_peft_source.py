"""Adapters that PEFT saved, beside the weights that they were trained for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoshard.conversion.convert import Conversion, convert, open_source, source_for
from autoshard.conversion.peft_source import peft_source
from autoshard.conversion.source import Source
from autoshard.errors import AutoshardError
from autoshard.interface.converting import convert_checkpoint
from autoshard.models.stage import linear_layers
from autoshard.plans.plan import Plan
from autoshard.spec.lora import Lora, parse_lora
from tests.cases import some
from tests.multiprocess.models import MODELS
from tests.unit.weight_folders import Tensors, bytes_of, huggingface_folder, plan, trained, write_safetensors

LLAMA = MODELS["llama"]
LORA = Lora(4, 8.0, ("q_proj", "v_proj"))
MERGE = "the model that PEFT's merge_and_unload makes can be read"
SAVED: dict[str, Any] = {
    "alora_invocation_tokens": None,
    "alpha_pattern": {},
    "arrow_config": None,
    "auto_mapping": None,
    "base_model_name_or_path": "/home/me/hf",
    "bias": "none",
    "corda_config": None,
    "ensure_weight_tying": False,
    "eva_config": None,
    "exclude_modules": None,
    "fan_in_fan_out": False,
    "inference_mode": True,
    "init_lora_weights": True,
    "kasa_config": None,
    "layer_replication": None,
    "layers_pattern": None,
    "layers_to_transform": None,
    "loftq_config": {},
    "lora_alpha": 8,
    "lora_bias": False,
    "lora_dropout": 0.05,
    "lora_ga_config": None,
    "megatron_config": None,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "monteclora_config": None,
    "peft_type": "LORA",
    "peft_version": "0.21.2",
    "qalora_group_size": 16,
    "r": 4,
    "rank_pattern": {},
    "revision": None,
    "target_modules": ["v_proj", "q_proj"],
    "target_parameters": None,
    "task_type": "CAUSAL_LM",
    "trainable_token_indices": None,
    "use_bdlora": None,
    "use_dora": False,
    "use_qalora": False,
    "use_rslora": False,
    "velora_config": None,
}
"""What PEFT 0.21.2 wrote for q_proj and v_proj of a Llama."""


def tensors(layers: int = 4, prefix: str = "model.layers") -> Tensors:
    """Adapters of LORA beside LLAMA, by PEFT's names."""
    random = np.random.default_rng(0)
    shapes = {"q_proj.lora_A": (4, 64), "q_proj.lora_B": (64, 4), "v_proj.lora_A": (4, 64), "v_proj.lora_B": (32, 4)}
    return {
        f"base_model.model.{prefix}.{layer}.self_attn.{name}.weight": random.standard_normal(shape).astype(np.float32)
        for layer in range(layers)
        for name, shape in shapes.items()
    }


def peft_folder(folder: Path, saved: Tensors | None = None, dtype: str = "F32", **config: Any) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({**SAVED, **config}))
    write_safetensors(folder / "adapter_model.safetensors", tensors() if saved is None else saved, dtype)
    return folder


def run(source: Source, target: Path, form: str = "hf", to: Plan | None = None, **options: Any) -> None:
    convert(source, target, Conversion(form, to, **options), lambda count: None, lambda count: None)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return huggingface_folder(tmp_path_factory.mktemp("base") / "hf", LLAMA)


def test_adapters_of_peft_go_on_in_any_layout_and_come_back_bit_by_bit(base: Path, tmp_path: Path) -> None:
    peft = peft_folder(tmp_path / "peft")
    source = open_source(base, adapter=peft)
    assert source.model == replace(open_source(base).model, lora=LORA)
    for degrees in ({"tp": 4}, {"pp": 2, "dp": 3, "zero": 3}):
        cut = tmp_path / str(degrees)
        run(source, cut, "plan", plan(replace(LLAMA, lora=LORA), **degrees))
        run(open_source(cut), cut / "peft", "peft")
        assert bytes_of(cut / "peft") == bytes_of(peft)
    run(source, tmp_path / "again", "peft")
    assert bytes_of(tmp_path / "again") == bytes_of(peft)


def test_they_are_merged(base: Path, tmp_path: Path) -> None:
    run(open_source(base, adapter=peft_folder(tmp_path / "peft")), tmp_path / "hf")
    before, after, added = bytes_of(base), bytes_of(tmp_path / "hf"), tensors()
    assert before.keys() == after.keys()
    for name, (dtype, shape, data) in before.items():
        module = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{module}.lora_A.weight" not in added:
            assert after[name] == (dtype, shape, data)
            continue
        product = added[f"{module}.lora_B.weight"] @ added[f"{module}.lora_A.weight"]
        values = np.frombuffer(data, np.float32).reshape(shape) + np.float32(2) * product
        assert np.array_equal(np.frombuffer(after[name][2], np.float32).reshape(shape), values)


@pytest.mark.parametrize(
    "name",
    some(
        [
            name
            for name, one in MODELS.items()
            if one.family.is_published and one.multi_token_prediction is None and one.lora is None
        ],
        step=12,
    ),
)
def test_what_is_written_for_peft_is_read(name: str, tmp_path: Path) -> None:
    layers = linear_layers(MODELS[name])
    for chosen in [layers, *((one,) for one in layers)]:
        model = replace(MODELS[name], lora=Lora(3, 12.0, chosen))
        peft = tmp_path / f"peft {len(chosen)}{chosen[0]}"
        try:
            source, _ = trained(tmp_path / f"{len(chosen)}{chosen[0]}", model)
            run(source, peft, "peft")
        except AutoshardError:  # not in every block, parts of a tensor, or beside experts
            continue
        found = peft_source(replace(source, model=MODELS[name]), peft)
        assert found.model == model
        run(found, tmp_path / f"again {peft.name}", "peft")
        assert bytes_of(tmp_path / f"again {peft.name}") == bytes_of(peft)


@pytest.mark.parametrize("prefix", ["model.language_model.layers", "language_model.model.layers"])
def test_adapters_of_a_model_that_sees_have_longer_names(prefix: str, base: Path, tmp_path: Path) -> None:
    peft = peft_folder(tmp_path / "peft", tensors(prefix=prefix), target_modules=r".*(q|v)_proj")
    run(open_source(base, adapter=peft), tmp_path / "again", "peft")
    assert bytes_of(tmp_path / "again") == bytes_of(peft_folder(tmp_path / "plain"))


def test_adapters_alone_are_no_weights(tmp_path: Path) -> None:
    peft = peft_folder(tmp_path / "peft")
    said = f"{peft} has adapters of PEFT (adapter_config.json): give the weights of the model that they stand beside, "
    with pytest.raises(AutoshardError, match=f"^{re.escape(said)}and adapter={re.escape(str(peft))}$"):
        open_source(peft)
    with pytest.raises(AutoshardError, match=f"^{re.escape(str(peft))} has no weights that are read: "):
        open_source(peft, adapter=peft)


def test_weights_and_adapters_may_share_a_folder(tmp_path: Path) -> None:
    both = huggingface_folder(tmp_path / "both", LLAMA)
    (both / "model.safetensors").rename(both / "own-name.safetensors")
    for path in peft_folder(tmp_path / "peft").iterdir():
        path.rename(both / path.name)
    assert open_source(both, adapter=both).model.lora == LORA
    for adapter in (None, tmp_path / "peft"):
        said = (
            f"{both} has adapters of PEFT (adapter_config.json): give the weights of the model that they stand beside, "
            f"and adapter={both}"
        )
        with pytest.raises(AutoshardError, match=f"^{re.escape(said)}$"):
            open_source(both, adapter=adapter)


def test_a_rank_stabilized_scale_is_a_larger_alpha(base: Path, tmp_path: Path) -> None:
    peft = peft_folder(tmp_path / "peft", use_rslora=True, lora_alpha=9)
    model = open_source(base, adapter=peft).model
    assert model.lora is not None
    assert model.lora.scale == 9 / sqrt(4)
    odd = peft_folder(
        tmp_path / "odd",
        {name: np.resize(one, [3 if size == 4 else size for size in one.shape]) for name, one in tensors().items()},
        use_rslora=True,
        r=3,
    )
    source = open_source(base, adapter=odd)
    assert source.model.lora is not None
    assert parse_lora(str(source.model.lora), ()) == source.model.lora
    told = f": a plan with --lora {source.model.lora} has these"
    with pytest.raises(AutoshardError, match=f"{re.escape(told)}$"):
        source_for(source, plan(replace(LLAMA, lora=LORA)))
    assert source_for(source, plan(replace(LLAMA, lora=source.model.lora))) is source


def test_the_weights_beside_keep_every_bit(base: Path, tmp_path: Path) -> None:
    """Adapters in FP32 beside BF16, as PEFT has them, and the other way round."""
    to = plan(replace(LLAMA, lora=LORA), tp=2)
    half = huggingface_folder(tmp_path / "half", LLAMA, "BF16")
    run(open_source(half, adapter=peft_folder(tmp_path / "peft")), tmp_path / "cut", "plan", to)
    cut = open_source(tmp_path / "cut")
    bare = replace(cut, model=replace(cut.model, lora=None))
    run(bare, tmp_path / "bare", dtype="bfloat16")
    assert bytes_of(tmp_path / "bare") == bytes_of(half)
    halved = {name: one.astype(np.float16) for name, one in tensors().items()}
    narrow = open_source(base, adapter=peft_folder(tmp_path / "narrow", halved, "F16"))
    said = f"{narrow.form} has weights of several dtypes (float16, float32), a plan has one: give it with --dtype"
    with pytest.raises(AutoshardError, match=f"^{re.escape(said)}$"):
        run(narrow, tmp_path / "lost", "plan", to)
    run(narrow, tmp_path / "kept", "plan", to, dtype="float32")
    run(open_source(tmp_path / "kept"), tmp_path / "back", "peft", dtype="float16")
    assert bytes_of(tmp_path / "back") == bytes_of(tmp_path / "narrow")


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("use_dora", True, "true"),
        ("rank_pattern", {"q_proj": 8}, '{"q_proj": 8}'),
        ("alpha_pattern", {"q_proj": 8}, '{"q_proj": 8}'),
        ("bias", "lora_only", '"lora_only"'),
        ("lora_bias", True, "true"),
        ("modules_to_save", ["lm_head"], '["lm_head"]'),
        ("init_lora_weights", "pissa_niter_4", '"pissa_niter_4"'),
        ("init_lora_weights", 1, "1"),
        ("target_parameters", ["experts.gate_up_proj"], '["experts.gate_up_proj"]'),
        ("of_next_year", "on", '"on"'),
        ("of\nnext year", "on", '"on"'),
        ("layer_replication", [[0, 2]] * 40, f"{json.dumps([[0, 2]] * 40)[:60]}..."),
    ],
)
def test_other_adapters_are_refused(key: str, value: Any, told: str, base: Path, tmp_path: Path) -> None:
    peft = peft_folder(tmp_path / "peft", **{key: value})
    shown = key if key.isprintable() else repr(key)
    said = (
        f"{shown}={told} of {peft / 'adapter_config.json'} is not read: adapters are W + lora_alpha / r B A, all of "
        f"one rank; {MERGE}"
    )
    with pytest.raises(AutoshardError, match=f"^{re.escape(said)}$"):
        open_source(base, adapter=peft)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"peft_type": "LOHA"}, "peft_type='LOHA' of {config} must be one of: LORA"),
        ({"task_type": "SEQ_CLS"}, "task_type='SEQ_CLS' of {config} must be one of: CAUSAL_LM"),
        ({"r": 0}, "r=0 of {config} must be a whole number from 1 to 1,000,000,000"),
        ({"r": None}, "r=None of {config} must be a whole number from 1 to 1,000,000,000"),
        ({"lora_alpha": -8}, "lora_alpha=-8 of {config} must be a finite number above 0"),
        ({"use_rslora": "no"}, "use_rslora='no' of {config} must be true or false"),
        (
            {"r": 8},
            (
                "{tensors}: base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight has shape [4, 64]; "
                "with r=8 and the sizes of the Hugging Face checkpoint {base} it is [8, 64]"
            ),
        ),
        (
            {"target_modules": ["q_proj", "v_proj", "o_proj"]},
            "{tensors} has no adapter of 'o_proj', which target_modules of its config names",
        ),
        (
            {"target_modules": ["q_proj"]},
            (
                "{tensors} has an adapter of model.layers.0.self_attn.v_proj, which target_modules of its "
                "config does not name"
            ),
        ),
        ({"target_modules": [7]}, "{tensors} has no adapter of 7, which target_modules of its config names"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(config: dict[str, Any], said: str, base: Path, tmp_path: Path) -> None:
    peft = peft_folder(tmp_path / "peft", **config)
    names = {"config": peft / "adapter_config.json", "tensors": peft / "adapter_model.safetensors", "base": base}
    with pytest.raises(AutoshardError, match=f"^{re.escape(said.format(**names))}$"):
        open_source(base, adapter=peft)


def _with(name: str, shape: tuple[int, ...] = (1,)) -> Tensors:
    return {**tensors(), f"base_model.model.{name}": np.zeros(shape, np.float32)}


@pytest.mark.parametrize(
    ("saved", "said"),
    [
        (
            tensors(2),
            (
                "{} has no tensor base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight: adapters are "
                f"read that stand beside q_proj, v_proj of all blocks; {MERGE}"
            ),
        ),
        (
            _with("model.layers.0.self_attn.q_proj.lora_magnitude_vector.weight"),
            (
                "{} has tensor base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector.weight, "
                f"which is no adapter of a linear layer of hf: {MERGE}"
            ),
        ),
        (
            _with("model.layers.4.self_attn.q_proj.lora_A.weight"),
            (
                "{} has tensor base_model.model.model.layers.4.self_attn.q_proj.lora_A.weight, which is no "
                f"adapter of a linear layer of hf: {MERGE}"
            ),
        ),
        (
            _with("model.language_model.layers.0.self_attn.q_proj.lora_A.weight"),
            (
                "{} has tensors base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_A.weight and "
                "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight, which are the same adapter's"
            ),
        ),
        (
            _with("lm_head.lora_A.weight"),
            (
                "{}: target_modules of lora of hf has lm_head, no linear layer of its blocks beside experts and "
                "routers; those that they have: down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"
            ),
        ),
        (
            {name: one.astype(np.int64) for name, one in tensors().items()},
            (
                "{}: base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight has dtype I64; BF16, F16, "
                "F32, F64 are read"
            ),
        ),
        (
            _with("lm_head\n.lora_A.weight"),
            (
                r"{} has tensor 'base_model.model.lm_head\n.lora_A.weight', "
                f"which is no adapter of a linear layer of hf: {MERGE}"
            ),
        ),
        ({}, "{} has no tensors"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(saved: Tensors, said: str, base: Path, tmp_path: Path) -> None:
    peft = peft_folder(tmp_path / "peft", saved, target_modules="all-linear")
    with pytest.raises(AutoshardError, match=f"^{re.escape(said.format(peft / 'adapter_model.safetensors'))}$"):
        open_source(base, adapter=peft)


@pytest.mark.parametrize(
    ("name", "module", "why"),
    [
        ("gpt2", "transformer.h.{}.attn.c_attn", "with others, and PEFT has none of parts of a tensor"),
        ("qwen2 moe", "model.layers.{}.mlp.shared_expert.down_proj", ", which PEFT may know by another name"),
    ],
)
def test_parts_of_a_tensor_have_no_adapter(name: str, module: str, why: str, tmp_path: Path) -> None:
    hf = huggingface_folder(tmp_path / "hf", MODELS[name])
    saved = {
        f"base_model.model.{module.format(layer)}.lora_{matrix}.weight": np.zeros((1, 1), np.float32)
        for layer in range(4)
        for matrix in "AB"
    }
    peft = peft_folder(tmp_path / "peft", saved, target_modules=None)
    with pytest.raises(AutoshardError, match=f"{re.escape(why)}: {re.escape(MERGE)}$"):
        open_source(hf, adapter=peft)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            lambda peft: (peft / "adapter_model.safetensors").rename(peft / "adapter_model.bin"),
            (
                "{tensors} is missing; adapter_model.bin is a pickle, which can run anything: save it anew with PEFT's "
                "save_pretrained"
            ),
        ),
        (lambda peft: (peft / "adapter_model.safetensors").unlink(), "{tensors} is missing"),
        (
            lambda peft: (peft / "adapter_model.safetensors").write_bytes(b"\xff" * 100),
            "{tensors} is not a safetensors file: its header of 18,446,744,073,709,551,615 bytes does not fit",
        ),
        (lambda peft: (peft / "adapter_config.json").write_text("[]"), "config of adapters {config} is not an object"),
        (
            lambda peft: (peft / "adapter_config.json").write_text("[" * 200 + "]" * 200),
            "config of adapters {config}, line 1, column 101: nested deeper than 100 levels",
        ),
        (
            lambda peft: (peft / "adapter_config.json").unlink(),
            "adapter={peft} has neither adapter_config.json of PEFT nor a checkpoint",
        ),
    ],
)
def test_damaged_folders_are_refused(spoil: Callable[[Path], object], said: str, base: Path, tmp_path: Path) -> None:
    peft = peft_folder(tmp_path / "peft")
    spoil(peft)
    names = {"config": peft / "adapter_config.json", "tensors": peft / "adapter_model.safetensors", "peft": peft}
    with pytest.raises(AutoshardError, match=f"^{re.escape(said.format(**names))}$"):
        convert_checkpoint(base, tmp_path / "out", adapter=peft)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["nowhere", "hf/config.json"])
def test_what_is_no_folder_has_no_adapters(name: str, base: Path) -> None:
    adapter = base.parent / name
    said = f"adapter={adapter} is not a folder: give that of PEFT, or a checkpoint"
    with pytest.raises(AutoshardError, match=f"^{re.escape(said)}$"):
        open_source(base, adapter=adapter)


def test_adapters_beside_a_model_that_has_some_are_refused(tmp_path: Path) -> None:
    source, _ = trained(tmp_path / "ours", replace(LLAMA, lora=LORA))
    run(source, tmp_path / "cut", "plan", plan(replace(LLAMA, lora=LORA)))
    peft = peft_folder(tmp_path / "peft")
    said = f"the checkpoint {tmp_path / 'cut'} has adapters, and adapter={peft} brings others: give one of them"
    with pytest.raises(AutoshardError, match=f"^{re.escape(said)}$"):
        open_source(tmp_path / "cut", adapter=peft)


def test_a_prediction_module_is_left_out(tmp_path: Path) -> None:
    name = next(name for name, one in MODELS.items() if one.multi_token_prediction and one.family.is_published)
    bare = replace(MODELS[name], multi_token_prediction=None, lora=Lora(4, 8.0, ("o_proj",)))
    source, _ = trained(tmp_path / "ours", bare)
    run(source, tmp_path / "peft", "peft")
    whole, _ = trained(tmp_path / "whole", MODELS[name])
    assert peft_source(whole, tmp_path / "peft").model == bare
