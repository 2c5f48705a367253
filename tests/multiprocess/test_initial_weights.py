"""A run that starts from weights: every form of them, over any ranks, is the same start."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from autoshard.conversion.convert import Conversion, convert, open_source
from autoshard.models.padding import padded_heads
from autoshard.plans.plan import Plan
from autoshard.plans.plan_json import write_plan
from autoshard.runtime.data import open_stream, read_token_file
from autoshard.runtime.torch_backend.optimizer_settings import optimizer_settings
from autoshard.runtime.torch_backend.session import Session
from autoshard.runtime.trainer.initial_weights import load_weights
from autoshard.spec.lora import Lora
from tests.multiprocess.command import autoshard
from tests.multiprocess.models import MODELS
from tests.multiprocess.transformers_models import read_by_transformers
from tests.unit.weight_folders import bytes_of, huggingface_folder, plan

MODEL = replace(MODELS["few kv heads"], vocab_size=256)


def session(to: Plan) -> Session:
    settings = optimizer_settings(to.training.precision, 1e-3, zero=1, seed=0)
    return Session(to, 0, torch.device("cpu"), settings, seed=0)


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the same weights in every form."""
    folder = tmp_path_factory.mktemp("forms")
    source = open_source(huggingface_folder(folder / "hf", MODEL, "BF16", files=2))
    for form in ("plan", "nxd"):
        conversion = Conversion(form, plan(MODEL, tp=4, pp=2))
        convert(source, folder / form, conversion, lambda count: None, lambda count: None)
    return folder


def test_every_form_gives_the_same_masters(forms: Path) -> None:
    masters = {}
    for form in ("hf", "plan", "nxd"):
        one = session(plan(MODEL))
        load_weights(one, forms / form)
        masters[form] = {name: value.clone() for name, value in one.optimizer.masters().items()}
        for bucket in one.optimizer.buckets:
            assert torch.equal(bucket.parameters, bucket.master.detach())
    random = session(plan(MODEL)).optimizer.masters()
    for name, value in masters["hf"].items():
        assert torch.equal(masters["plan"][name], value) and torch.equal(masters["nxd"][name], value)
        assert not torch.equal(random[name], value)


def test_weights_cut_for_a_layout_with_padding_are_the_same(tmp_path: Path) -> None:
    odd = replace(MODEL, num_attention_heads=3 * MODEL.num_key_value_heads)
    tp = 2 * MODEL.num_key_value_heads
    source = open_source(huggingface_folder(tmp_path / "hf", odd, "F32"))
    convert(source, tmp_path / "plan", Conversion("plan", plan(odd, tp=tp)), lambda count: None, lambda count: None)
    assert padded_heads(odd, tp).groups == 4
    masters = []
    for form in ("hf", "plan"):
        one = session(plan(odd))
        load_weights(one, tmp_path / form)
        masters.append({name: value.clone() for name, value in one.optimizer.masters().items()})
    assert all(torch.equal(masters[1][name], value) for name, value in masters[0].items())


def test_a_run_over_four_ranks_starts_where_one_process_does(forms: Path, tmp_path: Path) -> None:
    write_plan(plan(MODEL, tp=2, dp=2), tmp_path / "plan.json")
    given = ["run", "plan.json", "--weights", str(forms / "plan"), "--steps", "1", "--processes", "4"]
    saving = ["--checkpoint-every", "1", "--checkpoint-dir", "saved"]
    done = autoshard(tmp_path, *given, *saving)
    assert done.returncode == 0, done.stderr
    convert(open_source(tmp_path / "saved"), tmp_path / "hf", Conversion("hf"), lambda count: None, lambda count: None)
    before, after = bytes_of(forms / "hf"), bytes_of(tmp_path / "hf")  # after a step of 1e-4
    for name, (_, shape, data) in before.items():
        assert (after[name][0], after[name][1]) == ("F32", shape)
        weights = torch.frombuffer(bytearray(data), dtype=torch.bfloat16).float()
        trained = torch.frombuffer(bytearray(after[name][2]), dtype=torch.float32)
        assert 0 < float((trained - weights).abs().max()) < 1e-3
    (metrics,) = tmp_path.glob("runs/tiny*/metrics.jsonl")
    loss = json.loads(metrics.read_text())["loss"]
    assert loss > 10  # random weights of the runtime give 5.5
    (tokens,) = {read_token_file(path) for path in (tmp_path / "runs" / ".tokens").iterdir()} - {None}
    assert tokens is not None
    one = session(plan(MODEL, mbs=2))
    load_weights(one, forms / "hf")
    inputs, labels = open_stream(tokens, global_batch_size=4, sequence_length=16).batch(0)
    assert one.step(inputs, labels, learning_rate=0.0).loss == pytest.approx(loss, rel=1e-6)


def test_a_merged_model_computes_what_its_ranks_did(forms: Path, tmp_path: Path) -> None:
    """Trained by two ranks from a checkpoint without adapters; the loss of the third step is one of the second's."""
    adapted = replace(MODEL, lora=Lora(4, 8.0, ("down_proj", "q_proj", "v_proj")))
    write_plan(plan(adapted, tp=2), tmp_path / "plan.json")
    given = ["run", "plan.json", "--weights", str(forms / "hf"), "--steps", "3", "--processes", "2"]
    saving = ["--learning-rate", "0.05", "--warmup-steps", "0", "--checkpoint-every", "2", "--checkpoint-dir", "saved"]
    done = autoshard(tmp_path, *given, *saving)
    assert done.returncode == 0, done.stderr
    for target, dtype in (("hf", ("--dtype", "float32")), ("peft", ())):
        done = autoshard(tmp_path, "convert", "saved/step-00000002", target, "--to", target, *dtype)
        assert done.returncode == 0, done.stderr
    (metrics,) = tmp_path.glob("runs/tiny*/metrics.jsonl")
    losses = [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]
    (tokens,) = {read_token_file(path) for path in (tmp_path / "runs" / ".tokens").iterdir()} - {None}
    assert tokens is not None
    inputs, labels = open_stream(tokens, global_batch_size=2, sequence_length=16).batch(2)
    for folder, differs in ((tmp_path / "hf", False), (forms / "hf", True)):
        logits = read_by_transformers(folder)(torch.from_numpy(inputs)).logits.detach()
        loss = float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(labels).flatten()))
        assert (loss == pytest.approx(losses[2], rel=1e-5)) is not differs
    down = bytes_of(tmp_path / "peft")["base_model.model.model.layers.3.mlp.down_proj.lora_A.weight"]
    assert down[1] == (4, MODEL.intermediate_size)
    again = session(plan(adapted))
    load_weights(again, forms / "hf", tmp_path / "peft")
    assert again.step(inputs, labels, learning_rate=0.0).loss == pytest.approx(losses[2], rel=1e-5)
