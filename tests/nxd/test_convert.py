"""Files that we write for NxD equal those of NxD's own converter, and its loader reads them."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from autoshard.conversion.convert import Conversion, convert, open_source
from autoshard.conversion.nxd import NxdOptions, file_name
from tests.multiprocess.models import MODELS
from tests.unit.trn2_files import FILES, shrunken, trn2_plan
from tests.unit.weight_folders import bytes_of, huggingface_folder, plan

CASES: dict[str, tuple[str, dict[str, int], NxdOptions]] = {
    "interleaved stages": ("llama", {"tp": 2, "pp": 2, "vpp": 2}, NxdOptions("separate")),
    "key-value heads twice": ("few kv heads", {"tp": 4, "pp": 2}, NxdOptions("gqa")),
    "fused": ("few kv heads", {"tp": 4}, NxdOptions("fused")),
}


def converted(folder: Path, name: str, options: NxdOptions) -> Path:
    """The Hugging Face folder and the one for NxD."""
    model, degrees, _ = CASES[name]
    hf = huggingface_folder(folder / "hf", MODELS[model])
    conversion = Conversion("nxd", plan(MODELS[model], **degrees), nxd=options)
    convert(open_source(hf), folder / "nxd", conversion, lambda count: None, lambda count: None)
    return hf


@pytest.mark.parametrize("name", CASES)
def test_files_equal_those_of_its_converter(name: str, tmp_path: Path) -> None:
    _, degrees, options = CASES[name]
    hf = converted(tmp_path, name, options)
    tp, pp = degrees["tp"], degrees.get("pp", 1)
    for tp_rank in range(tp):
        for pp_rank in range(pp):
            expected = theirs(hf, tp, pp, even_cuts(hf, pp * degrees.get("vpp", 1)), options.qkv, tp_rank, pp_rank)
            ours = torch.load(tmp_path / "nxd" / "model" / file_name(tp_rank, pp_rank), weights_only=True)
            assert ours.keys() == expected.keys()
            for tensor, value in expected.items():
                assert torch.equal(ours[tensor], value), tensor


@pytest.mark.parametrize("name", FILES)
def test_files_of_the_trn2_layouts_equal_those_of_its_converter(name: str, tmp_path: Path) -> None:
    """All 32 x 4 of the 70B, and the 16 of the 8B, of shrunken models; with the file's own pipeline cuts.

    But for keys and values: of trn2 the converter puts query heads side by side that share a key-value head, as NxD's
    layers do, and repeats key-value heads as on trn1, K0 K1 ... K7 K0, which gives ranks heads of other queries.
    """
    to = shrunken(trn2_plan(name, tmp_path))
    hf = huggingface_folder(tmp_path / "hf", to.model)
    convert(open_source(hf), tmp_path / "nxd", Conversion("nxd", to), lambda count: None, lambda count: None)
    cuts = [f"model.layers.{stage.stop_layer - 1}" for stage in to.stages[:-1]]
    tp, pp, mixed = to.strategy.tp, to.strategy.pp, 0
    weights = load_file(hf / "model.safetensors")
    assert len(list((tmp_path / "nxd" / "model").iterdir())) == tp * pp
    for tp_rank in range(tp):
        for pp_rank in range(pp):
            expected = theirs(hf, tp, pp, cuts, "gqa", tp_rank, pp_rank, "trn2")
            ours = torch.load(tmp_path / "nxd" / "model" / file_name(tp_rank, pp_rank), weights_only=True)
            assert ours.keys() == expected.keys()
            for tensor, value in expected.items():
                letter = tensor[-1] if tensor.endswith(("weight_k", "weight_v")) else ""
                if letter:
                    mixed += not torch.equal(ours[tensor], value)
                    published = weights[tensor.replace(f"qkv_proj.weight_{letter}", f"{letter}_proj.weight")]
                    heads = published.view(8, -1, to.model.hidden_size)
                    value = heads[tp_rank // (tp // 8)]  # as NxD's layers have them on trn2
                assert torch.equal(ours[tensor], value), (tp_rank, pp_rank, tensor)
    assert mixed, "the converter still repeats heads as on trn1"


def test_files_of_dbrx_equal_those_of_the_examples_converter(tmp_path: Path, example_file: Path) -> None:
    """examples/training/dbrx has names of its own: blocks, ffn, wte, and o_proj for out_proj."""
    model = replace(MODELS["dbrx"], num_key_value_heads=2)
    hf = huggingface_folder(tmp_path / "hf", model)
    conversion = Conversion("nxd", plan(model, tp=4, pp=2))
    convert(open_source(hf), tmp_path / "nxd", conversion, lambda count: None, lambda count: None)
    spec = spec_from_file_location("dbrx_converter", example_file.parents[1] / "dbrx" / "convert_checkpoints.py")
    assert spec is not None and spec.loader is not None
    example = module_from_spec(spec)
    spec.loader.exec_module(example)
    cuts = [f"transformer.blocks.{model.num_hidden_layers // 2 - 1}"]
    for tp_rank in range(4):
        for pp_rank in range(2):
            expected = theirs(hf, 4, 2, cuts, "gqa", tp_rank, pp_rank, converter=example.CheckpointConverterDbrx())
            ours = torch.load(tmp_path / "nxd" / "model" / file_name(tp_rank, pp_rank), weights_only=True)
            assert ours.keys() == expected.keys()
            for tensor, value in expected.items():
                assert torch.equal(ours[tensor], value), tensor


def even_cuts(hf: Path, stages: int) -> list[str]:
    """Where NxD cuts by itself."""
    partition = importlib.import_module("neuronx_distributed.pipeline.partition")
    layers = json.loads((hf / "config.json").read_text())["num_hidden_layers"]
    cuts: list[str] = partition.create_partitions(stages, [f"model.layers.{block}" for block in range(layers)])
    return cuts


def theirs(
    hf: Path,
    tp: int,
    pp: int,
    cuts: list[str],
    qkv: str,
    tp_rank: int,
    pp_rank: int,
    backend: str = "trn1",
    converter: Any = None,
) -> dict[str, torch.Tensor]:
    """A rank's state, by NxD's converter, or by another one that is made of it."""
    if converter is None:
        scripts = importlib.import_module("neuronx_distributed.scripts.checkpoint_converter")
        converter = scripts.CheckpointConverterBase()
    config = json.loads((hf / "config.json").read_text())
    multiplier = max(1, tp // converter._get_config_value(config, "num_key_value_heads"))
    arguments = SimpleNamespace(
        tp_size=tp,
        pp_size=pp,
        ep_size=1,
        kv_size_multiplier=multiplier,
        qkv_linear=qkv != "separate",
        fuse_qkv=qkv == "fused",
        coalesce_qkv=False,
        pad_attn_heads=False,
        i_tp_round_factor=0,
        hw_backend=backend,
        model_style="hf",
        convert_from_full_state=True,
        n_layers=converter._get_config_value(config, "num_hidden_layers"),
        config=hf / "config.json",
    )
    state = converter.pre_process_full_state_before_tp_conversion(load_file(hf / "model.safetensors"), arguments)
    found: dict[str, torch.Tensor] = converter.convert_full_state_to_tp(
        state, arguments, tp_rank, pp_rank, 0, cuts, config
    )
    return found


def test_its_loader_reads_serialized_tensors_and_we_read_what_it_left(tmp_path: Path) -> None:
    hf = converted(tmp_path, "fused", NxdOptions("gqa", xser=True))
    checkpoint = importlib.import_module("neuronx_distributed.trainer.checkpoint")
    storage = importlib.import_module("neuronx_distributed.trainer.checkpoint_storage")
    serialization: Any = importlib.import_module("torch_xla.utils.serialization")
    root = storage.create_checkpoint_storage(str(tmp_path))
    assert root.list_completed_checkpoint_tags() == ["nxd"] and root.is_checkpoint_xser("nxd")
    (tmp_path / "theirs" / "model").mkdir(parents=True)
    (tmp_path / "theirs" / "config.json").write_bytes((hf / "config.json").read_bytes())
    for tp_rank in range(4):
        read = checkpoint._xser_load_data(root, f"nxd/model/{file_name(tp_rank, 0)}")
        path = tmp_path / "theirs" / "model" / file_name(tp_rank, 0)
        folder = Path(serialization._get_tensors_folder(str(path)))
        folder.mkdir()
        for index, value in enumerate(read.values()):
            torch.save(value.cpu(), serialization._get_tensor_file(str(folder), index))
        torch.save({name: serialization.TensorReference(index) for index, name in enumerate(read)}, path)
    back = Conversion("hf")
    convert(open_source(tmp_path / "theirs"), tmp_path / "back", back, lambda count: None, lambda count: None)
    assert bytes_of(tmp_path / "back") == bytes_of(hf)
