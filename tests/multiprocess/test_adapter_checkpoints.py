"""Checkpoints of adapters alone, beside the weights that a run began with."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from autoshard.checkpoint.layout import rank_shards
from autoshard.checkpoint.manifest import Base, read_manifest
from autoshard.checkpoint.tensor_file import read_header
from autoshard.conversion.convert import open_source
from autoshard.conversion.sample import sampled
from autoshard.conversion.source import WeightReader
from autoshard.errors import AutoshardError
from autoshard.interface.converting import convert_checkpoint
from autoshard.models.weights import not_learned
from autoshard.plans.plan_json import write_plan
from autoshard.runtime.data import open_stream, read_token_file
from autoshard.runtime.resume import check_resume
from autoshard.runtime.torch_backend.session import Session
from autoshard.runtime.trainer.checkpoint import Checkpoints
from autoshard.runtime.trainer.initial_weights import Start, load_weights
from autoshard.runtime.trainer.shard_files import read_rank
from autoshard.runtime.worker_arguments import CheckpointOptions
from autoshard.spec.lora import Lora
from autoshard.spec.model import ModelSpec
from tests.multiprocess.command import autoshard
from tests.multiprocess.models import MODELS
from tests.multiprocess.saving_workers import session as opened
from tests.multiprocess.saving_workers import train
from tests.unit.weight_folders import bytes_of, huggingface_folder, plan

BARE = replace(MODELS["llama"], vocab_size=256)
MODEL = replace(BARE, lora=Lora(4, 8.0, ("down_proj", "q_proj")))
GONE = (
    "{} holds adapters alone, and the weights that they stand beside are gone or changed: {}; run --weights FOLDER, or "
    "convert FOLDER with the checkpoint as adapter, says where they are now"
)


def options(folder: Path, resume: str = "auto") -> CheckpointOptions:
    return CheckpointOptions(str(folder), 1, 2, None, resume, True)


def began(weights: Path, adapter: Path | None = None, model: ModelSpec = MODEL) -> tuple[Session, Start]:
    """A session that begins with weights and has trained one step."""
    one = opened(0, model=model)
    start = load_weights(one, weights, adapter)
    train(one)
    return one, start


def save(one: Session, folder: Path, base: Base | None, steps: int = 1) -> Path:
    """The checkpoint of a session in a new folder."""
    saving = Checkpoints(one, options(folder, "never"), 0, print)
    saving.base = base
    saving.after_step(steps, 1e-3, {}, last=True)
    return folder / f"step-{steps:08}"


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return huggingface_folder(tmp_path_factory.mktemp("hf") / "base", BARE, "BF16", files=2)


@pytest.fixture(scope="module")
def trained(hf: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Session, Path]:
    """A session, and its checkpoint of adapters alone."""
    one, start = began(hf)
    return one, save(one, tmp_path_factory.mktemp("trained") / "saved", start.base)


@pytest.fixture
def moved(trained: tuple[Session, Path], hf: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A copy of that checkpoint's place, and one of its weights, where nothing looks for them."""
    shutil.copytree(trained[1].parent, tmp_path / "saved")
    shutil.copytree(hf, tmp_path / "elsewhere")
    path = tmp_path / "saved" / "step-00000001" / "manifest.json"
    manifest = read_manifest(path.parent)
    path.write_text(replace(manifest, base=Base(str(tmp_path / "gone"), sampled(open_source(hf).files))).to_json())
    return path.parent, tmp_path / "elsewhere"


def test_it_holds_what_is_learned_and_names_the_rest(trained: tuple[Session, Path], hf: Path) -> None:
    manifest = read_manifest(trained[1])
    assert manifest.base == Base(str(hf), sampled(sorted(hf.glob("*.safetensors"))))
    names = {key.split("/")[1].split("@")[0] for key in read_header(trained[1] / "rank-00000.safetensors")}
    assert names == {name for one in manifest.files for name in one.tensors}
    assert names and names.isdisjoint(not_learned(MODEL))
    assert all(".lora_" in name for name in names)


def test_a_run_that_goes_on_has_all_again(trained: tuple[Session, Path], hf: Path) -> None:
    before, folder = trained
    after, said = opened(0, seed=1, model=MODEL), list[str]()
    resuming = Checkpoints(after, replace(options(folder.parent), every=None), 0, said.append)
    assert resuming.resume() is not None
    assert resuming.base == read_manifest(folder).base
    for one, other in zip(before.optimizer.state(), after.optimizer.state(), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    for name, value in before.optimizer.masters().items():
        assert torch.equal(after.optimizer.masters()[name], value)


@pytest.mark.parametrize("degrees", [{"tp": 2, "pp": 2}, {"dp": 3, "zero": 3}, {"tp": 4, "dp": 2, "zero": 1}], ids=str)
def test_it_loads_under_any_layout(degrees: dict[str, int], trained: tuple[Session, Path], hf: Path) -> None:
    to, manifest, weights = plan(MODEL, **degrees), read_manifest(trained[1]), open_source(hf)
    seen = dict.fromkeys(weights.shapes, 0)
    with WeightReader(open_source(trained[1])) as reader:
        for rank in range(to.mesh.world_size):
            shards = rank_shards(to, rank)
            loaded = read_rank(trained[1], manifest, shards, beside=weights)
            for shard, values in zip(shards, loaded.state, strict=True):
                for piece in shard.pieces:
                    bits = reader.read(piece.name, piece.box, "F32")
                    found = torch.from_numpy(bits.view("f4"))
                    assert torch.equal(piece.view(values[0]), found)
                    if piece.name in seen and piece.writes:
                        seen[piece.name] += piece.box.elements
    whole = {name: open_source(hf).regions[name] for name in seen}
    assert seen == {name: sum(one.box.elements for one in held) for name, held in whole.items()}


def spoil(weights: Path) -> None:
    file = weights / "model-00001-of-00002.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def without_a_file(weights: Path) -> None:
    (weights / "model-00001-of-00002.safetensors").unlink()


def test_weights_that_are_gone_are_said_and_nothing_is_touched(moved: tuple[Path, Path]) -> None:
    checkpoint, elsewhere = moved
    before = sorted(checkpoint.parent.rglob("*"))
    one = opened(0, model=MODEL)
    why = f"{elsewhere.parent / 'gone'} is not a folder with weights"
    said = GONE.format(f"checkpoint {checkpoint}", why)
    with pytest.raises(AutoshardError, match=f"^{re.escape(said)}$"):
        Checkpoints(one, options(checkpoint.parent), 0, print).resume()
    assert sorted(checkpoint.parent.rglob("*")) == before
    with pytest.raises(AutoshardError, match=f"^{re.escape(GONE.format(f'the checkpoint {checkpoint}', why))}$"):
        convert_checkpoint(checkpoint, elsewhere.parent / "out")
    again = Checkpoints(one, options(checkpoint.parent), 0, print)
    assert again.resume(elsewhere) is not None
    assert again.base == Base(str(elsewhere), sampled(open_source(elsewhere).files))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (spoil, "the Hugging Face checkpoint {} has {}, and they had {}"),
        (without_a_file, "{}/model-00001-of-00002.safetensors is missing, and model.safetensors.index.json names it"),
    ],
)
def test_weights_that_were_changed_are_said(change: Callable[[Path], None], why: str, moved: tuple[Path, Path]) -> None:
    checkpoint, elsewhere = moved
    files = sorted(elsewhere.glob("*.safetensors"))
    before = sampled(files)
    change(elsewhere)
    told = why.format(elsewhere, sampled(files) if change is spoil else "", before)
    one = opened(0, model=MODEL)
    with pytest.raises(AutoshardError, match=f"^{re.escape(GONE.format(f'checkpoint {checkpoint}', told))}$"):
        Checkpoints(one, options(checkpoint.parent), 0, print).resume(elsewhere)
    with pytest.raises(
        AutoshardError, match=f"^{re.escape(GONE.format(f'the checkpoint {checkpoint}', told))}$|^{re.escape(told)}$"
    ):
        convert_checkpoint(elsewhere, elsewhere.parent / "out", adapter=checkpoint)
    assert not (elsewhere.parent / "out").exists()


def test_it_is_converted_with_its_weights_and_alone_for_peft(
    moved: tuple[Path, Path], trained: tuple[Session, Path], tmp_path: Path
) -> None:
    checkpoint, elsewhere = moved
    convert_checkpoint(checkpoint, tmp_path / "peft", to="peft")  # the weights are gone
    convert_checkpoint(trained[1], tmp_path / "hf")
    convert_checkpoint(elsewhere, tmp_path / "beside", adapter=checkpoint.parent)
    convert_checkpoint(elsewhere, tmp_path / "from peft", adapter=tmp_path / "peft")
    merged = bytes_of(tmp_path / "hf")
    assert merged == bytes_of(tmp_path / "beside") == bytes_of(tmp_path / "from peft") != bytes_of(elsewhere)
    convert_checkpoint(trained[1], tmp_path / "cut", plan=plan(MODEL, tp=2))
    convert_checkpoint(tmp_path / "cut", tmp_path / "merged", dtype="bfloat16")
    assert bytes_of(tmp_path / "merged") == merged
    convert_checkpoint(elsewhere, tmp_path / "again", adapter=tmp_path / "cut")
    assert bytes_of(tmp_path / "again") == merged


def test_weights_without_adapters_are_none(hf: Path, tmp_path: Path) -> None:
    convert_checkpoint(hf, tmp_path / "cut", plan=plan(BARE))
    said = f"adapter={tmp_path / 'cut'}: the checkpoint {tmp_path / 'cut'} has no adapters"
    with pytest.raises(AutoshardError, match=f"^{re.escape(said)}$"):
        open_source(hf, adapter=tmp_path / "cut")


def test_weights_of_another_model_are_refused(trained: tuple[Session, Path], tmp_path: Path) -> None:
    other = huggingface_folder(tmp_path / "other", replace(BARE, norm_eps=0.5), "BF16", files=2)
    said = (
        f"the Hugging Face checkpoint {other} is of another model than the plan of the checkpoint {trained[1]}: "
        f"norm_eps=0.5, the plan's has {BARE.norm_eps}"
    )
    with pytest.raises(AutoshardError, match=f"^{re.escape(said)}$"):
        open_source(other, adapter=trained[1])


@pytest.mark.parametrize("value", [{"folder": "/a\nb", "files": ""}, {"folder": "/a"}, "/a"], ids=str)
def test_another_place_than_ours_is_refused(value: object, moved: tuple[Path, Path]) -> None:
    path = moved[0] / "manifest.json"
    content = {**json.loads(path.read_text())["content"], "base": value}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({"format_version": 1, "sha256": digest, "content": content}))
    with pytest.raises(AutoshardError, match=r"^checkpoint manifest .* is not one of autoshard's: its content\.base"):
        read_manifest(moved[0])


def test_another_run_stands_beside_the_same_weights(trained: tuple[Session, Path], hf: Path, tmp_path: Path) -> None:
    _, start = began(trained[1])
    assert start.base == read_manifest(trained[1]).base
    _, begun = began(hf, adapter=trained[1])
    assert begun.base == start.base


def test_weights_that_a_run_may_delete_are_saved_too(tmp_path: Path) -> None:
    one = opened(0, model=BARE)
    train(one)
    other = save(one, tmp_path / "other", None)
    two, start = began(other)
    assert start.base is None
    whole = save(two, tmp_path / "whole", start.base)
    assert open_source(whole).base is None
    assert "base" not in json.loads((whole / "manifest.json").read_text())["content"]  # as an older autoshard reads it
    three = opened(0, seed=1, model=MODEL)
    again = Checkpoints(three, options(whole.parent), 0, print)
    shutil.rmtree(tmp_path / "other")
    again.resume(tmp_path / "other")
    assert again.base is None
    for name, value in two.optimizer.masters().items():
        assert torch.equal(three.optimizer.masters()[name], value)


def test_it_is_seen_before_any_rank_starts(moved: tuple[Path, Path], tmp_path: Path) -> None:
    checkpoint, elsewhere = moved
    (tmp_path / "text.txt").write_text("words " * 200)
    write_plan(plan(MODEL), tmp_path / "plan.json")
    given = ["run", "plan.json", "--data", "text.txt", "--steps", "3", "--resume", str(checkpoint)]
    done = autoshard(tmp_path, *given)
    assert done.returncode == 2
    assert "stand beside are gone or changed" in done.stderr
    assert not list(tmp_path.glob("runs/*/plan.json"))
    (tokens,) = {read_token_file(path) for path in (tmp_path / "runs" / ".tokens").iterdir()} - {None}
    assert tokens is not None
    stream = open_stream(tokens, global_batch_size=2, sequence_length=16)
    found = check_resume(options(checkpoint.parent), MODEL, stream, 3, elsewhere)
    assert str(found) == str(checkpoint)


def test_a_run_that_was_ended_repeats_its_losses(hf: Path, tmp_path: Path) -> None:
    write_plan(plan(MODEL), tmp_path / "plan.json")
    saving = ("--checkpoint-every", "2", "--checkpoint-dir", "saved", "--learning-rate", "0.05", "--steps", "4")
    first = autoshard(tmp_path, "run", "plan.json", "--weights", str(hf), *saving, "--output", "first")
    assert first.returncode == 0, first.stderr
    assert f"checkpoints hold the adapters alone, beside {hf}\n" in first.stdout
    shutil.rmtree(tmp_path / "saved" / "step-00000004")
    second = autoshard(tmp_path, "run", "plan.json", *saving, "--output", "second")
    assert second.returncode == 0, second.stderr
    losses = []
    for name in ("first", "second"):
        (metrics,) = tmp_path.glob(f"{name}/tiny*/metrics.jsonl")
        losses.append([json.loads(line)["loss"] for line in metrics.read_text().splitlines()])
    assert losses[1] == losses[0][2:]
    assert len(set(losses[0])) == 4
