"""Weights from one layout of files to another and back: every bit, every family, every way to cut."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoshard.commands import convert as command
from autoshard.conversion import stream
from autoshard.conversion.convert import Conversion, convert, open_source
from autoshard.conversion.dtypes import BY_CONFIG_NAME, as_dtype
from autoshard.errors import AutoshardError
from autoshard.models.huggingface import from_config, to_config
from autoshard.models.registry import builtin_models, load_model
from autoshard.plans.plan import Plan
from autoshard.spec.dropout import Dropout
from tests.cases import some
from tests.multiprocess.models import MODELS
from tests.unit.weight_folders import bytes_of, huggingface_folder, plan, weights, write_safetensors

LAYOUTS: dict[str, dict[str, Any]] = {
    "one rank": {},
    "tp x pp x dp": {"tp": 2, "pp": 2, "dp": 2},
    "uneven, interleaved, no ZeRO-1": {"pp": 2, "vpp": 2, "dp": 3, "layers": (2, 1, 1, 0), "zero": 0},
    "tp 4": {"tp": 4},
}


def run(source: Path, target: Path, form: str = "hf", to: Plan | None = None, **options: Any) -> None:
    convert(open_source(source), target, Conversion(form, to, **options), lambda count: None, lambda count: None)


PUBLISHED = [name for name, model in MODELS.items() if model.family.is_published]
CASES = [(name, "tp x pp x dp") for name in some(PUBLISHED, step=6)] + [("llama", layout) for layout in LAYOUTS]


@pytest.mark.parametrize(("name", "layout"), CASES)
def test_to_a_plan_and_back_is_the_same_bit_by_bit(name: str, layout: str, tmp_path: Path) -> None:
    hf = huggingface_folder(tmp_path / "hf", MODELS[name])
    run(hf, tmp_path / "cut", "plan", plan(MODELS[name], **LAYOUTS[layout]))
    run(tmp_path / "cut", tmp_path / "back")
    assert bytes_of(tmp_path / "back") == bytes_of(hf)
    assert (tmp_path / "back" / "config.json").read_bytes() == (hf / "config.json").read_bytes()


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@pytest.mark.parametrize("name", ["mixtral", "gpt2"])
def test_every_dtype_and_sharded_files(name: str, dtype: str, tmp_path: Path) -> None:
    hf = huggingface_folder(tmp_path / "hf", MODELS[name], dtype, files=3)
    degrees = {"dp": 2, "ep": 2} if name == "mixtral" else {"tp": 2, "dp": 2}
    run(hf, tmp_path / "cut", "plan", plan(MODELS[name], **degrees))
    run(tmp_path / "cut", tmp_path / "back", shard_bytes=30_000)
    files = sorted(path.name for path in (tmp_path / "back").glob("*.safetensors"))
    assert len(files) > 2 and files[0] == f"model-00001-of-{len(files):05}.safetensors"
    index = json.loads((tmp_path / "back" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == set(files)
    assert index["metadata"]["total_size"] == sum(len(data) for _, _, data in bytes_of(hf).values())
    assert bytes_of(tmp_path / "back") == bytes_of(hf)
    again = huggingface_of(tmp_path / "back", tmp_path / "again")
    assert bytes_of(again) == bytes_of(hf)


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_a_table_of_whole_numbers_stays_one(dtype: str | None, tmp_path: Path) -> None:
    """DeepSeek-V4's table of tokens: int64 in checkpoints, FP32 in a plan's, whatever the dtype of weights."""
    model = MODELS["deepseek v4"]
    hf = huggingface_folder(tmp_path / "hf", model)
    run(hf, tmp_path / "cut", "plan", plan(model, tp=2, pp=2, dp=2), dtype=dtype)
    run(tmp_path / "cut", tmp_path / "back")
    run(hf, tmp_path / "direct", dtype=dtype)
    table = "model.layers.2.ffn.gate.tid2eid"
    for folder in (tmp_path / "back", tmp_path / "direct"):
        assert bytes_of(folder)[table] == bytes_of(hf)[table]
        assert bytes_of(folder)[table][0] == "I64"


@pytest.mark.parametrize(
    ("have", "values", "want"),
    [
        ("I64", np.array([2**24 + 1]), "F32"),
        ("I32", np.array([257], np.int32), "BF16"),
        ("F32", np.array([0.5], np.float32), "I64"),
        ("F32", np.array([np.inf], np.float32), "I64"),
        ("F32", np.array([np.nan], np.float32), "I64"),
        ("F32", np.array([1e30], np.float32), "I64"),
        ("I64", np.array([2**53 + 1]), "F64"),
        ("I64", np.array([70_000]), "F16"),
    ],
)
def test_a_whole_number_that_would_be_another_one_is_refused(have: str, values: Any, want: str) -> None:
    with pytest.raises(AutoshardError, match=f"^whole numbers of a table that {want} does not hold$"):
        as_dtype(values.view(f"u{values.itemsize}"), have, want)


def test_tensors_that_are_no_tables_are_not_whole_numbers(tmp_path: Path) -> None:
    hf = huggingface_folder(tmp_path / "hf", MODELS["llama"])
    tensors = weights(MODELS["llama"], "F32")
    tensors["model.norm.weight"] = np.arange(64)
    write_safetensors(hf / "model.safetensors", tensors, "F32")
    with pytest.raises(AutoshardError, match=r"model\.norm\.weight has dtype I64; BF16, F16, F32, F64 are converted$"):
        open_source(hf)


@pytest.mark.parametrize("dtype", [None, "bfloat16", "float16"])
def test_what_is_not_learned_stays_fp32(dtype: str | None, tmp_path: Path) -> None:
    """As published: the bias of each router's choice in FP32, all else in bfloat16."""
    model = MODELS["deepseek v3"]
    hf = huggingface_folder(tmp_path / "hf", model, "BF16")
    tensors, exact = weights(model, "BF16"), weights(model, "F32")
    biases = {name: exact[name] for name in tensors if name.endswith("e_score_correction_bias")}
    write_safetensors(hf / "model.safetensors", {n: v for n, v in tensors.items() if n not in biases}, "BF16")
    write_safetensors(hf / "model-2.safetensors", biases, "F32")
    (hf / "model.safetensors").rename(hf / "model-1.safetensors")  # two files without an index
    run(hf, tmp_path / "cut", "plan", plan(model, tp=2, pp=2, dp=2), dtype=dtype)
    run(tmp_path / "cut", tmp_path / "back")
    run(hf, tmp_path / "direct", dtype=dtype)
    narrow = "F16" if dtype == "float16" else "BF16"
    for folder in (tmp_path / "back", tmp_path / "direct"):
        found = bytes_of(folder)
        assert {name for name, (kept, _, _) in found.items() if kept == "F32"} == biases.keys()
        assert {kept for kept, _, _ in found.values()} == {narrow, "F32"}
        assert all(found[name] == bytes_of(hf)[name] for name in (found if narrow == "BF16" else biases))


def huggingface_of(source: Path, target: Path) -> Path:
    run(source, target)
    return target


def test_a_conversion_holds_a_few_parts_of_the_weights_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of 0.4 MB of 49 MB of weights: less than eight, and 4 MB to check plan.json and the like. A checksum that
    had to read again what was written would hold 4 MB, too: NxD's need not."""
    monkeypatch.setattr(stream, "CHUNK_BYTES", 400_000)
    spec = replace(MODELS["llama"], vocab_size=96_000)
    hf = huggingface_folder(tmp_path / "hf", spec)
    steps = [("hf", "cut", "plan"), ("cut", "back", "hf"), ("hf", "nxd", "nxd")]
    for source, target, form in steps:
        tracemalloc.start()
        run(tmp_path / source, tmp_path / target, form, plan(spec, tp=2))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        largest = max(path.stat().st_size for path in (tmp_path / target).rglob("*") if path.is_file())
        most = 8 * 400_000 + (0 if form == "nxd" else 4_200_000)
        assert peak < most < largest / 3, (form, peak, largest)
    assert bytes_of(tmp_path / "back") == bytes_of(hf)


def test_the_command_knows_what_there_is_without_numpy() -> None:
    assert set(command.DTYPES) < set(BY_CONFIG_NAME)
    code = "import autoshard.commands.convert, sys; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("name", [*builtin_models(), *PUBLISHED])
def test_a_config_that_we_write_is_read_as_the_same_model(name: str) -> None:
    model = MODELS[name] if name in MODELS else load_model(name)
    # of training, not of weights
    weights = replace(model, dropout=Dropout(), lora=None, multi_token_prediction=None)
    assert from_config(json.loads(json.dumps(to_config(model))), model.name) == weights
