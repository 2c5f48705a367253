"""NxD's checkpoints: its file names, its layers' tensors, loaded as it loads them, and back bit by bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoshard.convert.convert import Conversion, convert, open_source
from autoshard.convert.nxd import NxdOptions
from autoshard.layout.plan import Plan
from tests.multiprocess.plans import MODELS
from tests.unit.weight_folders import bytes_of, huggingface_folder, plan

LLAMA = MODELS["llama"]
Options = dict[str, Any]
CASES: dict[str, tuple[str, Options, Options]] = {
    "llama": ("llama", {"tp": 2, "pp": 2, "vpp": 2}, {}),
    "llama, xser": ("llama", {"tp": 2, "pp": 2}, {"xser": True}),
    "llama, fused": ("llama", {"tp": 4, "dp": 2}, {"qkv": "fused"}),
    "llama, separate": ("llama", {"tp": 2}, {"qkv": "separate"}),
    "coalesced": ("llama with biases", {"tp": 2}, {"qkv": "coalesced"}),
    "kv heads twice": ("few kv heads", {"tp": 4}, {}),
    "kv heads twice, fused, xser": ("few kv heads", {"tp": 4, "pp": 2}, {"qkv": "fused", "xser": True}),
    "kv heads more often than need be": ("few kv heads", {"tp": 2}, {"kv_size_multiplier": 4}),
    "one kv head": ("one kv head", {"tp": 4}, {}),
    "tied": ("tied", {"tp": 2, "pp": 2}, {}),
    "biases": ("llama with biases", {"tp": 2}, {"qkv": "fused"}),
    "mistral": ("mistral", {"tp": 2}, {}),
    "qwen2": ("qwen2", {"tp": 4}, {"qkv": "fused"}),
    "qwen3": ("qwen3", {"tp": 4}, {}),
    "mixtral": ("mixtral", {"tp": 2, "pp": 2}, {}),
    "mixtral, experts": ("mixtral", {"tp": 2, "dp": 2, "ep": 2}, {}),
    "mixtral, experts, xser": ("mixtral", {"dp": 4, "ep": 4, "pp": 2}, {"xser": True}),
    "qwen3 moe": ("qwen3 moe", {"tp": 2, "dp": 2, "ep": 2}, {}),
    "gpt neox": ("gpt neox", {"tp": 2, "pp": 2}, {}),
}


def run(source: Path, target: Path, form: str, to: Plan | None = None, **options: Any) -> None:
    convert(open_source(source), target, Conversion(form, to, **options), lambda count: None, lambda count: None)


@pytest.mark.parametrize("name", CASES)
def test_to_nxd_and_back_is_the_same_bit_by_bit(name: str, tmp_path: Path) -> None:
    model, degrees, options = CASES[name]
    spec = replace(MODELS[model], num_key_value_heads=8) if options.get("qkv") == "coalesced" else MODELS[model]
    spec = replace(spec, vocab_size=95)  # does not divide by tp: padded
    hf = huggingface_folder(tmp_path / "hf", spec, "BF16")
    run(hf, tmp_path / "nxd", "nxd", plan(spec, **degrees), nxd=NxdOptions(**options))
    run(tmp_path / "nxd", tmp_path / "back", "hf")
    assert bytes_of(tmp_path / "back") == bytes_of(hf)
    assert (tmp_path / "back" / "config.json").read_bytes() == (hf / "config.json").read_bytes()
