"""What is wrong with weights is told in one line that names the file and the tensor, and leaves nothing behind."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoshard.cli import main
from autoshard.conversion import folder
from autoshard.conversion.convert import Conversion, convert, open_source, source_for
from autoshard.conversion.dtypes import as_dtype
from autoshard.errors import AutoshardError
from autoshard.plans.plan_json import write_plan
from tests.multiprocess.models import MODELS
from tests.unit.weight_folders import bytes_of, huggingface_folder, plan, weights, write_safetensors

LLAMA = MODELS["llama"]
UP = "model.layers.1.mlp.up_proj.weight"


def change(folder: Path, edit: Callable[[dict[str, Any]], None], dtype: str = "F32") -> None:
    """Another model.safetensors than the config asks for."""
    tensors = weights(LLAMA, "F32")
    edit(tensors)
    write_safetensors(folder / "model.safetensors", tensors, dtype)


def without(hf: Path) -> None:
    change(hf, lambda tensors: tensors.pop(UP))


def with_another(hf: Path) -> None:
    change(hf, lambda tensors: tensors.update({"model.layers.9.mlp.up_proj.weight": tensors[UP]}))


def reshaped(hf: Path) -> None:
    change(hf, lambda tensors: tensors.update({UP: tensors[UP].T.copy()}))


def integers(hf: Path) -> None:
    change(hf, lambda tensors: None, dtype="I32")


def cut_off(hf: Path) -> None:
    path = hf / "model.safetensors"
    os.truncate(path, path.stat().st_size - 10)


def a_pickle(hf: Path) -> None:
    (hf / "model.safetensors").write_bytes(b"\x80\x04cos\nsystem\n(Vtouch pwned\ntR." * 100)


def endless_header(hf: Path) -> None:
    (hf / "model.safetensors").write_bytes((2**60).to_bytes(8, "little") + b"{}")


def overlapping(hf: Path) -> None:
    path = hf / "model.safetensors"
    header = {name: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} for name in ("a", "b")}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))


def shard_missing(hf: Path) -> None:
    shutil.rmtree(hf)
    huggingface_folder(hf, LLAMA, files=3)
    (hf / "model-00002-of-00003.safetensors").unlink()


def index_points_out(hf: Path) -> None:
    (hf / "model.safetensors").rename(hf / "x.safetensors")
    (hf / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {UP: "../x.safetensors"}}))


def index_lies(hf: Path) -> None:
    shutil.rmtree(hf)
    huggingface_folder(hf, LLAMA, files=3)
    index = hf / "model.safetensors.index.json"
    where = json.loads(index.read_text())
    name = next(name for name, file in where["weight_map"].items() if "00001" in file)
    where["weight_map"][name] = "model-00002-of-00003.safetensors"
    index.write_text(json.dumps(where))


def only_pickles(hf: Path) -> None:
    (hf / "model.safetensors").rename(hf / "pytorch_model.bin")


def config_of_another(hf: Path) -> None:
    config = json.loads((hf / "config.json").read_text())
    (hf / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 5}))


def config_is_python(hf: Path) -> None:
    (hf / "config.json").write_text("__import__('os').system('touch pwned')")


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a tensor is missing": (without, f"hf has no tensor {UP}, which the model of its config.json needs"),
    "of a larger model": (
        with_another,
        "hf/model.safetensors has tensor model.layers.9.mlp.up_proj.weight, which the model of hf/config.json does not",
    ),
    "another shape": (reshaped, f"hf/model.safetensors: {UP} has shape [64, 96]; the model's is [96, 64]"),
    "another dtype": (
        integers,
        "hf/model.safetensors: model.embed_tokens.weight has dtype I32; BF16, F16, F32, F64 are converted",
    ),
    "cut off": (cut_off, "hf/model.safetensors has 547,282 bytes; its header describes 547,292"),
    "a pickle": (a_pickle, "hf/model.safetensors is not a safetensors file: its header of "),
    "an endless header": (endless_header, "hf/model.safetensors is not a safetensors file: its header of "),
    "overlapping tensors": (overlapping, "hf/model.safetensors: tensors overlap or leave a gap at byte "),
    "a shard is missing": (
        shard_missing,
        "hf/model-00002-of-00003.safetensors is missing, and model.safetensors.index.json names it",
    ),
    "an index to elsewhere": (
        index_points_out,
        f"hf/model.safetensors.index.json: {UP} is in '../x.safetensors', which is not a safetensors file beside it",
    ),
    "an index that lies": (index_lies, "hf/model-00002-of-00003.safetensors has no tensor lm_head.weight, which "),
    "pickles alone": (only_pickles, "hf has no weights that are read: neither model.safetensors"),
    "a config of another model": (config_of_another, "hf has no tensor model.layers.4.self_attn.q_proj.weight, which "),
    "a config that is a program": (config_is_python, "model config hf/config.json, line 1, column 1: not JSON"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_one_line_that_names_the_file_and_nothing_is_left(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    apply, message = DAMAGES[damage]
    apply(huggingface_folder(tmp_path / "hf", LLAMA))
    write_plan(plan(LLAMA, tp=2), "plan.json")
    assert main(["convert", "hf", "out", "--plan", "plan.json"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"autoshard: error: {message}"), error
    assert error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "plan.json"]


def outcome(*arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["convert", *arguments]) == 2
    return capsys.readouterr().err.removeprefix("autoshard: error: ").rstrip("\n")


def test_a_plan_of_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    huggingface_folder(tmp_path / "hf", LLAMA)
    write_plan(plan(replace(LLAMA, vocab_size=128), tp=2), "plan.json")
    assert outcome("hf", "out", "--plan", "plan.json", capsys=capsys) == (
        "the Hugging Face checkpoint hf is of another model than the plan: vocab_size=96, the plan's has 128"
    )
    assert outcome("hf", "out", "--to", "plan", capsys=capsys) == (
        "to=plan needs a plan: it says how many ranks there are and what each holds"
    )
    assert outcome("hf", "hf", capsys=capsys) == "hf is a folder with something in it: name another, or delete it first"
    assert outcome("hf", "plan.json", capsys=capsys) == "plan.json is a file: name a folder that is not there yet"
    assert outcome("s3://bucket/step-00000010", "out", capsys=capsys) == (
        "source=s3://bucket/step-00000010: convert reads and writes folders of this machine; copy it there first"
    )
    assert outcome("hf", "gs://bucket/x", capsys=capsys) == (
        "target=gs://bucket/x: convert reads and writes folders of this machine; copy it there first"
    )
    assert outcome("nowhere", "out", capsys=capsys) == "nowhere is not a folder with weights"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("of_plan", "of_weights"), [(None, 0.7), (0.7, None)])
def test_a_field_that_only_one_of_two_models_has(
    of_plan: float | None, of_weights: float | None, tmp_path: Path
) -> None:
    """A field is left out of JSON where it is its default: it differs from any value all the same."""
    gemma = MODELS["gemma2"]
    source = open_source(huggingface_folder(tmp_path / "hf", replace(gemma, final_logit_softcapping=of_weights)))
    with pytest.raises(AutoshardError) as raised:
        source_for(source, plan(replace(gemma, final_logit_softcapping=of_plan)))
    assert str(raised.value) == (
        f"the Hugging Face checkpoint {tmp_path / 'hf'} is of another model than the plan: "
        f"final_logit_softcapping={of_weights}, the plan's has {of_plan}"
    )


def test_a_changed_checkpoint(tmp_path: Path) -> None:
    hf = huggingface_folder(tmp_path / "hf", LLAMA)
    cut = tmp_path / "cut"
    run(hf, cut, "plan")
    path = cut / "rank-00001.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(AutoshardError, match=r"rank-00001\.safetensors was changed: its SHA-256 is another"):
        run(cut, tmp_path / "out")
    path.unlink()
    with pytest.raises(AutoshardError, match=r"rank-00001\.safetensors"):
        run(cut, tmp_path / "out")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["cut", "hf"]


def run(source: Path, target: Path, form: str = "hf", **options: Any) -> None:
    to = plan(LLAMA, tp=2) if form == "plan" else None
    convert(open_source(source), target, Conversion(form, to, **options), lambda count: None, lambda count: None)


def test_a_disk_without_room_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = huggingface_folder(tmp_path / "hf", LLAMA)
    monkeypatch.setattr(folder.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 1_000))  # type: ignore[attr-defined]
    with pytest.raises(AutoshardError, match=r"out needs 547 KB, its disk has 1.00 KB left: nothing was written"):
        run(hf, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_disk_that_fills_up_and_ctrl_c_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hf = huggingface_folder(tmp_path / "hf", LLAMA)

    def interrupted(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(open_source(hf), tmp_path / "out", Conversion("hf"), lambda count: None, interrupted)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["hf"]

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(AutoshardError, match=r"out cannot be written: No space left on device"):
        run(hf, tmp_path / "out")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["hf"]


def test_what_a_killed_conversion_left_goes_with_the_next(tmp_path: Path) -> None:
    hf = huggingface_folder(tmp_path / "hf", LLAMA)
    dead = subprocess.Popen(["true"])
    dead.wait()
    host = socket.gethostname()
    stay = {f".out.{host}.{os.getppid()}.tmp", f".other.{host}.{dead.pid}.tmp", f".out.elsewhere.{dead.pid}.tmp"}
    for name in {f".out.{host}.{dead.pid}.tmp", *stay}:
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").write_text("")
    run(hf, tmp_path / "out")
    assert {one.name for one in tmp_path.iterdir()} == {*stay, "hf", "out"}


def test_a_source_that_is_cut_off_while_it_is_read(tmp_path: Path) -> None:
    hf = huggingface_folder(tmp_path / "hf", LLAMA)
    source = open_source(hf)
    os.truncate(hf / "model.safetensors", 30_000)
    with pytest.raises(AutoshardError, match=r"model\.safetensors ends inside model\."):
        convert(source, tmp_path / "out", Conversion("hf"), lambda count: None, lambda count: None)
    assert not (tmp_path / "out").exists()


def test_weights_of_two_dtypes(tmp_path: Path) -> None:
    hf = huggingface_folder(tmp_path / "hf", LLAMA, "BF16")
    tensors = weights(LLAMA, "BF16")
    norm = tensors.pop("model.norm.weight")
    write_safetensors(hf / "model-1.safetensors", tensors, "BF16")
    write_safetensors(hf / "model-2.safetensors", {"model.norm.weight": norm.astype(np.float32)}, "F32")
    (hf / "model.safetensors").unlink()
    run(hf, tmp_path / "same")
    assert bytes_of(tmp_path / "same") == bytes_of(hf)
    with pytest.raises(AutoshardError) as error:
        run(hf, tmp_path / "cut", "plan")
    assert str(error.value) == (
        f"the Hugging Face checkpoint {hf} has weights of several dtypes (bfloat16, float32), a plan has one: give it "
        "with --dtype"
    )
    run(hf, tmp_path / "cut", "plan", dtype="float32")
    run(tmp_path / "cut", tmp_path / "back", dtype="bfloat16")
    assert {dtype for dtype, _, _ in bytes_of(tmp_path / "back").values()} == {"BF16"}
    up = "model.layers.0.mlp.up_proj.weight"
    assert bytes_of(tmp_path / "back")[up] == bytes_of(hf)[up]


def test_rounding_to_the_nearest_even() -> None:
    # a bfloat16 at 1 has steps of 1/128: half a step goes to the even neighbour, a little more than half up
    values = np.array([1 + 1 / 256, 1 + 3 / 256, 1 + 1 / 256 + 1e-6, -0.0, np.inf, np.nan], np.float32)
    found = as_dtype(values.view(np.uint32), "F32", "BF16")
    assert [hex(one) for one in found] == ["0x3f80", "0x3f82", "0x3f81", "0x8000", "0x7f80", "0x7fc0"]
    back = as_dtype(found, "BF16", "F32").view(np.float32)
    np.testing.assert_array_equal(back, [1, 1 + 4 / 256, 1 + 2 / 256, 0, np.inf, np.nan])
    assert as_dtype(np.array([0x3C01], np.uint16), "F16", "F32").view(np.float32)[0] == 1 + 2**-10
    # rounded to F32 first this would be the tie 1 + 1/256, and then 1
    double = np.array([1 + 1 / 256 + 2.0**-40]).view(np.uint64)
    assert hex(as_dtype(double, "F64", "BF16")[0]) == "0x3f81"


def test_a_dtype_that_cannot_hold_the_weights(tmp_path: Path) -> None:
    hf = huggingface_folder(tmp_path / "hf", LLAMA)
    change(hf, lambda tensors: tensors.update({UP: tensors[UP] * np.float32(1e6)}))
    with pytest.raises(AutoshardError, match=rf"{UP} has values beyond what float16 holds"):
        run(hf, tmp_path / "out", dtype="float16")
    change(hf, lambda tensors: None)
    run(hf, tmp_path / "out", dtype="bfloat16")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_half_a_gib_of_header_is_not_read_and_unknown_files_are_not_carried(tmp_path: Path) -> None:
    hf = huggingface_folder(tmp_path / "hf", LLAMA)
    for name in ("tokenizer.json", "modeling_llama.py", "optimizer.pt"):
        (hf / name).write_text("{}")
    run(hf, tmp_path / "out")
    assert sorted(one.name for one in (tmp_path / "out").iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]


@pytest.mark.parametrize("same", [True, False])
def test_a_head_that_the_config_ties_must_be_the_embedding(tmp_path: Path, same: bool) -> None:
    """transformers 5 ties them only where they are equal, so a head left out would be lost."""
    hf, table = huggingface_folder(tmp_path / "hf", MODELS["tied"]), "model.embed_tokens.weight"
    tensors = weights(MODELS["tied"], "F32")
    tensors["lm_head.weight"] = tensors[table].copy() if same else tensors[table] + np.float32(1)
    write_safetensors(hf / "model.safetensors", tensors, "F32")
    if same:
        assert open_source(hf).model.tie_word_embeddings
        return
    told = f"lm_head.weight is not {table}, and {hf}/config.json ties them: set tie_word_embeddings to false there, or "
    with pytest.raises(AutoshardError, match=f"^{hf}/model.safetensors: {told}remove the tensor$"):
        open_source(hf)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--qkv", "fused"), "qkv=fused is of NxD's files, and to=hf writes others"),
        (("--plan", "plan.json", "--xser"), "xser=True is of NxD's files, and to=plan writes others"),
        (("--plan", "plan.json", "--kv-size-multiplier", "2"), "kv_size_multiplier=2 is of NxD's files, and to=plan "),
    ],
)
def test_options_of_nxd_files_go_with_no_other_form(
    options: tuple[str, ...],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    huggingface_folder(tmp_path / "hf", LLAMA)
    write_plan(plan(LLAMA, tp=2), "plan.json")
    assert main(["convert", "hf", "out", *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"autoshard: error: {told}") and error.endswith(": give to=nxd, or leave it out\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("source", "options", "told"),
    [
        (
            "hf",
            (),
            (
                "model='llama3-8b' is for NxD's files, which do not say their model; the Hugging Face checkpoint hf "
                "does: leave it out"
            ),
        ),
        (
            "cut",
            (),
            "model='llama3-8b' is for NxD's files, which do not say their model; the checkpoint cut does: leave it out",
        ),
        ("hf", ("--plan", "plan.json"), "model='llama3-8b' beside a plan, which says the model; leave it out"),
    ],
)
def test_a_model_is_for_files_that_do_not_say_theirs(
    source: str,
    options: tuple[str, ...],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    run(huggingface_folder(tmp_path / "hf", LLAMA), tmp_path / "cut", "plan")
    write_plan(plan(LLAMA, tp=2), "plan.json")
    assert main(["convert", source, "out", "--model", "llama3-8b", *options]) == 2
    assert capsys.readouterr().err == f"autoshard: error: {told}\n"
    assert not (tmp_path / "out").exists()


def test_errors_name_the_folder_that_is_asked_for_and_not_the_one_in_its_place(tmp_path: Path) -> None:
    """A migration's checkpoint is a new folder in a new one."""
    with pytest.raises(AutoshardError) as error, folder.new_folder(tmp_path / "there") as written:
        folder.check_space(written / "checkpoint", 10**18)
    assert str(error.value).startswith(f"{tmp_path / 'there' / 'checkpoint'} needs ")
    assert not list(tmp_path.iterdir())
